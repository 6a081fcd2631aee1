/* Good safetensors files: what the reader says about them, and that it hands out the right bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/st_bytes.h"
#include "tempdir.h"

static tempdir tmp;

static nb_safetensors *open_text(const char *header, size_t data)
{
    nb_buf b = st_file(header, data);
    nb_safetensors *s = NULL;
    nb_error e = {0};
    nb_status st = nb_safetensors_open(tempdir_write(&tmp, "f.safetensors", b.data, b.len), &s, &e);
    if (st != NB_OK) print_error("%s\n", e.cause);
    assert_int_equal(st, NB_OK);
    nb_buf_free(&b);
    return s;
}

static void tensors_come_in_order_of_their_bytes(void **state)
{
    /* Named in another order than stored; data starts at byte 8 + header, at no alignment. */
    const char *header = "{\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[6,11]},"
                         "\"a\":{\"shape\":[3,1],\"data_offsets\":[0,6],\"dtype\":\"BF16\"}}";
    nb_safetensors *s = open_text(header, 11);
    uint64_t data = 8 + strlen(header);
    assert_int_equal(nb_safetensors_count(s), 2);
    const nb_tensor_info *a = nb_safetensors_at(s, 0), *b = nb_safetensors_at(s, 1);
    assert_string_equal(a->name, "a");
    assert_string_equal(b->name, "b");
    assert_ptr_equal(nb_safetensors_find(s, "a"), a);
    assert_ptr_equal(nb_safetensors_find(s, "b"), b);
    assert_null(nb_safetensors_find(s, "c"));
    assert_int_equal(a->dtype, NB_DT_BF16);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 3);
    assert_int_equal(a->shape[1], 1);
    assert_int_equal(a->begin, data);
    assert_int_equal(b->begin, data + 6);
    assert_int_equal(b->end, data + 11);
    assert_int_equal(nb_tensor_elements(a), 3);

    unsigned char got[3];
    assert_int_equal(nb_safetensors_read(s, b, 2, got, 3, NULL), NB_OK);
    assert_int_equal(got[0], st_byte(8));
    assert_int_equal(got[2], st_byte(10));
    nb_error e;
    assert_int_equal(nb_safetensors_read(s, b, 3, got, 3, &e), NB_ERR_ARGUMENT); /* past the tensor's end */
    assert_string_equal(e.tensor, "b");
    assert_int_equal(nb_safetensors_read(s, b, UINT64_MAX, got, 3, &e), NB_ERR_ARGUMENT);
    nb_safetensors_close(s);
}

static void empty_scalar_and_zero_size(void **state)
{
    nb_safetensors *s = open_text("{}", 0);
    assert_int_equal(nb_safetensors_count(s), 0);
    assert_null(nb_safetensors_find(s, "x"));
    nb_safetensors_close(s);

    s = open_text("{\"z\":{\"dtype\":\"I32\",\"shape\":[2,0],\"data_offsets\":[0,0]},"
                  "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
                  4);
    assert_int_equal(nb_safetensors_count(s), 2);
    assert_int_equal(nb_tensor_elements(nb_safetensors_find(s, "z")), 0);
    assert_int_equal(nb_safetensors_find(s, "s")->rank, 0);
    assert_int_equal(nb_tensor_elements(nb_safetensors_find(s, "s")), 1);
    nb_safetensors_close(s);
}

static void white_space_metadata_and_unknown_keys(void **state)
{
    nb_safetensors *s =
        open_text(" \t\r\n{\"__metadata__\":{\"format\":\"pt\",\"note\":\"\\u00e9\"},"
                  "\"x\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":[{}]}}\t\r\n  ",
                  1);
    assert_int_equal(nb_safetensors_count(s), 1);
    assert_null(nb_safetensors_find(s, "__metadata__"));
    nb_safetensors_close(s);
}

static void names_are_unescaped(void **state)
{
    nb_safetensors *s =
        open_text("{\"\\u006c\\\"\\ud83d\\ude00\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                  "\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                  2);
    assert_non_null(nb_safetensors_find(s, "l\"\xF0\x9F\x98\x80"));
    assert_non_null(nb_safetensors_find(s, ""));
    nb_safetensors_close(s);
}

static void every_dtype_has_its_size(void **state)
{
    /* serving.md 4.1: the 22 dtypes and their bits */
    static const struct {
        const char *name;
        nb_dtype dtype;
        unsigned bits;
    } all[] = {
        {"F4", NB_DT_F4, 4},
        {"F6_E2M3", NB_DT_F6_E2M3, 6},
        {"F6_E3M2", NB_DT_F6_E3M2, 6},
        {"BOOL", NB_DT_BOOL, 8},
        {"U8", NB_DT_U8, 8},
        {"I8", NB_DT_I8, 8},
        {"F8_E5M2", NB_DT_F8_E5M2, 8},
        {"F8_E4M3", NB_DT_F8_E4M3, 8},
        {"F8_E8M0", NB_DT_F8_E8M0, 8},
        {"F8_E4M3FNUZ", NB_DT_F8_E4M3FNUZ, 8},
        {"F8_E5M2FNUZ", NB_DT_F8_E5M2FNUZ, 8},
        {"I16", NB_DT_I16, 16},
        {"U16", NB_DT_U16, 16},
        {"F16", NB_DT_F16, 16},
        {"BF16", NB_DT_BF16, 16},
        {"I32", NB_DT_I32, 32},
        {"U32", NB_DT_U32, 32},
        {"F32", NB_DT_F32, 32},
        {"I64", NB_DT_I64, 64},
        {"U64", NB_DT_U64, 64},
        {"F64", NB_DT_F64, 64},
        {"C64", NB_DT_C64, 64},
    };
    assert_int_equal(sizeof all / sizeof *all, NB_DT_COUNT);
    for (size_t i = 0; i < NB_DT_COUNT; i++) {
        char header[160];
        size_t bytes = 4 * all[i].bits / 8;
        assert_string_equal(nb_dtype_name(all[i].dtype), all[i].name);
        assert_int_equal(nb_dtype_bits(all[i].dtype), all[i].bits);
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%zu]}}",
                 all[i].name, bytes);
        nb_safetensors *s = open_text(header, bytes);
        assert_int_equal(nb_safetensors_at(s, 0)->dtype, all[i].dtype);
        nb_safetensors_close(s);
    }
}

static void a_file_cut_after_opening_gives_an_io_error(void **state)
{
    nb_safetensors *s = open_text("{\"x\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}", 100);
    const nb_tensor_info *x = nb_safetensors_at(s, 0);
    unsigned char got[100];
    nb_error e;
    assert_int_equal(truncate(tmp.file, (off_t)x->begin + 60), 0);
    assert_int_equal(nb_safetensors_read(s, x, 0, got, 60, NULL), NB_OK);
    assert_int_equal(nb_safetensors_read(s, x, 0, got, 100, &e), NB_ERR_IO);
    assert_string_equal(e.tensor, "x");
    assert_string_equal(e.file, tmp.file);
    assert_int_equal(e.offset, x->begin + 60);
    assert_string_not_equal(e.remedy, "");
    nb_safetensors_close(s);
}

static void shapes_as_text(void **state)
{
    const uint64_t shape[] = {2, 18446744073709551615u};
    nb_tensor_info t = {.rank = 2, .shape = shape};
    char buf[40];
    assert_string_equal(nb_tensor_shape_text(&t, buf, sizeof buf), "[2, 18446744073709551615]");
    assert_string_equal(nb_tensor_shape_text(&t, buf, 5), "[2, ");
    t.rank = 0;
    assert_string_equal(nb_tensor_shape_text(&t, buf, sizeof buf), "[]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_in_order_of_their_bytes),
        cmocka_unit_test(empty_scalar_and_zero_size),
        cmocka_unit_test(white_space_metadata_and_unknown_keys),
        cmocka_unit_test(names_are_unescaped),
        cmocka_unit_test(every_dtype_has_its_size),
        cmocka_unit_test(a_file_cut_after_opening_gives_an_io_error),
        cmocka_unit_test(shapes_as_text),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
