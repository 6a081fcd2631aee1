/* The tokenizers of the fixtures give exactly what the Hugging Face library gave for a few hundred texts each: ids with
 * and without special tokens, decoded text, streamed pieces.
 * Runs over the project's own fixtures, and over the folder that NB_FIXTURES names (real tokenizers) where it is set. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "text/tokenizer.h"

typedef struct tokenizer {
    nb_tokenizer *t;
    nb_tok_scratch *s;
} tokenizer;

static int failures; /* of the current folder */

static void complain(const char *what, const char *folder, size_t line, const char *text)
{
    if (failures++ < 5) print_error("%s line %zu: %s differs for %.200s\n", folder, line, what, text);
}

static bool exists(const char *path)
{
    return access(path, R_OK) == 0;
}

/* Where the tokenizer of ROOT/tokenizers/NAME lies, as a folder that nb_tokenizer_open can read; a .gz is unpacked into
 * temp. False: the file is not stored (see the fixtures' SOURCES.md). */
static bool folder_of(const char *root, const char *name, const char *temp, char *out, size_t cap)
{
    char path[4096], command[12500];
    snprintf(out, cap, "%s/tokenizers/%s", root, name);
    snprintf(path, sizeof path, "%s/tokenizer.json", out);
    if (exists(path)) return true;
    snprintf(path, sizeof path, "%s/tokenizer.json.gz", out);
    if (exists(path)) {
        snprintf(
            command, sizeof command,
            "gzip -dc '%s' > '%s/tokenizer.json' && cp '%s'/tokenizer_config.json '%s' 2>/dev/null || true",
            path, temp, out, temp);
        assert_int_equal(system(command), 0);
        snprintf(out, cap, "%s", temp);
        return true;
    }
    if (strcmp(name, "demo") != 0) return false;
    snprintf(out, cap, "%s/demo/compressed-tensors", root);
    return true;
}

static bool same_ids(const json_t *want, const nb_ids *got)
{
    if (json_array_size(want) != got->len) return false;
    for (size_t i = 0; i < got->len; i++)
        if (json_integer_value(json_array_get(want, i)) != got->data[i]) return false;
    return true;
}

static bool same_text(const json_t *want, const nb_buf *got)
{
    return json_string_length(want) == got->len &&
           memcmp(json_string_value(want), got->len ? got->data : "", got->len) == 0;
}

static void check_decode(const tokenizer *k, const json_t *v, const char *key, bool skip, const char *folder,
                         size_t line)
{
    const json_t *want = json_object_get(v, key), *ids = json_object_get(v, "ids");
    uint32_t *id = calloc(json_array_size(ids) + 1, sizeof *id);
    nb_buf text = {0};
    if (!want) want = json_object_get(v, "decoded");
    for (size_t i = 0; i < json_array_size(ids); i++)
        id[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    assert_int_equal(nb_tokenizer_decode(k->t, id, json_array_size(ids), skip, &text, NULL), NB_OK);
    if (!same_text(want, &text)) complain(key, folder, line, json_string_value(json_object_get(v, "text")));
    nb_buf_free(&text);
    free(id);
}

static void check_encode(const tokenizer *k, const json_t *v, const char *key, bool special,
                         const char *folder, size_t line)
{
    const json_t *want = json_object_get(v, key), *text = json_object_get(v, "text");
    nb_ids ids = {0};
    if (!want) return;
    nb_status s = nb_tokenizer_encode(k->t, k->s, json_string_value(text), json_string_length(text), special,
                                      &ids, NULL);
    if (s || !same_ids(want, &ids)) complain(key, folder, line, json_string_value(text));
    free(ids.data);
}

static void vector_line(const tokenizer *k, const json_t *v, const char *folder, size_t line)
{
    check_encode(k, v, "ids", false, folder, line);
    check_encode(k, v, "ids_special", true, folder, line);
    check_decode(k, v, "decoded", false, folder, line);
    check_decode(k, v, "decoded_skip_special", true, folder, line);
}

static void stream_line(const tokenizer *k, const json_t *v, const char *folder, size_t line)
{
    const json_t *ids = json_object_get(v, "ids"), *pieces = json_object_get(v, "pieces");
    bool after = json_array_size(json_object_get(v, "after")) > 0;
    nb_detok d;
    nb_detok_init(&d, k->t, json_is_true(json_object_get(v, "skip_special_tokens")), after);
    nb_buf piece = {0};
    for (size_t i = 0; i < json_array_size(ids); i++) {
        nb_buf_clear(&piece);
        nb_detok_push(&d, (uint32_t)json_integer_value(json_array_get(ids, i)), &piece);
        if (!same_text(json_array_get(pieces, i), &piece))
            complain("a piece", folder, line, json_string_value(json_object_get(v, "text")));
    }
    nb_buf_clear(&piece);
    nb_detok_flush(&d, &piece);
    if (!same_text(json_object_get(v, "flush"), &piece))
        complain("flush", folder, line, json_string_value(json_object_get(v, "text")));
    nb_buf_free(&piece);
}

/* Calls each for every line of file; returns the number of lines. */
static size_t lines_of(const char *root, const char *name, const char *file, const tokenizer *k,
                       void (*each)(const tokenizer *, const json_t *, const char *, size_t))
{
    char path[4096];
    nb_buf text = {0};
    size_t count = 0;
    snprintf(path, sizeof path, "%s/tokenizers/%s/%s", root, name, file);
    assert_int_equal(nb_file_slurp(path, (size_t)64 << 20, &text, NULL), NB_OK);
    for (char *line = text.data, *end; line < text.data + text.len; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text.data + text.len - line));
        if (!end) end = text.data + text.len;
        json_t *v = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        each(k, v, name, ++count);
        json_decref(v);
    }
    nb_buf_free(&text);
    return count;
}

static void check_folder(const char *root, const char *name)
{
    char temp[] = "/tmp/nb-vectors-XXXXXX", dir[2048], path[4200];
    nb_error err = {0};
    tokenizer k = {0};
    assert_non_null(mkdtemp(temp));
    failures = 0;
    if (!folder_of(root, name, temp, dir, sizeof dir)) {
        print_message("%s: its tokenizer.json is not stored\n", name);
        rmdir(temp);
        return;
    }
    nb_status s = nb_tokenizer_open(dir, &k.t, &err);
    if (s) fail_msg("%s: %s %s", name, nb_status_name(s), err.cause);
    k.s = nb_tok_scratch_new(k.t);
    assert_non_null(k.s);
    size_t vectors = lines_of(root, name, "vectors.jsonl", &k, vector_line);
    size_t streams = lines_of(root, name, "stream.jsonl", &k, stream_line);
    print_message("%s: %zu texts, %zu streams, %d differences\n", name, vectors, streams, failures);
    assert_true(vectors > 400 && streams > 80);
    assert_int_equal(failures, 0);
    nb_tok_scratch_free(k.s);
    nb_tokenizer_free(k.t);
    snprintf(path, sizeof path, "%s/tokenizer.json", temp);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", temp);
    unlink(path);
    rmdir(temp);
}

static int check_root(const char *root)
{
    char path[4096];
    int count = 0;
    snprintf(path, sizeof path, "%s/tokenizers", root);
    DIR *d = opendir(path);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/tokenizers/%s/vectors.jsonl", root, e->d_name);
        if (e->d_name[0] == '.' || !exists(path)) continue;
        check_folder(root, e->d_name);
        count++;
    }
    closedir(d);
    return count;
}

static void own_fixtures(void **state)
{
    (void)state;
    assert_true(check_root(NB_TEST_DATA "/fixtures") >= 8);
}

static void other_fixtures(void **state)
{
    (void)state;
    const char *root = getenv("NB_FIXTURES");
    if (!root) skip();
    assert_true(check_root(root) >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(own_fixtures), cmocka_unit_test(other_fixtures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
