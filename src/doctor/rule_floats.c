/* NB112: NaN and infinity in tensors that are not quantised, tensors of zeros, and router biases too large for low precision. NB008 of a file
 * that shrank while it was read. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "doctor/rule_values.h"

#define E(cls, text) ((nb_effect){NB_EFFECT_##cls, text})
#define LARGE_BIAS 10.0f /* scores are below 1: in BF16 a bias of 10 leaves them four bits */
#define MAX_EXPERTS 65536

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool is_embedding(const char *name)
{
    return ends_with(name, "embed_tokens.weight") || ends_with(name, "embeddings.weight") ||
           strcmp(name, "embed.weight") == 0 || ends_with(name, ".embed.weight") ||
           ends_with(name, "wte.weight");
}

static bool is_router_bias(const char *name)
{
    return ends_with(name, "e_score_correction_bias") || ends_with(name, "gate.bias");
}

static void report_bad(const nb_check *c, const nb_tensor_info *t, const nb_mark *k, nb_findings *out)
{
    const bool fp8 = t->dtype == NB_DT_F8_E4M3;
    size_t i = nb_value_finding(c, out, "NB112", NB_SEVERITY_ERROR, t, k->first,
                                k->first + nb_dtype_bits(t->dtype) / 8,
                                fp8 ? "an FP8 weight holds NaN" : "the tensor holds NaN or infinity");
    nb_findings_measured(out, i, "%llu of %llu values", (unsigned long long)k->count,
                         (unsigned long long)nb_tensor_elements(t));
    nb_findings_expected(out, i, "finite numbers");
    nb_findings_remedy(out, i, false,
                       "download the shard again, or take this tensor from the original model");
    nb_effect e = E(NAN, "NaN in every token that it reaches");
    if (is_embedding(t->name))
        e = E(PROMPT, "NaN in prompts with the tokens of these rows, and in what is generated after them");
    if (nb_is_expert(t->name)) e = E(PROMPT, "NaN in every token that is routed to this expert");
    if (is_router_bias(t->name)) e = E(FINE, NULL); /* how a sort orders NaN is each kernel's own matter */
    nb_value_effects(out, i, e, e, e);
}

static nb_status judge_bias(const nb_check *c, const nb_tensor_info *t, nb_findings *out, nb_error *err)
{
    const uint64_t n = nb_tensor_elements(t);
    if (!n || n > MAX_EXPERTS) return NB_OK;
    float *v = malloc((size_t)n * sizeof *v), least = INFINITY;
    if (!v) return nb_fail_nomem(err, "a router's bias", (size_t)n * sizeof *v);
    if (nb_ckpt_read_f32(c->ckpt, t, v, NULL) == NB_OK) {
        for (uint64_t i = 0; i < n; i++) least = fabsf(v[i]) < least ? fabsf(v[i]) : least;
    } else {
        least = 0;
    }
    free(v);
    if (!(least > LARGE_BIAS)) return NB_OK;
    size_t i = nb_value_finding(
        c, out, "NB112", NB_SEVERITY_WARNING, t, 0, t->end - t->begin,
        "the router's selection bias is so large that (score + bias) - bias loses the score in "
        "BF16");
    nb_findings_measured(out, i, "every value is beyond %.4g", (double)least);
    nb_findings_expected(out, i, "about the size of a score, below 1");
    nb_findings_remedy(out, i, false,
                       "subtract one number from all values: the choice of experts stays as it is");
    const nb_effect e =
        E(PROMPT, "where a kernel takes the bias off again in BF16, all chosen scores may be zero: 0/0");
    nb_value_effects(out, i, e, e, e);
    return NB_OK;
}

/* Parameters that make all that follows zero when they are: matrices of any architecture, and norms where the table knows that
 * the weight itself multiplies (Gemma's multiplies by 1 + weight). */
static bool must_not_be_zero(const nb_check *c, size_t i, const nb_tensor_info *t)
{
    if (nb_tensor_skipped(c, t) || nb_tensor_elements(t) < 2) return false;
    if (c->table && c->places[i].row && c->places[i].row->role == NB_ROLE_NORM)
        return c->places[i].row->plus == 0;
    return t->rank == 2 && ends_with(t->name, ".weight");
}

/* True when every element of a float tensor is zero. Others end after the first few kilobytes. */
static bool is_all_zero(const nb_check *c, const nb_tensor_info *t)
{
    unsigned char chunk[4096];
    const unsigned char sign = 0x80;
    const size_t size = nb_dtype_bits(t->dtype) / 8;
    for (uint64_t at = 0; at < t->end - t->begin; at += sizeof chunk) {
        const uint64_t left = t->end - t->begin - at;
        const size_t n = left < sizeof chunk ? (size_t)left : sizeof chunk;
        if (nb_ckpt_read(c->ckpt, t, at, chunk, n, NULL) != NB_OK) return false;
        for (size_t i = 0; i < n; i++) {
            if (chunk[i] && !(chunk[i] == sign && i % size == size - 1)) return false;
        }
    }
    return true;
}

static bool is_plain_float(const nb_tensor_info *t)
{
    return t->dtype == NB_DT_BF16 || t->dtype == NB_DT_F16 || t->dtype == NB_DT_F32;
}

static void judge_zero(const nb_check *c, size_t i, nb_findings *out)
{
    const nb_tensor_info *t = nb_ckpt_at(c->ckpt, i);
    if (!is_plain_float(t) || !must_not_be_zero(c, i, t) || !is_all_zero(c, t)) return;
    size_t f = nb_value_finding(c, out, "NB112", NB_SEVERITY_WARNING, t, 0, t->end - t->begin,
                                "the tensor holds nothing but zeros: never filled, or a download broken off");
    nb_findings_measured(out, f, "%llu zeros", (unsigned long long)nb_tensor_elements(t));
    nb_findings_expected(out, f, "trained values");
    nb_findings_remedy(out, f, false,
                       "compare the shard's hash with the original's and download it again, or export again");
    const nb_effect e = E(ZERO, "all that passes through it becomes zero");
    nb_value_effects(out, f, e, e, e);
}

/* The scan's read error: the file is shorter than when it was opened, or the disk failed. */
static void report_read(const nb_check *c, nb_findings *out)
{
    const nb_error *e = &c->scan.error;
    const char *base = strrchr(e->file, '/');
    size_t i = nb_findings_add(out, "NB008", NB_SEVERITY_ERROR, "the file could not be read to its end: %s",
                               e->cause);
    nb_findings_file(out, i, base ? base + 1 : e->file);
    if (e->tensor[0]) nb_findings_tensor(out, i, e->tensor);
    nb_findings_remedy(out, i, false, "let the download finish, then check again");
    const nb_effect all = E(REFUSED, "a loader fails at the same place");
    nb_value_effects(out, i, all, all, all);
}

nb_status nb_rule_floats(const nb_check *c, nb_findings *out, nb_error *err)
{
    nb_status s = NB_OK;
    if (c->scan.error.status != NB_OK) report_read(c, out);
    for (size_t i = 0; i < nb_ckpt_count(c->ckpt) && s == NB_OK; i++) {
        const nb_tensor_info *t = nb_ckpt_at(c->ckpt, i);
        size_t len;
        const nb_member k = nb_member_of(t->name, &len);
        if (k == NB_MEMBER_SCALE || k == NB_MEMBER_SCALE_INV) continue; /* NB103 */
        if (c->scan.bad[i].count)
            report_bad(c, t, &c->scan.bad[i], out);
        else if (is_router_bias(t->name) && t->rank == 1)
            s = judge_bias(c, t, out, err);
        else
            judge_zero(c, i, out);
    }
    return s;
}
