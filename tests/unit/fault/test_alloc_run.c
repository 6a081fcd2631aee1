/* Memory runs out at each allocation of loading a model and answering a prompt in turn: NB_ERR_NOMEM and nothing left behind (the
 * sanitizer build sees leaks), never an answer that differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include <stdio.h>
#include <string.h>

#include "nibble.h"

static bool take(void *ctx, const char *piece, size_t n)
{
    char *out = ctx;
    size_t len = strlen(out);
    assert_true(len + n < 512);
    memcpy(out + len, piece, n);
    out[len + n] = '\0';
    return true;
}

static nb_status answer(const char *path, char *text, nb_error *err)
{
    static const uint32_t prompt[] = {5, 9, 17, 33, 65};
    nb_llm_options o = {.threads = 2, .max_context = 64, .max_rows = 4};
    nb_llm *m = NULL;
    nb_generation g;
    text[0] = '\0';
    nb_status s = nb_llm_open(path, &o, &m, err);
    if (s == NB_OK) s = nb_llm_generate(m, prompt, 5, &(nb_sampling){.top_p = 1}, 8, take, text, &g, err);
    nb_llm_close(m);
    return s;
}

static void fail_each_allocation(const char *model, size_t stride)
{
    char path[512], whole[512], text[512];
    nb_error e = {0};
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/models/%s", model);
    assert_int_equal(answer(path, whole, &e), NB_OK);
    size_t n = 0;
    for (;; n += stride) {
        e = (nb_error){0};
        fault_arm(n);
        nb_status s = answer(path, text, &e);
        bool fired = fault_disarm();
        if (!fired) {
            assert_int_equal(s, NB_OK);
            assert_string_equal(text, whole);
            break;
        }
        if (s == NB_OK)
            assert_string_equal(text, whole); /* what failed was worth having, not needed */
        else if (s != NB_ERR_NOMEM || e.status != NB_ERR_NOMEM)
            fail_msg("%s: allocation %zu: status %d (%s)", model, n, (int)s, e.cause);
    }
    assert_true(n > 100);
    print_message("  %s: %zu allocations\n", model, n);
}

static void llama(void **unused)
{
    fail_each_allocation("llama_ct", 1);
}

/* the same code for many more tensors: every thirteenth */
static void deepseek_v4(void **unused)
{
    fail_each_allocation("deepseek_v4_ct", 13);
}

/* with derived weights and an indexer */
static void latent(void **unused)
{
    fail_each_allocation("glm_moe_dsa_modelopt", 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(llama), cmocka_unit_test(deepseek_v4),
                                       cmocka_unit_test(latent)};
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
