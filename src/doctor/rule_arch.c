/*
 * NB007: the tensors against the architecture's table: what is absent, what has another shape than config.json implies, and
 * which router entries name no expert.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rules.h"

static const nb_effect absent[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED, "vLLM's parameter keeps uninitialised memory"},
    {NB_EFFECT_UNDEFINED, "loaders that do not check compute with uninitialised memory"},
    {NB_EFFECT_UNDEFINED, "vLLM's parameter keeps uninitialised memory"},
    {NB_EFFECT_REFUSED, "no GGUF can be made of it"},
};
static const nb_effect refused[NB_FAMILY_COUNT] = {
    {NB_EFFECT_REFUSED, "the tensor does not fit the model that config.json describes"},
    {NB_EFFECT_REFUSED, "the tensor does not fit the model that config.json describes"},
    {NB_EFFECT_REFUSED, "the tensor does not fit the model that config.json describes"},
    {NB_EFFECT_REFUSED, "the tensor does not fit the model that config.json describes"},
};
static const nb_effect unbuilt[NB_FAMILY_COUNT] = {
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
    {NB_EFFECT_REFUSED, "the model cannot be built from this config"},
};
static const nb_effect wild[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED, "the router reads beyond the experts"},
    {NB_EFFECT_UNDEFINED, "the router reads beyond the experts"},
    {NB_EFFECT_UNDEFINED, "the router reads beyond the experts"},
    {NB_EFFECT_REFUSED, "no GGUF should be made of it"},
};

static const nb_effect doubled[NB_FAMILY_COUNT] = {
    {NB_EFFECT_WRONG, "one expert counts double for these tokens, another is left out"},
    {NB_EFFECT_WRONG, "one expert counts double for these tokens, another is left out"},
    {NB_EFFECT_WRONG, "one expert counts double for these tokens, another is left out"},
    {NB_EFFECT_FINE, NULL},
};

static bool is_linear(const nb_arch_tensor *row)
{
    return row->role == NB_ROLE_LINEAR || row->role == NB_ROLE_EMBED || row->role == NB_ROLE_HEAD;
}

/* A lone activation scale is no sign of a linear. */
static bool is_input(nb_member m)
{
    return m == NB_MEMBER_INPUT || m == NB_MEMBER_INPUT_GLOBAL;
}

static bool has_index(const nb_arch_tensor *row, const char *index)
{
    return strstr(row->name, index) != NULL;
}

/* ---- what is absent ---- */

/* Layers that may be named one by one; a config that asks for thousands more than the file has is one finding. */
#define NAMED_LAYERS 8
/* Experts of a layer that are named; no model has more, a broken config may say so. */
#define NAMED_EXPERTS 4096

/* How often each row of the table occurs in each layer of the file. */
typedef struct census {
    const nb_check *c;
    const nb_arch *arch;
    size_t layers;  /* judged one by one: those of the config, and drafting layers behind them */
    uint32_t *seen; /* [rows][layers]; rows without {l} count in layer 0 */
    nb_buf name;
    nb_findings *out;
} census;

static bool needed(const census *k, const nb_arch_tensor *row, int64_t l)
{
    return !row->when || row->when(&k->c->config, (int)l);
}

static uint32_t *seen(const census *k, size_t row, int64_t l)
{
    return &k->seen[row * k->layers + (size_t)(l < 0 ? 0 : l)];
}

static bool count_rows(census *k)
{
    const nb_check *c = k->c;
    const size_t n = nb_ckpt_count(c->ckpt);
    int64_t top = -1;
    for (size_t i = 0; i < n; i++) {
        const nb_place *p = &c->places[i];
        if (p->row && p->l > top && p->l < c->config.n_layers) top = p->l;
    }
    k->layers =
        (size_t)(top + 1 + NAMED_LAYERS < c->config.n_layers ? top + 1 + NAMED_LAYERS : c->config.n_layers);
    while ((int64_t)k->layers >= c->config.n_layers && nb_arch_is_draft(&c->config, (int64_t)k->layers) &&
           k->layers - (size_t)c->config.n_layers < NAMED_LAYERS)
        k->layers++;
    k->seen = calloc(k->arch->n_tensors * k->layers, sizeof *k->seen);
    if (!k->seen) return false;
    for (size_t i = 0; i < n; i++) {
        const nb_place *p = &c->places[i];
        size_t len;
        if (!p->row || (is_linear(p->row) && is_input(nb_member_of(nb_ckpt_at(c->ckpt, i)->name, &len))))
            continue;
        if (p->l < (int64_t)k->layers) ++*seen(k, (size_t)(p->row - k->arch->tensors), p->l);
    }
    return true;
}

/* Names what is absent: a tensor, or all the members that a linear's siblings have. */
static void name_absent(census *k, size_t finding, const nb_arch_tensor *row, int64_t l, int64_t e)
{
    const nb_check *c = k->c;
    const nb_tensor_info *unused;
    char likely[512];
    if (nb_arch_find(c->ckpt, &c->config, row, l, e, likely, sizeof likely, &unused)) return;
    if (!is_linear(row)) {
        nb_findings_tensor(k->out, finding, likely);
        return;
    }
    const size_t stack = nb_linear_stack(likely);
    if (stack) { /* one for all experts: named once */
        likely[stack] = '\0';
        if (e > 0) return;
    }
    const nb_module_class *cls = nb_modules_class(&c->modules, likely);
    const nb_module *like = cls ? &c->modules.items[cls->example[nb_module_class_kind(cls)]] : NULL;
    if (stack && !like && nb_check_absent(c, likely)) nb_findings_tensor(k->out, finding, likely);
    for (int m = 0; m < NB_MEMBER_COUNT && (like || !stack); m++) {
        if (like ? !like->member[m] : m != NB_MEMBER_WEIGHT) continue;
        nb_buf_clear(&k->name);
        nb_buf_addf(&k->name, "%s%s", likely, nb_member_suffix((nb_member)m));
        if (nb_check_absent(c, nb_buf_str(&k->name)))
            nb_findings_tensor(k->out, finding, nb_buf_str(&k->name));
    }
}

/* True when the absence of this row is news: opening has not said it, and no part of the set is there (NB003 tells those). */
static bool is_news(const census *k, const nb_arch_tensor *row, int64_t l, int64_t e)
{
    const nb_check *c = k->c;
    const nb_tensor_info *unused;
    char likely[512], full[544];
    if (nb_arch_find(c->ckpt, &c->config, row, l, e, likely, sizeof likely, &unused)) return false;
    if (!is_linear(row)) return nb_check_absent(c, likely);
    const size_t stack = nb_linear_stack(likely);
    if (stack) { /* told of the first row that has a part in it */
        bool skipped;
        likely[stack] = '\0';
        if (nb_arch_identify(&c->config, likely, &l, &e, &skipped) != row || !nb_check_absent(c, likely))
            return false;
    }
    for (int m = 0; m < NB_MEMBER_COUNT; m++) {
        snprintf(full, sizeof full, "%s%s", likely, nb_member_suffix((nb_member)m));
        if (!is_input((nb_member)m) && !nb_check_absent(c, full)) return false;
    }
    return true;
}

static size_t add_absent(census *k, const char *message, const nb_arch_tensor *row, int64_t l)
{
    const bool draft = l >= k->c->config.n_layers;
    uint64_t dims[4];
    size_t f = nb_findings_add(k->out, "NB007", NB_SEVERITY_ERROR, "%s", message);
    size_t rank = row ? nb_config_shape(&k->c->config, row->shape, (int)l, dims, NULL) : 0;
    nb_buf_clear(&k->name);
    for (size_t i = 0; i < rank; i++)
        nb_buf_addf(&k->name, "%s%llu", i ? ", " : "", (unsigned long long)dims[i]);
    if (rank) nb_findings_expected(k->out, f, "%s = [%s]", row->shape, nb_buf_str(&k->name));
    nb_findings_measured(k->out, f, "no shard has it under any known spelling");
    nb_findings_remedy(k->out, f, false,
                       draft ? "download the shard again, or serve without drafting"
                             : "download the folder again, or export the model again");
    nb_findings_effects(k->out, f, draft ? nb_draft_effects : absent);
    if (nb_ckpt_files(k->c->ckpt) == 1) nb_findings_file(k->out, f, nb_ckpt_file_name(k->c->ckpt, 0));
    return f;
}

/* How many experts of this row to name; 1 for a row without. */
static int64_t named_experts(const census *k, const nb_arch_tensor *row)
{
    const int64_t n = nb_arch_experts(&k->c->config, row);
    return n < NAMED_EXPERTS ? n : NAMED_EXPERTS;
}

/* A layer of which nothing is there: one finding with all its tensors. */
static void absent_layer(census *k, int64_t l)
{
    bool news = false;
    for (size_t r = 0; r < k->arch->n_tensors && !news; r++) {
        const nb_arch_tensor *row = &k->arch->tensors[r];
        if (has_index(row, "{l}") && needed(k, row, l))
            news = is_news(k, row, l, has_index(row, "{e}") ? 0 : -1);
    }
    if (!news) return;
    size_t f = add_absent(k, "a layer is missing", NULL, l);
    for (size_t r = 0; r < k->arch->n_tensors && !k->out->bad; r++) {
        const nb_arch_tensor *row = &k->arch->tensors[r];
        if (!has_index(row, "{l}") || !needed(k, row, l)) continue;
        const int64_t experts = named_experts(k, row);
        for (int64_t e = 0; e < experts; e++) name_absent(k, f, row, l, has_index(row, "{e}") ? e : -1);
    }
    nb_findings_expected(k->out, f, "layers 0 to %lld, as config.json's num_hidden_layers says",
                         (long long)k->c->config.n_layers - 1);
}

/* One row in one layer. Of experts only what all of a layer lack: single ones are NB005's. */
static void absent_row(census *k, const nb_arch_tensor *row, int64_t l)
{
    const bool expert = has_index(row, "{e}");
    if (!is_news(k, row, l, expert ? 0 : -1)) return;
    const char *message = l >= k->c->config.n_layers
                              ? "a drafting (MTP) block lacks a tensor that a layer has"
                          : expert ? "all experts of a layer lack a projection"
                                   : "a tensor that the architecture needs is missing";
    size_t f = add_absent(k, message, row, l);
    const int64_t experts = named_experts(k, row);
    for (int64_t e = 0; e < experts && !k->out->bad; e++) name_absent(k, f, row, l, expert ? e : -1);
}

static bool layer_is_empty(const census *k, int64_t l)
{
    for (size_t r = 0; r < k->arch->n_tensors; r++) {
        if (has_index(&k->arch->tensors[r], "{l}") && *seen(k, r, l)) return false;
    }
    return true;
}

/* Behind the last layer: other modules may stand under a drafting layer's number, so only what is a layer but for a tensor or
 * two is judged. */
static bool is_layer(const census *k, int64_t l)
{
    size_t there = 0, lacking = 0;
    if (l < k->c->config.n_layers) return true;
    for (size_t r = 0; r < k->arch->n_tensors; r++) {
        if (!has_index(&k->arch->tensors[r], "{l}") || !needed(k, &k->arch->tensors[r], l)) continue;
        if (*seen(k, r, l))
            there++;
        else
            lacking++;
    }
    return lacking <= NB_DRAFT_ABSENT && there > 3 * NB_DRAFT_ABSENT;
}

static void judge_absent(census *k)
{
    const int64_t layers = k->c->config.n_layers;
    for (size_t r = 0; r < k->arch->n_tensors; r++) {
        const nb_arch_tensor *row = &k->arch->tensors[r];
        if (!has_index(row, "{l}") && needed(k, row, -1) && !*seen(k, r, -1)) absent_row(k, row, -1);
    }
    for (int64_t l = 0; l < (int64_t)k->layers; l++) {
        if (layer_is_empty(k, l)) {
            if (l < layers) absent_layer(k, l);
            continue;
        }
        if (!is_layer(k, l)) continue;
        for (size_t r = 0; r < k->arch->n_tensors; r++) {
            const nb_arch_tensor *row = &k->arch->tensors[r];
            if (has_index(row, "{l}") && needed(k, row, l) && !*seen(k, r, l)) absent_row(k, row, l);
        }
    }
    if ((int64_t)k->layers >= layers || k->c->blind) return;
    size_t f = add_absent(k, "config.json has far more layers than the file", NULL, -1);
    nb_findings_measured(k->out, f, "no tensor of layers %zu to %lld", k->layers, (long long)layers - 1);
    nb_findings_expected(k->out, f, "num_hidden_layers as many as the file has");
    nb_findings_remedy(k->out, f, false, "take config.json and shards from the same model");
}

/* ---- what has the wrong shape ---- */

/* How many of a row's findings are searched for one with the same shapes, before a new one is made. */
#define LOOK_BACK 32

/* Adds tensor t to the finding of its file, shape and expectation, made if need be. from: the first finding of this row. */
static void report_shape(const nb_check *c, const nb_tensor_info *t, const char *message,
                         const char *measured, const char *expected, size_t from, nb_findings *out)
{
    const char *file = nb_check_file_of(c, t);
    if (out->bad) return;
    for (size_t i = out->count; i > from && out->count - i < LOOK_BACK; i--) {
        nb_finding *f = &out->items[i - 1];
        if (strcmp(f->message, message) != 0 || strcmp(f->measured, measured) != 0 || !f->expected ||
            strcmp(f->expected, expected) != 0 || strcmp(f->file, file) != 0)
            continue;
        f->has_bytes = false; /* of several tensors */
        nb_findings_tensor(out, i - 1, t->name);
        return;
    }
    size_t i = nb_findings_add(out, "NB007", NB_SEVERITY_ERROR, "%s", message);
    nb_findings_tensor(out, i, t->name);
    nb_findings_file(out, i, file);
    nb_findings_bytes(out, i, t->begin, t->end);
    nb_findings_measured(out, i, "%s", measured);
    nb_findings_expected(out, i, "%s", expected);
    nb_findings_remedy(
        out, i, false,
        "take config.json and shards from the same revision of the model, or export this tensor again");
    nb_findings_effects(out, i, refused);
}

/* A shape that cannot be computed: config.json's numbers contradict each other. */
static void report_config(const nb_error *why, size_t from, nb_findings *out)
{
    if (out->bad) return;
    for (size_t i = from; i < out->count; i++) {
        if (strcmp(out->items[i].measured, why->cause) == 0) return;
    }
    size_t i =
        nb_findings_add(out, "NB007", NB_SEVERITY_ERROR, "the sizes in config.json contradict each other");
    nb_findings_file(out, i, "config.json");
    nb_findings_measured(out, i, "%s", why->cause);
    nb_findings_remedy(out, i, false, "%s", why->remedy);
    nb_findings_effects(out, i, unbuilt);
}

static bool dtype_suits(const nb_arch_tensor *row, const nb_tensor_info *t)
{
    switch (t->dtype) {
    case NB_DT_F32:
    case NB_DT_BF16:
    case NB_DT_F16:
    case NB_DT_F64: return row->role != NB_ROLE_INDEX;
    case NB_DT_I64:
    case NB_DT_I32:
    case NB_DT_I16:
    case NB_DT_I8:
    case NB_DT_U64:
    case NB_DT_U32:
    case NB_DT_U16:
    case NB_DT_U8: return row->role == NB_ROLE_INDEX;
    default: return false;
    }
}

/* A token that the table sends to one expert twice: that expert counts double and another is lost. */
static void report_twice(const nb_check *c, const nb_tensor_info *t, const int64_t *v, nb_findings *out)
{
    const uint64_t rows = t->rank == 2 ? t->shape[0] : 0, cols = t->rank == 2 ? t->shape[1] : 0,
                   size = nb_dtype_bits(t->dtype) / 8;
    uint64_t twice = 0, first = 0, slot = 0;
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t at = 0; /* the slot that repeats an earlier one */
        for (uint64_t a = 1; a < cols && !at; a++) {
            for (uint64_t b = 0; b < a; b++) at = v[r * cols + a] == v[r * cols + b] ? a : at;
        }
        if (!at || twice++) continue;
        first = r;
        slot = at;
    }
    if (!twice) return;
    size_t i = nb_findings_add(out, "NB007", NB_SEVERITY_WARNING,
                               "the router table sends a token to the same expert twice");
    nb_findings_tensor(out, i, t->name);
    nb_findings_file(out, i, nb_check_file_of(c, t));
    nb_findings_bytes(out, i, t->begin + (first * cols + slot) * size,
                      t->begin + (first * cols + slot + 1) * size);
    nb_findings_measured(out, i, "token %llu: expert %lld twice; %llu of %llu rows repeat an expert",
                         (unsigned long long)first, (long long)v[first * cols + slot],
                         (unsigned long long)twice, (unsigned long long)rows);
    nb_findings_expected(out, i, "%llu different experts a token", (unsigned long long)cols);
    nb_findings_remedy(out, i, false, "take this tensor from the original checkpoint");
    nb_findings_effects(out, i, doubled);
}

/* Integer tables hold expert numbers: the first that names no expert. The only values that these rules read. */
static nb_status judge_index(const nb_check *c, const nb_tensor_info *t, nb_findings *out, nb_error *err)
{
    const uint64_t n = nb_tensor_elements(t);
    int64_t limit;
    nb_error why;
    if (nb_config_int(&c->config, c->config.arch->n_experts_key, -1, 1, INT32_MAX, &limit, NULL) != NB_OK)
        return NB_OK;
    int64_t *v = n < SIZE_MAX / sizeof *v ? malloc((size_t)(n + 1) * sizeof *v) : NULL;
    if (!v) return nb_fail_nomem(err, t->name, (size_t)n * sizeof *v);
    nb_status s = nb_ckpt_read_i64(c->ckpt, t, v, &why);
    if (s == NB_ERR_IO) {
        nb_container lost = {.dir = c->dir, .found = *out};
        nb_container_problem(&lost, NB_PROBLEM_NOT_DATA,
                             &why); /* the file shrank since its header was read */
        *out = lost.found;
    }
    uint64_t wrong = 0, first = 0;
    for (uint64_t i = 0; i < n && s == NB_OK; i++) {
        if (v[i] >= 0 && v[i] < limit) continue;
        if (!wrong++) first = i;
    }
    if (!wrong && s == NB_OK) report_twice(c, t, v, out);
    if (wrong) {
        const uint64_t cols = t->rank == 2 ? t->shape[1] : n, size = nb_dtype_bits(t->dtype) / 8;
        size_t i = nb_findings_add(out, "NB007", NB_SEVERITY_ERROR,
                                   "the router table names experts that do not exist");
        nb_findings_tensor(out, i, t->name);
        nb_findings_file(out, i, nb_check_file_of(c, t));
        nb_findings_bytes(out, i, t->begin + first * size, t->begin + (first + 1) * size);
        nb_findings_measured(out, i, "entry [%llu, %llu] is %lld; %llu of %llu entries are out of range",
                             (unsigned long long)(first / cols), (unsigned long long)(first % cols),
                             (long long)v[first], (unsigned long long)wrong, (unsigned long long)n);
        nb_findings_expected(out, i, "expert numbers 0 to %lld", (long long)limit - 1);
        nb_findings_remedy(out, i, false, "take this tensor from the original checkpoint");
        nb_findings_effects(out, i, wild);
    }
    free(v);
    return s == NB_ERR_NOMEM ? nb_fail_nomem(err, t->name, (size_t)n * sizeof *v) : NB_OK;
}

/* The shape of a tensor, or of the linear whose codes it is. False: nothing to compare (scales; a set that NB004 judges). */
static bool shape_of(const nb_check *c, const nb_arch_tensor *row, const nb_tensor_info *t, nb_buf *scratch,
                     uint64_t dims[4], size_t *rank)
{
    size_t len;
    if (is_linear(row)) {
        nb_member m = nb_member_of(t->name, &len);
        if (m != NB_MEMBER_WEIGHT && m != NB_MEMBER_PACKED) return false;
        nb_buf_clear(scratch);
        nb_buf_add(scratch, t->name, len);
        const nb_module *module = nb_modules_find(&c->modules, nb_buf_str(scratch));
        *rank = 2;
        return module && nb_module_codes(module) == t && nb_module_shape(module, &dims[0], &dims[1]);
    }
    *rank = t->rank;
    for (size_t i = 0; i < t->rank && i < 4; i++) dims[i] = t->shape[i];
    return true;
}

static bool same_shape(const uint64_t *have, size_t rank, const uint64_t *want, size_t wanted)
{
    if (rank == 0 && wanted == 1 && want[0] == 1) return true; /* one number: [] and [1] are the same */
    return rank == wanted && memcmp(have, want, rank * sizeof *have) == 0;
}

static void shape_text(const uint64_t *dims, size_t rank, nb_buf *b)
{
    nb_buf_adds(b, "[");
    for (size_t i = 0; i < rank; i++) nb_buf_addf(b, "%s%llu", i ? ", " : "", (unsigned long long)dims[i]);
    nb_buf_adds(b, "]");
}

/* A stack: as many matrices as there are experts, each of the shape of what its rows make. Scales are judged beside their blocks. */
static void judge_stack(const nb_check *c, const nb_tensor_info *t, const nb_place *p, size_t from,
                        nb_findings *out)
{
    const int64_t experts = nb_arch_experts(&c->config, p->row);
    char module[256], have[96], expected[256];
    uint64_t want[4];
    nb_linear_src src;
    nb_error why;
    size_t len;
    if (nb_member_of(t->name, &len) == NB_MEMBER_SCALES) return;
    if (nb_config_shape(&c->config, p->row->shape, (int)p->l, want, &why) != 2) {
        report_config(&why, from, out);
        return;
    }
    const bool found =
        nb_arch_find(c->ckpt, &c->config, p->row, p->l, experts - 1, module, sizeof module, NULL);
    const nb_status s = nb_linear_describe(c->ckpt, module, want[0], want[1], &src, &why);
    if (!found || (s == NB_OK && (int64_t)t->shape[0] == experts)) return;
    if (s == NB_ERR_UNSUPPORTED) return; /* its shape is another layout's, which NB006 names */
    if (s != NB_OK && strcmp(why.tensor, t->name) != 0) return;
    snprintf(expected, sizeof expected, "%lld experts, for each of them %s = [%llu, %llu]",
             (long long)experts, p->row->shape, (unsigned long long)want[0], (unsigned long long)want[1]);
    report_shape(c, t, "a stack of experts has another shape than config.json implies",
                 nb_tensor_shape_text(t, have, sizeof have), expected, from, out);
}

static nb_status judge_tensor(const nb_check *c, const nb_tensor_info *t, const nb_place *p, size_t from,
                              nb_findings *out, nb_error *err)
{
    uint64_t have[4] = {0}, want[4];
    size_t rank;
    nb_buf measured = {0}, expected = {0};
    nb_error why;
    nb_status s = NB_OK;
    if (is_linear(p->row) && p->e < 0 && has_index(p->row, "{e}")) {
        judge_stack(c, t, p, from, out);
        return NB_OK;
    }
    if (!shape_of(c, p->row, t, &measured, have, &rank)) goto out;
    nb_buf_clear(&measured);
    size_t wanted = nb_config_shape(&c->config, p->row->shape, (int)p->l, want, &why);
    if (!wanted) {
        report_config(&why, from, out);
        goto out;
    }
    const bool shape = same_shape(have, rank, want, wanted),
               dtype = is_linear(p->row) || dtype_suits(p->row, t);
    if (!shape) {
        shape_text(have, rank < 4 ? rank : 4, &measured);
        nb_buf_addf(&expected, "%s = ", p->row->shape);
        shape_text(want, wanted, &expected);
        report_shape(c, t, "a tensor has another shape than config.json implies", nb_buf_str(&measured),
                     nb_buf_str(&expected), from, out);
    } else if (!dtype) {
        report_shape(c, t, "a tensor has a dtype that cannot hold its values", nb_dtype_name(t->dtype),
                     p->row->role == NB_ROLE_INDEX ? "an integer dtype" : "F32, BF16 or F16", from, out);
    } else if (p->row->role == NB_ROLE_INDEX) {
        s = judge_index(c, t, out, err);
    }
out:
    if (!nb_buf_ok(&measured) || !nb_buf_ok(&expected)) s = nb_fail_nomem(err, t->name, 0);
    nb_buf_free(&measured);
    nb_buf_free(&expected);
    return s;
}

static nb_status judge_shapes(const nb_check *c, nb_findings *out, nb_error *err)
{
    const nb_arch *arch = c->config.arch;
    nb_status s = NB_OK;
    for (size_t r = 0; r < arch->n_tensors && s == NB_OK; r++) {
        const size_t from = out->count;
        for (size_t i = 0; i < nb_ckpt_count(c->ckpt) && s == NB_OK && !out->bad; i++) {
            const nb_place *p = &c->places[i];
            if (p->row != &arch->tensors[r] || p->l >= c->config.n_layers) continue;
            if (p->row->when && !p->row->when(&c->config, (int)p->l)) continue;
            s = judge_tensor(c, nb_ckpt_at(c->ckpt, i), p, from, out, err);
        }
    }
    return s;
}

nb_status nb_rule_arch(const nb_check *c, nb_findings *out, nb_error *err)
{
    if (!c->table) return NB_OK;
    census k = {.c = c, .arch = c->config.arch, .out = out};
    nb_status s = NB_OK;
    if (!count_rows(&k))
        return nb_fail_nomem(err, "the census of tensors", k.arch->n_tensors * k.layers * sizeof *k.seen);
    judge_absent(&k);
    if (!nb_buf_ok(&k.name)) s = nb_fail_nomem(err, "a tensor's name", 0);
    if (s == NB_OK) s = judge_shapes(c, out, err);
    if (s == NB_OK) s = nb_rule_drafts(c, out, err);
    free(k.seen);
    nb_buf_free(&k.name);
    return s;
}
