/* Tokens as their vocabulary spells them: every entry of the fixtures' vocabularies is the oracle. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "text/tokenizer.h"

/* Entries that are added tokens, too, are spelled as those are. Returns how many entries there are. */
static size_t check_vocabulary(const char *folder, const json_t *file)
{
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    nb_buf got = {0};
    const char *key;
    json_t *id;
    size_t n = 0;
    if (nb_tokenizer_open(folder, &t, &err) != NB_OK) fail_msg("%s: %s", folder, err.cause);
    json_object_foreach(json_object_get(json_object_get(file, "model"), "vocab"), key, id)
    {
        nb_buf_clear(&got);
        assert_true(nb_tokenizer_spell(t, (uint32_t)json_integer_value(id), &got));
        if (got.len != strlen(key) || memcmp(got.data, key, got.len) != 0)
            fail_msg("%s: %lld is '%s', not '%s'", folder, (long long)json_integer_value(id),
                     nb_buf_str(&got), key);
        n++;
    }
    size_t i;
    json_array_foreach(json_object_get(file, "added_tokens"), i, id)
    {
        nb_buf_clear(&got);
        assert_true(nb_tokenizer_spell(t, (uint32_t)json_integer_value(json_object_get(id, "id")), &got));
        assert_string_equal(nb_buf_str(&got), json_string_value(json_object_get(id, "content")));
    }
    nb_buf_clear(&got);
    assert_false(nb_tokenizer_spell(t, nb_tokenizer_size(t), &got));
    assert_int_equal(got.len, 0);
    nb_buf_free(&got);
    nb_tokenizer_free(t);
    return n;
}

static void as_the_file_has_them(void **state)
{
    static const char root[] = NB_TEST_DATA "/fixtures/tokenizers";
    size_t vocabularies = 0, n = 0;
    DIR *d = opendir(root);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char folder[600], path[700];
        snprintf(folder, sizeof folder, "%s/%s", root, e->d_name);
        snprintf(path, sizeof path, "%s/tokenizer.json", folder);
        json_t *file = json_load_file(path, 0, NULL);
        if (!file) continue;
        n += check_vocabulary(folder, file);
        vocabularies++;
        json_decref(file);
    }
    closedir(d);
    assert_true(vocabularies >= 5 && n > 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_file_has_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
