/*
 * One pass over the weights for the rules about values: what each block scale and the codes under it look like, and where the
 * first of each kind of odd byte is. Streamed through small buffers, so that memory does not grow with the model.
 */
#ifndef NB_DOCTOR_SCAN_H
#define NB_DOCTOR_SCAN_H

#include "base/log.h"
#include "base/pool.h"
#include "doctor/modules.h"

/* How many of something, and the first one's byte offset within its tensor. */
typedef struct nb_mark {
    uint64_t count, first; /* first: UINT64_MAX when count is 0 */
} nb_mark;

#define NB_NEAR 5 /* scale bytes below the largest, 0x7E, whose steps are as wide as that of 0x7D: 32 */

/* What a linear's block scales and codes hold. "Live": the block has a code that is not zero. NVFP4 blocks: 16 codes and an
 * E4M3 byte, whose magnitude is the byte without its sign; MXFP4: 32 codes and an E8M0 byte. */
typedef struct nb_block_values {
    bool scanned; /* codes and scales are there and agree; otherwise all is zero but, for FP8, `nan` */
    uint64_t blocks, live;
    uint64_t uniform;    /* live blocks whose codes are all the same */
    nb_mark nan;         /* scales that are NaN: 0x7F and 0xFF, or 0xFF of E8M0 */
    nb_mark sign;        /* other scales with the sign bit set (NVFP4) */
    nb_mark zero;        /* 0x00 over a live block */
    nb_mark subnormal;   /* magnitude 1 to 7 over a live block (NVFP4) */
    uint8_t top;         /* the largest magnitude over live blocks, NaN apart */
    uint64_t dead_odd;   /* dead blocks under a byte that no producer writes there: not 0x00 0x20 0x38 0x7E */
    uint64_t normal;     /* live, magnitude 0x08 to 0x7D */
    uint64_t normal_6;   /* of these, those whose largest code stands for 6 */
    uint64_t normal_4;   /* … for 4 */
    uint64_t full;       /* live under 0x7E */
    uint64_t full_mixed; /* of these, those with a code of 6 and with smaller ones that are not zero */
    uint64_t near[NB_NEAR]; /* live under 0x7D, 0x7C, … 0x79 */
    /* Global scales as stored; has_*: one element that could be read. */
    bool has_weight, has_input;
    float weight, input;
} nb_block_values;

typedef struct nb_scan {
    nb_block_values *modules; /* [modules.count] */
    nb_mark *bad;             /* [nb_ckpt_count]: NaN and infinity in float tensors, NaN in FP8 weights */
    nb_error error; /* a read that failed (the tensor is then as if not scanned); status NB_OK: none */
    uint64_t bytes; /* looked at */
} nb_scan;

/* Work that the scan's threads do before they read, so that it takes no time of its own: run(ctx, i) is called once for each i below
 * count, by any thread. */
typedef struct nb_chores {
    void (*run)(void *ctx, size_t i);
    void *ctx;
    size_t count;
} nb_chores;

/* Scans everything with the pool's threads (NULL: the caller alone), at most 8 of them. chores may be NULL; they are done even where
 * memory runs out, the only failure. Free *out with nb_scan_free. */
nb_status nb_scan_run(const nb_ckpt *c, const nb_modules *modules, nb_pool *pool, const nb_chores *chores,
                      const nb_sink *sink, nb_scan *out, nb_error *err);
void nb_scan_free(nb_scan *s);

/* A stored global scale as a multiplier: compressed-tensors stores divisors. */
static inline float nb_scan_multiplier(nb_kind k, float stored)
{
    return k == NB_KIND_NVFP4_CT ? 1 / stored : stored;
}

#endif
