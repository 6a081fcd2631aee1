/* Values out of a checkpoint's tensors: the bytes of each dtype as F32 or I64. Nothing in a file is aligned, so every
 * value is copied out before it is looked at. */
#include <math.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "numerics/formats.h"

#define CHUNK ((size_t)16 << 10) /* bytes read at a time */

static nb_status wrong_dtype(const nb_ckpt *c, const nb_tensor_info *t, const char *wanted, nb_error *err)
{
    nb_fail(err, NB_ERR_FORMAT, "the dtype is %s; expected %s", nb_dtype_name(t->dtype), wanted);
    nb_error_at(err, nb_ckpt_file_path(c, t->file), t->name, (int64_t)t->begin);
    nb_error_remedy(err, "export the model again with this tensor in one of these dtypes");
    return NB_ERR_FORMAT;
}

static float float_value(nb_dtype d, const unsigned char *p)
{
    uint16_t h;
    float f;
    double g;
    switch (d) {
    case NB_DT_F32: memcpy(&f, p, 4); return f;
    case NB_DT_F64: memcpy(&g, p, 8); return (float)g;
    case NB_DT_BF16: memcpy(&h, p, 2); return nb_bf16_decode(h);
    case NB_DT_F16: memcpy(&h, p, 2); return nb_f16_decode(h);
    default: return nb_e8m0_decode(*p);
    }
}

static bool double_is_inf(const unsigned char *p)
{
    double g;
    memcpy(&g, p, 8);
    return isinf(g);
}

/* A finite F64 that F32 cannot hold: it would become infinite in silence. */
static nb_status too_large(const nb_ckpt *c, const nb_tensor_info *t, uint64_t at, nb_error *err)
{
    nb_fail(err, NB_ERR_FORMAT, "an F64 value is beyond the range of F32, in which it would be computed");
    nb_error_at(err, nb_ckpt_file_path(c, t->file), t->name, (int64_t)(t->begin + at));
    nb_error_remedy(err, "export the model again with this tensor in F32 or BF16");
    return NB_ERR_FORMAT;
}

static bool is_float(nb_dtype d)
{
    return d == NB_DT_F32 || d == NB_DT_F64 || d == NB_DT_BF16 || d == NB_DT_F16;
}

nb_status nb_ckpt_read_floats(const nb_ckpt *c, const nb_tensor_info *t, uint64_t first, size_t n, float *dst,
                              nb_error *err)
{
    unsigned char bytes[CHUNK];
    if (!is_float(t->dtype) && t->dtype != NB_DT_F8_E8M0)
        return wrong_dtype(c, t, "F32, BF16, F16, F64 or F8_E8M0", err);
    size_t size = nb_dtype_bits(t->dtype) / 8;
    uint64_t elements = nb_tensor_elements(t);
    if (first > elements || n > elements - first)
        return nb_fail(err, NB_ERR_ARGUMENT, "elements beyond the tensor's end");
    for (size_t done = 0; done < n;) {
        size_t now = n - done < CHUNK / size ? n - done : CHUNK / size;
        nb_status s = nb_ckpt_read(c, t, (first + done) * size, bytes, now * size, err);
        if (s != NB_OK) return s;
        for (size_t i = 0; i < now; i++) {
            dst[done + i] = float_value(t->dtype, bytes + i * size);
            if (t->dtype == NB_DT_F64 && isinf(dst[done + i]) && !double_is_inf(bytes + i * size))
                return too_large(c, t, (first + done + i) * size, err);
        }
        done += now;
    }
    return NB_OK;
}

nb_status nb_ckpt_read_f32(const nb_ckpt *c, const nb_tensor_info *t, float *dst, nb_error *err)
{
    if (!is_float(t->dtype)) return wrong_dtype(c, t, "F32, BF16, F16 or F64", err);
    return nb_ckpt_read_floats(c, t, 0, (size_t)nb_tensor_elements(t), dst, err);
}

/* size little-endian bytes, sign-extended where the dtype has a sign. */
static int64_t integer_value(const unsigned char *p, size_t size, bool is_signed)
{
    uint64_t v = 0;
    for (size_t i = size; i-- > 0;) v = v << 8 | p[i];
    if (is_signed && size < 8 && v >> (8 * size - 1)) v |= ~(uint64_t)0 << (8 * size);
    return (int64_t)v;
}

nb_status nb_ckpt_read_i64(const nb_ckpt *c, const nb_tensor_info *t, int64_t *dst, nb_error *err)
{
    unsigned char bytes[CHUNK];
    nb_dtype d = t->dtype;
    bool is_signed = d == NB_DT_I8 || d == NB_DT_I16 || d == NB_DT_I32 || d == NB_DT_I64;
    bool is_unsigned = d == NB_DT_U8 || d == NB_DT_U16 || d == NB_DT_U32 || d == NB_DT_U64 || d == NB_DT_BOOL;
    if (!is_signed && !is_unsigned) return wrong_dtype(c, t, "an integer", err);
    size_t size = nb_dtype_bits(d) / 8;
    uint64_t n = nb_tensor_elements(t);
    for (uint64_t done = 0; done < n;) {
        size_t now = n - done < CHUNK / size ? (size_t)(n - done) : CHUNK / size;
        nb_status s = nb_ckpt_read(c, t, done * size, bytes, now * size, err);
        if (s != NB_OK) return s;
        for (size_t i = 0; i < now; i++) {
            int64_t v = integer_value(bytes + i * size, size, is_signed);
            if (d == NB_DT_U64 && v < 0) return wrong_dtype(c, t, "values below 2^63", err);
            dst[done + i] = v;
        }
        done += now;
    }
    return NB_OK;
}
