/* Tensors' places in the table, found by the form of their names: the same as each looked up alone. */
#include "doctor.h"

static void expect_same(const char *path)
{
    nb_ckpt *c = NULL;
    nb_config cfg;
    nb_place *p = NULL;
    nb_error e = {0};
    assert_int_equal(nb_ckpt_open(path, NULL, NULL, &c, &e), NB_OK);
    assert_int_equal(nb_config_init(c, &cfg, &e), NB_OK);
    assert_int_equal(nb_places_find(c, &cfg, &p, &e), NB_OK);
    for (size_t i = 0; i < nb_ckpt_count(c); i++) {
        nb_place alone;
        const char *name = nb_ckpt_at(c, i)->name;
        alone.row = nb_arch_identify(&cfg, name, &alone.l, &alone.e, &alone.skipped);
        if (p[i].row != alone.row || p[i].l != alone.l || p[i].e != alone.e || p[i].skipped != alone.skipped)
            fail_msg("%s: layer %lld, expert %lld, skipped %d", name, (long long)p[i].l, (long long)p[i].e,
                     p[i].skipped);
    }
    free(p);
    nb_ckpt_close(c);
}

static void of_odd_names(void **unused)
{
    static model m;
    model_llama(&m, false);
    static const char *const odd[] = {"model.layers.00.input_layernorm.weight",
                                      "model.layers.7.input_layernorm.weight",
                                      "model.layers.1234567890.input_layernorm.weight",
                                      "model.layers.#.input_layernorm.weight",
                                      "model.layers.-1.input_layernorm.weight",
                                      "layers.0.input_layernorm.weight",
                                      "0.1.2.3.4.5",
                                      "model.layers.0.1.weight",
                                      "model.layers.0.self_attn.q_proj.weight.0",
                                      "mtp.0.enorm.weight",
                                      "model..layers.0",
                                      ".",
                                      "7"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) model_add(&m, odd[i], NB_DT_BF16, 1, 4, 0);
    tempdir_make(&m.dir);
    folder_text(&m.dir, "config.json", LLAMA_CONFIG);
    folder_write(&m.dir, "model.safetensors", m.t, m.n);
    expect_same(m.dir.path);
    tempdir_remove(&m.dir);
}

/* Layers and experts of the same number, drafting blocks, both families of names. */
static void of_models(void **unused)
{
    static const char *const models[] = {"demo/modelopt", "demo/compressed-tensors"};
    char path[512];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        snprintf(path, sizeof path, "%s/fixtures/%s", NB_TEST_DATA, models[i]);
        expect_same(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_odd_names), cmocka_unit_test(of_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
