/* A name with several addresses: all are listened to at one port, or none and an error that says which and what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http_listen.h"

/* The resolver: what the name leads to is the test's. */
static const char *names[20];
static size_t n_names;

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    struct addrinfo **last = out;
    *out = NULL;
    for (size_t i = 0; i < n_names; i++) {
        struct addrinfo *a = calloc(1, sizeof *a);
        struct sockaddr_in *v4 = calloc(1, sizeof(struct sockaddr_in6));
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)v4;
        bool is_v6 = strchr(names[i], ':');
        assert_true(a && v4);
        v4->sin_family = is_v6 ? AF_INET6 : AF_INET;
        assert_int_equal(
            inet_pton(v4->sin_family, names[i], is_v6 ? (void *)&v6->sin6_addr : (void *)&v4->sin_addr), 1);
        *a = (struct addrinfo){.ai_family = v4->sin_family,
                               .ai_socktype = SOCK_STREAM,
                               .ai_addr = (struct sockaddr *)v4,
                               .ai_addrlen = is_v6 ? sizeof *v6 : sizeof *v4};
        *last = a;
        last = &a->ai_next;
    }
    return n_names ? 0 : EAI_NONAME;
}

void freeaddrinfo(struct addrinfo *list)
{
    for (struct addrinfo *a = list, *next; a; a = next) {
        next = a->ai_next;
        free(a->ai_addr);
        free(a);
    }
}

static struct event_base *base;
static int accepted, starved;

static void on_accepted(void *ctx, int fd, const char *peer)
{
    accepted++;
    close(fd);
}

/* Runs the loop until n connections have been accepted, for a minute at most. */
static void wait_accepted(int n)
{
    for (int i = 0; i < 60000 && accepted < n; i++) {
        event_base_loop(base, EVLOOP_NONBLOCK);
        usleep(1000);
    }
}

static void on_starved(void *ctx)
{
    starved++;
}

static const nb_listener_events events = {on_accepted, on_starved, NULL};

static nb_status open_names(size_t n, uint16_t port, nb_listener **l, nb_error *err)
{
    n_names = n;
    *l = NULL;
    return nb_listener_open(base, &events, "name", port, l, err);
}

static int connects(const char *address, uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), rc, before = accepted;
    assert_int_equal(inet_pton(AF_INET, address, &a.sin_addr), 1);
    rc = connect(fd, (struct sockaddr *)&a, sizeof a);
    if (!rc) wait_accepted(before + 1);
    close(fd);
    return rc;
}

/* 127.0.0.2 and 127.0.0.3 are the machine's own, as all of 127/8 is, but other sockets. An address that comes twice is one. */
static void every_address(void **unused)
{
    nb_listener *l;
    nb_error err = {0};
    names[0] = "127.0.0.2";
    names[1] = "127.0.0.3";
    names[2] = "127.0.0.2";
    if (open_names(3, 0, &l, &err) != NB_OK) fail_msg("%s", err.cause);
    uint16_t port = nb_listener_port(l);
    assert_true(port > 0);
    accepted = 0;
    assert_int_equal(connects("127.0.0.2", port), 0);
    assert_int_equal(connects("127.0.0.3", port), 0);
    assert_int_equal(accepted, 2);
    assert_int_equal(connects("127.0.0.1", port), -1);
    nb_listener_free(l);
    assert_int_equal(connects("127.0.0.3", port), -1);
}

/* IPv6 that the machine has not, beside an address that it has; alone it is an error. 192.0.2.0/24 is nobody's (RFC 5737). */
static void absent_addresses(void **unused)
{
    nb_listener *l;
    nb_error err = {0};
    names[0] = "192.0.2.1";
    names[1] = "127.0.0.2";
    if (open_names(2, 0, &l, &err) != NB_OK) fail_msg("%s", err.cause);
    assert_int_equal(connects("127.0.0.2", nb_listener_port(l)), 0);
    nb_listener_free(l);
    assert_int_equal(open_names(1, 0, &l, &err), NB_ERR_IO);
    assert_null(l);
    assert_non_null(strstr(err.cause, "192.0.2.1"));
    assert_non_null(strstr(err.remedy, "an address of this machine"));
}

static void one_in_use(void **unused)
{
    nb_listener *other, *l;
    nb_error err = {0};
    names[0] = "127.0.0.3";
    assert_int_equal(open_names(1, 0, &other, &err), NB_OK);
    uint16_t port = nb_listener_port(other);
    names[0] = "127.0.0.2";
    names[1] = "127.0.0.3";
    assert_int_equal(open_names(2, port, &l, &err), NB_ERR_BUSY);
    assert_null(l);
    assert_non_null(strstr(err.cause, "127.0.0.3"));
    assert_non_null(strstr(err.remedy, "--port"));
    assert_int_equal(connects("127.0.0.2", port), -1); /* not half a server */
    nb_listener_free(other);
    assert_int_equal(open_names(2, port, &l, &err), NB_OK);
    nb_listener_free(l);
}

static void too_many(void **unused)
{
    static char text[17][16];
    nb_listener *l;
    nb_error err = {0};
    for (size_t i = 0; i < 17; i++) {
        snprintf(text[i], sizeof text[i], "127.0.1.%zu", i + 1);
        names[i] = text[i];
    }
    assert_int_equal(open_names(17, 0, &l, &err), NB_ERR_IO);
    assert_non_null(strstr(err.remedy, "16 addresses"));
    assert_int_equal(open_names(0, 0, &l, &err), NB_ERR_ARGUMENT);
    assert_non_null(strstr(err.remedy, "--host"));
}

/* Without file descriptors the listener rests instead of failing over and over, and goes on by itself. The loop's passes are counted
 * by what it runs: each failed accept is one call of on_starved. */
static void no_file_descriptors(void **unused)
{
    nb_listener *l;
    nb_error err = {0};
    struct rlimit before, none;
    const struct timeval second = {.tv_sec = 1};
    struct sockaddr_in a = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    names[0] = "127.0.0.2";
    assert_int_equal(open_names(1, 0, &l, &err), NB_OK);
    a.sin_port = htons(nb_listener_port(l));
    assert_int_equal(inet_pton(AF_INET, "127.0.0.2", &a.sin_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    accepted = starved = 0;
    event_base_loopexit(base, &second);
    event_base_dispatch(base);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(accepted, 0);
    assert_true(starved >= 1 && starved <= 4); /* at once, and each half second */
    wait_accepted(1);
    assert_int_equal(accepted, 1);
    close(fd);
    nb_listener_free(l);
}

int main(void)
{
    base = event_base_new();
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_address), cmocka_unit_test(absent_addresses),
                                       cmocka_unit_test(one_in_use), cmocka_unit_test(too_many),
                                       cmocka_unit_test(no_file_descriptors)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    event_base_free(base);
    return rc;
}
