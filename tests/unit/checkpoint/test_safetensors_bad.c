/*
 * Every way in which a safetensors file can break its format (../shared/specs/serving.md 4.1, and the inputs that the
 * reference reader's own tests try): each is refused with a cause, and in time and memory that the header's size bounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "checkpoint/st_bytes.h"
#include "tempdir.h"

static tempdir tmp;
static nb_error last; /* of the last refusal */

/* Parses exactly these bytes from a heap block of that size, so that a sanitizer sees any over-read. */
static void refuse_bytes(const void *bytes, size_t n, const char *cause)
{
    nb_safetensors *s = NULL;
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    assert_int_equal(nb_safetensors_parse("dir/f.safetensors", copy, n, n, &s, &last), NB_ERR_FORMAT);
    free(copy);
    assert_null(s);
    if (!strstr(last.cause, cause)) fail_msg("cause \"%s\" does not say \"%s\"", last.cause, cause);
    assert_string_equal(last.file, "dir/f.safetensors");
    assert_string_not_equal(last.remedy, "");
}

static void refuse_header_n(const char *header, size_t n, size_t data, const char *cause)
{
    nb_buf b = st_file_n(header, n, data);
    refuse_bytes(b.data, b.len, cause);
    nb_buf_free(&b);
}
static void refuse(const char *header, size_t data, const char *cause)
{
    refuse_header_n(header, strlen(header), data, cause);
}

/* One tensor "x" with this entry, and `data` bytes. */
static void refuse_entry(const char *entry, size_t data, const char *cause)
{
    char header[400];
    snprintf(header, sizeof header, "{\"x\":{%s}}", entry);
    refuse(header, data, cause);
}

static void lengths(void **state)
{
    refuse_bytes("", 0, "0 bytes cannot hold");
    refuse_bytes("\x02\0\0\0\0\0\0", 7, "7 bytes cannot hold");
    refuse_bytes("\x3C\0\0\0\0\0\0\0", 8, "length is 60, the file's 8");          /* N = 60 and no header */
    refuse_bytes("\xE8\x03\0\0\0\0\0\0{}", 10, "length is 1000");                 /* attack 1 */
    refuse_bytes("\x3C\0\0\0\0\xFF\xFF\xFF{}", 10, "18446742974197923900");       /* N = 0xFFFFFF000000003C */
    refuse_bytes("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, "limit is 100000000"); /* N + 8 wraps */
    refuse_bytes("\x01\xE1\xF5\x05\0\0\0\0{}", 10, "length is 100000001");        /* one over the limit */
    refuse_bytes("\0\xE1\xF5\x05\0\0\0\0{}", 10,
                 "length is 100000000, the file's"); /* at the limit: only too long here */
    assert_int_equal(last.offset, 0);
}

static void not_json(void **state)
{
    refuse("", 0, "not JSON");
    refuse("{", 0, "not JSON");
    refuse("\xFF", 0, "not UTF-8");
    assert_int_equal(last.offset, 8);
    refuse("{\"\xC3\x28\":1}", 0, "not UTF-8");
    assert_int_equal(last.offset, 10);
    refuse("[]", 0, "must be a JSON object");
    refuse("1", 0, "must be a JSON object");
    refuse("{}x", 0, "not JSON");
    refuse_header_n("{}\0", 3, 0, "not JSON");
    refuse("{\"x\"}", 0, "not JSON");
    refuse("{\"x\":1}", 0, "entry must be an object");
    refuse("{\"x\":null}", 0, "entry must be an object");
    assert_string_equal(last.tensor, "x");
    assert_int_equal(last.offset, 13);
}

static void depth_bombs(void **state)
{
    enum { DEEP = 100000 };
    nb_buf b = {0};
    nb_buf_adds(&b, "{\"x\":{\"more\":");
    for (size_t i = 0; i < DEEP; i++) nb_buf_addc(&b, '[');
    refuse(nb_buf_str(&b), 0, "nested");
    nb_buf_clear(&b);
    for (size_t i = 0; i < DEEP; i++) nb_buf_adds(&b, "{\"a\":");
    refuse(nb_buf_str(&b), 0, "not JSON");
    nb_buf_free(&b);
}

static void entries(void **state)
{
    refuse_entry("\"dtype\":\"F8_E4M3X\",\"shape\":[1],\"data_offsets\":[0,1]", 1, "\"F8_E4M3X\"");
    refuse_entry("\"dtype\":\"u8\",\"shape\":[1],\"data_offsets\":[0,1]", 1, "22");
    refuse_entry("\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]", 1, "dtype must be a string");
    refuse_entry("\"shape\":[1],\"data_offsets\":[0,1]", 1, "needs dtype, shape and data_offsets");
    refuse_entry("\"dtype\":\"U8\",\"data_offsets\":[0,1]", 1, "needs dtype");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1]", 1, "needs dtype");
    refuse_entry("\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]", 1, "given twice");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]", 1, "given twice");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]", 1,
                 "shape must be an array of integers");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]", 1, "shape must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]", 1, "shape must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1e0],\"data_offsets\":[0,1]", 1, "shape must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]", 1, "shape must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]", 1, "shape must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]", 1, "shape must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,1]", 1,
                 "shape must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]", 1, "two integers");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]", 1, "two integers");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,-1]", 1, "data_offsets must be");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":\"0,1\"", 1, "data_offsets must be");
    assert_string_equal(last.tensor, "x");
}

static void sizes(void **state)
{
    /* both overflows: of the product, and of the product times the bits */
    refuse_entry("\"dtype\":\"F32\",\"shape\":[2,18446744073709551614],\"data_offsets\":[0,4]", 4,
                 "2^64 bits");
    refuse_entry("\"dtype\":\"F32\",\"shape\":[2,9223372036854775807],\"data_offsets\":[0,4]", 4,
                 "2^64 bits");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]", 4, "2^64 bits");
    refuse_entry("\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,4]", 4,
                 "needs 16 bytes; data_offsets give 4");
    refuse_entry("\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,16]", 16,
                 "needs 4 bytes; data_offsets give 16");
    refuse_entry("\"dtype\":\"F4\",\"shape\":[1,3],\"data_offsets\":[0,2]", 2, "whole bytes");
    refuse_entry("\"dtype\":\"F4\",\"shape\":[1,2],\"data_offsets\":[0,2]", 2, "needs 1 bytes");
    refuse_entry("\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]", 2, "whole bytes");
}

static void offsets(void **state)
{
    const char *u8 = "\"dtype\":\"U8\",\"shape\":[4]";
    char h[400];
    refuse_entry("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]", 1,
                 "no hole or overlap"); /* end before begin */
    refuse_entry("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]", 12,
                 "no hole or overlap"); /* starts late */
    refuse_entry("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[18446744073709551612,0]", 4,
                 "no hole"); /* wraps */
    snprintf(h, sizeof h, "{\"a\":{%s,\"data_offsets\":[0,4]},\"b\":{%s,\"data_offsets\":[8,12]}}", u8, u8);
    refuse(h, 12, "no hole or overlap");
    assert_string_equal(last.tensor, "b");
    assert_int_equal(last.offset, 8 + strlen(h) + 4); /* where the hole begins */
    snprintf(h, sizeof h, "{\"a\":{%s,\"data_offsets\":[0,4]},\"b\":{%s,\"data_offsets\":[2,6]}}", u8, u8);
    refuse(h, 6, "no hole or overlap");
}

static void the_file_ends_where_the_data_ends(void **state)
{
    const char *h = "{\"x\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    refuse(h, 6, "cut short"); /* the last two bytes are missing */
    refuse(h, 0, "cut short");
    refuse(h, 9, "the file holds 9"); /* trailing bytes: another format's file could hide there */
    refuse("{}", 1, "the file holds 1");
    assert_int_equal(last.offset, 11);
}

static void names_twice(void **state)
{
    refuse("{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
           2, "names this tensor twice");
    /* the same name in another spelling */
    refuse("{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
           "\"\\u0078\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
           0, "names this tensor twice");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "given twice");
}

static void metadata(void **state)
{
    refuse("{\"__metadata__\":{\"n\":1}}", 0, "strings only");
    refuse("{\"__metadata__\":{\"n\":{}}}", 0, "strings only");
    refuse("{\"__metadata__\":[]}", 0, "must be an object");
    refuse("{\"__metadata__\":\"pt\"}", 0, "must be an object");
    refuse("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "a key is given twice");
}

static void odd_names(void **state)
{
    refuse("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "NUL");
    refuse("{\"__metadata__\":{\"a\\u0000b\":\"\"}}", 0, "NUL");
    /* A name of 1 MB is legal; the error about its entry is still of fixed size. */
    nb_buf b = {0};
    nb_buf_adds(&b, "{\"");
    for (size_t i = 0; i < 1000000; i++) nb_buf_addc(&b, 'n');
    nb_buf_adds(&b, "\":{\"dtype\":\"U9\"}}");
    refuse(nb_buf_str(&b), 0, "U9");
    assert_int_equal(strlen(last.tensor), sizeof last.tensor - 1);
    nb_buf_free(&b);
}

/* n tensors on one byte range; refused for its offsets, in time n log n. */
static double crowd(size_t n)
{
    nb_buf b = {0};
    nb_buf_addc(&b, '{');
    for (size_t i = 0; i < n; i++)
        nb_buf_addf(&b, "%s\"t%zu\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}", i ? "," : "",
                    i);
    nb_buf_addc(&b, '}');
    assert_true(nb_buf_ok(&b));
    clock_t from = clock();
    refuse(nb_buf_str(&b), 4, "no hole or overlap");
    clock_t to = clock();
    nb_buf_free(&b);
    return (double)(to - from) / CLOCKS_PER_SEC;
}

static void overlapping_crowds_are_refused_fast(void **state)
{
    crowd(10); /* the reference's test_json_attack */
    /* Ten times as many take about ten times as long; a check of every pair would take a hundred times. Five tries: time that a host takes
     * from a virtual machine counts as its own. */
    bool linear = false;
    for (int i = 0; i < 5 && !linear; i++) linear = crowd(100000) < 40 * crowd(10000) + 0.05;
    assert_true(linear);
}

static void placeholders_say_how_to_get_the_file(void **state)
{
    static const char lfs[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n";
    nb_safetensors *s = NULL;
    nb_error e;
    assert_int_equal(nb_safetensors_open(tempdir_write(&tmp, "lfs.safetensors", lfs, sizeof lfs - 1), &s, &e),
                     NB_ERR_MISSING);
    assert_non_null(strstr(e.cause, "Git LFS pointer"));
    assert_non_null(strstr(e.remedy, "git lfs pull"));
    assert_string_equal(e.file, tmp.file);
    assert_int_equal(nb_safetensors_open(tempdir_write(&tmp, "empty.safetensors", "", 0), &s, &e),
                     NB_ERR_MISSING);
    assert_non_null(strstr(e.cause, "empty"));
    assert_int_equal(nb_safetensors_open(tempdir_write(&tmp, "short.safetensors", "abc", 3), &s, &e),
                     NB_ERR_FORMAT);
    assert_int_equal(nb_safetensors_open(tempdir_path(&tmp, "absent.safetensors"), &s, &e), NB_ERR_MISSING);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths),
        cmocka_unit_test(not_json),
        cmocka_unit_test(depth_bombs),
        cmocka_unit_test(entries),
        cmocka_unit_test(sizes),
        cmocka_unit_test(offsets),
        cmocka_unit_test(the_file_ends_where_the_data_ends),
        cmocka_unit_test(names_twice),
        cmocka_unit_test(metadata),
        cmocka_unit_test(odd_names),
        cmocka_unit_test(overlapping_crowds_are_refused_fast),
        cmocka_unit_test(placeholders_say_how_to_get_the_file),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
