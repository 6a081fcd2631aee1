/* Memory runs out at the first allocation, the second, and so on, while a sampler with every list, its work memory and the folder's
 * defaults are made: each time the call says so and leaves nothing behind. */
#include "text/tiny.h"

#include "fault/alloc.h"

#include "base/json_tree.h"
#include "engine/generation.h"
#include "engine/sampler.h"
#include "tempdir.h"

static void fail_each_allocation(const char *name, nb_status (*work)(void *), void *ctx)
{
    size_t n = 0;
    for (;; n++) {
        fault_arm(n);
        nb_status s = work(ctx);
        if (!fault_disarm()) {
            assert_int_equal(s, NB_OK);
            break;
        }
        if (s != NB_ERR_NOMEM) fail_msg("%s: allocation %zu fails: %s", name, n, nb_status_name(s));
    }
    print_message("  %s: %zu allocations\n", name, n);
    assert_true(n > 2);
}

static nb_status sample(void *ctx)
{
    nb_sample_params p;
    nb_sample_work *w = NULL;
    nb_sampler *s = NULL;
    nb_error err;
    nb_sample_defaults(&p);
    p.stop_ids = p.bias_ids = p.allowed = p.bad = (const uint32_t[]){1, 2, 3};
    p.n_stop_ids = p.n_bias = p.n_allowed = 3;
    p.bias = (const float[]){1, 2, 3};
    p.bad_len = (const size_t[]){1, 2};
    p.n_bad = 2;
    p.repetition_penalty = 1.1f;
    p.logprobs = 2;
    nb_status st = nb_sample_work_new(8, &w, &err);
    if (st == NB_OK) st = nb_sampler_new(&p, 8, (const uint32_t[]){1, 2}, 2, &s, &err);
    nb_sampler_free(s);
    nb_sample_work_free(w);
    return st;
}

/* Choosing and adding tokens takes no memory. */
static void choosing(void **state)
{
    nb_sample_params p;
    nb_sample_work *w = NULL;
    nb_sampler *s = NULL;
    nb_sampled out;
    nb_logprob top[4];
    size_t n_top;
    static const float logits[4] = {0, 1, 2, 3};
    nb_sample_defaults(&p);
    p.logprobs = NB_LOGPROBS_ALL;
    p.frequency_penalty = 1;
    p.top_p = 0.9f;
    p.top_k = 3;
    assert_int_equal(nb_sample_work_new(4, &w, NULL), NB_OK);
    assert_int_equal(nb_sampler_new(&p, 4, NULL, 0, &s, NULL), NB_OK);
    fault_arm(0);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(nb_sampler_choose(s, w, logits, &out, top, 4, &n_top, NULL), NB_OK);
        nb_sampler_push(s, out.chosen.id);
    }
    assert_false(fault_disarm());
    nb_sampler_free(s);
    nb_sample_work_free(w);
}

typedef struct folder {
    tempdir dir;
    nb_tokenizer *t;
    nb_config cfg;
} folder;

static nb_status defaults(void *ctx)
{
    folder *f = ctx;
    nb_generation_config g;
    nb_error err;
    return nb_generation_open(f->dir.path, &f->cfg, f->t, &g, &err);
}

static void making(void **state)
{
    folder f;
    nb_error unknown;
    tempdir_make(&f.dir);
    static const char json[] = "{\"eos_token_id\":[1,2],\"top_p\":0.9}";
    tempdir_write(&f.dir, "generation_config.json", json, sizeof json - 1);
    f.t = tiny_new(&(tiny){0});
    (void)nb_config_from_json(NULL, "config.json", &f.cfg, &unknown);
    fail_each_allocation("a sampler", sample, NULL);
    fail_each_allocation("the folder's defaults", defaults, &f);
    nb_tokenizer_free(f.t);
    tempdir_remove(&f.dir);
}

int main(void)
{
    fault_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(making), cmocka_unit_test(choosing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
