/*
 * Counting what block scales and the codes under them look like: the inner loop of the pass over the weights (scan.c), from bytes
 * in the cache to the counts that rules judge.
 */
#ifndef NB_DOCTOR_SCAN_COUNT_H
#define NB_DOCTOR_SCAN_COUNT_H

#include <stddef.h>
#include <string.h>

#include "doctor/scan.h"

/* What the codes of a block are; each class is one of the class before, too. Mixed: beside 6 stand smaller ones that are not zero. */
enum { NB_COUNT_DEAD, NB_COUNT_LIVE, NB_COUNT_HAS_4, NB_COUNT_HAS_6, NB_COUNT_MIXED_6, NB_COUNT_CLASSES };

/* Counts of a range of one linear's blocks; zero-initialise. A block is an entry of the histogram of (class, scale byte), or one
 * of the plain blocks that make up nearly all of a healthy NVFP4 linear: live, scale between 0x08 and 0x7D, codes not all equal. */
typedef struct nb_counts {
    uint32_t n[2][NB_COUNT_CLASSES][256]; /* two, so that equal neighbours do not wait for each other */
    bool any;                             /* something is in n */
    uint64_t uniform;                     /* blocks with sixteen equal codes */
    uint64_t plain, plain_6, plain_4;     /* plain_6: the largest code stands for 6; plain_4: … for 4 */
    uint64_t plain_near[NB_NEAR];         /* those under 0x7D, 0x7C, … */
    uint8_t plain_top;                    /* the largest scale byte over them */
} nb_counts;

/* Makes c zero again; cheap where its histogram has nothing in it. */
static inline void nb_counts_clear(nb_counts *c)
{
    if (c->any) memset(c->n, 0, sizeof c->n);
    memset(&c->any, 0, sizeof *c - offsetof(nb_counts, any));
}

/* Adds n NVFP4 blocks, 8 bytes of codes and one of scale each. n is at most 2^30 for one nb_counts. */
typedef void (*nb_count_16_fn)(const unsigned char *codes, const unsigned char *scales, size_t n,
                               nb_counts *c);
/* One block after the other: the reference. */
void nb_count_16_generic(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c);
/* Need AVX2, AVX-512 (nb_cpu). The same counts, once folded. */
void nb_count_16_avx2(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c);
void nb_count_16_avx512(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c);
/* The fastest for this machine. */
nb_count_16_fn nb_count_16_best(void);

/* Adds n MXFP4 blocks, 16 bytes of codes (NULL: FP8's scales, whose weights do not matter here) and one of scale each. */
void nb_count_32(const unsigned char *codes, const unsigned char *scales, size_t n, nb_counts *c);

/* How many of n elements are NaN or infinite (FP8: NaN). p is aligned to the element; d is a float dtype or F8_E4M3. */
typedef size_t (*nb_count_bad_fn)(const unsigned char *p, size_t n, nb_dtype d);
size_t nb_count_bad_generic(const unsigned char *p, size_t n, nb_dtype d); /* the reference */
size_t nb_count_bad_avx2(const unsigned char *p, size_t n, nb_dtype d);
nb_count_bad_fn nb_count_bad_best(void);

/* Adds the counts of n blocks to v. codes and scales are theirs, searched for the first odd one; first: its number in the linear. */
void nb_counts_fold(nb_block_values *v, const nb_counts *c, bool nvfp4, const unsigned char *codes,
                    const unsigned char *scales, uint64_t first, size_t n);

/* Adds count things, the first of them at `first`, to a mark. */
static inline void nb_mark_add(nb_mark *m, uint64_t count, uint64_t first)
{
    if (!count) return;
    m->first = m->count && m->first < first ? m->first : first;
    m->count += count;
}

#endif
