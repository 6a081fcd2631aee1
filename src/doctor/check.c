/*
 * Running the rules. Opening is lenient: whatever can be read is judged, and what cannot is a finding, so that one bad shard
 * of sixty does not hide what the other fifty-nine hold. The table below is the whole list of rules; `--rules`, `--explain`
 * and the reports read it.
 */
#include "doctor/check.h"

#include <stdlib.h>
#include <string.h>

#include "doctor/rules.h"

/* To add a rule: its function in a rule_*.c (copy a neighbour), a line in rules.h, an entry here in order of code. */
const nb_rule nb_rules[] = {
    {"NB001", NB_SEVERITY_ERROR, "a safetensors file breaks its format",
     "A safetensors file is 8 bytes of header length, a JSON header, and data. The header must be UTF-8 JSON "
     "of at most 100 MB, "
     "name each tensor once, with a known dtype, a shape of whole numbers and byte offsets; sorted by offset "
     "the tensors must "
     "cover the data exactly, from its first byte to the file's last, without hole or overlap. Readers "
     "refuse anything else, "
     "because bytes that belong to no tensor or to two are how files are tampered with, and missing ones are "
     "how downloads break.\n"
     "Remedy: download or export that file again; its size and hash are on the model's page.",
     NULL},
    {"NB002", NB_SEVERITY_ERROR, "shards and index disagree",
     "model.safetensors.index.json says which shard holds which tensor. Errors: a shard is not in the "
     "folder, a tensor is in two "
     "shards or in another than the index says, the index names a tensor that its shard lacks or a file "
     "outside the folder, the "
     "index is not JSON. Warnings: a shard holds a tensor that the index omits (loaders that follow the "
     "index miss it), "
     "metadata.total_size is not the sum of the tensors.\n"
     "Remedy: `hf download` fetches what is missing; an index can be written anew from the shards' headers.",
     NULL},
    {"NB003", NB_SEVERITY_ERROR, "a quantised linear lacks a member of its set",
     "Codes mean nothing without their scales. NVFP4 needs codes (weight_packed, or weight of U8), block "
     "scales (weight_scale) and "
     "the global scale (weight_global_scale, or weight_scale_2); MXFP4 codes and E8M0 scales; FP8 a weight "
     "and a scale. vLLM makes "
     "its parameters with torch.empty: what the file lacks stays uninitialised memory there, so the model "
     "starts and answers "
     "nonsense or NaN. nibble refuses to load it.\n"
     "Remedy: export the layer again; nothing in the file can replace a lost scale.",
     nb_rule_sets},
    {"NB004", NB_SEVERITY_ERROR, "shapes or dtypes of a set disagree",
     "NVFP4 codes [N, K/2] of U8 go with F8_E4M3 block scales [N, K/16], row by row, and one F32 global "
     "scale ([] and [1] are the "
     "same). Met in the wild: block scales in the 128x4 order of tensor cores (1-D, or padded to 128 rows "
     "and 4 columns), "
     "transposed, half as many as needed, labelled U8; codes of one tensor-parallel part; a global scale per "
     "fused shard; a global "
     "scale in BF16 (warning: readers that take four bytes for an F32 read another number).\n"
     "Remedy: swizzled, padded and mislabelled scales can be put right without data; the rest must be "
     "exported again.",
     nb_rule_shapes},
    {"NB005", NB_SEVERITY_ERROR, "the experts of a layer are not complete",
     "All experts of a layer must have the same projections, each with the same members. An expert that "
     "calibration never reached "
     "may lack its input scale; an interrupted export lacks whole experts. Loaders that fuse the experts "
     "fill the gap with "
     "uninitialised memory, so only prompts routed there show it. The number of experts must be the "
     "config's.\n"
     "Remedy: export again; a missing input scale can be filled from the layer's other experts.",
     nb_rule_experts},
    {"NB006", NB_SEVERITY_WARNING, "tensors that nobody reads, or names that known loaders drop",
     "Names that loaders drop without a word: block scales called .scale, expert numbers behind the "
     "projection "
     "(experts.gate_proj.3), experts fused to stacks with underscore suffixes "
     "(experts.down_proj_weight_scale), one tensor a row "
     "(.weight.weight), double scales, names without the prefix that the other layers have. And, where the "
     "architecture is known, "
     "tensors that no part of it reads: leftovers, or layers beyond the config's number. Drafting (MTP) "
     "layers, vision and audio "
     "towers, KV-cache scales and rotary tables are known and never reported.\n"
     "Remedy: rename to the loader's spelling, or remove the tensor.",
     nb_rule_names},
    {"NB007", NB_SEVERITY_ERROR, "tensors contradict the architecture",
     "For known architectures every tensor that the forward pass needs must be there, in any of its "
     "spellings, with the shape that "
     "config.json implies (the grouped output projection of DeepSeek-V4 has heads*head_dim/o_groups "
     "columns), and router tables "
     "must name experts that exist.\n"
     "Remedy: take config.json and tensors from the same revision of the model.",
     nb_rule_arch},
    {"NB008", NB_SEVERITY_ERROR, "a file is a Git LFS pointer, empty, or cut",
     "A clone without Git LFS leaves text pointers of 130 bytes in place of the files; a broken download "
     "leaves empty or short "
     "ones.\n"
     "Remedy: `git lfs pull`, or `hf download`.",
     nb_rule_not_data},
    {"NB200", NB_SEVERITY_ERROR, "config.json cannot be read, or names an unknown architecture",
     "Without a config.json nothing can load the model: an error. An architecture that this build has no "
     "table for is a note: "
     "NB007 and parts of NB004 to NB006 need a table and are left out, all other rules run.\n"
     "Remedy: download config.json again. An unknown architecture needs none.",
     nb_rule_config_known},
    {"NB212", NB_SEVERITY_ERROR, "config.json lacks a key that the architecture needs",
     "Configs that llm-compressor or transformers saved again often lack keys of the release (DeepSeek-V4: "
     "compress_ratios or "
     "layer_types, num_hash_layers or mlp_layer_types), or hold values that cannot be.\n"
     "Remedy: copy the keys from the original model's config.json.",
     nb_rule_config_keys},
};
const size_t nb_rules_count = sizeof nb_rules / sizeof *nb_rules;

const nb_rule *nb_rule_find(const char *code)
{
    for (size_t i = 0; i < nb_rules_count; i++) {
        if (strcmp(nb_rules[i].code, code) == 0) return &nb_rules[i];
    }
    return NULL;
}

bool nb_check_absent(const nb_check *c, const char *name)
{
    return !c->blind && !nb_ckpt_find(c->ckpt, name) && !nb_map_get(&c->lost, name, strlen(name), NULL);
}

const char *nb_check_file_of(const nb_check *c, const nb_tensor_info *t)
{
    return nb_ckpt_file_name(c->ckpt, t->file);
}

bool nb_check_wanted(const nb_check *c, const char *module, uint64_t *n, uint64_t *k)
{
    int64_t l, e;
    bool skipped;
    uint64_t dims[4];
    const nb_arch_tensor *row = c->table ? nb_arch_identify(&c->config, module, &l, &e, &skipped) : NULL;
    if (!row || (row->role != NB_ROLE_LINEAR && row->role != NB_ROLE_EMBED && row->role != NB_ROLE_HEAD))
        return false;
    if (nb_config_shape(&c->config, row->shape, (int)l, dims, NULL) != 2) return false;
    *n = dims[0];
    *k = dims[1];
    return true;
}

/* Finds every tensor's place in the architecture's table. */
static nb_status place(nb_check *c, nb_error *err)
{
    const size_t n = nb_ckpt_count(c->ckpt);
    c->places = calloc(n + 1, sizeof *c->places);
    if (!c->places) return nb_fail_nomem(err, "the tensors' places", n * sizeof *c->places);
    for (size_t i = 0; i < n; i++) {
        nb_place *p = &c->places[i];
        p->row = nb_arch_identify(&c->config, nb_ckpt_at(c->ckpt, i)->name, &p->l, &p->e, &p->skipped);
    }
    return NB_OK;
}

/* Remembers the tensors that opening reported as lost; warnings name tensors that are there. */
static nb_status remember_lost(nb_check *c, const nb_findings *found, nb_error *err)
{
    for (size_t i = 0; i < found->count; i++) {
        const nb_finding *f = &found->items[i];
        for (size_t k = 0; k < f->n_tensors && f->severity == NB_SEVERITY_ERROR; k++) {
            if (!nb_map_put(&c->lost, f->tensors[k], strlen(f->tensors[k]), 0, NULL))
                return nb_fail_nomem(err, "the list of lost tensors", c->lost.count * sizeof(nb_map_slot));
        }
    }
    return NB_OK;
}

static nb_status run_rules(nb_check *c, nb_findings *found, nb_error *err)
{
    nb_status s = NB_OK;
    for (size_t i = 0; i < nb_rules_count && s == NB_OK; i++) {
        if (!nb_rules[i].run) continue;
        s = nb_rules[i].run(c, found, err);
        if (s == NB_OK && found->bad)
            s = nb_fail_nomem(err, "the list of findings", found->count * sizeof(nb_finding));
    }
    return s;
}

nb_status nb_check_folder(const char *path, const nb_sink *sink, nb_check_result *out, nb_error *err)
{
    nb_check c = {.sink = sink};
    nb_ckpt *ckpt = NULL;
    nb_container opening = {0};
    nb_check_result r = {0};
    nb_findings findings = {0};
    nb_status s = nb_hub_resolve(path, &r.dir, err);
    if (s != NB_OK) goto out;
    c.dir = opening.dir = r.dir;
    s = nb_ckpt_open(r.dir, nb_container_problem, &opening, &ckpt, err);
    if (s != NB_OK) goto out;
    c.ckpt = ckpt;
    c.blind = opening.blind;
    r.files = nb_ckpt_files(ckpt);
    r.tensors = nb_ckpt_count(ckpt);
    r.bytes = nb_ckpt_bytes(ckpt);
    if (r.bytes >= 1000000000)
        nb_log(sink, NB_LOG_INFO, "%s: %zu files, %.1f GB, %zu tensors; examining names, dtypes and shapes",
               r.dir, r.files, (double)r.bytes / 1e9, r.tensors);
    if ((s = remember_lost(&c, &opening.found, err))) goto out;
    if ((s = nb_modules_build(ckpt, &c.modules, err))) goto out;
    c.table = nb_config_init(ckpt, &c.config, &c.config_error) == NB_OK;
    if (c.table && (s = place(&c, err))) goto out;
    if (c.config.arch) r.architecture = c.config.arch->name;
    findings = opening.found;
    opening.found = (nb_findings){0};
    if (findings.bad) s = nb_fail_nomem(err, "the list of findings", findings.count * sizeof(nb_finding));
    if (s == NB_OK) s = run_rules(&c, &findings, err);
    if (s != NB_OK) goto out;
    nb_findings_sort(&findings);
    r.findings = findings;
    *out = r;
    findings = (nb_findings){0};
    r = (nb_check_result){0};
out:
    nb_findings_free(&findings);
    nb_findings_free(&opening.found);
    nb_check_result_free(&r);
    nb_map_free(&c.lost);
    nb_modules_free(&c.modules);
    free(c.places);
    nb_ckpt_close(ckpt);
    return s;
}

void nb_check_result_free(nb_check_result *r)
{
    nb_findings_free(&r->findings);
    free(r->dir);
    *r = (nb_check_result){0};
}
