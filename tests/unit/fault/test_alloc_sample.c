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

/* A token that there is no memory for leaves the sampler as it was: it can be added later. */
static void adding(void **state)
{
    nb_sample_params p;
    nb_sample_work *w = NULL;
    nb_sampler *s = NULL;
    nb_sampled out;
    size_t n_top, refused = 0;
    float logits[300];
    for (size_t i = 0; i < 300; i++) logits[i] = 10 - (float)i * 1e-3f;
    nb_sample_defaults(&p);
    p.temperature = 0;
    p.presence_penalty = 2; /* the best of those that have not come: each once, in order */
    assert_int_equal(nb_sample_work_new(300, &w, NULL), NB_OK);
    assert_int_equal(nb_sampler_new(&p, 300, NULL, 0, &s, NULL), NB_OK);
    for (uint32_t i = 0; i < 300; i++) {
        assert_int_equal(nb_sampler_choose(s, w, logits, &out, NULL, 0, &n_top, NULL), NB_OK);
        assert_int_equal(out.chosen.id, i);
        for (size_t n = 0;; n++) {
            nb_error err = {0};
            fault_arm(n);
            nb_status st = nb_sampler_push(s, i, &err);
            bool fired = fault_disarm();
            assert_int_equal(st, fired ? NB_ERR_NOMEM : NB_OK);
            if (!fired) break;
            refused++;
        }
        assert_int_equal(nb_sampler_output(s), i + 1);
    }
    assert_int_equal(refused, 2 * 4); /* two allocations for 64, 128, 256 and 512 tokens */
    nb_sampler_free(s);
    nb_sample_work_free(w);
}

/* A hundred prompts of a hundred tokens under penalties, in a vocabulary of which each would take two megabytes. */
static void waiting(void **state)
{
    enum { N = 100 };
    nb_sample_params p;
    nb_sampler *s[N];
    uint32_t prompt[100];
    nb_sample_defaults(&p);
    p.repetition_penalty = 1.1f;
    fault_bytes = 0;
    for (size_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < 100; k++) prompt[k] = k * 2600 + (uint32_t)i;
        assert_int_equal(nb_sampler_new(&p, 262144, prompt, 100, &s[i], NULL), NB_OK);
    }
    assert_true(fault_bytes < (size_t)N * 4096);
    for (size_t i = 0; i < N; i++) nb_sampler_free(s[i]);
}

/* Choosing takes no memory, nor does a token that came before. */
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
    assert_int_equal(nb_sampler_new(&p, 4, (const uint32_t[]){0, 1, 2, 3}, 4, &s, NULL), NB_OK);
    fault_arm(0);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(nb_sampler_choose(s, w, logits, &out, top, 4, &n_top, NULL), NB_OK);
        assert_int_equal(nb_sampler_push(s, out.chosen.id, NULL), NB_OK);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(making), cmocka_unit_test(adding),
                                       cmocka_unit_test(waiting), cmocka_unit_test(choosing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
