/* No false alarm: healthy folders of both flavours, and every fixture, give nothing above a note. */
#include "doctor.h"

static model m;

static void both_flavours(void **state)
{
    for (int ct = 0; ct < 2; ct++) {
        model_llama(&m, ct);
        model_check(&m, LLAMA_CONFIG);
        assert_int_equal(m.r.findings.count, 0);
        assert_string_equal(m.r.architecture, "llama");
        model_free(&m);
    }
}

static void weight_only(void **state)
{
    model_llama(&m, true);
    for (size_t i = 0; i < m.n;) {
        if (strstr(m.t[i].name, "input_global_scale"))
            model_remove(&m, m.t[i].name);
        else
            i++;
    }
    model_check(&m, LLAMA_CONFIG);
    assert_int_equal(m.r.findings.count, 0);
    model_free(&m);
}

static void each_folder_of(const char *kind)
{
    char path[600];
    size_t folders = 0;
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/%s", kind);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        struct stat st;
        snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/%s/%s/config.json", kind, e->d_name);
        if (e->d_name[0] == '.' || stat(path, &st) != 0) continue;
        *strrchr(path, '/') = '\0';
        check_folder(&m, path);
        for (size_t i = 0; i < m.r.findings.count; i++) {
            const nb_finding *f = &m.r.findings.items[i];
            /* What the tools really wrote, and not healthy: scales of fused linears differ, the config names other modules. */
            const bool known = strcmp(e->d_name, "deepseek_v4_llmcompressor") == 0 &&
                               (strcmp(f->rule, "NB107") == 0 || strcmp(f->rule, "NB202") == 0);
            if (f->severity != NB_SEVERITY_NOTE && !known)
                fail_msg("%s: %s %s", e->d_name, f->rule, f->message);
        }
        folders++;
    }
    closedir(d);
    nb_check_result_free(&m.r);
    assert_true(folders > 1);
}

static void every_fixture(void **state)
{
    each_folder_of("models");
    each_folder_of("demo");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_flavours), cmocka_unit_test(weight_only),
                                       cmocka_unit_test(every_fixture)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
