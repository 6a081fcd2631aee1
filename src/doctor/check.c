/*
 * Running the rules. Opening is lenient: whatever can be read is judged, and what cannot is a finding, so that one bad shard
 * of sixty does not hide what the other fifty-nine hold. The rules are the table of rules.c.
 */
#include "doctor/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/rules.h"

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

/* One rule's run: rules look at the same things and write lists of their own, so that threads may share them out. */
typedef struct rule_run {
    nb_findings found;
    nb_status status;
    nb_error err;
} rule_run;

typedef struct rule_runs {
    const nb_check *c;
    rule_run *runs;     /* [nb_rules_count] */
    atomic_size_t left; /* rules that nobody has begun */
} rule_runs;

/* From the last rule to the first: those that look at many bytes come before those that fill the time that is left. */
static void take_rules(void *ctx, size_t thread, size_t begin, size_t end)
{
    rule_runs *all = ctx;
    (void)thread, (void)begin, (void)end;
    for (size_t left = atomic_fetch_sub(&all->left, 1); left && left <= nb_rules_count;
         left = atomic_fetch_sub(&all->left, 1)) {
        rule_run *r = &all->runs[left - 1];
        if (nb_rules[left - 1].run && !nb_rules[left - 1].after)
            r->status = nb_rules[left - 1].run(all->c, &r->found, &r->err);
    }
}

static nb_status run_rules(const nb_check *c, nb_pool *pool, nb_findings *found, nb_error *err)
{
    nb_status s = NB_OK;
    rule_runs all = {.c = c, .runs = calloc(nb_rules_count, sizeof(rule_run)), .left = nb_rules_count};
    if (!all.runs) return nb_fail_nomem(err, "the rules' findings", nb_rules_count * sizeof(rule_run));
    nb_pool_run(pool, nb_pool_threads(pool), 1, take_rules, &all);
    for (size_t i = 0; i < nb_rules_count; i++) {
        rule_run *r = &all.runs[i];
        if (s == NB_OK && r->status != NB_OK) {
            s = r->status;
            if (err) *err = r->err;
        }
        nb_findings_move(found, &r->found);
    }
    free(all.runs);
    for (size_t i = 0; i < nb_rules_count && s == NB_OK; i++)
        if (nb_rules[i].after) s = nb_rules[i].run(c, found, err);
    if (s == NB_OK && found->bad)
        s = nb_fail_nomem(err, "the list of findings", found->count * sizeof(nb_finding));
    return s;
}

/* What is worked out from names alone, while the weights are read. */
typedef struct names_work {
    nb_check *c;
    nb_status status[2];
    nb_error err[2];
} names_work;

static void work_on_names(void *ctx, size_t i)
{
    names_work *w = ctx;
    nb_check *c = w->c;
    if (i == 0)
        w->status[0] = nb_quant_build(c->ckpt, &c->modules, &c->quant, &w->err[0]);
    else if (c->table)
        w->status[1] = nb_places_find(c->ckpt, &c->config, &c->places, &w->err[1]);
}

static nb_status look_at_all(nb_check *c, nb_pool *pool, nb_error *err)
{
    names_work work = {.c = c};
    const nb_chores chores = {work_on_names, &work, 2};
    nb_status s = nb_scan_run(c->ckpt, &c->modules, pool, &chores, c->sink, &c->scan, err);
    for (int i = 0; i < 2 && s == NB_OK; i++) {
        if ((s = work.status[i]) != NB_OK && err) *err = work.err[i];
    }
    return s;
}

nb_status nb_check_folder_with(const char *path, const nb_check_options *options, const nb_sink *sink,
                               nb_check_result *out, nb_error *err)
{
    nb_check c = {.sink = sink};
    if (options) c.options = *options;
    nb_ckpt *ckpt = NULL;
    nb_pool *pool = NULL;
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
        nb_log(sink, NB_LOG_INFO, "%s: %zu files, %.1f GB, %zu tensors", r.dir, r.files,
               (double)r.bytes / 1e9, r.tensors);
    if ((s = remember_lost(&c, &opening.found, err))) goto out;
    if ((s = nb_modules_build(ckpt, &c.modules, err))) goto out;
    c.table = nb_config_init(ckpt, &c.config, &c.config_error) == NB_OK;
    if (c.config.arch) r.architecture = c.config.arch->name;
    /* Threads that the system refuses only make it slower. */
    if ((s = nb_pool_new(c.options.threads, &pool, err)) == NB_ERR_NOMEM) goto out;
    if ((s = look_at_all(&c, pool, err))) goto out;
    findings = opening.found;
    opening.found = (nb_findings){0};
    if (findings.bad) s = nb_fail_nomem(err, "the list of findings", findings.count * sizeof(nb_finding));
    if (s == NB_OK && c.options.run)
        s = nb_activations_measure(r.dir, c.options.data, c.options.threads, sink, &c.activations, err);
    r.ran = c.activations.asked && c.activations.why.status == NB_OK;
    if (s == NB_OK) s = run_rules(&c, pool, &findings, err);
    if (s != NB_OK) goto out;
    nb_findings_agree(&findings);
    if (findings.bad) {
        s = nb_fail_nomem(err, "the list of findings", findings.count * sizeof(nb_finding));
        goto out;
    }
    nb_findings_sort(&findings);
    r.findings = findings;
    *out = r;
    findings = (nb_findings){0};
    r = (nb_check_result){0};
out:
    nb_pool_free(pool);
    nb_findings_free(&findings);
    nb_findings_free(&opening.found);
    nb_check_result_free(&r);
    nb_activations_free(&c.activations);
    nb_scan_free(&c.scan);
    nb_quant_free(&c.quant);
    nb_map_free(&c.lost);
    nb_modules_free(&c.modules);
    free(c.places);
    nb_ckpt_close(ckpt);
    return s;
}

nb_status nb_check_folder(const char *path, const nb_sink *sink, nb_check_result *out, nb_error *err)
{
    return nb_check_folder_with(path, NULL, sink, out, err);
}

void nb_check_result_free(nb_check_result *r)
{
    nb_findings_free(&r->findings);
    free(r->dir);
    *r = (nb_check_result){0};
}
