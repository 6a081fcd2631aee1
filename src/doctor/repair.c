/*
 * Repairing a folder from end to end: check, plan, write, check again, run, rename. The table below says which rules can be
 * mended and in which order: what one fix leaves is what the next one sees.
 */
#include "doctor/repair.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor/calibrate.h"
#include "doctor/repair_plan.h"
#include "engine/engine.h"

static const struct {
    const char *rule;
    nb_fix_fn fix;
} fixes[] = {
    {"NB002", nb_fix_index},     {"NB004", nb_fix_shapes},   {"NB006", nb_fix_names},
    {"NB101", nb_fix_nan_bytes}, {"NB102", nb_fix_signs},    {"NB106", nb_fix_direction},
    {"NB103", nb_fix_globals},   {"NB104", nb_fix_globals},  {"NB105", nb_fix_globals},
    {"NB005", nb_fix_globals},   {"NB107", nb_fix_siblings}, {"NB201", nb_fix_config},
    {"NB202", nb_fix_config},    {"NB203", nb_fix_config},   {"NB204", nb_fix_config},
    {"NB205", nb_fix_config},    {"NB207", nb_fix_config},   {"NB209", nb_fix_config},
    {"NB211", nb_fix_config},
};

/* Why the others are not. */
static const struct {
    const char *rule, *why;
} reasons[] = {
    {"NB108",
     "what the activations are is not in the file: measure them (nibble calibrate DIR -o FILE, then repair "
     "--scales FILE), or --dequant the modules"},
    {"NB111",
     "what the activations are is not in the file: measure them (nibble calibrate DIR -o FILE, then repair "
     "--scales FILE), or --dequant the modules"},
    {"NB109", "which of codes and scale is wrong cannot be told; export the layer again"},
    {"NB110", "the weights themselves are not in the file; export the layer again"},
    {"NB112", "the value that was there is not in the file; take the tensor from the original model"},
    {"NB113", "the value that was there is not in the file; export the layer again"},
    {"NB114", "the weights that were clipped are not in the file; quantise the layer again"},
    {"NB208", "a KV-cache scale must be measured, and its algorithm named by whoever did"},
    {"NB210", "take tokenizer and template from the original model"},
    {"NB212", "copy the keys from the original model's config.json"},
};

static bool chosen(const nb_repair_options *opt, const char *rule)
{
    for (size_t i = 0; i < opt->n_only; i++) {
        if (strcmp(opt->only[i], rule) == 0) return true;
    }
    return !opt->n_only;
}

bool nb_plan_chosen(const nb_plan *p, const char *rule)
{
    return chosen(p->opt, rule);
}

static bool has_fix(const char *rule)
{
    for (size_t i = 0; i < sizeof fixes / sizeof *fixes; i++) {
        if (strcmp(fixes[i].rule, rule) == 0) return true;
    }
    return false;
}

static void ignore_problem(void *ctx, nb_problem_kind kind, const nb_error *what)
{
    nb_plan *p = ctx;
    (void)what;
    if (kind != NB_PROBLEM_INDEX_WARNING && kind != NB_PROBLEM_CONFIG) p->blind = true;
}

/* Tensors whose value a finding doubts or misses: nothing is filled from them. */
static nb_status mark_suspects(nb_plan *p, nb_error *err)
{
    static const char *const rules[] = {"NB103", "NB104", "NB105", "NB106", "NB108", "NB111"};
    for (size_t i = 0; i < p->check->findings.count; i++) {
        const nb_finding *f = &p->check->findings.items[i];
        bool doubt = false;
        for (size_t k = 0; k < sizeof rules / sizeof *rules; k++)
            doubt = doubt || strcmp(f->rule, rules[k]) == 0;
        for (size_t k = 0; doubt && k < f->n_tensors; k++) {
            if (!nb_map_put(&p->suspects, f->tensors[k], strlen(f->tensors[k]), (uint32_t)i, NULL))
                return nb_fail_nomem(err, "a plan", 0);
        }
    }
    return NB_OK;
}

static const char *reason_of(const nb_finding *f)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strcmp(reasons[i].rule, f->rule) == 0) return reasons[i].why;
    return f->remedy ? f->remedy : "nothing in the file tells what was there";
}

static void refuse_finding(nb_plan *p, const nb_finding *f)
{
    const char *why = reason_of(f);
    if (!f->n_tensors) nb_repair_note(&p->refused, f->rule, NULL, -1, "%s", why);
    for (size_t i = 0; i < f->n_tensors; i++) {
        nb_member member;
        const nb_module *m = nb_plan_module(p, f->tensors[i], &member);
        /* An option may have mended it: a measured scale, a module in BF16. */
        const nb_tensor_info *t = nb_ckpt_find(p->ckpt, f->tensors[i]);
        const nb_edit *e = t ? nb_plan_edited(p, t) : NULL;
        if (m && nb_plan_dequantised(p, m) && e && e->removed) continue;
        if (m && nb_plan_measured(p, m) && e && e->content == NB_CONTENT_VALUE) continue;
        nb_repair_note(&p->refused, f->rule, f->tensors[i], -1, "%s", why);
    }
}

/* The input scales that were measured, by this call or an earlier one; side: where this call keeps them for a moment. */
static nb_status inputs(nb_plan *p, const char *side, const nb_sink *sink, nb_error *err)
{
    nb_calibration done = {0};
    if (p->opt->scales) return nb_plan_input_scales(p, p->opt->scales, err);
    if (!p->opt->calibrate) return NB_OK;
    char *path = nb_path_join(side, "scales.safetensors");
    if (!path) return nb_fail_nomem(err, "a path", 0);
    const nb_calibrate_options opt = {
        .data = p->opt->data, .out = path, .kernels = "auto", .arith = NB_ARITH_EXACT};
    nb_status s = nb_calibrate(p->dir, &opt, sink, &done, err);
    if (s == NB_OK) s = nb_plan_input_scales(p, path, err);
    unlink(path);
    nb_calibration_free(&done);
    free(path);
    return s;
}

/* Of tensors that would all come out under one name none can be said to be the right one: then nothing is written. */
static nb_status unique_names(const nb_plan *p, nb_error *err)
{
    nb_map names = {0};
    nb_status s = NB_OK;
    for (size_t i = 0; i < p->n_edits && s == NB_OK; i++) {
        const nb_edit *e = p->edits[i];
        if (!e->name || e->removed) continue;
        const nb_tensor_info *there = nb_ckpt_find(p->ckpt, e->name);
        const nb_edit *its = there ? nb_plan_edited(p, there) : NULL;
        const bool stays = there && there != e->from && !(its && (its->removed || its->name));
        bool taken = false;
        if (!nb_map_put(&names, e->name, strlen(e->name), 0, &taken)) {
            s = nb_fail_nomem(err, "a plan", 0);
        } else if (taken || stays) {
            s = nb_fail(err, NB_ERR_FORMAT, "two tensors of the mended folder would have this name");
            nb_error_at(err, NULL, e->name, -1);
            nb_error_remedy(err,
                            "nothing was written, since which of them is right cannot be told: take one of "
                            "them out of the folder, or repair without the rule that renames it (--only)");
        }
    }
    nb_map_free(&names);
    return s;
}

static nb_status plan(nb_plan *p, const char *side, const nb_sink *sink, nb_error *err)
{
    const nb_findings *l = &p->check->findings;
    nb_status s = mark_suspects(p, err);
    if (s == NB_OK) s = nb_plan_choose(p, err);
    if (s == NB_OK) s = inputs(p, side, sink, err);
    for (size_t k = 0; k < sizeof fixes / sizeof *fixes && s == NB_OK; k++) {
        for (size_t i = 0; i < l->count && s == NB_OK; i++) {
            const nb_finding *f = &l->items[i];
            if (f->severity == NB_SEVERITY_NOTE || strcmp(f->rule, fixes[k].rule) != 0) continue;
            if (chosen(p->opt, f->rule)) s = fixes[k].fix(p, f, err);
        }
    }
    if (s == NB_OK) s = nb_plan_dequantise(p, err);
    for (size_t i = 0; i < l->count && s == NB_OK; i++) {
        const nb_finding *f = &l->items[i];
        if (f->severity == NB_SEVERITY_NOTE || has_fix(f->rule) || !chosen(p->opt, f->rule)) continue;
        refuse_finding(p, f);
    }
    if (s == NB_OK) s = nb_plan_config(p, err);
    if (s == NB_OK) s = unique_names(p, err);
    if (s == NB_OK && (p->applied.bad || p->refused.bad)) s = nb_fail_nomem(err, "a plan", 0);
    return s;
}

static void plan_free(nb_plan *p)
{
    for (size_t i = 0; i < p->n_edits; i++) {
        free(p->edits[i]->name);
        free(p->edits[i]);
    }
    free(p->edits);
    nb_map_free(&p->by_tensor);
    nb_map_free(&p->suspects);
    free(p->bf16);
    free(p->measured);
    for (size_t i = 0; i < p->n_files; i++) nb_buf_free(&p->files[i].text);
    nb_repair_list_free(&p->applied);
    nb_repair_list_free(&p->refused);
    nb_modules_free(&p->modules);
    nb_ckpt_close(p->ckpt);
    free(p->dir);
    *p = (nb_plan){0};
}

/* ---- the finished copy ---- */

static bool names(const nb_finding *f, const char *tensor)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        if (strcmp(f->tensors[i], tensor) == 0) return true;
    }
    return false;
}

static bool was_there(const nb_findings *before, const nb_finding *now)
{
    for (size_t i = 0; i < before->count; i++) {
        const nb_finding *f = &before->items[i];
        if (strcmp(f->rule, now->rule) != 0) continue;
        if (!now->n_tensors) return true;
        for (size_t k = 0; k < now->n_tensors; k++)
            if (names(f, now->tensors[k])) return true;
    }
    return false;
}

static bool is_listed(const nb_repair_list *l, const char *rule, const char *tensor)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->items[i].rule, rule) != 0) continue;
        if (!tensor) return true;
        for (size_t k = 0; k < l->items[i].n; k++)
            if (strcmp(l->items[i].tensors[k], tensor) == 0) return true;
    }
    return false;
}

/* What the check of the copy still finds is refused, with the reason that the plan gave. An error that was not there before, or
 * that the plan claims to have mended, is a failure of the repair itself. */
static nb_status judge(nb_plan *p, const nb_check_result *after, nb_repair_list *refused, nb_error *err)
{
    bool formed = false; /* sets that were put together may show what was hidden in them */
    for (size_t i = 0; i < p->applied.count; i++)
        formed = formed || strcmp(p->applied.items[i].rule, "NB004") == 0 ||
                 strcmp(p->applied.items[i].rule, "NB006") == 0;
    for (size_t i = 0; i < after->findings.count; i++) {
        const nb_finding *f = &after->findings.items[i];
        const char *first = f->n_tensors ? f->tensors[0] : NULL, *why = NULL;
        if (f->severity == NB_SEVERITY_NOTE) continue;
        const bool old = was_there(&p->check->findings, f);
        for (size_t k = 0; k < p->refused.count && !why; k++) {
            const nb_repair_item *it = &p->refused.items[k];
            if (strcmp(it->rule, f->rule) != 0) continue;
            for (size_t t = 0; t < f->n_tensors && !why; t++)
                for (size_t q = 0; q < it->n && !why; q++)
                    if (strcmp(it->tensors[q], f->tensors[t]) == 0) why = it->text;
            if (!f->n_tensors && !it->n) why = it->text;
        }
        const bool claimed = !why && is_listed(&p->applied, f->rule, first);
        if (f->severity == NB_SEVERITY_ERROR && (claimed || (!old && !formed))) {
            nb_fail(err, NB_ERR_FORMAT, "the repaired copy does not pass the check: %s %s", f->rule,
                    f->message);
            nb_error_at(err, NULL, first, -1);
            nb_error_remedy(
                err, "nothing was written; repair without this rule (--only), or export the layer again");
            return NB_ERR_FORMAT;
        }
        if (!why && !chosen(p->opt, f->rule)) why = "not among the rules that --only names";
        if (!why && !old && first && strcmp(f->rule, "NB114") == 0 && is_listed(&p->applied, "NB101", first))
            why = "these are the blocks that were NaN: their scales overflowed and are saturated now";
        if (!why && !has_fix(f->rule)) why = reason_of(f);
        if (!why && !old) why = "shows only now that the rest is mended: repair the copy once more";
        if (!why) why = f->remedy ? f->remedy : "nothing in the file tells what was there";
        if (!first) nb_repair_note(refused, f->rule, NULL, -1, "%s", why);
        for (size_t t = 0; t < f->n_tensors; t++)
            nb_repair_note(refused, f->rule, f->tensors[t], -1, "%s", why);
    }
    /* What options could not do is not a finding. */
    for (size_t k = 0; k < p->refused.count; k++) {
        const nb_repair_item *it = &p->refused.items[k];
        if (!it->rule[0] && !it->n) nb_repair_note(refused, "", NULL, -1, "%s", it->text);
        for (size_t t = 0; !it->rule[0] && t < it->n; t++)
            nb_repair_note(refused, "", it->tensors[t], -1, "%s", it->text);
    }
    return refused->bad ? nb_fail_nomem(err, "a list", 0) : NB_OK;
}

typedef struct watch {
    size_t n;
    bool *bad;
} watch;

static void look(void *ctx, size_t part, size_t row, const float *logits)
{
    const watch *f = ctx;
    (void)part;
    (void)row;
    for (size_t i = 0; i < f->n; i++) *f->bad = *f->bad || !isfinite(logits[i]);
}

/* Whether every NVFP4 linear of the folder has an input scale, so that W4A4 can be run. A folder that does not open has none. */
static nb_status has_inputs(const char *dir, bool *out, nb_error *err)
{
    nb_ckpt *c = NULL;
    nb_modules m = {0};
    size_t with = 0, without = 0;
    nb_status s = nb_ckpt_open(dir, NULL, NULL, &c, err);
    if (s == NB_OK) s = nb_modules_build(c, &m, err);
    for (size_t i = 0; i < m.count; i++) {
        if (!nb_kind_nvfp4(m.items[i].kind)) continue;
        if (nb_module_input(&m.items[i]))
            with++;
        else
            without++;
    }
    nb_modules_free(&m);
    nb_ckpt_close(c);
    *out = with && !without;
    return s == NB_ERR_NOMEM ? s : NB_OK;
}

/* Runs sixteen tokens through the model. *bad: some logit is not finite. */
static nb_status run(const char *dir, nb_arith arith, bool *bad, nb_error *err)
{
    enum { TOKENS = 16 };
    const nb_load_options load = {.stream = true};
    const nb_engine_options opt = {.kernels = "auto",
                                   .arith = arith,
                                   .max_seqs = 1,
                                   .max_rows = TOKENS,
                                   .context_cap = TOKENS,
                                   .load = &load};
    nb_engine *e = NULL;
    uint32_t ids[TOKENS], seq;
    nb_status s = nb_engine_new(dir, &opt, NULL, &e, err);
    if (s == NB_OK) s = nb_seq_open(e, &seq, err);
    if (s == NB_OK) {
        const size_t vocab = nb_engine_model(e)->vocab;
        watch f = {vocab, bad};
        nb_step_out out = {.logits = look, .ctx = &f};
        nb_step_part part = {.seq = seq, .tokens = ids, .n = TOKENS, .all_logits = true};
        for (size_t i = 0; i < TOKENS; i++)
            ids[i] = (uint32_t)((i * 7919 + 1) % vocab); /* spread over the vocabulary */
        s = nb_engine_step(e, &part, 1, &out, err);
    }
    nb_engine_free(e);
    return s;
}

/* A forward pass over the copy. It must be finite; where it cannot be made, *text says why and that is no failure as long as
 * faults were refused or the architecture has no forward pass here. */
static nb_status forward(const char *dir, bool refused_errors, char **text, nb_error *err)
{
    nb_error e = {0};
    nb_buf out = {0};
    bool w4a4;
    nb_status st = has_inputs(dir, &w4a4, err);
    if (st != NB_OK) return st;
    for (int pass = 0; pass < 1 + w4a4; pass++) {
        bool bad = false;
        const nb_arith arith = pass ? NB_ARITH_W4A4 : NB_ARITH_EXACT;
        nb_status s = run(dir, arith, &bad, &e);
        if (s == NB_ERR_NOMEM) {
            nb_buf_free(&out);
            if (err) *err = e;
            return s;
        }
        if (s != NB_OK && s != NB_ERR_UNSUPPORTED && !refused_errors) {
            nb_buf_free(&out);
            if (err) *err = e;
            nb_error_remedy(err, "the repaired copy does not load, so nothing was written");
            return s;
        }
        if (s != NB_OK) {
            nb_buf_addf(&out, "not made: %s", e.cause);
            break;
        }
        if (bad) {
            nb_buf_free(&out);
            nb_fail(err, NB_ERR_FORMAT, "the repaired copy gives logits that are not finite (%s)",
                    nb_arith_name(arith));
            nb_error_remedy(err, "nothing was written; `nibble trace` names the operator at fault");
            return NB_ERR_FORMAT;
        }
        nb_buf_addf(&out, "%sfinite (%s, 16 tokens)", pass ? ", " : "", nb_arith_name(arith));
    }
    if (!nb_buf_ok(&out)) return nb_fail_nomem(err, "a text", 0);
    *text = out.data;
    return NB_OK;
}

/* In a dry run there is no copy to check: findings that a planned name puts right are no refusals. */
static nb_status dry(nb_plan *p, nb_repair_result *r, nb_error *err)
{
    for (size_t i = 0; i < p->refused.count; i++) {
        const nb_repair_item *it = &p->refused.items[i];
        if (!it->n) nb_repair_note(&r->refused, it->rule, NULL, -1, "%s", it->text);
        for (size_t k = 0; k < it->n; k++) {
            bool made = false;
            for (size_t q = 0; q < p->n_edits && !made; q++)
                made = p->edits[q]->name && strcmp(p->edits[q]->name, it->tensors[k]) == 0;
            made = made || is_listed(&p->applied, "NB002", it->tensors[k]); /* the new index names it */
            if (!made) nb_repair_note(&r->refused, it->rule, it->tensors[k], -1, "%s", it->text);
        }
    }
    return r->refused.bad ? nb_fail_nomem(err, "a list", 0) : NB_OK;
}

nb_status nb_repair_folder(const char *path, const nb_repair_options *opt, const nb_sink *sink,
                           nb_repair_result *out, nb_error *err)
{
    nb_plan p = {.opt = opt};
    nb_check_result before = {0};
    nb_new_folder folder = {0};
    nb_repair_result r = {0};
    *out = (nb_repair_result){0};
    nb_status s = nb_hub_resolve(path, &p.dir, err);
    if (s != NB_OK) goto out;
    if (!opt->dry_run && (s = nb_new_folder_make(opt->out, p.dir, &folder, err))) goto out;
    if ((s = nb_check_folder(p.dir, sink, &before, err))) goto out;
    p.check = &before;
    if ((s = nb_ckpt_open(p.dir, ignore_problem, &p, &p.ckpt, err))) goto out;
    if ((s = nb_modules_build(p.ckpt, &p.modules, err))) goto out;
    if ((s = plan(&p, folder.temp, sink, err))) goto out;
    if (opt->dry_run || !p.applied.count) {
        if ((s = dry(&p, &r, err))) goto out;
        r.check = before;
        before = (nb_check_result){0};
    } else {
        if ((s = nb_plan_write(&p, folder.temp, sink, err))) goto out;
        if ((s = nb_check_folder(folder.temp, sink, &r.check, err))) goto out;
        if ((s = judge(&p, &r.check, &r.refused, err))) goto out;
        const bool errors = nb_findings_of(&r.check.findings, NB_SEVERITY_ERROR) > 0;
        if ((s = forward(folder.temp, errors, &r.forward, err))) goto out;
        if ((s = nb_new_folder_commit(&folder, err))) goto out;
        r.written = true;
    }
    r.dry_run = opt->dry_run;
    r.applied = p.applied;
    p.applied = (nb_repair_list){0};
    *out = r;
    r = (nb_repair_result){0};
out:
    nb_new_folder_abort(&folder);
    nb_repair_result_free(&r);
    nb_check_result_free(&before);
    plan_free(&p);
    return s;
}

/* ---- what a repair would do ---- */

static bool put_tensors(nb_map *m, const nb_repair_item *it)
{
    bool ok = true;
    for (size_t k = 0; k < it->n && ok; k++)
        ok = nb_map_put(m, it->tensors[k], strlen(it->tensors[k]), 0, NULL);
    return ok;
}

static bool any_in(const nb_map *m, const nb_finding *f)
{
    bool any = false;
    for (size_t k = 0; k < f->n_tensors && !any; k++)
        any = nb_map_get(m, f->tensors[k], strlen(f->tensors[k]), NULL);
    return any;
}

/* Adds the tensors of the list's items of this rule (NULL: of every rule). *bare: an item of it has no tensors. */
static bool gather(const nb_repair_list *l, const char *rule, nb_map *out, bool *bare)
{
    bool ok = true;
    *bare = false;
    for (size_t i = 0; i < l->count && ok; i++) {
        if (rule && strcmp(l->items[i].rule, rule) != 0) continue;
        *bare = *bare || !l->items[i].n;
        ok = put_tensors(out, &l->items[i]);
    }
    return ok;
}

/* The flags of one rule's findings. changed: every tensor that the plan changes or makes, for whichever rule. */
static bool foresee_rule(const nb_plan *p, const nb_repair_list *refused, const char *rule,
                         const nb_map *changed, nb_findings *l)
{
    nb_map own = {0}, kept = {0};
    bool done, undone;
    const bool ok = gather(&p->applied, rule, &own, &done) && gather(refused, rule, &kept, &undone);
    for (size_t i = 0; i < l->count && ok; i++) {
        nb_finding *f = &l->items[i];
        if (strcmp(f->rule, rule) == 0)
            f->repairable = !any_in(&kept, f) && !(undone && !f->n_tensors) && (done || any_in(changed, f));
    }
    nb_map_free(&own);
    nb_map_free(&kept);
    return ok;
}

nb_status nb_repair_foresee(nb_check_result *r, nb_error *err)
{
    const nb_repair_options none = {.dry_run = true};
    nb_plan p = {.opt = &none, .check = r};
    nb_repair_result planned = {0};
    nb_map changed = {0};
    nb_error why = {0};
    bool bare, ok = true;
    const size_t faults = r->findings.count - nb_findings_of(&r->findings, NB_SEVERITY_NOTE);
    if (!faults) return NB_OK;
    nb_status s = (p.dir = strdup(r->dir)) ? NB_OK : nb_fail_nomem(&why, "a path", strlen(r->dir));
    if (s == NB_OK) s = nb_ckpt_open(p.dir, ignore_problem, &p, &p.ckpt, &why);
    if (s == NB_OK) s = nb_modules_build(p.ckpt, &p.modules, &why);
    if (s == NB_OK) s = plan(&p, NULL, NULL, &why);
    if (s == NB_OK) s = dry(&p, &planned, &why);
    if (s != NB_OK) goto out;
    ok = gather(&p.applied, NULL, &changed, &bare);
    for (size_t i = 0; i < p.n_edits && ok; i++) {
        const char *name = p.edits[i]->name;
        ok = !name || nb_map_put(&changed, name, strlen(name), 0, NULL);
    }
    for (size_t i = 0; i < nb_rules_count && ok; i++)
        ok = foresee_rule(&p, &planned.refused, nb_rules[i].code, &changed, &r->findings);
    if (!ok) s = nb_fail_nomem(&why, "what repair would do", faults);
out:
    /* No plan can be made: then nothing can be mended either. */
    for (size_t i = 0; s != NB_OK && i < r->findings.count; i++) r->findings.items[i].repairable = false;
    nb_map_free(&changed);
    nb_repair_result_free(&planned);
    plan_free(&p);
    if (s == NB_ERR_NOMEM && err) *err = why;
    return s == NB_ERR_NOMEM ? s : NB_OK;
}
