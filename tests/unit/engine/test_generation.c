/* generation_config.json: what counts, what stays unset, where end tokens come from, and each value that is none. */
#include "text/tiny.h"

#include <math.h>

#include "base/json_tree.h"
#include "engine/generation.h"
#include "tempdir.h"

typedef struct folder {
    tempdir dir;
    nb_tokenizer *t;
} folder;

/* A tokenizer of 256 bytes; config names its end token, or nothing (NULL). */
static folder make(const char *tokenizer_config)
{
    folder f;
    tempdir_make(&f.dir);
    f.t = tiny_new(&(tiny){.config = tokenizer_config});
    return f;
}

static void drop(folder *f)
{
    nb_tokenizer_free(f->t);
    tempdir_remove(&f->dir);
}

/* generation NULL: no such file. */
static nb_status read_with(folder *f, const char *generation, const char *config, nb_generation_config *g,
                           nb_error *err)
{
    json_t *root = NULL;
    nb_config cfg;
    nb_error unknown;
    if (generation) tempdir_write(&f->dir, "generation_config.json", generation, strlen(generation));
    assert_int_equal(nb_json_tree(NULL, config, strlen(config), &root, NULL), NB_OK);
    (void)nb_config_from_json(root, "the/config.json", &cfg, &unknown);
    nb_status s = nb_generation_open(f->dir.path, &cfg, f->t, g, err);
    json_decref(root);
    return s;
}

static void test_fields(void **unused)
{
    folder f = make(NULL);
    nb_generation_config g;
    nb_error err;
    assert_int_equal(read_with(&f, NULL, "{}", &g, &err), NB_OK);
    assert_int_equal(g.n_eos, 0);
    assert_true(isnan(g.temperature) && isnan(g.top_p) && isnan(g.min_p) && isnan(g.repetition_penalty));
    assert_int_equal(g.top_k, -1);
    assert_int_equal(g.max_new_tokens, -1);
    assert_int_equal(read_with(&f,
                               "{\"temperature\":0.6,\"top_p\":0.95,\"min_p\":0,\"repetition_penalty\":1.05,"
                               "\"top_k\":20,\"max_new_tokens\":2048,\"do_sample\":\"?\"}",
                               "{}", &g, &err),
                     NB_OK);
    assert_true(g.temperature == 0.6 && g.top_p == 0.95 && g.min_p == 0 && g.repetition_penalty == 1.05);
    assert_int_equal(g.top_k, 20);
    assert_int_equal(g.max_new_tokens, 2048);
    assert_int_equal(read_with(&f, "{\"temperature\":1,\"top_p\":null,\"top_k\":null}", "{}", &g, &err),
                     NB_OK);
    assert_true(g.temperature == 1 && isnan(g.top_p));
    assert_int_equal(g.top_k, -1);
    drop(&f);
}

static void expect_eos(folder *f, const char *generation, const char *config, const int *want)
{
    nb_generation_config g;
    nb_error err = {0};
    size_t n = 0;
    if (read_with(f, generation, config, &g, &err)) fail_msg("%s", err.cause);
    for (; want[n] >= 0; n++) {
        assert_true(n < g.n_eos && g.eos[n] == (uint32_t)want[n]);
        assert_true(nb_generation_is_eos(&g, (uint32_t)want[n]));
    }
    assert_int_equal(g.n_eos, n);
    assert_int_equal(g.own_eos, nb_tokenizer_eos(f->t));
    assert_false(nb_generation_is_eos(&g, 200));
}

static void test_end_tokens(void **unused)
{
    folder none = make(NULL), own = make("{\"eos_token\":\"a\"}"); /* byte 97 */
    expect_eos(&none, "{\"eos_token_id\":7}", "{\"eos_token_id\":8}", (const int[]){7, -1});
    expect_eos(&none, "{\"eos_token_id\":[7,9,7]}", "{}", (const int[]){7, 9, -1});
    expect_eos(&none, "{\"eos_token_id\":null}", "{\"eos_token_id\":[8]}", (const int[]){8, -1});
    expect_eos(&none, "{}", "{\"eos_token_id\":8}", (const int[]){8, -1});
    expect_eos(&none, "{}", "{}", (const int[]){-1});
    expect_eos(&own, "{\"eos_token_id\":[7,97]}", "{}", (const int[]){97, 7, -1});
    expect_eos(&own, "{}", "{}", (const int[]){97, -1});
    /* the matrix has more rows than the tokenizer has tokens */
    expect_eos(&none, "{\"eos_token_id\":256}", "{\"vocab_size\":257}", (const int[]){256, -1});
    drop(&none);
    drop(&own);
}

static void test_refusals(void **unused)
{
    static const struct {
        const char *generation, *config, *named, *file;
        nb_status status;
    } bad[] = {
        {"{\"temperature\":\"1\"}", "{}", "temperature must be a number", "generation_config.json",
         NB_ERR_FORMAT},
        {"{\"top_p\":[1]}", "{}", "top_p must be a number", "generation_config.json", NB_ERR_FORMAT},
        {"{\"min_p\":true}", "{}", "min_p must be a number", "generation_config.json", NB_ERR_FORMAT},
        {"{\"repetition_penalty\":{}}", "{}", "repetition_penalty must", "generation_config.json",
         NB_ERR_FORMAT},
        {"{\"top_k\":2.5}", "{}", "top_k must be a whole", "generation_config.json", NB_ERR_FORMAT},
        {"{\"top_k\":-2}", "{}", "top_k must be a whole", "generation_config.json", NB_ERR_FORMAT},
        {"{\"max_new_tokens\":\"9\"}", "{}", "max_new_tokens must", "generation_config.json", NB_ERR_FORMAT},
        {"{\"max_new_tokens\":0}", "{}", "max_new_tokens must", "generation_config.json", NB_ERR_FORMAT},
        {"{\"eos_token_id\":\"2\"}", "{}", "eos_token_id must", "generation_config.json", NB_ERR_FORMAT},
        {"{\"eos_token_id\":2.0}", "{}", "eos_token_id must", "generation_config.json", NB_ERR_FORMAT},
        {"{\"eos_token_id\":[1,-1]}", "{}", "eos_token_id must", "generation_config.json", NB_ERR_FORMAT},
        {"{\"eos_token_id\":[[1]]}", "{}", "eos_token_id must", "generation_config.json", NB_ERR_FORMAT},
        {"{\"eos_token_id\":256}", "{}", "id below 256", "generation_config.json", NB_ERR_FORMAT},
        {"{\"eos_token_id\":300}", "{\"vocab_size\":300}", "id below 300", "generation_config.json",
         NB_ERR_FORMAT},
        {"{}", "{\"eos_token_id\":true}", "eos_token_id must", "the/config.json", NB_ERR_FORMAT},
        {"{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,"
         "30,31,32,33]}",
         "{}", "lists more than 31", "generation_config.json", NB_ERR_LIMIT},
        {"[]", "{}", "JSON object", "generation_config.json", NB_ERR_FORMAT},
        {"{\"top_k\":", "{}", "", "generation_config.json", NB_ERR_FORMAT},
    };
    folder f = make(NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        nb_generation_config g = {.n_eos = 77};
        nb_error err = {0};
        assert_int_equal(read_with(&f, bad[i].generation, bad[i].config, &g, &err), bad[i].status);
        if (!strstr(err.cause, bad[i].named) || !strstr(err.file, bad[i].file))
            fail_msg("%s: '%s' in '%s'", bad[i].generation, err.cause, err.file);
        assert_int_equal(g.n_eos, 77); /* untouched */
    }
    drop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_end_tokens),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
