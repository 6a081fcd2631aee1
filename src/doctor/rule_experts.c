/*
 * NB005: the experts of one layer against each other and against the number in config.json. Needs no table: whatever lies
 * under "….experts.N." is an expert. What most experts of a layer have, every one must have; an expert in another format
 * (dequantised on purpose, say) is judged by its own kind, and its set by NB003.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rules.h"

static const nb_effect lost_weights[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED,
     "fused expert weights keep uninitialised memory there; prompts routed to the expert show it"},
    {NB_EFFECT_UNDEFINED, "the expert cannot be dequantised"},
    {NB_EFFECT_UNDEFINED,
     "fused expert weights keep uninitialised memory there; prompts routed to the expert show it"},
    {NB_EFFECT_REFUSED, "no GGUF can be made of it"},
};
static const nb_effect lost_inputs[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED,
     "the parameter keeps uninitialised memory; where it is 0, all-zero blocks give NaN, so for some "
     "prompts; kernels with one scale for all experts take it into their maximum"},
    {NB_EFFECT_FINE, "input scales are not read"},
    {NB_EFFECT_FINE, "input scales are not read"},
    {NB_EFFECT_FINE, "input scales are not read"},
};
static const nb_effect surplus[NB_FAMILY_COUNT] = {
    {NB_EFFECT_FINE, "experts beyond the config's number are never routed to"},
    {NB_EFFECT_FINE, "experts beyond the config's number are never routed to"},
    {NB_EFFECT_FINE, "experts beyond the config's number are never routed to"},
    {NB_EFFECT_FINE, "experts beyond the config's number are never routed to"},
};

static const nb_effect misrouted[NB_FAMILY_COUNT] = {
    {NB_EFFECT_REFUSED, "loading fails, or the router picks experts that do not exist"},
    {NB_EFFECT_REFUSED, "loading fails, or the router picks experts that do not exist"},
    {NB_EFFECT_REFUSED, "loading fails, or the router picks experts that do not exist"},
    {NB_EFFECT_REFUSED, "no GGUF should be made of it"},
};

#define MAX_EXPERTS ((uint64_t)1 << 20)

/* One module of an expert: PREFIX.experts.NUMBER.PART. */
typedef struct part {
    const char *name; /* of the module */
    size_t prefix;    /* length of "PREFIX.experts." */
    uint64_t number;
    const char *rest; /* ".PART", or "" */
    const nb_module *module;
} part;

static bool parse(const nb_module *m, part *out)
{
    static const char word[] = "experts.";
    const char *at = NULL;
    for (const char *p = strstr(m->name, word); p; p = strstr(p + 1, word)) {
        if (p == m->name || p[-1] == '.') at = p;
    }
    if (!at) return false;
    const char *digits = at + strlen(word);
    size_t n = strspn(digits, "0123456789");
    if (!n || n > 7 || (digits[n] && digits[n] != '.')) return false;
    *out = (part){m->name, (size_t)(digits - m->name), strtoull(digits, NULL, 10), digits + n, m};
    return true;
}

static int compare_prefix(const part *a, const part *b)
{
    size_t n = a->prefix < b->prefix ? a->prefix : b->prefix;
    int c = memcmp(a->name, b->name, n);
    return c ? c : a->prefix < b->prefix ? -1 : a->prefix > b->prefix;
}

static int by_part(const void *pa, const void *pb)
{
    const part *a = pa, *b = pb;
    int c = compare_prefix(a, b);
    if (!c) c = strcmp(a->rest, b->rest);
    return c ? c : a->number < b->number ? -1 : a->number > b->number;
}

static int by_number(const void *pa, const void *pb)
{
    const uint64_t a = *(const uint64_t *)pa, b = *(const uint64_t *)pb;
    return a < b ? -1 : a > b;
}

/* The config's number of experts, 0 when it gives none that can be meant. */
static uint64_t wanted_experts(const nb_check *c)
{
    static const char *const keys[] = {"n_routed_experts", "num_local_experts", "num_experts",
                                       "moe_num_experts"};
    int64_t v;
    if (c->table && c->config.arch->n_experts_key &&
        nb_config_int(&c->config, c->config.arch->n_experts_key, -1, 1, (int64_t)MAX_EXPERTS, &v, NULL) ==
            NB_OK)
        return (uint64_t)v;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (nb_config_int(&c->config, keys[i], -1, 1, (int64_t)MAX_EXPERTS, &v, NULL) == NB_OK)
            return (uint64_t)v;
    }
    return 0;
}

/* The experts under one prefix. */
typedef struct block {
    const nb_check *c;
    const part *parts; /* sorted by part, then number */
    size_t n;
    uint64_t *numbers; /* of the experts there are, ascending */
    size_t n_experts;
    uint64_t wanted; /* how many there should be */
    bool counted;    /* the config says so */
    nb_findings *out;
    size_t weights, inputs, extra; /* numbers of this block's findings, SIZE_MAX before the first */
    nb_buf name;
} block;

static const char *file_of(const block *b)
{
    for (int k = 0; k < NB_MEMBER_COUNT; k++) {
        if (b->parts[0].module->member[k]) return nb_check_file_of(b->c, b->parts[0].module->member[k]);
    }
    return NULL;
}

/* Names one tensor that expert `number` lacks. */
static void lacks(block *b, const part *like, uint64_t number, nb_member member)
{
    const bool input = member == NB_MEMBER_INPUT || member == NB_MEMBER_INPUT_GLOBAL;
    size_t *f = input ? &b->inputs : &b->weights;
    nb_buf_clear(&b->name);
    nb_buf_addf(&b->name, "%.*s%llu%s%s", (int)like->prefix, like->name, (unsigned long long)number,
                like->rest, nb_member_suffix(member));
    if (!nb_buf_ok(&b->name) || !nb_check_absent(b->c, nb_buf_str(&b->name))) return;
    if (*f == SIZE_MAX) {
        *f = nb_findings_add(b->out, "NB005", NB_SEVERITY_ERROR,
                             input ? "experts lack an input scale that the layer's other experts have"
                                   : "experts lack weights or scales that the layer's other experts have");
        nb_findings_file(b->out, *f, file_of(b));
        nb_findings_measured(b->out, *f, "%zu experts", b->n_experts);
        nb_findings_expected(b->out, *f, "%llu experts with the same tensors each",
                             (unsigned long long)b->wanted);
        if (input)
            nb_findings_remedy(b->out, *f, true,
                               "fill in the maximum of the layer's other experts, or calibrate "
                               "with data that reaches this expert");
        else
            nb_findings_remedy(b->out, *f, false, "download the shard again, or export the model again");
        nb_findings_effects(b->out, *f, input ? lost_inputs : lost_weights);
    }
    nb_findings_tensor(b->out, *f, nb_buf_str(&b->name));
}

/* One projection, parts [0, n) of it: which experts lack it whole, and which lack a member. */
static void judge_part(block *b, const part *p, size_t n)
{
    uint32_t kinds[NB_KIND_COUNT] = {0}, members[NB_MEMBER_COUNT] = {0};
    nb_kind kind = NB_KIND_NONE;
    const part *like = NULL;
    if (2 * n <= b->n_experts) return; /* most experts do without */
    for (size_t i = 0; i < n; i++) kinds[p[i].module->kind]++;
    for (int k = 0; k < NB_KIND_COUNT; k++) {
        if (kinds[k] > kinds[kind]) kind = (nb_kind)k;
    }
    for (size_t i = 0; i < n; i++) {
        if (p[i].module->kind != kind) continue;
        like = &p[i];
        for (int k = 0; k < NB_MEMBER_COUNT; k++) members[k] += p[i].module->member[k] != NULL;
    }
    const bool part_missing =
        b->wanted <= 2 * (uint64_t)b->n_experts; /* else the count itself is the finding */
    for (uint64_t e = 0, i = 0; e < b->wanted && part_missing; e++) {
        while (i < n && p[i].number < e) i++;
        if (i < n && p[i].number == e) continue;
        for (int k = 0; k < NB_MEMBER_COUNT; k++) {
            if (2 * (size_t)members[k] > kinds[kind]) lacks(b, like, e, (nb_member)k);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (p[i].module->kind != kind && p[i].module->kind != NB_KIND_NONE) continue;
        for (int k = 0; k < NB_MEMBER_COUNT; k++) {
            if (!p[i].module->member[k] && 2 * (size_t)members[k] > kinds[kind])
                lacks(b, &p[i], p[i].number, (nb_member)k);
        }
    }
}

/* Experts beyond the config's number, and a number that has little to do with what is there. */
static void judge_count(block *b)
{
    if (!b->counted) return;
    if (b->wanted > 2 * (uint64_t)b->n_experts) {
        size_t i = nb_findings_add(b->out, "NB005", NB_SEVERITY_ERROR,
                                   "config.json has far more experts than the layer");
        nb_findings_file(b->out, i, file_of(b));
        nb_findings_measured(b->out, i, "%zu experts under %.*s", b->n_experts, (int)b->parts[0].prefix,
                             b->parts[0].name);
        nb_findings_expected(b->out, i, "%llu experts", (unsigned long long)b->wanted);
        nb_findings_remedy(b->out, i, false, "take config.json and shards from the same model");
        nb_findings_effects(b->out, i, lost_weights);
    }
    for (size_t i = 0; i < b->n; i++) {
        const part *p = &b->parts[i];
        if (p->number < b->wanted) continue;
        if (b->extra == SIZE_MAX) {
            b->extra = nb_findings_add(b->out, "NB005", NB_SEVERITY_ERROR,
                                       "the layer has more experts than config.json says");
            nb_findings_file(b->out, b->extra, file_of(b));
            nb_findings_measured(b->out, b->extra, "%zu experts, the last is number %llu", b->n_experts,
                                 (unsigned long long)b->numbers[b->n_experts - 1]);
            nb_findings_expected(b->out, b->extra, "%llu experts", (unsigned long long)b->wanted);
            nb_findings_remedy(b->out, b->extra, false,
                               "correct the number in config.json, or remove the surplus experts");
            nb_findings_effects(b->out, b->extra, surplus);
        }
        for (int k = 0; k < NB_MEMBER_COUNT; k++) {
            if (p->module->member[k]) nb_findings_tensor(b->out, b->extra, p->module->member[k]->name);
        }
    }
}

/* The router beside the experts: "….mlp.experts.N" has "….mlp.gate". Where the table is known, NB007 judges its shape. */
static void judge_router(block *b)
{
    static const char *const names[] = {"gate", "router", "router.proj"};
    const part *p = &b->parts[0];
    for (size_t i = 0; i < sizeof names / sizeof *names && !b->c->table; i++) {
        nb_buf_clear(&b->name);
        nb_buf_addf(&b->name, "%.*s%s", (int)(p->prefix - strlen("experts.")), p->name, names[i]);
        const nb_module *m = nb_modules_find(&b->c->modules, nb_buf_str(&b->name));
        const nb_tensor_info *t = m ? nb_module_codes(m) : NULL;
        if (!t || t->rank != 2 || t->shape[0] == b->wanted || t->shape[0] == 1) continue;
        size_t f = nb_findings_add(b->out, "NB005", NB_SEVERITY_ERROR,
                                   "the router has another number of rows than there are experts");
        nb_findings_tensor(b->out, f, t->name);
        nb_findings_file(b->out, f, nb_check_file_of(b->c, t));
        nb_findings_bytes(b->out, f, t->begin, t->end);
        nb_findings_measured(b->out, f, "%llu rows", (unsigned long long)t->shape[0]);
        nb_findings_expected(b->out, f, "%llu, one an expert", (unsigned long long)b->wanted);
        nb_findings_remedy(b->out, f, false,
                           "where experts were taken out, take their rows out of the router (and its bias)");
        nb_findings_effects(b->out, f, misrouted);
    }
}

/* More experts a token than there are. */
static void judge_top_k(const nb_check *c, uint64_t wanted, nb_findings *out)
{
    static const char *const keys[] = {"num_experts_per_tok", "moe_topk", "top_k_experts"};
    int64_t k;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && wanted; i++) {
        if (nb_config_int(&c->config, keys[i], -1, 1, INT64_MAX, &k, NULL) != NB_OK || (uint64_t)k <= wanted)
            continue;
        size_t f = nb_findings_add(out, "NB005", NB_SEVERITY_ERROR,
                                   "config.json sends each token to more experts than there are");
        nb_findings_file(out, f, "config.json");
        nb_findings_measured(out, f, "%s %lld, %llu experts", keys[i], (long long)k,
                             (unsigned long long)wanted);
        nb_findings_expected(out, f, "at most the number of experts");
        nb_findings_remedy(out, f, false, "take the number from the original model's config.json");
        nb_findings_effects(out, f, misrouted);
    }
}

/* Experts of drafting layers and vision towers need not be as many as the config says. */
static bool is_skipped(const nb_check *c, const part *p)
{
    for (int k = 0; k < NB_MEMBER_COUNT; k++) {
        if (p->module->member[k]) return nb_tensor_skipped(c, p->module->member[k]);
    }
    return false;
}

static bool judge(const nb_check *c, const part *parts, size_t n, uint64_t wanted, nb_findings *out)
{
    block b = {.c = c,
               .parts = parts,
               .n = n,
               .out = out,
               .weights = SIZE_MAX,
               .inputs = SIZE_MAX,
               .extra = SIZE_MAX};
    b.numbers = malloc(n * sizeof *b.numbers);
    if (!b.numbers) return false;
    for (size_t i = 0; i < n; i++) b.numbers[i] = parts[i].number;
    qsort(b.numbers, n, sizeof *b.numbers, by_number);
    for (size_t i = 0; i < n; i++) {
        if (!i || b.numbers[i] != b.numbers[b.n_experts - 1]) b.numbers[b.n_experts++] = b.numbers[i];
    }
    b.counted = wanted && !is_skipped(c, parts);
    b.wanted = b.counted ? wanted : b.numbers[b.n_experts - 1] + 1;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && strcmp(parts[end].rest, parts[i].rest) == 0;) end++;
        judge_part(&b, parts + i, end - i);
    }
    judge_count(&b);
    if (b.counted) judge_router(&b);
    const bool ok = nb_buf_ok(&b.name);
    nb_buf_free(&b.name);
    free(b.numbers);
    return ok;
}

nb_status nb_rule_experts(const nb_check *c, nb_findings *out, nb_error *err)
{
    const uint64_t wanted = wanted_experts(c);
    size_t n = 0;
    bool ok = true;
    part *parts = malloc((c->modules.count + 1) * sizeof *parts);
    if (!parts) return nb_fail_nomem(err, "the list of experts", c->modules.count * sizeof *parts);
    for (size_t i = 0; i < c->modules.count; i++) n += parse(&c->modules.items[i], &parts[n]);
    if (n) qsort(parts, n, sizeof *parts, by_part);
    for (size_t i = 0, end; i < n && ok; i = end) {
        for (end = i + 1; end < n && compare_prefix(&parts[i], &parts[end]) == 0;) end++;
        ok = judge(c, parts + i, end - i, wanted, out);
    }
    free(parts);
    if (n && !c->table) judge_top_k(c, wanted, out); /* else NB007 and NB212 judge it */
    return ok ? NB_OK : nb_fail_nomem(err, "a layer's experts", n * sizeof(uint64_t));
}
