/* Laying out and filling the packed form: a transposition of 32-bit words, 16 rows at a time, and nothing else. No value is
 * rescaled or rounded here, so that what the kernels see is what the file says. */
#include "kernels/packed.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/mem.h"
#include "numerics/formats.h"

/* k in one 32-bit word, and k under one block scale where the format fixes that. */
static const struct format {
    const char *name;
    size_t per_word, block;
} formats[NB_FMT_COUNT] = {
    [NB_FMT_NVFP4] = {"nvfp4", 8, 16}, [NB_FMT_MXFP4] = {"mxfp4", 8, 32}, [NB_FMT_FP8] = {"fp8", 4, 0},
    [NB_FMT_BF16] = {"bf16", 2, 0},    [NB_FMT_F16] = {"f16", 2, 0},      [NB_FMT_F32] = {"f32", 1, 0},
};

const char *nb_format_name(nb_format f)
{
    return (unsigned)f < NB_FMT_COUNT ? formats[f].name : "unknown";
}

/* Bytes of one scale in the packed stream and in the checkpoint. */
static size_t scale_size(nb_format f)
{
    switch (f) {
    case NB_FMT_NVFP4:
    case NB_FMT_MXFP4: return 1;
    case NB_FMT_FP8: return sizeof(float);
    default: return 0;
    }
}

static size_t row_bytes(nb_format f, size_t k)
{
    return nb_ceil_div(k * 4, formats[f].per_word);
}

nb_status nb_packed_alloc(nb_format format, size_t n, size_t k, size_t scale_k, nb_packed *out, nb_error *err)
{
    return nb_packed_alloc_in(NULL, format, n, k, scale_k, out, err);
}

nb_status nb_packed_alloc_in(nb_slabs *slabs, nb_format format, size_t n, size_t k, size_t scale_k,
                             nb_packed *out, nb_error *err)
{
    if ((unsigned)format >= NB_FMT_COUNT || n == 0 || k == 0)
        return nb_fail(err, NB_ERR_ARGUMENT, "a weight needs a format and a shape, got %s [%zu, %zu]",
                       nb_format_name(format), n, k);
    const struct format *f = &formats[format];
    if (f->block && k % f->block != 0)
        return nb_fail(err, NB_ERR_FORMAT, "%s stores blocks of %zu input columns, %zu columns do not divide",
                       f->name, f->block, k);
    /* Everything below is at most 4 bytes a value plus padding; with that limit no product can wrap. */
    if (n > SIZE_MAX / 64 - NB_PANEL || k > SIZE_MAX / 64 - NB_K_PAD ||
        nb_ceil_div(n, NB_PANEL) > SIZE_MAX / 512 / (k + NB_K_PAD))
        return nb_fail(err, NB_ERR_NOMEM, "a %s weight [%zu, %zu] does not fit the address space", f->name, n,
                       k);

    nb_packed w = {.format = format, .n = n, .k = k, .multiplier = 1.0f};
    w.panels = nb_ceil_div(n, NB_PANEL);
    w.k_pad = nb_round_up(k, NB_K_PAD);
    w.code_bytes = w.k_pad / f->per_word * NB_PANEL * 4;
    if (format == NB_FMT_FP8) {
        w.scale_k = scale_k == 0 || scale_k >= k ? w.k_pad : scale_k;
        if (w.scale_k % 16 != 0)
            return nb_fail(err, NB_ERR_UNSUPPORTED,
                           "FP8 scales over %zu input columns; multiples of 16 are known", scale_k);
    } else {
        w.scale_k = f->block;
    }
    if (w.scale_k) w.scale_bytes = nb_ceil_div(w.k_pad, w.scale_k) * NB_PANEL * scale_size(format);

    /* A decode step reads all weights once, in as many streams as there are threads, and with small pages waits for translations. */
    w.codes = nb_slabs_take(slabs, nb_packed_bytes(&w), &w.memory);
    if (!w.codes) return nb_fail_nomem(err, "a packed weight", nb_packed_bytes(&w));
    if (w.scale_k) w.scales = w.codes + w.panels * w.code_bytes; /* code_bytes is a multiple of 64 */
    *out = w;
    return NB_OK;
}

void nb_packed_free(nb_packed *w)
{
    if (!w) return;
    nb_slab_release(w->memory);
    memset(w, 0, sizeof *w);
}

size_t nb_packed_bytes(const nb_packed *w)
{
    return w->panels * (w->code_bytes + w->scale_bytes);
}

#if defined(__SSE2__) /* of every x86-64 */

/* Streamed past the caches: a packed weight is many times their size and read much later. dst is aligned to 16. */
static void put_lines(const __m128i *lines, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) _mm_stream_si128((__m128i *)dst + i, lines[i]);
}

/* out[i] of the four words w of each of four rows. */
static void transpose_words(const __m128i in[4], __m128i out[4])
{
    const __m128i a = _mm_unpacklo_epi32(in[0], in[1]), b = _mm_unpacklo_epi32(in[2], in[3]),
                  c = _mm_unpackhi_epi32(in[0], in[1]), d = _mm_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm_unpacklo_epi64(a, b);
    out[1] = _mm_unpackhi_epi64(a, b);
    out[2] = _mm_unpacklo_epi64(c, d);
    out[3] = _mm_unpackhi_epi64(c, d);
}

/* The words of 16 rows, as far as they fill whole cache lines of the rows; returns their number. A line of a row is used up before the
 * next row's is touched: rows often lie a multiple of 4096 bytes apart, where sixteen lines have no place in the first-level cache. */
static size_t interleave_lines(const uint8_t *src, size_t bytes, uint8_t *panel)
{
    __m128i to[64], in[4], out[4]; /* 16 words of 16 rows */
    const size_t lines = bytes / 64;
    for (size_t j = 0; j < lines; j++) {
        for (size_t r = 0; r < NB_PANEL; r += 4)
            for (size_t q = 0; q < 4; q++) {
                for (size_t i = 0; i < 4; i++)
                    in[i] = _mm_loadu_si128((const __m128i *)(src + (r + i) * bytes + j * 64) + q);
                transpose_words(in, out);
                for (size_t i = 0; i < 4; i++) to[(4 * q + i) * 4 + r / 4] = out[i];
            }
        put_lines(to, 64, panel + j * 64 * NB_PANEL);
    }
    return lines * 16;
}

/* The same of bytes, 16 of each row at a time. */
static size_t interleave_byte_lines(const uint8_t *src, size_t bytes, uint8_t *panel)
{
    __m128i a[16], b[16];
    const size_t lines = bytes / 16;
    for (size_t j = 0; j < lines; j++) {
        for (size_t r = 0; r < NB_PANEL; r++) a[r] = _mm_loadu_si128((const __m128i *)(src + r * bytes) + j);
        /* Each pass interleaves the first eight rows with the last eight; after four of them rows are columns. */
        for (int pass = 0; pass < 4; pass++) {
            for (size_t r = 0; r < 8; r++) {
                b[2 * r] = _mm_unpacklo_epi8(a[r], a[r + 8]);
                b[2 * r + 1] = _mm_unpackhi_epi8(a[r], a[r + 8]);
            }
            memcpy(a, b, sizeof a);
        }
        put_lines(a, 16, panel + j * 16 * NB_PANEL);
    }
    return lines * 16;
}

/* Streamed stores are not ordered with others: before another thread may be told of them. */
static void fence(void)
{
    _mm_sfence();
}

#else

static size_t interleave_lines(const uint8_t *src, size_t bytes, uint8_t *panel)
{
    return 0;
}

static size_t interleave_byte_lines(const uint8_t *src, size_t bytes, uint8_t *panel)
{
    return 0;
}

static void fence(void)
{
}

#endif

/* rows (at most 16) of `bytes` bytes each, word by word into one panel. */
static void interleave(const uint8_t *src, size_t rows, size_t bytes, uint8_t *panel)
{
    size_t words = bytes / 4, tail = bytes % 4;
    for (size_t j = rows == NB_PANEL ? interleave_lines(src, bytes, panel) : 0; j < words; j++)
        for (size_t r = 0; r < rows; r++) memcpy(panel + (j * NB_PANEL + r) * 4, src + r * bytes + j * 4, 4);
    if (tail)
        for (size_t r = 0; r < rows; r++)
            memcpy(panel + (words * NB_PANEL + r) * 4, src + r * bytes + words * 4, tail);
}

/* The same byte by byte. */
static void interleave_bytes(const uint8_t *src, size_t rows, size_t bytes, uint8_t *panel)
{
    for (size_t j = rows == NB_PANEL ? interleave_byte_lines(src, bytes, panel) : 0; j < bytes; j++)
        for (size_t r = 0; r < rows; r++) panel[j * NB_PANEL + r] = src[r * bytes + j];
}

/* A byte of 0x7F or more, eight at a time: its low bits carry into the top one, or that is set. */
static bool has_odd_byte(const uint8_t *scales, size_t count)
{
    const uint64_t low = 0x7F7F7F7F7F7F7F7F, one = 0x0101010101010101;
    uint64_t odd = 0, v = 0;
    size_t i = 0;
    for (; i + sizeof v <= count; i += sizeof v) {
        memcpy(&v, scales + i, sizeof v);
        odd |= ((v & low) + one) | v;
    }
    v = 0;
    memcpy(&v, scales + i, count - i);
    odd |= ((v & low) + one) | v;
    return (odd & ~low) != 0;
}

bool nb_pack_rows(nb_packed *w, size_t row, size_t rows, const uint8_t *codes, const void *scales)
{
    size_t bytes = row_bytes(w->format, w->k), size = scale_size(w->format);
    size_t blocks = w->scale_k ? nb_ceil_div(w->k, w->scale_k) : 0;
    const uint8_t *s = scales;
    for (size_t r = 0; r < rows; r += NB_PANEL) {
        size_t p = (row + r) / NB_PANEL, here = rows - r < NB_PANEL ? rows - r : NB_PANEL;
        interleave(codes + r * bytes, here, bytes, w->codes + p * w->code_bytes);
        if (size == 1)
            interleave_bytes(s + r * blocks, here, blocks, w->scales + p * w->scale_bytes);
        else if (size)
            interleave(s + r * blocks * size, here, blocks * size, w->scales + p * w->scale_bytes);
    }
    fence();
    return w->format == NB_FMT_NVFP4 && has_odd_byte(s, rows * blocks);
}

bool nb_packed_odd(const nb_packed *w, size_t panel, size_t panels)
{
    return w->format == NB_FMT_NVFP4 &&
           has_odd_byte(w->scales + panel * w->scale_bytes, panels * w->scale_bytes);
}

static float code_value(nb_format f, const uint8_t *word, size_t i)
{
    uint16_t half;
    float value;
    switch (f) {
    case NB_FMT_NVFP4:
    case NB_FMT_MXFP4: return nb_e2m1_table[word[i / 2] >> (i % 2 * 4) & 15];
    case NB_FMT_FP8: return nb_e4m3_table[word[i]];
    case NB_FMT_BF16: memcpy(&half, word + 2 * i, 2); return nb_bf16_decode(half);
    case NB_FMT_F16: memcpy(&half, word + 2 * i, 2); return nb_f16_decode(half);
    default: memcpy(&value, word, 4); return value;
    }
}

static float scale_value(const nb_packed *w, size_t panel, size_t lane, size_t k)
{
    if (!w->scale_k) return 1.0f;
    const uint8_t *s = w->scales + panel * w->scale_bytes;
    size_t i = k / w->scale_k * NB_PANEL + lane;
    float value;
    switch (w->format) {
    case NB_FMT_NVFP4: return nb_e4m3_table[s[i]];
    case NB_FMT_MXFP4: return nb_e8m0_decode(s[i]);
    default: memcpy(&value, s + 4 * i, 4); return value;
    }
}

void nb_packed_row(const nb_packed *w, size_t row, float *out)
{
    size_t panel = row / NB_PANEL, lane = row % NB_PANEL, per = formats[w->format].per_word;
    const uint8_t *codes = w->codes + panel * w->code_bytes + lane * 4;
    for (size_t k = 0; k < w->k; k++) {
        float v = code_value(w->format, codes + k / per * NB_PANEL * 4, k % per);
        out[k] = v * scale_value(w, panel, lane, k) * w->multiplier;
    }
}
