/* Records of any length go through in order while one thread writes and another reads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/ring.h"

enum { RECORDS = 20000 };

/* Record i: its length in one byte, then so many bytes of i. */
static size_t length(size_t i)
{
    return i * 7919 % 200;
}

static void *write_all(void *arg)
{
    nb_ring *r = arg;
    for (size_t i = 0; i < RECORDS;) {
        unsigned char record[200];
        unsigned char n = (unsigned char)length(i);
        if (nb_ring_room(r) < 1 + (size_t)n) continue;
        memset(record, (int)i, sizeof record);
        nb_ring_put(r, &n, 1);
        nb_ring_put(r, record, n);
        nb_ring_publish(r);
        i++;
    }
    return NULL;
}

static void two_threads(void **unused)
{
    nb_ring r;
    pthread_t t;
    assert_int_equal(nb_ring_new(&r, 1000, NULL), NB_OK);
    assert_int_equal(nb_ring_room(&r), 1024);
    assert_int_equal(pthread_create(&t, NULL, write_all, &r), 0);
    for (size_t i = 0; i < RECORDS;) {
        unsigned char n, record[200], want[200];
        if (!nb_ring_ready(&r)) continue;
        nb_ring_take(&r, &n, 1);
        nb_ring_take(&r, record, n); /* published with its length */
        memset(want, (int)i, sizeof want);
        assert_int_equal(n, length(i));
        assert_memory_equal(record, want, n);
        i++;
    }
    pthread_join(t, NULL);
    assert_int_equal(nb_ring_ready(&r), 0);
    nb_ring_free(&r);
}

static void unseen_until_published(void **unused)
{
    nb_ring r;
    char c = 'x';
    assert_int_equal(nb_ring_new(&r, 1024, NULL), NB_OK);
    nb_ring_put(&r, &c, 1);
    assert_int_equal(nb_ring_ready(&r), 0);
    assert_int_equal(nb_ring_room(&r), 1023);
    nb_ring_publish(&r);
    assert_int_equal(nb_ring_ready(&r), 1);
    nb_ring_take(&r, &c, 1);
    assert_int_equal(nb_ring_room(&r), 1024);
    nb_ring_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_threads),
                                       cmocka_unit_test(unseen_until_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
