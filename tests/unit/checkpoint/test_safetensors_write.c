/* The writer: exact bytes of a small file, a round trip of every kind of tensor, and each misuse refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"
#include "tempdir.h"

static tempdir tmp;

static nb_st_writer *new_writer(const char *name)
{
    nb_st_writer *w = NULL;
    assert_int_equal(nb_st_writer_open(tempdir_path(&tmp, name), &w, NULL), NB_OK);
    return w;
}

static void the_bytes_of_a_small_file(void **state)
{
    nb_st_writer *w = new_writer("small");
    const uint64_t shape[] = {1, 2};
    assert_int_equal(nb_st_writer_declare(w, "a\"b", NB_DT_BF16, 2, shape, NULL), NB_OK);
    assert_int_equal(nb_st_writer_declare(w, "s", NB_DT_U8, 0, NULL, NULL), NB_OK);
    assert_int_equal(nb_st_writer_begin(w, NULL), NB_OK);
    assert_int_equal(nb_st_writer_put(w, "\x01\x02", 2, NULL),
                     NB_OK); /* puts need not end where tensors do */
    assert_int_equal(nb_st_writer_put(w, "\x03\x04\x05", 3, NULL), NB_OK);
    assert_int_equal(nb_st_writer_commit(w, NULL), NB_OK);

    /* 111 characters of JSON, padded to 112 = 0x70 */
    static const char expected[] = "\x70\0\0\0\0\0\0\0"
                                   "{\"a\\\"b\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[0,4]},"
                                   "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[4,5]}}"
                                   " "
                                   "\x01\x02\x03\x04\x05";
    nb_buf b = {0};
    assert_int_equal(nb_file_slurp(tmp.file, 1000, &b, NULL), NB_OK);
    assert_int_equal(b.len, sizeof expected - 1);
    assert_memory_equal(b.data, expected, b.len);
    nb_buf_free(&b);
}

static void what_is_written_is_read_back(void **state)
{
    nb_st_writer *w = new_writer("all");
    nb_safetensors *s = NULL;
    for (int d = 0; d < NB_DT_COUNT; d++) {
        const uint64_t shape[] = {4,
                                  (uint64_t)d}; /* 4 elements fill whole bytes in every dtype; one has none */
        assert_int_equal(nb_st_writer_declare(w, nb_dtype_name((nb_dtype)d), (nb_dtype)d, 2, shape, NULL),
                         NB_OK);
    }
    assert_int_equal(nb_st_writer_begin(w, NULL), NB_OK);
    unsigned char bytes[4 * 8 * NB_DT_COUNT];
    for (int d = 0; d < NB_DT_COUNT; d++) {
        memset(bytes, d, sizeof bytes);
        assert_int_equal(nb_st_writer_put(w, bytes, 4u * (unsigned)d * nb_dtype_bits((nb_dtype)d) / 8, NULL),
                         NB_OK);
    }
    assert_int_equal(nb_st_writer_commit(w, NULL), NB_OK);
    assert_int_equal(nb_safetensors_open(tmp.file, &s, NULL), NB_OK);
    assert_int_equal(nb_safetensors_count(s), NB_DT_COUNT);
    for (int d = 1; d < NB_DT_COUNT; d++) {
        const nb_tensor_info *t = nb_safetensors_find(s, nb_dtype_name((nb_dtype)d));
        unsigned char c = 0;
        assert_int_equal(nb_tensor_elements(t), 4 * d);
        assert_int_equal(nb_safetensors_read(s, t, t->end - t->begin - 1, &c, 1, NULL), NB_OK);
        assert_int_equal(c, d);
    }
    nb_safetensors_close(s);
}

static void no_tensors_at_all(void **state)
{
    nb_st_writer *w = new_writer("none");
    nb_safetensors *s = NULL;
    assert_int_equal(nb_st_writer_begin(w, NULL), NB_OK);
    assert_int_equal(nb_st_writer_commit(w, NULL), NB_OK);
    assert_int_equal(nb_safetensors_open(tmp.file, &s, NULL), NB_OK);
    assert_int_equal(nb_safetensors_count(s), 0);
    nb_safetensors_close(s);
}

static void misuse_is_refused(void **state)
{
    nb_st_writer *w = new_writer("misuse");
    const uint64_t three[] = {3}, huge[] = {UINT64_MAX, 2}, four[] = {4};
    nb_error e;
    assert_int_equal(nb_st_writer_put(w, "x", 1, NULL), NB_ERR_ARGUMENT); /* before begin */
    assert_int_equal(nb_st_writer_declare(w, "a", NB_DT_U8, 1, four, NULL), NB_OK);
    assert_int_equal(nb_st_writer_declare(w, "a", NB_DT_U8, 1, four, &e), NB_ERR_ARGUMENT);
    assert_string_equal(e.tensor, "a");
    assert_int_equal(nb_st_writer_declare(w, "\xFF", NB_DT_U8, 1, four, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_st_writer_declare(w, "__metadata__", NB_DT_U8, 1, four, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_st_writer_declare(w, "b", NB_DT_F4, 1, three, NULL), NB_ERR_ARGUMENT); /* 12 bits */
    assert_int_equal(nb_st_writer_declare(w, "c", NB_DT_U8, 2, huge, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_st_writer_begin(w, NULL), NB_OK);
    assert_int_equal(nb_st_writer_declare(w, "d", NB_DT_U8, 1, four, NULL), NB_ERR_ARGUMENT); /* too late */
    assert_int_equal(nb_st_writer_begin(w, NULL), NB_ERR_ARGUMENT);
    assert_int_equal(nb_st_writer_put(w, "12345", 5, NULL), NB_ERR_ARGUMENT); /* one too many */
    assert_int_equal(nb_st_writer_put(w, "123", 3, NULL), NB_OK);
    assert_int_equal(nb_st_writer_commit(w, NULL), NB_ERR_ARGUMENT); /* one too few */
    assert_int_equal(access(tmp.file, F_OK), -1);
}

static void abort_leaves_nothing(void **state)
{
    int before = tempdir_entries(&tmp);
    nb_st_writer_abort(NULL);
    nb_st_writer_abort(new_writer("gone"));
    nb_st_writer *w = new_writer("gone");
    assert_int_equal(nb_st_writer_begin(w, NULL), NB_OK);
    assert_int_not_equal(access(tempdir_path(&tmp, "gone"), F_OK), 0);
    nb_st_writer_abort(w);
    assert_int_equal(tempdir_entries(&tmp), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_a_small_file), cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(no_tensors_at_all),         cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(abort_leaves_nothing),
    };
    tempdir_make(&tmp);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tempdir_remove(&tmp);
    return failed;
}
