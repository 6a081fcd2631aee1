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
#define ROOM 131072 /* weights read at a time: whole rows */
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

/* Which of the two norms of a layer a linear of this name reads; -1: none that is known. */
static int norm_of(const char *last)
{
    static const char *const readers[2][9] = {{"q_proj", "k_proj", "v_proj", "qkv_proj", "q_a_proj",
                                               "kv_proj", "kv_a_proj_with_mqa", "wq_a", "wkv"},
                                              {"gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "wgate"}};
    for (int norm = 0; norm < 2; norm++) {
        for (size_t i = 0; i < 9 && readers[norm][i]; i++) {
            if (strcmp(last, readers[norm][i]) == 0) return norm;
        }
    }
    return -1;
}

/* A norm that was looked up: of a layer, whose name ends at `layer`, before its attention or its MLP. */
typedef struct known_norm {
    const char *name; /* of a module of that layer; NULL: nothing was looked up */
    size_t layer;
    const nb_tensor_info *norm; /* NULL: there is none */
} known_norm;

/* The norm whose output the module reads, by its name; NULL: none that fits. The experts of a layer follow each other, so that the
 * last norm of each kind answers for nearly all. */
static const nb_tensor_info *norm_before(const nb_check *c, const nb_module *m, uint64_t k,
                                         known_norm known[2], nb_buf *name)
{
    static const char *const norms[2][3] = {
        {"input_layernorm.weight", "attn_norm.weight", "norm.weight"},
        {"post_attention_layernorm.weight", "ffn_norm.weight", "pre_feedforward_layernorm.weight"}};
    const int which = norm_of(nb_last_part(m->name));
    const char *layer = which >= 0 ? strstr(m->name, "layers.") : NULL;
    if (!layer) return NULL;
    layer += strlen("layers.");
    layer += strspn(layer, "0123456789");
    known_norm *last = &known[which];
    const size_t len = (size_t)(layer - m->name);
    if (!last->name || last->layer != len || memcmp(last->name, m->name, len) != 0) {
        *last = (known_norm){.name = m->name, .layer = len};
    }
    if (last->norm && last->norm->shape[0] == k) return last->norm;
    for (size_t i = 0; i < 3; i++) {
        nb_buf_clear(name);
        nb_buf_addf(name, "%.*s.%s", (int)len, m->name, norms[which][i]);
        const nb_tensor_info *t = nb_ckpt_find(c->ckpt, nb_buf_str(name));
        if (t && t->rank == 1 && t->shape[0] == k) return last->norm = t;
    }
    return NULL;
}

typedef struct columns {
    const nb_check *c;
    double squares[128][8];
    uint8_t *codes, *scales; /* of ROOM weights */
    double *size;
    float *norm;
    nb_buf name;
    known_norm known[2];
    size_t looked, votes[ORDERS];
    double best[ORDERS]; /* the largest correlations met, for the report */
} columns;

/* Squares of weights by scale byte and magnitude of the code, scale included; 0 under a NaN. */
static void fill_squares(double squares[128][8])
{
    static const double square[8] = {0, .25, 1, 2.25, 4, 9, 16, 36};
    for (size_t b = 0; b < 128; b++) {
        const double s = (double)nb_e4m3_table[b];
        for (size_t m = 0; m < 8; m++) squares[b][m] = isfinite(s) ? square[m] * s * s : 0;
    }
}

/* The root of the mean square of each column over the first n rows, scales included but for the global one. The sums are exact: their
 * terms are multiples of 2^-20 below 2^23, at most ROWS of them. */
static bool column_sizes(columns *x, const nb_module *m, size_t n, size_t k)
{
    const nb_ckpt *ckpt = x->c->ckpt;
    const size_t step = ROOM / k ? ROOM / k : 1;
    memset(x->size, 0, k * sizeof *x->size);
    for (size_t row = 0; row < n; row += step) {
        const size_t rows = n - row < step ? n - row : step, blocks = rows * k / 16;
        if (nb_ckpt_read(ckpt, nb_module_codes(m), row * k / 2, x->codes, 8 * blocks, NULL) != NB_OK ||
            nb_ckpt_read(ckpt, nb_module_scale(m), row * k / 16, x->scales, blocks, NULL) != NB_OK)
            return false;
        double *out = x->size;
        for (size_t b = 0; b < blocks; b++, out += 16) {
            if (out == x->size + k) out = x->size;
            const double *const square = x->squares[x->scales[b] & 0x7F];
            const uint8_t *const codes = x->codes + 8 * b;
            for (size_t i = 0; i < 8; i++) {
                out[2 * i] += square[codes[i] & 7];
                out[2 * i + 1] += square[codes[i] >> 4 & 7];
            }
        }
    }
    for (size_t i = 0; i < k; i++) x->size[i] = sqrt(x->size[i] / (double)n);
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

/* The norm before module i, and the linear's size; NULL: it cannot be judged. */
static const nb_tensor_info *candidate(columns *x, size_t i, uint64_t *n, uint64_t *k)
{
    const nb_module *m = &x->c->modules.items[i];
    if (!nb_kind_nvfp4(m->kind) || !x->c->scan.modules[i].scanned || !nb_module_shape(m, n, k) || !*k ||
        *k > MAX_K || *k % 16 || *n < 32)
        return NULL;
    return norm_before(x->c, m, *k, x->known, &x->name);
}

static void judge(columns *x, size_t i)
{
    uint64_t n, k;
    const nb_module *m = &x->c->modules.items[i];
    const nb_tensor_info *t = candidate(x, i, &n, &k);
    if (!t || nb_ckpt_read_f32(x->c->ckpt, t, x->norm, NULL) != NB_OK ||
        !column_sizes(x, m, n < ROWS ? (size_t)n : ROWS, (size_t)k))
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
    size_t all = 0;
    uint64_t n, k;
    size_t *fit = malloc((c->modules.count + 1) * sizeof *fit);
    fill_squares(x.squares);
    x.codes = malloc(ROOM / 2);
    x.scales = malloc(ROOM / 16);
    x.size = malloc(MAX_K * sizeof *x.size);
    x.norm = malloc(MAX_K * sizeof *x.norm);
    bool ok = fit && x.codes && x.scales && x.size && x.norm;
    for (size_t i = 0; i < c->modules.count && ok; i++) {
        if (candidate(&x, i, &n, &k)) fit[all++] = i;
    }
    for (size_t i = 0; i < all && ok; i += all / SAMPLE + 1) judge(&x, fit[i]);
    for (int o = SWAPPED; o < ORDERS && ok; o++) {
        if (x.votes[o] >= LEAST && x.votes[o] > 10 * x.votes[AS_STORED] && 8 * x.votes[o] >= x.looked)
            report(&x, o, out);
    }
    ok = ok && nb_buf_ok(&x.name);
    nb_buf_free(&x.name);
    free(fit);
    free(x.codes);
    free(x.scales);
    free(x.size);
    free(x.norm);
    return ok ? NB_OK : nb_fail_nomem(err, "the order of codes", MAX_K * sizeof *x.size);
}
