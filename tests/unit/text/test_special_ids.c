/* BOS, EOS and what add_special puts around a text: from the post-processor, and from tokenizer_config.json. */
#include "tempdir.h"
#include "tiny.h"

#define SPECIAL(content)                                                                                     \
    "{\"id\":0,\"content\":\"" content "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"         \
    "\"normalized\":false,\"special\":true}"
#define ADDED SPECIAL("<s>") "," SPECIAL("</s>") "," SPECIAL("</e>")
#define TEMPLATE                                                                                             \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"        \
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"E\",\"type_id\":0}}],\"pair\":" \
    "[],"                                                                                                    \
    "\"special_tokens\":{\"E\":{\"id\":\"E\",\"ids\":[257,258],\"tokens\":[\"a\",\"b\"]},"                   \
    "\"<s>\":{\"id\":\"<s>\",\"ids\":[256],\"tokens\":[\"<s>\"]}}}"

/* As tokenizers 0.23.3 gives for the same definition: [256, 97, 257, 258] and, for the empty text, [256, 257, 258]. */
static void template_goes_around_the_text(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){
        .added = ADDED, .post = "{\"type\":\"Sequence\",\"processors\":[" TINY_BYTE_LEVEL "," TEMPLATE "]}"});
    tiny_expect_special(t, "a", 256, 'a', 257, 258);
    tiny_expect_special(t, "", 256, 257, 258);
    tiny_expect(t, "a", 'a');
    assert_int_equal(nb_tokenizer_bos(t), -1); /* named by the config alone */
    nb_tokenizer_free(t);
}

static void byte_level_adds_nothing(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(&(tiny){.post = TINY_BYTE_LEVEL});
    tiny_expect_special(t, "a", 'a');
    nb_tokenizer_free(t);
}

static void config_names_bos_and_eos(void **state)
{
    (void)state;
    nb_tokenizer *t = tiny_new(
        &(tiny){.added = ADDED,
                .config = "{\"bos_token\":\"<s>\",\"eos_token\":{\"__type\":\"AddedToken\","
                          "\"content\":\"</s>\"},\"model_max_length\":1000000000000000019884624838656}"});
    assert_int_equal(nb_tokenizer_bos(t), 256);
    assert_int_equal(nb_tokenizer_eos(t), 257);
    tiny_expect_special(t, "a", 'a'); /* naming it adds nothing */
    nb_tokenizer_free(t);
    t = tiny_new(&(tiny){.added = ADDED, .config = "{\"bos_token\":null,\"eos_token\":\"<absent>\"}"});
    assert_int_equal(nb_tokenizer_bos(t), -1);
    assert_int_equal(nb_tokenizer_eos(t), -1);
    nb_tokenizer_free(t);
}

static void add_bos_token(void **state)
{
    (void)state;
    nb_tokenizer *t =
        tiny_new(&(tiny){.added = ADDED, .config = "{\"bos_token\":\"<s>\",\"add_bos_token\":true}"});
    tiny_expect_special(t, "a", 256, 'a');
    nb_tokenizer_free(t);
    t = tiny_new(&(tiny){.added = ADDED, .config = "{\"bos_token\":\"<s>\",\"add_bos_token\":false}"});
    tiny_expect_special(t, "a", 'a');
    nb_tokenizer_free(t);
    /* the template has one already */
    t = tiny_new(&(tiny){
        .added = ADDED, .post = TEMPLATE, .config = "{\"bos_token\":\"<s>\",\"add_bos_token\":true}"});
    tiny_expect_special(t, "a", 256, 'a', 257, 258);
    nb_tokenizer_free(t);
}

static void folder(void **state)
{
    (void)state;
    static const char config[] = "{\"eos_token\":\"</e>\"}",
                      map[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";
    tempdir d;
    nb_buf json = {0};
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    tempdir_make(&d);
    assert_int_equal(nb_tokenizer_open(d.path, &t, &err), NB_ERR_MISSING);
    assert_true(strstr(err.file, "tokenizer.json") && err.remedy[0]);

    tiny_json(&(tiny){.added = ADDED}, &json);
    tempdir_write(&d, "tokenizer.json", json.data, json.len);
    assert_int_equal(nb_tokenizer_open(d.path, &t, &err), NB_OK);
    assert_int_equal(nb_tokenizer_bos(t), -1);
    nb_tokenizer_free(t);

    tempdir_write(&d, "tokenizer_config.json", config, sizeof config - 1);
    tempdir_write(&d, "special_tokens_map.json", map, sizeof map - 1);
    assert_int_equal(nb_tokenizer_open(d.path, &t, &err), NB_OK);
    assert_int_equal(nb_tokenizer_bos(t), 256); /* the map has what the config does not mention */
    assert_int_equal(nb_tokenizer_eos(t), 258); /* the config goes first */
    nb_tokenizer_free(t);

    t = NULL;
    tempdir_write(&d, "tokenizer.json", json.data, json.len - 1);
    assert_int_equal(nb_tokenizer_open(d.path, &t, &err), NB_ERR_FORMAT);
    assert_int_equal(err.offset, json.len - 1);
    assert_non_null(strstr(err.file, "tokenizer.json"));
    assert_null(t);
    nb_buf_free(&json);
    unlink(tempdir_path(&d, "tokenizer.json"));
    unlink(tempdir_path(&d, "tokenizer_config.json"));
    unlink(tempdir_path(&d, "special_tokens_map.json"));
    rmdir(d.path);
}

/* Keys in any order: merges before the vocabulary, the model before all else; unknown keys are skipped; a model without a
 * type is BPE when it has merges (files from before 2021). */
static void any_order_of_keys(void **state)
{
    (void)state;
    static const char json[] =
        "{\"model\":{\"merges\":[\"a "
        "b\"],\"ignore_merges\":null,\"dropout\":0.0,\"continuing_subword_prefix\":\"\","
        "\"extra\":[{}],\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}},\"decoder\":" TINY_DECODER
        ",\"x\":{\"y\":[1]},\"added_tokens\":[],\"pre_tokenizer\":" TINY_BYTE_LEVEL "}";
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    if (nb_tokenizer_parse(json, sizeof json - 1, NULL, 0, &t, &err)) fail_msg("%s", err.cause);
    tiny_expect(t, "abb", 2, 1);
    assert_int_equal(nb_tokenizer_size(t), 3);
    assert_int_equal(nb_tokenizer_id(t, "ab", 2), 2);
    nb_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(template_goes_around_the_text),
        cmocka_unit_test(byte_level_adds_nothing),
        cmocka_unit_test(config_names_bos_and_eos),
        cmocka_unit_test(add_bos_token),
        cmocka_unit_test(folder),
        cmocka_unit_test(any_order_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
