/* model.safetensors.index.json as text: what is read from it, and every way in which it can be bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/internal.h"

static nb_status parse(const char *text, size_t n, nb_index *x, nb_error *e)
{
    char *copy = malloc(n ? n : 1); /* an exact heap block: a sanitizer sees any over-read */
    assert_non_null(copy);
    memcpy(copy, text, n);
    nb_status s = nb_index_parse("dir/index.json", copy, n, x, e);
    free(copy);
    return s;
}

static void refuse(const char *text, const char *cause)
{
    nb_index x = {.count = 77};
    nb_error e;
    assert_int_equal(parse(text, strlen(text), &x, &e), NB_ERR_FORMAT);
    assert_int_equal(x.count, 77);
    assert_string_equal(e.file, "dir/index.json");
    if (!strstr(e.cause, cause)) fail_msg("cause \"%s\" does not say \"%s\"", e.cause, cause);
}

static void names_and_files(void **state)
{
    static const char text[] =
        "{\"metadata\":{\"total_size\":1234567890123,\"more\":[1]},\"weight_map\":"
        "{\"b\":\"model-2\",\"a\\u0061\":\"model-1\",\"c\":\"model-2\"},\"extra\":{\"x\":[{}]}}";
    nb_index x = {0};
    assert_int_equal(parse(text, sizeof text - 1, &x, NULL), NB_OK);
    assert_int_equal(x.count, 3);
    assert_int_equal(x.n_files, 2);
    assert_string_equal(x.files[0], "model-1"); /* alphabetical, whichever comes first in the map */
    assert_string_equal(x.files[1], "model-2");
    assert_string_equal(x.entries[0].name, "b");
    assert_int_equal(x.entries[0].file, 1);
    assert_string_equal(x.entries[1].name, "aa");
    assert_int_equal(x.entries[1].file, 0);
    assert_true(x.has_total && x.total_size == 1234567890123.0);
    uint32_t i;
    assert_true(nb_map_get(&x.by_name, "c", 1, &i) && i == 2);
    nb_index_free(&x);
}

static void the_metadata_is_optional(void **state)
{
    const char *texts[] = {"{\"weight_map\":{}}", "{\"metadata\":{},\"weight_map\":{}}",
                           "{\"metadata\":null,\"weight_map\":{}}"};
    for (size_t i = 0; i < 3; i++) {
        nb_index x = {0};
        assert_int_equal(parse(texts[i], strlen(texts[i]), &x, NULL), NB_OK);
        assert_int_equal(x.count, 0);
        assert_false(x.has_total);
        nb_index_free(&x);
    }
}

static void bad_indices(void **state)
{
    refuse("", "not JSON");
    refuse("{\"weight_map\":{\"a\":\"f\"", "not JSON"); /* cut off */
    refuse("[]", "must be a JSON object");
    refuse("{}", "no weight_map");
    refuse("{\"weight_map\":[]}", "weight_map must be an object");
    refuse("{\"weight_map\":{\"a\":1}}", "name of the file");
    refuse("{\"weight_map\":{\"a\":{}}}", "name of the file");
    refuse("{\"weight_map\":{\"a\":\"f\",\"a\":\"g\"}}", "names this tensor twice");
    refuse("{\"weight_map\":{\"a\":\"f\",\"\\u0061\":\"f\"}}", "names this tensor twice");
    refuse("{\"weight_map\":{},\"weight_map\":{}}", "given twice");
    refuse("{\"weight_map\":{\"a\\u0000\":\"f\"}}", "NUL");
    refuse("{\"weight_map\":{\"a\":\"f\\u0000\"}}", "NUL");
    refuse("{\"metadata\":1,\"weight_map\":{}}", "metadata must be an object");
    refuse("{\"metadata\":{},\"metadata\":{},\"weight_map\":{}}", "given twice");
    refuse("{\"metadata\":{\"total_size\":\"8\"},\"weight_map\":{}}", "number of bytes");
    refuse("{\"metadata\":{\"total_size\":1e999},\"weight_map\":{}}", "number of bytes");
    refuse("{\"weight_map\":{}} {}", "not JSON");
    refuse("{\"more\":[[[[[[[[", "not JSON");
}

static void plain_names_stay_in_their_folder(void **state)
{
    assert_true(nb_index_plain_name("model-00001-of-00002.safetensors"));
    assert_true(nb_index_plain_name("..a"));
    assert_false(nb_index_plain_name(""));
    assert_false(nb_index_plain_name("."));
    assert_false(nb_index_plain_name(".."));
    assert_false(nb_index_plain_name("../model.safetensors"));
    assert_false(nb_index_plain_name("/model.safetensors"));
    assert_false(nb_index_plain_name("sub/model.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_files),
        cmocka_unit_test(the_metadata_is_optional),
        cmocka_unit_test(bad_indices),
        cmocka_unit_test(plain_names_stay_in_their_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
