/*
 * The part of NB110 that no block shows: codes whose order within a block is another one, because a packer put the even column
 * into the high nibble, or GGML's halves side by side. Each block keeps its codes, but columns change places. In a trained model
 * the size of a linear's columns follows the weight of the norm before it (negatively or positively, by model): the order in which
 * it does is the right one. Untrained weights follow it in no order, and nothing is said.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rule_values.h"
#include "numerics/formats.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define ROWS 256    /* of a linear that are read */
#define SAMPLE 48   /* linears looked at */
#define MAX_K 65536 /* columns */
#define FOLLOWS .3  /* correlation, either sign, that counts */
#define CLEARER .2  /* and by how much it must be above that of the order as stored */
#define LEAST 4     /* linears that must show it */

enum { AS_STORED, SWAPPED, HALVES, ORDERS };

/* Where column k of the weight is found when the codes were packed in this order and are read as nibbles low, high. */
static size_t place(int order, size_t k)
{
    const size_t e = k % 16;
    if (order == SWAPPED) return k ^ 1;
    if (order == HALVES) return k - e + (e < 8 ? 2 * e : 2 * (e - 8) + 1);
    return k;
}

static bool is_one_of(const char *s, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(s, list[i]) == 0) return true;
    }
    return false;
}

/* The norm whose output the module reads, by its name; NULL: none that fits. */
static const nb_tensor_info *norm_before(const nb_check *c, const nb_module *m, uint64_t k, nb_buf *name)
{
    static const char *const attention[] = {
        "q_proj", "k_proj", "v_proj", "qkv_proj", "q_a_proj", "kv_proj", "kv_a_proj_with_mqa", "wq_a", "wkv"};
    static const char *const mlp[] = {"gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "wgate"};
    static const char *const norms[2][3] = {
        {"input_layernorm.weight", "attn_norm.weight", "norm.weight"},
        {"post_attention_layernorm.weight", "ffn_norm.weight", "pre_feedforward_layernorm.weight"}};
    const char *last = nb_last_part(m->name), *layer = strstr(m->name, "layers.");
    const bool first = is_one_of(last, attention, sizeof attention / sizeof *attention),
               second = is_one_of(last, mlp, sizeof mlp / sizeof *mlp);
    if (!layer || (!first && !second)) return NULL;
    layer += strlen("layers.");
    layer += strspn(layer, "0123456789");
    for (size_t i = 0; i < 3; i++) {
        nb_buf_clear(name);
        nb_buf_addf(name, "%.*s.%s", (int)(layer - m->name), m->name, norms[second][i]);
        const nb_tensor_info *t = nb_ckpt_find(c->ckpt, nb_buf_str(name));
        if (t && t->rank == 1 && t->shape[0] == k) return t;
    }
    return NULL;
}

/* The mean square of each column over the first rows, scales included but for the global one. */
static bool column_sizes(const nb_check *c, const nb_module *m, size_t n, size_t k, uint8_t *codes,
                         uint8_t *scales, double *out)
{
    static const double square[8] = {0, .25, 1, 2.25, 4, 9, 16, 36};
    memset(out, 0, k * sizeof *out);
    for (size_t r = 0; r < n; r++) {
        if (nb_ckpt_read(c->ckpt, nb_module_codes(m), r * k / 2, codes, k / 2, NULL) != NB_OK ||
            nb_ckpt_read(c->ckpt, nb_module_scale(m), r * k / 16, scales, k / 16, NULL) != NB_OK)
            return false;
        for (size_t i = 0; i < k; i++) {
            const double s = (double)nb_e4m3_table[scales[i / 16] & 0x7F];
            if (isfinite(s)) out[i] += square[codes[i / 2] >> (i % 2 ? 4 : 0) & 7] * s * s;
        }
    }
    for (size_t i = 0; i < k; i++) out[i] = sqrt(out[i] / (double)n);
    return true;
}

static double correlation(const float *norm, const double *size, size_t k, int order)
{
    double a = 0, b = 0, aa = 0, bb = 0, ab = 0, n = (double)k;
    for (size_t i = 0; i < k; i++) {
        const double x = (double)norm[i], y = size[place(order, i)];
        a += x, b += y, aa += x * x, bb += y * y, ab += x * y;
    }
    const double va = aa - a * a / n, vb = bb - b * b / n;
    return va > 0 && vb > 0 ? fabs((ab - a * b / n) / sqrt(va * vb)) : 0;
}

typedef struct columns {
    const nb_check *c;
    uint8_t *codes, *scales;
    double *size;
    float *norm;
    nb_buf name;
    size_t looked, votes[ORDERS];
    double best[ORDERS]; /* the largest correlations met, for the report */
} columns;

/* The norm before module i, and the linear's size; NULL: it cannot be judged. */
static const nb_tensor_info *candidate(columns *x, size_t i, uint64_t *n, uint64_t *k)
{
    const nb_module *m = &x->c->modules.items[i];
    if (!nb_kind_nvfp4(m->kind) || !x->c->scan.modules[i].scanned || !nb_module_shape(m, n, k) ||
        *k > MAX_K || *k % 16 || *n < 32)
        return NULL;
    return norm_before(x->c, m, *k, &x->name);
}

static void judge(columns *x, size_t i)
{
    uint64_t n, k;
    const nb_module *m = &x->c->modules.items[i];
    const nb_tensor_info *t = candidate(x, i, &n, &k);
    if (!t || nb_ckpt_read_f32(x->c->ckpt, t, x->norm, NULL) != NB_OK ||
        !column_sizes(x->c, m, n < ROWS ? (size_t)n : ROWS, (size_t)k, x->codes, x->scales, x->size))
        return;
    double r[ORDERS];
    for (int o = 0; o < ORDERS; o++) r[o] = correlation(x->norm, x->size, (size_t)k, o);
    const int other = r[SWAPPED] > r[HALVES] ? SWAPPED : HALVES;
    x->looked++;
    if (r[AS_STORED] > FOLLOWS && r[AS_STORED] >= r[other])
        x->votes[AS_STORED]++;
    else if (r[other] > FOLLOWS && r[other] > r[AS_STORED] + CLEARER)
        x->votes[other]++;
    for (int o = 0; o < ORDERS; o++) x->best[o] = fmax(x->best[o], r[o]);
}

/* Packers pack all linears alike, so all are named. */
static void report(const columns *x, int order, nb_findings *out)
{
    const nb_check *c = x->c;
    size_t f = SIZE_MAX;
    for (size_t i = 0; i < c->modules.count && !out->bad; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_tensor_info *t = nb_module_codes(m);
        if (!nb_kind_nvfp4(m->kind) || !t) continue;
        if (f != SIZE_MAX) {
            nb_findings_tensor(out, f, t->name);
            continue;
        }
        f = nb_findings_add(
            out, "NB110", NB_SEVERITY_WARNING, "%s",
            order == SWAPPED
                ? "the nibbles of each byte are swapped: the high one holds the even column"
                : "the nibbles are in GGML's order: the low ones hold the first half of a block");
        nb_findings_tensor(out, f, t->name);
        nb_findings_file(out, f, nb_check_file_of(c, t));
        nb_findings_measured(
            out, f,
            "in %zu of %zu linears looked at the columns follow the norm before them in that "
            "order (correlation up to %.2f), as stored in %zu (up to %.2f)",
            x->votes[order], x->looked, x->best[order], x->votes[AS_STORED], x->best[AS_STORED]);
        nb_findings_expected(out, f, "low nibble: even column, high nibble: odd column");
        nb_findings_remedy(out, f, false, "export again, or exchange the nibbles of every byte of the codes");
        const nb_effect e = E(WRONG, "columns are exchanged: fluent nonsense, no NaN");
        nb_value_effects(out, f, e, e, e);
    }
}

nb_status nb_rule_columns(const nb_check *c, nb_findings *out, nb_error *err)
{
    columns x = {.c = c};
    size_t all = 0, seen = 0;
    uint64_t n, k;
    x.codes = malloc(MAX_K / 2);
    x.scales = malloc(MAX_K / 16);
    x.size = malloc(MAX_K * sizeof *x.size);
    x.norm = malloc(MAX_K * sizeof *x.norm);
    bool ok = x.codes && x.scales && x.size && x.norm;
    for (size_t i = 0; i < c->modules.count && ok; i++) all += candidate(&x, i, &n, &k) != NULL;
    for (size_t i = 0; i < c->modules.count && ok; i++) {
        if (candidate(&x, i, &n, &k) && seen++ % (all / SAMPLE + 1) == 0) judge(&x, i);
    }
    for (int o = SWAPPED; o < ORDERS && ok; o++) {
        if (x.votes[o] >= LEAST && x.votes[o] > 10 * x.votes[AS_STORED] && 8 * x.votes[o] >= x.looked)
            report(&x, o, out);
    }
    ok = ok && nb_buf_ok(&x.name);
    nb_buf_free(&x.name);
    free(x.codes);
    free(x.scales);
    free(x.size);
    free(x.norm);
    return ok ? NB_OK : nb_fail_nomem(err, "the order of codes", MAX_K * sizeof *x.size);
}
