/* The hash map: every key that was put is found with its last value, no other is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/map.h"

static void many_keys_survive_growth(void **state)
{
    enum { N = 20000 };
    char(*names)[16] = calloc(N, sizeof *names);
    assert_non_null(names);
    nb_map m = {0};
    bool was = true;
    for (uint32_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "layers.%u", i);
        assert_true(nb_map_put(&m, names[i], strlen(names[i]), i * 3, &was));
        assert_false(was);
    }
    assert_int_equal(m.count, N);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t v = 0;
        char name[16];
        memcpy(name, names[i], sizeof name); /* another address: keys compare by bytes */
        assert_true(nb_map_get(&m, name, strlen(name), &v));
        assert_int_equal(v, i * 3);
    }
    assert_false(nb_map_get(&m, "layers.20000", 12, NULL));
    assert_false(nb_map_get(&m, "layers.1", 7, NULL)); /* "layers." */
    nb_map_free(&m);
    free(names);
}

static void put_replaces(void **state)
{
    nb_map m = {0};
    bool was;
    uint32_t v;
    assert_false(nb_map_get(&m, "a", 1, &v)); /* nothing in it yet */
    assert_true(nb_map_put(&m, "a", 1, 1, &was));
    assert_false(was);
    assert_true(nb_map_put(&m, "a", 1, 2, &was));
    assert_true(was);
    assert_true(nb_map_get(&m, "a", 1, &v));
    assert_int_equal(v, 2);
    assert_int_equal(m.count, 1);
    nb_map_free(&m);
    assert_false(nb_map_get(&m, "a", 1, &v));
}

static void keys_are_bytes(void **state)
{
    nb_map m = {0};
    uint32_t v;
    assert_true(nb_map_put(&m, "", 0, 7, NULL));
    assert_true(nb_map_put(&m, "a\0b", 3, 8, NULL));
    assert_true(nb_map_put(&m, "a\0c", 3, 9, NULL));
    assert_true(nb_map_get(&m, "", 0, &v) && v == 7);
    assert_true(nb_map_get(&m, "a\0b", 3, &v) && v == 8);
    assert_true(nb_map_get(&m, "a\0c", 3, &v) && v == 9);
    assert_false(nb_map_get(&m, "a", 1, &v));
    nb_map_free(&m);
}

static void reserve_takes_room_once(void **state)
{
    nb_map m = {0};
    assert_true(nb_map_reserve(&m, 1000));
    size_t cap = m.cap;
    static char names[1000][8];
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(names[i], sizeof names[i], "%u", i);
        assert_true(nb_map_put(&m, names[i], strlen(names[i]), i, NULL));
    }
    assert_int_equal(m.cap, cap);
    assert_false(nb_map_reserve(&m, SIZE_MAX / 2));
    assert_int_equal(m.count, 1000);
    nb_map_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_keys_survive_growth),
        cmocka_unit_test(put_replaces),
        cmocka_unit_test(keys_are_bytes),
        cmocka_unit_test(reserve_takes_room_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
