/*
 * The part of NB007 about drafting blocks. DeepSeek-V4 stores them as mtp.N, built like a layer without compressor. Nothing
 * here runs them, but a server that drafts with them needs every tensor. Other releases put other modules under the same
 * prefix, so only a block that is a layer but for a tensor or two is judged.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "doctor/rules.h"

#define MAX_BLOCKS 8

const nb_effect nb_draft_effects[NB_FAMILY_COUNT] = {
    {NB_EFFECT_UNDEFINED,
     "drafting computes with uninitialised memory; without drafting nothing reads the block"},
    {NB_EFFECT_UNDEFINED,
     "drafting computes with uninitialised memory; without drafting nothing reads the block"},
    {NB_EFFECT_UNDEFINED,
     "drafting computes with uninitialised memory; without drafting nothing reads the block"},
    {NB_EFFECT_FINE, "the block is not converted"},
};

/* The table's row for a tensor "mtp.N.…": that of the same name in a layer after the last. NULL: none, or no such tensor. */
static const nb_arch_tensor *row_of(const nb_check *c, const char *name, size_t *block, nb_buf *scratch)
{
    static const char prefix[] = "mtp.";
    int64_t l, e;
    bool skipped;
    if (strncmp(name, prefix, strlen(prefix)) != 0) return NULL;
    const char *digits = name + strlen(prefix);
    if (digits[0] < '0' || digits[0] >= '0' + MAX_BLOCKS || digits[1] != '.') return NULL;
    *block = (size_t)(digits[0] - '0');
    nb_buf_clear(scratch);
    nb_buf_addf(scratch, "layers.%lld%s", (long long)c->config.n_layers + digits[0] - '0', digits + 1);
    return nb_arch_identify(&c->config, nb_buf_str(scratch), &l, &e, &skipped);
}

/* Names a row of a block as the layers spell it. */
static void name_row(const nb_check *c, const nb_arch_tensor *row, size_t block, size_t finding,
                     nb_buf *scratch, nb_findings *out)
{
    const bool expert = strstr(row->name, "{e}") != NULL;
    const nb_tensor_info *unused;
    char likely[512];
    nb_arch_find(c->ckpt, &c->config, row, c->config.n_layers + (int64_t)block, expert ? 0 : -1, likely,
                 sizeof likely, &unused);
    const char *layer = strstr(likely, "layers.");
    if (!layer) return;
    nb_buf_clear(scratch);
    nb_buf_addf(scratch, "mtp.%zu%s%s", block,
                layer + strcspn(layer, "0123456789") + strspn(layer + 7, "0123456789"),
                row->role == NB_ROLE_LINEAR ? ".weight" : "");
    if (nb_check_absent(c, nb_buf_str(scratch))) nb_findings_tensor(out, finding, nb_buf_str(scratch));
}

/* What a block has besides a layer's tensors (specs of DeepSeek-V4 §8): where most of it is there, all of it must be. */
static void judge_joints(const nb_check *c, size_t block, nb_buf *scratch, nb_findings *out)
{
    static const char *const parts[] = {"enorm.weight",  "hnorm.weight", "norm.weight",  "e_proj.weight",
                                        "h_proj.weight", "hc_head_fn",   "hc_head_base", "hc_head_scale"};
    enum { COUNT = sizeof parts / sizeof *parts };
    size_t absent[COUNT], n = 0;
    for (size_t i = 0; i < COUNT; i++) {
        nb_buf_clear(scratch);
        nb_buf_addf(scratch, "mtp.%zu.%s", block, parts[i]);
        if (nb_check_absent(c, nb_buf_str(scratch))) absent[n++] = i;
    }
    if (!n || n > NB_DRAFT_ABSENT) return;
    size_t f = nb_findings_add(out, "NB007", NB_SEVERITY_ERROR,
                               "a drafting (MTP) block lacks a tensor that joins it to the model");
    for (size_t i = 0; i < n; i++) {
        nb_buf_clear(scratch);
        nb_buf_addf(scratch, "mtp.%zu.%s", block, parts[absent[i]]);
        nb_findings_tensor(out, f, nb_buf_str(scratch));
    }
    nb_findings_measured(out, f, "%zu of %d are there", COUNT - n, (int)COUNT);
    nb_findings_expected(out, f, "enorm, hnorm, norm, e_proj, h_proj and hc_head_*");
    nb_findings_remedy(out, f, false, "download the shard again, or serve without drafting");
    nb_findings_effects(out, f, nb_draft_effects);
}

nb_status nb_rule_drafts(const nb_check *c, nb_findings *out, nb_error *err)
{
    const nb_arch *arch = c->config.arch;
    nb_buf scratch = {0};
    size_t block;
    bool *seen = calloc(MAX_BLOCKS * arch->n_tensors, sizeof *seen);
    if (!seen) return nb_fail_nomem(err, "the drafting blocks", MAX_BLOCKS * arch->n_tensors);
    for (size_t i = 0; i < nb_ckpt_count(c->ckpt); i++) {
        const nb_arch_tensor *row = row_of(c, nb_ckpt_at(c->ckpt, i)->name, &block, &scratch);
        if (row) seen[block * arch->n_tensors + (size_t)(row - arch->tensors)] = true;
    }
    for (block = 0; block < MAX_BLOCKS && !c->blind; block++) {
        const nb_arch_tensor *absent[NB_DRAFT_ABSENT];
        size_t n = 0, there = 0;
        for (size_t r = 0; r < arch->n_tensors; r++) {
            const nb_arch_tensor *row = &arch->tensors[r];
            if (!strstr(row->name, "{l}") ||
                (row->when && !row->when(&c->config, (int)c->config.n_layers + (int)block)))
                continue;
            if (seen[block * arch->n_tensors + r])
                there++;
            else if (n++ < NB_DRAFT_ABSENT)
                absent[n - 1] = row;
        }
        if (there >= 4 * NB_DRAFT_ABSENT) judge_joints(c, block, &scratch, out);
        if (!n || n > NB_DRAFT_ABSENT || there < 4 * NB_DRAFT_ABSENT) continue;
        size_t f = nb_findings_add(out, "NB007", NB_SEVERITY_ERROR,
                                   "a drafting (MTP) block lacks a tensor that a layer has");
        for (size_t i = 0; i < n; i++) name_row(c, absent[i], block, f, &scratch, out);
        nb_findings_measured(out, f, "%zu kinds of tensors in the block", there);
        nb_findings_expected(out, f, "%zu, as in a layer without compressor", there + n);
        nb_findings_remedy(out, f, false, "download the shard again, or serve without drafting");
        nb_findings_effects(out, f, nb_draft_effects);
    }
    const bool ok = nb_buf_ok(&scratch);
    nb_buf_free(&scratch);
    free(seen);
    return ok ? NB_OK : nb_fail_nomem(err, "a tensor's name", 0);
}
