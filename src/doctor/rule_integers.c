/*
 * The part of NB110 that needs a histogram: codes that are 4-bit integers (GPTQ's and AWQ's with zero point 8, or two's
 * complement) under the names of NVFP4. Every block of them reaches the magnitude 6, so counts of blocks show nothing. But a
 * weight is as often positive as negative: as E2M1 the codes c and c + 8 are equally frequent, as integers c and 16 - c.
 * Only the beginning of a sample of linears is read: who writes integers writes them everywhere.
 */
#include <math.h>

#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define SAMPLE 32768    /* bytes of codes of a linear */
#define LINEARS 64      /* looked at */
#define LEAST 2048      /* codes below which frequencies say little */
#define UNLIKE_E2M1 .25 /* sum of differences, 0 to 1, that no E2M1 weight of zero mean has */
#define LIKE_INTEGERS .15

static bool is_integer_like(const uint64_t n[16])
{
    double all = 0, e2m1 = 0, integers = 0;
    for (int c = 0; c < 16; c++) all += (double)n[c];
    if (all < LEAST) return false;
    for (int c = 1; c < 8; c++) {
        e2m1 += fabs((double)n[c] - (double)n[c + 8]);
        integers += fabs((double)n[c] - (double)n[16 - c]);
    }
    return e2m1 > UNLIKE_E2M1 * all && integers < LIKE_INTEGERS * all;
}

static bool judge(const nb_check *c, const nb_tensor_info *t)
{
    unsigned char bytes[16384];
    uint32_t pairs[256] = {0};
    uint64_t n[16] = {0};
    const uint64_t size = t->end - t->begin < SAMPLE ? t->end - t->begin : SAMPLE;
    for (uint64_t at = 0; at < size; at += sizeof bytes) {
        const size_t k = size - at < sizeof bytes ? (size_t)(size - at) : sizeof bytes;
        if (nb_ckpt_read(c->ckpt, t, at, bytes, k, NULL) != NB_OK) return false;
        for (size_t i = 0; i < k; i++) pairs[bytes[i]]++;
    }
    for (int b = 0; b < 256; b++) {
        n[b & 15] += pairs[b];
        n[b >> 4] += pairs[b];
    }
    return is_integer_like(n);
}

nb_status nb_rule_integers(const nb_check *c, nb_findings *out, nb_error *err)
{
    const size_t linears =
        (size_t)c->modules.total[NB_KIND_NVFP4_CT] + c->modules.total[NB_KIND_NVFP4_MODELOPT];
    const size_t step = linears / LINEARS + 1;
    size_t seen = 0, looked = 0, odd = 0, f = SIZE_MAX;
    for (size_t i = 0; i < c->modules.count && !out->bad; i++) {
        const nb_module *m = &c->modules.items[i];
        const nb_tensor_info *t = nb_module_codes(m);
        if (!nb_kind_nvfp4(m->kind) || !c->scan.modules[i].scanned || seen++ % step) continue;
        looked++;
        if (!judge(c, t)) continue;
        odd++;
        if (f == SIZE_MAX) {
            f = nb_value_finding(c, out, "NB110", NB_SEVERITY_WARNING, t, 0, t->end - t->begin,
                                 "the codes look like 4-bit integers (GPTQ, AWQ), not like E2M1 numbers");
            nb_findings_expected(out, f, "the codes c and c + 8, which are x and -x, about equally often");
            nb_findings_remedy(
                out, f, false,
                "export the weights again with an NVFP4 quantiser: integers cannot be relabelled");
            const nb_effect e = E(WRONG, "the weights are not those of the model");
            nb_value_effects(out, f, e, e, e);
        } else {
            out->items[f].has_bytes = false;
            nb_findings_tensor(out, f, t->name);
        }
    }
    if (f != SIZE_MAX)
        nb_findings_measured(out, f, "%zu of %zu linears looked at: c and 16 - c are equally often", odd,
                             looked);
    return nb_rule_columns(c, out, err);
}
