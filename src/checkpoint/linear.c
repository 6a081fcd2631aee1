/*
 * How one linear is stored, told from the tensors that lie beside each other under its name. Two exporters' flavours of
 * NVFP4 differ in one word and in the direction of the global scale, and released models mix formats in ways that their
 * config.json does not say, so the config is not asked. Whatever is missing or contradicts itself is an error that says
 * what would have been right: guessing here is how wrong numbers get served.
 */
#include "checkpoint/linear.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"

#define FP8_BLOCK 128
#define NAME_CAP (sizeof((nb_linear_src *)0)->module + 32)

static const char *const members[] = {
    "weight",           "weight_packed", "weight_scale", "weight_scale_2",     "weight_global_scale",
    "weight_scale_inv", "scale",         "input_scale",  "input_global_scale",
};

bool nb_linear_member(const char *last)
{
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strcmp(members[i], last) == 0) return true;
    }
    return false;
}

static const nb_tensor_info *member(const nb_ckpt *c, const char *module, const char *name)
{
    char full[NAME_CAP];
    int n = snprintf(full, sizeof full, "%s.%s", module, name);
    return n > 0 && (size_t)n < sizeof full ? nb_ckpt_find(c, full) : NULL;
}

/* Which part of a stack a module's name means. */
typedef struct part {
    size_t stack; /* length of the stack's name */
    uint64_t matrix;
    bool transposed, halves, interleaved; /* halves: only every second row, or only half of the rows: */
    size_t second;                        /* 1: the odd ones, the second half */
} part;

static bool parse_part(const char *module, part *out)
{
    static const struct {
        const char *text;
        bool halves, interleaved;
        size_t second;
    } rows[] = {{"", false, false, 0},
                {"[:half]", true, false, 0},
                {"[half:]", true, false, 1},
                {"[0::2]", true, true, 0},
                {"[1::2]", true, true, 1}};
    const char *p = strchr(module, '[');
    size_t digits = p ? strspn(p + 1, "0123456789") : 0;
    if (!p || p == module || !digits || digits > 9 || p[1 + digits] != ']') return false;
    const char *rest = p + digits + 2;
    const bool transposed = strncmp(rest, ".T", 2) == 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rest + (transposed ? 2 : 0), rows[i].text) != 0) continue;
        *out = (part){(size_t)(p - module), strtoull(p + 1, NULL, 10), transposed,
                      rows[i].halves,       rows[i].interleaved,       rows[i].second};
        return true;
    }
    return false;
}

size_t nb_linear_stack(const char *module)
{
    part p;
    return parse_part(module, &p) ? p.stack : 0;
}

/* The tensor whose name is that of the part's stack, followed by `suffix`. */
static const nb_tensor_info *of_stack(const nb_ckpt *c, const char *module, const part *p, const char *suffix)
{
    char full[NAME_CAP];
    int n = snprintf(full, sizeof full, "%.*s%s", (int)p->stack, module, suffix);
    return n > 0 && (size_t)n < sizeof full ? nb_ckpt_find(c, full) : NULL;
}

bool nb_linear_exists(const nb_ckpt *c, const char *module)
{
    part p;
    if (parse_part(module, &p))
        return of_stack(c, module, &p, "") || (!p.transposed && of_stack(c, module, &p, "_blocks"));
    return member(c, module, "weight") || member(c, module, "weight_packed");
}

/* What is being described, for the functions below. */
typedef struct reader {
    const nb_ckpt *c;
    nb_linear_src *s;
    nb_error *err;
} reader;

/* The tensor `name` of this module is not there. `expected` is what it should hold. */
static nb_status missing(reader *r, const char *name, const char *expected)
{
    char full[NAME_CAP];
    const nb_tensor_info *w = r->s->weight;
    const size_t stack = nb_linear_stack(r->s->module);
    if (stack)
        snprintf(full, sizeof full, "%.*s%s", (int)stack, r->s->module, name);
    else
        snprintf(full, sizeof full, "%s.%s", r->s->module, name);
    const nb_tensor_info *unlisted = nb_ckpt_unlisted(r->c, full);
    nb_fail(r->err, NB_ERR_MISSING, "the tensor is missing; expected %s", expected);
    nb_error_at(r->err, w ? nb_ckpt_file_path(r->c, w->file) : nb_ckpt_dir(r->c), full, -1);
    if (unlisted)
        nb_error_remedy(r->err, "%s has it, but model.safetensors.index.json does not name it: add it there",
                        nb_ckpt_file_name(r->c, unlisted->file));
    else
        nb_error_remedy(r->err,
                        "download or export the model again; `nibble check` lists all that is missing");
    return NB_ERR_MISSING;
}

static nb_status wrong(reader *r, const nb_tensor_info *t, nb_status status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static nb_status wrong(reader *r, const nb_tensor_info *t, nb_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    nb_vfail(r->err, status, fmt, ap);
    va_end(ap);
    nb_error_at(r->err, nb_ckpt_file_path(r->c, t->file), t->name, (int64_t)t->begin);
    nb_error_remedy(r->err, "export this layer again; `nibble check` explains what each loader makes of it");
    return status;
}

/* t must be dtype [rows, cols]. */
static nb_status expect(reader *r, const nb_tensor_info *t, nb_dtype dtype, uint64_t rows, uint64_t cols)
{
    char shape[96];
    if (t->dtype == dtype && t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols) return NB_OK;
    return wrong(r, t, NB_ERR_FORMAT,
                 "the tensor is %s %s; expected %s [%llu, %llu] beside weights of %zu by %zu",
                 nb_dtype_name(t->dtype), nb_tensor_shape_text(t, shape, sizeof shape), nb_dtype_name(dtype),
                 (unsigned long long)rows, (unsigned long long)cols, r->s->n, r->s->k);
}

/* A global scale: one float, of shape [] or [1]. */
static nb_status read_scalar(reader *r, const nb_tensor_info *t, float *out)
{
    char shape[96];
    if (t->rank > 1 || nb_tensor_elements(t) != 1)
        return wrong(r, t, NB_ERR_FORMAT, "the shape is %s; expected one number ([] or [1])",
                     nb_tensor_shape_text(t, shape, sizeof shape));
    return nb_ckpt_read_f32(r->c, t, out, r->err);
}

/* A static activation scale may be there or not. */
static nb_status read_input(reader *r, const char *name, float *value)
{
    nb_linear_src *s = r->s;
    s->input = member(r->c, s->module, name);
    s->has_input = s->input != NULL;
    return s->input ? read_scalar(r, s->input, value) : NB_OK;
}

/* n and k from the weight's own shape; per_byte values are packed in one element. */
static nb_status read_shape(reader *r, size_t per_byte)
{
    char shape[96];
    nb_linear_src *s = r->s;
    const nb_tensor_info *w = s->weight;
    if (w->rank != 2 || !w->shape[0] || !w->shape[1] || w->shape[0] > SIZE_MAX ||
        w->shape[1] > SIZE_MAX / per_byte)
        return wrong(r, w, NB_ERR_FORMAT, "the shape is %s; expected [output rows, input columns]",
                     nb_tensor_shape_text(w, shape, sizeof shape));
    s->n = (size_t)w->shape[0];
    s->k = (size_t)w->shape[1] * per_byte;
    return NB_OK;
}

static nb_status describe_nvfp4(reader *r, bool ct)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *w = s->weight;
    char expected[96];
    float v = 0;
    s->scheme = ct ? NB_SCHEME_NVFP4_CT : NB_SCHEME_NVFP4_MODELOPT;
    s->format = NB_FMT_NVFP4;
    s->scale = member(r->c, s->module, "weight_scale");
    s->global = member(r->c, s->module, ct ? "weight_global_scale" : "weight_scale_2");
    nb_status st = read_shape(r, 2);
    if (st != NB_OK) return st;
    if (w->dtype != NB_DT_U8 || s->k % NB_NVFP4_BLOCK)
        return wrong(r, w, NB_ERR_FORMAT,
                     "%s codes of %zu columns; NVFP4 has U8 codes, and columns in blocks of 16",
                     nb_dtype_name(w->dtype), s->k);
    if (!s->scale) {
        snprintf(expected, sizeof expected, "the block scales, F8_E4M3 [%zu, %zu]", s->n,
                 s->k / NB_NVFP4_BLOCK);
        return missing(r, "weight_scale", expected);
    }
    st = expect(r, s->scale, NB_DT_F8_E4M3, s->n, s->k / NB_NVFP4_BLOCK);
    if (st != NB_OK) return st;
    if (!s->global)
        return ct ? missing(r, "weight_global_scale", "the weight's global scale, F32 [1], a divisor")
                  : missing(r, "weight_scale_2", "the weight's global scale, F32 [], a multiplier");
    st = read_scalar(r, s->global, &v);
    if (st != NB_OK) return st;
    s->multiplier = ct ? 1.0f / v : v;
    st = read_input(r, ct ? "input_global_scale" : "input_scale", &v);
    if (s->has_input) {
        s->input_gs = ct ? v : 1.0f / v;
        s->input_multiplier = ct ? 1.0f / v : v;
    }
    return st;
}

static nb_status describe_mxfp4(reader *r)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *w = s->weight;
    s->scheme = NB_SCHEME_MXFP4;
    s->format = NB_FMT_MXFP4;
    nb_status st = read_shape(r, 2);
    if (st != NB_OK) return st;
    if ((w->dtype != NB_DT_U8 && w->dtype != NB_DT_I8) || s->k % 32)
        return wrong(r, w, NB_ERR_FORMAT,
                     "%s codes of %zu columns; MXFP4 has U8 or I8 codes, and columns in blocks of 32",
                     nb_dtype_name(w->dtype), s->k);
    return expect(r, s->scale, s->scale->dtype == NB_DT_U8 ? NB_DT_U8 : NB_DT_F8_E8M0, s->n, s->k / 32);
}

/* What one scale of an FP8 weight covers, from the scale's shape: everything; a row; or 128 by 128. */
static nb_status describe_fp8(reader *r)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *t = s->scale;
    char shape[96];
    float v;
    s->format = NB_FMT_FP8;
    nb_status st = read_shape(r, 1);
    if (st != NB_OK) return st;
    if (t->dtype != NB_DT_F32 && t->dtype != NB_DT_BF16 && t->dtype != NB_DT_F16 && t->dtype != NB_DT_F8_E8M0)
        return wrong(r, t, NB_ERR_FORMAT, "the scale is %s; expected F32, BF16, F16 or F8_E8M0",
                     nb_dtype_name(t->dtype));
    const size_t block_rows = nb_ceil_div(s->n, FP8_BLOCK), block_cols = nb_ceil_div(s->k, FP8_BLOCK);
    const bool vector = t->rank == 1 || (t->rank == 2 && t->shape[1] == 1);
    if (t->rank == 2 && t->shape[0] == block_rows && t->shape[1] == block_cols) {
        s->scheme = NB_SCHEME_FP8_BLOCK;
        s->rows_per = s->cols_per = FP8_BLOCK;
    } else if (t->rank <= 2 && nb_tensor_elements(t) == 1) {
        s->scheme = NB_SCHEME_FP8_TENSOR;
        s->rows_per = s->n;
        s->cols_per = s->k;
        st = nb_ckpt_read_floats(r->c, t, 0, 1, &s->multiplier, r->err);
        if (st != NB_OK) return st;
    } else if (vector && t->shape[0] == s->n) {
        s->scheme = NB_SCHEME_FP8_CHANNEL;
        s->rows_per = 1;
        s->cols_per = s->k;
    } else {
        return wrong(r, t, NB_ERR_FORMAT,
                     "the shape is %s; expected [], [%zu], [%zu, 1] or, for blocks of 128 by 128, [%zu, %zu]",
                     nb_tensor_shape_text(t, shape, sizeof shape), s->n, s->n, block_rows, block_cols);
    }
    return read_input(r, "input_scale", &v);
}

/* The one of weight_scale, weight_scale_inv and scale that is there. Two at once are a contradiction. */
static nb_status one_scale(reader *r, const char *expected)
{
    static const char *const names[] = {"weight_scale", "weight_scale_inv", "scale"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const nb_tensor_info *t = member(r->c, r->s->module, names[i]);
        if (t && r->s->scale)
            return wrong(r, t, NB_ERR_FORMAT, "%s is there too; expected one of them", r->s->scale->name);
        if (t) r->s->scale = t;
    }
    return r->s->scale ? NB_OK : missing(r, "weight_scale", expected);
}

static nb_status describe_packed(reader *r)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *scale = member(r->c, s->module, "weight_scale");
    bool e8m0 = scale && (scale->dtype == NB_DT_U8 || scale->dtype == NB_DT_F8_E8M0);
    if (!e8m0 || member(r->c, s->module, "weight_global_scale")) return describe_nvfp4(r, true);
    s->scale = scale;
    return describe_mxfp4(r);
}

static nb_status describe_plain(reader *r)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *w = s->weight, *scale = member(r->c, s->module, "weight_scale");
    nb_status st;
    switch (w->dtype) {
    case NB_DT_U8:
    case NB_DT_I8:
        if (member(r->c, s->module, "weight_scale_2") || (scale && scale->dtype == NB_DT_F8_E4M3))
            return describe_nvfp4(r, false);
        st = one_scale(
            r, "block scales beside 4-bit codes: F8_E4M3 with weight_scale_2 (NVFP4), or F8_E8M0 (MXFP4)");
        return st == NB_OK ? describe_mxfp4(r) : st;
    case NB_DT_F8_E4M3:
        st = one_scale(r, "the scale of an FP8 weight: F32, BF16 or F8_E8M0");
        return st == NB_OK ? describe_fp8(r) : st;
    case NB_DT_BF16: s->format = NB_FMT_BF16; break;
    case NB_DT_F16: s->format = NB_FMT_F16; break;
    case NB_DT_F32: s->format = NB_FMT_F32; break;
    default:
        return wrong(r, w, NB_ERR_UNSUPPORTED,
                     "a weight of dtype %s; expected U8 or I8 (4-bit codes), F8_E4M3, BF16, F16 or F32",
                     nb_dtype_name(w->dtype));
    }
    s->scheme = NB_SCHEME_FLOAT;
    return read_shape(r, 1);
}

static nb_status describe_module(reader *r)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *packed = member(r->c, s->module, "weight_packed"),
                         *plain = member(r->c, s->module, "weight");
    s->weight = packed ? packed : plain;
    if (!s->weight) return missing(r, "weight", "the weight of a linear (or weight_packed)");
    if (packed && plain)
        return wrong(r, packed, NB_ERR_FORMAT,
                     "both weight and weight_packed are there; expected one of them");
    return packed ? describe_packed(r) : describe_plain(r);
}

static nb_status check_stack_floats(reader *r, const part *p)
{
    const nb_tensor_info *w = r->s->weight;
    char shape[96];
    if (of_stack(r->c, r->s->module, p, "_weight_scale")) {
        wrong(
            r, w, NB_ERR_UNSUPPORTED,
            "all experts in one NVFP4 tensor, with scales under the names _weight_scale and _weight_scale_2: "
            "no engine is known to load that");
        nb_error_remedy(r->err,
                        "export the experts one by one (experts.N.gate_proj.weight, .weight_scale …)");
        return NB_ERR_UNSUPPORTED;
    }
    r->s->scheme = NB_SCHEME_FLOAT;
    r->s->format = w->dtype == NB_DT_F16 ? NB_FMT_F16 : w->dtype == NB_DT_F32 ? NB_FMT_F32 : NB_FMT_BF16;
    const bool known = w->dtype == NB_DT_BF16 || r->s->format != NB_FMT_BF16;
    if (known && w->rank == 3 && nb_tensor_elements(w)) return NB_OK;
    return wrong(r, w, NB_ERR_FORMAT,
                 "the stack is %s %s; expected BF16, F16 or F32 [experts, rows, columns]",
                 nb_dtype_name(w->dtype), nb_tensor_shape_text(w, shape, sizeof shape));
}

static nb_status check_stack_blocks(reader *r, const part *p)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *w = s->weight, *t = s->scale = of_stack(r->c, s->module, p, "_scales");
    char shape[96];
    s->scheme = NB_SCHEME_MXFP4;
    s->format = NB_FMT_MXFP4;
    if (w->rank != 4 || w->dtype != NB_DT_U8 || w->shape[3] != 16 || !nb_tensor_elements(w))
        return wrong(r, w, NB_ERR_FORMAT,
                     "the blocks are %s %s; expected U8 [experts, rows, columns / 32, 16]",
                     nb_dtype_name(w->dtype), nb_tensor_shape_text(w, shape, sizeof shape));
    if (!t) return missing(r, "_scales", "the scales of these blocks, U8 [experts, rows, columns / 32]");
    if (t->rank == 3 && t->dtype == NB_DT_U8 && memcmp(t->shape, w->shape, 3 * sizeof *w->shape) == 0)
        return NB_OK;
    return wrong(r, t, NB_ERR_FORMAT,
                 "the scales are %s %s; expected U8 in the shape of the blocks without its last dimension",
                 nb_dtype_name(t->dtype), nb_tensor_shape_text(t, shape, sizeof shape));
}

static nb_status describe_part(reader *r, const part *p)
{
    nb_linear_src *s = r->s;
    const nb_tensor_info *blocks = p->transposed ? NULL : of_stack(r->c, s->module, p, "_blocks");
    s->weight = blocks ? blocks : of_stack(r->c, s->module, p, "");
    if (!s->weight) return missing(r, "", "the matrices of all experts, [experts, rows, columns]");
    nb_status st = blocks ? check_stack_blocks(r, p) : check_stack_floats(r, p);
    if (st != NB_OK) return st;
    const uint64_t *shape = s->weight->shape, rows = shape[1], experts = shape[0];
    const uint64_t cols = blocks ? shape[2] * 32 : shape[2]; /* 16 bytes for each 32 of them */
    const uint64_t out = p->transposed ? cols : rows;
    if (p->matrix >= experts || (p->halves && out % 2))
        return wrong(r, s->weight, NB_ERR_FORMAT,
                     "the stack holds %llu matrices of %llu output rows; expected one number %llu, %s",
                     (unsigned long long)experts, (unsigned long long)out, (unsigned long long)p->matrix,
                     p->halves ? "with gate and up in equal parts" : "of all rows");
    s->n = (size_t)(p->halves ? out / 2 : out);
    s->k = (size_t)(p->transposed ? rows : cols);
    s->ld = p->transposed ? (size_t)cols : 0;
    s->gap = p->interleaved;
    s->first = (size_t)(p->matrix * rows * (p->transposed ? cols : 1)) +
               (p->interleaved ? p->second : p->second * s->n);
    return NB_OK;
}

nb_status nb_linear_describe(const nb_ckpt *c, const char *module, size_t n, size_t k, nb_linear_src *out,
                             nb_error *err)
{
    nb_linear_src s = {.multiplier = 1};
    reader r = {c, &s, err};
    part p;
    nb_status st;
    size_t len = strlen(module);
    if (len >= sizeof s.module) {
        nb_fail(err, NB_ERR_LIMIT, "a module's name of %zu characters; at most %zu are handled", len,
                sizeof s.module - 1);
        nb_error_at(err, NULL, module, -1);
        return NB_ERR_LIMIT;
    }
    memcpy(s.module, module, len + 1);
    st = parse_part(module, &p) ? describe_part(&r, &p) : describe_module(&r);
    if (st != NB_OK) return st;
    if ((n && n != s.n) || (k && k != s.k))
        return wrong(&r, s.weight, NB_ERR_FORMAT, "the linear is %zu by %zu; config.json asks for %zu by %zu",
                     s.n, s.k, n ? n : s.n, k ? k : s.k);
    *out = s;
    return NB_OK;
}

/* Bytes of one row of codes. */
static size_t row_bytes(const nb_linear_src *s)
{
    switch (s->format) {
    case NB_FMT_NVFP4:
    case NB_FMT_MXFP4: return s->k / 2;
    case NB_FMT_FP8: return s->k;
    case NB_FMT_F32: return s->k * 4;
    default: return s->k * 2;
    }
}

size_t nb_linear_scale_k(const nb_linear_src *s)
{
    switch (s->format) {
    case NB_FMT_NVFP4: return NB_NVFP4_BLOCK;
    case NB_FMT_MXFP4: return 32;
    case NB_FMT_FP8: return s->cols_per;
    default: return 0;
    }
}

size_t nb_linear_code_bytes(const nb_linear_src *s, size_t rows)
{
    return rows * row_bytes(s);
}

size_t nb_linear_scale_bytes(const nb_linear_src *s, size_t rows)
{
    size_t scale_k = nb_linear_scale_k(s);
    if (!scale_k) return 0;
    return rows * nb_ceil_div(s->k, scale_k) * (s->format == NB_FMT_FP8 ? sizeof(float) : 1);
}

/* FP8 scales of rows [row, row + rows), one set per row. */
static nb_status read_fp8_scales(const nb_ckpt *c, const nb_linear_src *s, size_t row, size_t rows,
                                 float *out, nb_error *err)
{
    const size_t cols = nb_ceil_div(s->k, s->cols_per);
    if (s->scheme == NB_SCHEME_FP8_TENSOR) {
        for (size_t i = 0; i < rows; i++) out[i] = 1; /* the scale itself is in s->multiplier */
        return NB_OK;
    }
    for (size_t i = 0; i < rows;) {
        size_t block = (row + i) / s->rows_per, next = (block + 1) * s->rows_per - row;
        nb_status st = nb_ckpt_read_floats(c, s->scale, block * cols, cols, out + i * cols, err);
        if (st != NB_OK) return st;
        const float *first = out + i * cols;
        for (i++; i < rows && i < next; i++) memcpy(out + i * cols, first, cols * sizeof *out);
    }
    return NB_OK;
}

uint64_t nb_linear_offset(const nb_linear_src *s, bool scale, size_t row, size_t col)
{
    const size_t size = s->scheme == NB_SCHEME_FLOAT ? row_bytes(s) / s->k : 1;
    if (s->ld) return (s->first + (uint64_t)col * s->ld + (uint64_t)row * (s->gap + 1)) * size;
    const uint64_t stored = s->first + (uint64_t)row * (s->gap + 1);
    const size_t per = scale ? nb_linear_scale_k(s) : row_bytes(s) < s->k ? 2 : 1;
    return stored * (scale ? nb_linear_scale_bytes(s, 1) : row_bytes(s)) + col / per * (scale ? 1 : size);
}

/* Rows of `bytes` each from t. With a gap, what lies between them is read too: one long read is faster than many short ones. */
static nb_status read_rows(const nb_ckpt *c, const nb_linear_src *s, const nb_tensor_info *t, size_t bytes,
                           size_t row, size_t rows, uint8_t *out, nb_error *err)
{
    const uint64_t begin = (s->first + (uint64_t)row * (s->gap + 1)) * bytes;
    if (!s->gap || !rows) return nb_ckpt_read(c, t, begin, out, rows * bytes, err);
    const size_t step = (s->gap + 1) * bytes, n = (rows - 1) * step + bytes;
    uint8_t *all = malloc(n);
    if (!all) return nb_fail_nomem(err, s->module, n);
    nb_status st = nb_ckpt_read(c, t, begin, all, n, err);
    for (size_t i = 0; st == NB_OK && i < rows; i++) memcpy(out + i * bytes, all + i * step, bytes);
    free(all);
    return st;
}

/* Rows of a matrix that is stored as its transpose: a stretch of each stored row, several at a time where they are near. */
static nb_status read_columns(const nb_ckpt *c, const nb_linear_src *s, size_t row, size_t rows, uint8_t *out,
                              nb_error *err)
{
    const size_t size = row_bytes(s) / s->k, step = s->gap + 1, width = (rows - 1) * step + 1;
    const size_t many = width * 4 < s->ld ? 1 : 1 + ((size_t)1 << 18) / s->ld;
    const size_t cap = ((many - 1) * s->ld + width) * size;
    nb_status st = NB_OK;
    uint8_t *all = malloc(cap);
    if (!all) return nb_fail_nomem(err, s->module, cap);
    for (size_t k = 0; k < s->k && st == NB_OK; k += many) {
        const size_t n = s->k - k < many ? s->k - k : many;
        st = nb_ckpt_read(c, s->weight, nb_linear_offset(s, false, row, k), all,
                          ((n - 1) * s->ld + width) * size, err);
        for (size_t i = 0; st == NB_OK && i < n; i++)
            for (size_t r = 0; r < rows; r++)
                memcpy(out + (r * s->k + k + i) * size, all + (i * s->ld + r * step) * size, size);
    }
    free(all);
    return st;
}

nb_status nb_linear_read(const nb_ckpt *c, const nb_linear_src *s, size_t row, size_t rows, uint8_t *codes,
                         void *scales, nb_error *err)
{
    if (row > s->n || rows > s->n - row) {
        nb_fail(err, NB_ERR_ARGUMENT, "rows [%zu, +%zu) of a linear with %zu", row, rows, s->n);
        nb_error_at(err, NULL, s->module, -1);
        return NB_ERR_ARGUMENT;
    }
    nb_status st = s->ld && rows ? read_columns(c, s, row, rows, codes, err)
                                 : read_rows(c, s, s->weight, row_bytes(s), row, rows, codes, err);
    if (st != NB_OK || s->scheme == NB_SCHEME_FLOAT) return st;
    if (s->format == NB_FMT_FP8) return read_fp8_scales(c, s, row, rows, scales, err);
    size_t n = nb_linear_scale_bytes(s, 1);
    st = read_rows(c, s, s->scale, n, row, rows, scales, err);
    uint8_t *bytes = scales;
    for (size_t i = 0; st == NB_OK && s->scale_map && i < rows * n; i++) bytes[i] = s->scale_map[bytes[i]];
    return st;
}

static void dequantise_floats(const nb_linear_src *s, const uint8_t *codes, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        if (s->format == NB_FMT_F32) {
            memcpy(out + i, codes + 4 * i, 4);
        } else {
            memcpy(&h, codes + 2 * i, 2);
            out[i] = s->format == NB_FMT_BF16 ? nb_bf16_decode(h) : nb_f16_decode(h);
        }
    }
}

nb_status nb_linear_dequantise(const nb_ckpt *c, const nb_linear_src *s, size_t row, size_t rows, float *out,
                               nb_error *err)
{
    size_t code_bytes = nb_linear_code_bytes(s, rows), scale_bytes = nb_linear_scale_bytes(s, rows);
    if (row > s->n || rows > s->n - row || !rows) return nb_linear_read(c, s, row, rows, NULL, NULL, err);
    uint8_t *codes = malloc(code_bytes);
    void *scales = malloc(scale_bytes ? scale_bytes : 1);
    nb_status st;
    if (!codes || !scales) {
        st = nb_fail_nomem(err, "dequantising a linear", code_bytes + scale_bytes);
        goto out;
    }
    st = nb_linear_read(c, s, row, rows, codes, scales, err);
    if (st != NB_OK) goto out;
    switch (s->format) {
    case NB_FMT_NVFP4: nb_nvfp4_dequantise(codes, scales, s->multiplier, rows, s->k, out); break;
    case NB_FMT_MXFP4: nb_mxfp4_dequantise(codes, scales, rows, s->k, out); break;
    case NB_FMT_FP8:
        nb_fp8_dequantise(codes, scales, rows, s->k, 1, s->cols_per, out);
        for (size_t i = 0; i < rows * s->k; i++) out[i] *= s->multiplier;
        break;
    default: dequantise_floats(s, codes, rows * s->k, out);
    }
out:
    free(codes);
    free(scales);
    return st;
}
