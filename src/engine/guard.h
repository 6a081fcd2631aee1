/*
 * The finite guard: what happens when a row of a step is not finite. The row is computed again alone, with a tap that names the
 * first operator whose output is not finite. A linear then falls down a ladder, for this sequence alone, until the row is finite:
 *
 *     clean     NaN bytes among its NVFP4 block scales read as 0x7E, what `nibble repair` would write
 *     dynamic   its input quantised with the row's own scale instead of the stored one (w4a4)
 *     exact     its input as it is
 *     bf16      its weight dequantised to BF16, its input rounded to BF16
 *
 * Only rungs that can change something are tried: the arithmetic, the format and the bytes of the weight say which. Nothing else
 * can be healed (a NaN in a norm, in an embedding): it is named. Other sequences run in other steps, on the model's own weights.
 */
#ifndef NB_ENGINE_GUARD_H
#define NB_ENGINE_GUARD_H

#include "engine/engine.h"

/* What the guard did: one entry a culprit (layer, operator, module) and rung of the ladder. */
typedef struct nb_guard_count {
    int layer; /* -1: the embedding; the number of layers: the last norm and the head */
    char operator_name[24], module[128];
    char rung[16]; /* "clean", "dynamic", "exact", "bf16"; "failed": nothing helped */
    uint64_t count;
} nb_guard_count;

typedef enum nb_rung { NB_RUNG_NONE, NB_RUNG_CLEAN, NB_RUNG_DYNAMIC, NB_RUNG_EXACT, NB_RUNG_BF16 } nb_rung;

/* One step down the ladder. */
typedef struct nb_heal_step {
    nb_rung rung;
    int layer;
    size_t from; /* token of the sequence; those before it are computed without */
} nb_heal_step;

/* What one sequence computes otherwise, and since when: a preempted one computes all its tokens again, and each must get what it
 * got before. Zero-initialise; free with nb_heal_free. */
typedef struct nb_heal {
    nb_override *list;  /* [n] oldest first; of two for one linear the later holds */
    nb_heal_step *step; /* [n] `from` does not fall */
    size_t n, cap;
} nb_heal;
void nb_heal_free(nb_heal *h);
/* How many of the n tokens from token `from` on are computed under the same overrides as the first. */
size_t nb_heal_span(const nb_heal *h, size_t from, size_t n);

typedef struct nb_guard nb_guard;
/* e is borrowed; so is sink (may be NULL), which gets one line for each culprit and rung, the first time. */
nb_status nb_guard_new(nb_engine *e, const nb_sink *sink, nb_guard **out, nb_error *err);
void nb_guard_free(nb_guard *g); /* after the nb_heals made with it are not used any more */

/* nb_engine_step of one part, no longer than its nb_heal_span, under what h has for it. */
nb_status nb_guard_step(nb_guard *g, const nb_heal *h, const nb_step_part *part, const nb_step_out *out,
                        nb_error *err);
/*
 * part is one token whose row (or logits, unless it asks for none) is not finite under h. NB_OK: it is finite under what h is now;
 * nothing is pending, and the sequence goes on from this token with h, which holds from here on. NB_ERR_FORMAT: nothing helps; err names layer, operator,
 * module, tensor and cause. Other errors are the engine's or want of memory.
 */
nb_status nb_guard_heal(nb_guard *g, const nb_step_part *part, nb_heal *h, nb_error *err);

/* Copies at most cap entries; returns how many there are. Any thread, no lock. */
size_t nb_guard_read(const nb_guard *g, nb_guard_count *out, size_t cap);

#endif
