/*
 * The CPU's one packed weight layout, which GEMV and GEMM both read (docs/design.md).
 *
 * A matrix W [n, k] is cut into panels of 16 output rows. Inside a panel the codes of the 16 rows are interleaved by
 * 32-bit words: word 0 of rows 0..15 (64 bytes), then word 1 of rows 0..15, and so on. A word holds consecutive k of
 * one row in the checkpoint's own byte order:
 *
 *     format   k per word   block   scale stream, one per panel
 *     NVFP4    8            16      E4M3 byte [k/16][16 rows]
 *     MXFP4    8            32      E8M0 byte [k/32][16 rows]
 *     FP8      4            *       F32       [ceil(k/scale_k)][16 rows]   (* scale_k = 128 per block, else k)
 *     BF16 F16 2            -       none
 *     F32      1            -       none
 *
 * n is padded to 16 with zero codes and zero scales; k is padded to 32. The per-tensor multiplier is applied once,
 * in F32, to the finished sum. So lane i of a vector is output row 16 p + i, no sum ever crosses lanes, and each
 * output is one fixed sequence of operations whatever the number of activation rows.
 */
#ifndef NB_KERNELS_PACKED_H
#define NB_KERNELS_PACKED_H

#include "base/error.h"
#include "base/slab.h"

#define NB_PANEL 16
#define NB_K_PAD 32

typedef enum nb_format {
    NB_FMT_NVFP4,
    NB_FMT_MXFP4,
    NB_FMT_FP8,
    NB_FMT_BF16,
    NB_FMT_F16,
    NB_FMT_F32,
    NB_FMT_COUNT
} nb_format;

/* "nvfp4", "mxfp4", "fp8", "bf16", "f16", "f32". */
const char *nb_format_name(nb_format f);

typedef struct nb_packed {
    nb_format format;
    size_t n, k;          /* as in the checkpoint */
    size_t panels, k_pad; /* ceil(n/16); k rounded up to 32 */
    size_t scale_k; /* k covered by one scale: 16, 32, 128 or k_pad; 0 when the format has no scale stream */
    size_t code_bytes, scale_bytes; /* of one panel, multiples of 64 and 16 */
    float multiplier;               /* per-tensor global scale as a multiplier; 1 when the format has none */
    bool odd_scales; /* NVFP4: a NaN byte or a sign bit among the block scales; use the reference decoder */
    uint8_t *codes;  /* [panels][code_bytes], 64-byte aligned */
    uint8_t *scales; /* [panels][scale_bytes], 64-byte aligned; NULL without a scale stream */
    nb_slab *memory; /* what both lie in, a use of it owned */
} nb_packed;

/* Sets the sizes and takes the memory (zeroed, not yet touched by the packing threads' pages beyond calloc).
 * scale_k is only looked at for FP8 (0 means k). */
nb_status nb_packed_alloc(nb_format format, size_t n, size_t k, size_t scale_k, nb_packed *out,
                          nb_error *err);
/* The same with memory from `slabs`: for the many weights of a model. NULL: memory of its own. */
nb_status nb_packed_alloc_in(nb_slabs *slabs, nb_format format, size_t n, size_t k, size_t scale_k,
                             nb_packed *out, nb_error *err);
void nb_packed_free(nb_packed *w);
size_t nb_packed_bytes(const nb_packed *w);

/* Packs rows [row, row + rows) from row-major checkpoint bytes; row % 16 == 0, and rows % 16 == 0 unless they reach n.
 * codes: rows * (bytes of k values); scales: NVFP4/MXFP4 rows * k/block bytes; FP8: F32, rows * ceil(k/scale_k), already
 * expanded to one per row; NULL for the others. Scans every NVFP4 block scale and returns true when one has a NaN byte or a
 * sign bit (the caller ORs that into odd_scales). k must be a multiple of the block for NVFP4 (16) and MXFP4 (32).
 * Disjoint row ranges may be packed in parallel. */
bool nb_pack_rows(nb_packed *w, size_t row, size_t rows, const uint8_t *codes, const void *scales);

/* Whether a block scale of panels [panel, panel + panels) of an NVFP4 weight is a NaN byte or has a sign bit: what packing them
 * returned. */
bool nb_packed_odd(const nb_packed *w, size_t panel, size_t panels);

/* Row `row` as k F32 values, multiplier included (embedding look-up; tests). */
void nb_packed_row(const nb_packed *w, size_t row, float *out);

#endif
