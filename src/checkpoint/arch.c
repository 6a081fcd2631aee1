/*
 * Reads the tables. A name such as "layers.{l}.(attn|self_attn).(wq_a|q_a_proj)" is a small pattern: written out with
 * one choice per group it is a stored name to look up (one hash look-up per spelling), and matched backwards it tells
 * which row a stored name belongs to.
 */
#include "checkpoint/arch.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

const nb_arch *const nb_archs[] = {
    &nb_arch_deepseek_v3, &nb_arch_deepseek_v4, &nb_arch_gemma3,
    &nb_arch_gemma4,      &nb_arch_glm4_moe,    &nb_arch_gpt_oss,
    &nb_arch_llama,       &nb_arch_minimax_m2,  &nb_arch_mistral,
    &nb_arch_mixtral,     &nb_arch_nemotron_h,  &nb_arch_phi3,
    &nb_arch_qwen2,       &nb_arch_qwen2_moe,   &nb_arch_qwen3,
    &nb_arch_qwen3_moe,   &nb_arch_qwen3_next,  NULL,
};

#define MAX_GROUPS 6
#define MAX_CHOICES 8 /* of one group, and prefixes */

/* One way to write a row's name: which prefix, and which alternative of each group. */
typedef struct spelling {
    unsigned prefix, choice[MAX_GROUPS];
} spelling;

static bool is_module(const nb_arch_tensor *t)
{
    return t->role == NB_ROLE_LINEAR || t->role == NB_ROLE_EMBED || t->role == NB_ROLE_HEAD;
}

/* The group "(a|b)" number i of a pattern with its length, or NULL; *choices counts its alternatives. */
static const char *group(const char *name, size_t i, size_t *len, unsigned *choices)
{
    const char *p = strchr(name, '(');
    while (p && i--) p = strchr(p + 1, '(');
    if (!p) return NULL;
    *len = strcspn(p, ")") + 1;
    *choices = 1;
    for (size_t k = 0; k < *len; k++) *choices += p[k] == '|';
    return p;
}

/* Copies n bytes to buf at *at, if they and a NUL fit. */
static bool put(char *buf, size_t cap, size_t *at, const char *s, size_t n)
{
    if (n >= cap - *at) return false;
    memcpy(buf + *at, s, n);
    *at += n;
    buf[*at] = '\0';
    return true;
}

/* Copies a stretch of a pattern that holds no group, with numbers for its indices. */
static bool put_numbered(char *buf, size_t cap, size_t *at, const char *p, size_t n, int64_t l, int64_t e)
{
    for (const char *end = p + n; p < end;) {
        size_t plain = strcspn(p, "{");
        if (plain > (size_t)(end - p)) plain = (size_t)(end - p);
        if (!put(buf, cap, at, p, plain)) return false;
        p += plain;
        if (p == end) break;
        char number[24];
        int k = snprintf(number, sizeof number, "%lld", (long long)(p[1] == 'l' ? l : e));
        if (!put(buf, cap, at, number, (size_t)k)) return false;
        p += 3;
    }
    return true;
}

/* Writes the name in one spelling; false when it does not fit. */
static bool spell(const char *prefix, const char *name, const spelling *sp, int64_t l, int64_t e, char *buf,
                  size_t cap)
{
    size_t at = 0, g = 0;
    if (!cap || !put(buf, cap, &at, prefix, strlen(prefix))) return false;
    while (*name) {
        size_t n = strcspn(name, "(");
        if (!put_numbered(buf, cap, &at, name, n, l, e)) return false;
        name += n;
        if (!*name) break;
        const char *end = strchr(name, ')');
        for (unsigned k = sp->choice[g++]; k; k--) name = strchr(name, '|') + 1;
        name += *name == '(';
        if (!put_numbered(buf, cap, &at, name, strcspn(name, "|)"), l, e)) return false;
        name = end + 1;
    }
    return true;
}

/* Steps to the next spelling; false after the last. */
static bool next_spelling(const nb_arch *a, const nb_arch_tensor *t, spelling *sp)
{
    size_t len;
    unsigned choices;
    for (size_t i = 0; i < MAX_GROUPS && group(t->name, i, &len, &choices); i++) {
        if (++sp->choice[i] < choices) return true;
        sp->choice[i] = 0;
    }
    return a->prefixes[++sp->prefix] != NULL;
}

static bool find_spelling(const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *t, int64_t l,
                          int64_t e, spelling *sp, char *buf, size_t cap, const nb_tensor_info **tensor)
{
    *sp = (spelling){0};
    do {
        if (!spell(cfg->arch->prefixes[sp->prefix], t->name, sp, l, e, buf, cap)) continue;
        const nb_tensor_info *found = is_module(t) ? NULL : nb_ckpt_find(c, buf);
        if (!found && !(is_module(t) && nb_linear_exists(c, buf))) continue;
        if (tensor) *tensor = found;
        return true;
    } while (next_spelling(cfg->arch, t, sp));
    return false;
}

static bool has(const nb_arch_tensor *t, const char *index)
{
    return strstr(t->name, index) != NULL;
}

/* The first layer that has this row. */
static int64_t first_layer(const nb_config *cfg, const nb_arch_tensor *t)
{
    int64_t n = nb_arch_layers(cfg, t), l = 0;
    while (t->when && has(t, "{l}") && l < n - 1 && !t->when(cfg, (int)l)) l++;
    return l;
}

static unsigned most(const unsigned *votes, unsigned n, unsigned otherwise)
{
    unsigned best = otherwise < n ? otherwise : 0;
    for (unsigned i = 0; i < n; i++) {
        if (votes[i] > votes[best]) best = i;
    }
    return best;
}

/* How this checkpoint spells what it does have: each other row votes for its prefix, for its choice in every group that it
 * shares with t, and (for groups that it does not share) for the native or the transformers family of names. */
static void vote(const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *t, spelling *out)
{
    unsigned prefix[MAX_CHOICES] = {0}, votes[MAX_GROUPS][MAX_CHOICES] = {{0}}, family[2] = {0};
    const nb_arch *a = cfg->arch;
    size_t len, len2;
    unsigned choices, choices2;
    char buf[256];
    for (const nb_arch_tensor *r = a->tensors; r < a->tensors + a->n_tensors; r++) {
        spelling sp;
        if (r == t || !find_spelling(c, cfg, r, first_layer(cfg, r), 0, &sp, buf, sizeof buf, NULL)) continue;
        if (sp.prefix < MAX_CHOICES) prefix[sp.prefix]++;
        const char *g, *h;
        for (size_t i = 0; i < MAX_GROUPS && (g = group(r->name, i, &len, &choices)); i++) {
            family[sp.choice[i] > 0]++;
            for (size_t k = 0; k < MAX_GROUPS && (h = group(t->name, k, &len2, &choices2)); k++) {
                if (len == len2 && memcmp(g, h, len) == 0 && sp.choice[i] < MAX_CHOICES)
                    votes[k][sp.choice[i]]++;
            }
        }
    }
    *out = (spelling){.prefix = most(prefix, MAX_CHOICES, 0)};
    for (size_t k = 0; k < MAX_GROUPS && group(t->name, k, &len, &choices); k++)
        out->choice[k] = most(votes[k], choices < MAX_CHOICES ? choices : MAX_CHOICES, most(family, 2, 0));
}

/* The most likely spelling of an absent tensor: that of the same row in a few other layers and experts, else by vote. */
static void likely(const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *t, int64_t l, int64_t e,
                   spelling *out)
{
    char buf[256];
    const int64_t layers = nb_arch_layers(cfg, t), experts = nb_arch_experts(cfg, t);
    if (!has(t, "{l}")) l = 0;
    if (!has(t, "{e}")) e = 0;
    const int64_t probes[][2] = {{l, 0},          {l, e + 1}, {l - 1, e}, {l + 1, e}, {0, 0},
                                 {layers - 1, 0}, {1, 0},     {2, 0},     {3, 0}};
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        int64_t pl = probes[i][0], pe = probes[i][1];
        bool inside = pl >= 0 && pl < layers && pe >= 0 && pe < experts;
        if (inside && find_spelling(c, cfg, t, pl, pe, out, buf, sizeof buf, NULL)) return;
    }
    vote(c, cfg, t, out);
}

bool nb_arch_find(const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *t, int64_t l, int64_t e,
                  char *buf, size_t cap, const nb_tensor_info **tensor)
{
    spelling sp;
    if (tensor) *tensor = NULL;
    if (find_spelling(c, cfg, t, l, e, &sp, buf, cap, tensor)) return true;
    likely(c, cfg, t, l, e, &sp);
    spell(cfg->arch->prefixes[sp.prefix], t->name, &sp, l, e, buf, cap);
    return false;
}

int64_t nb_arch_layers(const nb_config *cfg, const nb_arch_tensor *t)
{
    return has(t, "{l}") ? cfg->n_layers : 1;
}

int64_t nb_arch_experts(const nb_config *cfg, const nb_arch_tensor *t)
{
    int64_t n = 0;
    if (!has(t, "{e}")) return 1;
    nb_config_int(cfg, cfg->arch->n_experts_key, -1, 1, NB_MAX_EXPERTS, &n, NULL); /* validate() saw to it */
    return n;
}

void nb_arch_name(const nb_arch_tensor *t, int64_t l, int64_t e, char *buf, size_t cap)
{
    const spelling first = {0};
    if (cap) buf[0] = '\0';
    spell("", t->name, &first, l, e, buf, cap);
}

/* Takes what one element of a pattern, a character or an index, stands for off a stored name. Exporters write indices without
 * leading zeros, so "00" is no index. */
static bool take(const char **p, const char **s, int64_t *l, int64_t *e)
{
    if (**p != '{') {
        if (**p != **s) return false;
        ++*p;
        ++*s;
        return true;
    }
    size_t n = strspn(*s, "0123456789");
    if (!n || n > 9 || (n > 1 && **s == '0')) return false;
    *((*p)[1] == 'l' ? l : e) = strtoll(*s, NULL, 10);
    *p += 3;
    *s += n;
    return true;
}

/* Matches a whole stored name with a pattern; sets *l and *e where it has those indices. stack: s may also be the stack that the
 * pattern means a part of. */
static bool match(const char *p, const char *s, bool stack, int64_t *l, int64_t *e)
{
    while (*p && *p != '(') {
        if (*p == '[' && !*s) return stack;
        if (!take(&p, &s, l, e)) return false;
    }
    if (!*p) return !*s;
    const char *end = strchr(p, ')');
    while (p < end) {
        const char *choice = ++p, *rest = s;
        size_t n = strcspn(choice, "|)");
        p += n;
        while (choice < p && (*choice != '[' || *rest) && take(&choice, &rest, l, e)) {}
        if (choice < p ? stack && *choice == '[' && !*rest : match(end + 1, rest, stack, l, e)) return true;
    }
    return false;
}

/* The row whose name is s, under any prefix; modules_only: s is a module, found by cutting off a member's name; stack as in match. */
static const nb_arch_tensor *row_of(const nb_arch *a, const char *s, bool modules_only, bool stack,
                                    int64_t *l, int64_t *e)
{
    for (const char *const *p = a->prefixes; *p; p++) {
        size_t n = strlen(*p);
        if (strncmp(s, *p, n) != 0) continue;
        for (const nb_arch_tensor *t = a->tensors; t < a->tensors + a->n_tensors; t++) {
            *l = *e = -1;
            if ((!modules_only || is_module(t)) && match(t->name, s + n, stack, l, e)) return t;
        }
    }
    *l = *e = -1;
    return NULL;
}

bool nb_arch_is_draft(const nb_config *cfg, int64_t l)
{
    int64_t drafts;
    return nb_config_int(cfg, "num_nextn_predict_layers", -1, 1, 1 << 20, &drafts, NULL) == NB_OK &&
           l >= cfg->n_layers && l < cfg->n_layers + drafts;
}

/* The number in "layers.N.…", -1 when s does not begin so. */
static int64_t layer_number(const char *s)
{
    static const char layers[] = "layers.";
    if (strncmp(s, layers, sizeof layers - 1) != 0) return -1;
    char *end;
    int64_t l = strtoll(s + sizeof layers - 1, &end, 10);
    return *end == '.' ? l : -1;
}

const nb_arch_tensor *nb_arch_identify(const nb_config *cfg, const char *stored, int64_t *l, int64_t *e,
                                       bool *skipped)
{
    const nb_arch *a = cfg->arch;
    char module[512];
    *skipped = false;
    const nb_arch_tensor *t = row_of(a, stored, false, true, l, e);
    const char *dot = strrchr(stored, '.');
    size_t n = dot ? (size_t)(dot - stored) : 0;
    if (!t && dot && n < sizeof module && nb_linear_member(dot + 1)) {
        memcpy(module, stored, n);
        module[n] = '\0';
        t = row_of(a, module, true, false, l, e);
    }
    n = strlen(stored); /* a stack's blocks and scales */
    n -= n > 7 && (strcmp(stored + n - 7, "_blocks") == 0 || strcmp(stored + n - 7, "_scales") == 0) ? 7 : n;
    if (!t && n && n < sizeof module) {
        memcpy(module, stored, n);
        module[n] = '\0';
        t = row_of(a, module, true, true, l, e);
    }
    for (const char *const *p = a->prefixes; !t && *p; p++) {
        if (strncmp(stored, *p, strlen(*p)) != 0) continue;
        *skipped = *skipped || nb_arch_is_draft(cfg, layer_number(stored + strlen(*p)));
        for (const char *const *g = a->skip; *g; g++)
            *skipped = *skipped || fnmatch(*g, stored + strlen(*p), 0) == 0;
    }
    return t;
}
