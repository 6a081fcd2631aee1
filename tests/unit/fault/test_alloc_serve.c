/*
 * Memory runs out at the first allocation, the second, and so on, while a server is made and while it answers: making it says
 * NB_ERR_NOMEM and leaves nothing behind; a client gets its answer, an error, or a closed connection, and the server lives on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cmocka.h>

#include "fault/alloc.h"

#include "server/plan.h"
#include "server/server.h"
#include "tempdir.h"

static nb_metrics *metrics(void)
{
    nb_metrics *m = NULL;
    assert_int_equal(nb_metrics_new("m", 4096, &m, NULL), NB_OK);
    return m;
}

static nb_status make(const char *path, nb_metrics *m, nb_server **out)
{
    nb_error err = {0};
    const char *const keys[] = {"k"}, *const origins[] = {"http://a"};
    nb_server_options o = {.uds = path,
                           .api_keys = keys,
                           .n_api_keys = 1,
                           .root_path = "/llm",
                           .allowed_origins = origins,
                           .n_allowed_origins = 1,
                           .allowed_methods = "GET",
                           .allowed_headers = "x",
                           .request_id_headers = true,
                           .access_log = true,
                           .version = "0",
                           .workers = 2,
                           .health_seconds = 60,
                           .http = {.max_connections = 16,
                                    .max_body = 4096,
                                    .max_bodies = 8192,
                                    .idle_seconds = 60,
                                    .slow_seconds = 60,
                                    .slow_rate = 4096,
                                    .server = "nibble"},
                           .metrics = m};
    return nb_server_new(&o, out, &err);
}

static void making_a_server(void **state)
{
    tempdir t;
    tempdir_make(&t);
    char path[300];
    snprintf(path, sizeof path, "%s/s", t.path);
    nb_metrics *m = metrics();
    size_t n = 0;
    for (;; n++) {
        nb_server *s = NULL;
        fault_arm(n);
        nb_status status = make(path, m, &s);
        bool fired = fault_disarm();
        assert_int_equal(status, fired ? NB_ERR_NOMEM : NB_OK);
        nb_server_free(s);
        if (!fired) break;
        assert_null(s);
    }
    assert_true(n > 10);
    nb_metrics_free(m);
    tempdir_remove(&t);
}

/* Sends a request and reads to the end. Returns the status of the answer, 0: the connection was closed without one. */
static int ask(const char *path, const char *request)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 120};
    static char got[1 << 20];
    size_t n = 0;
    int status = 0, fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(strlen(path) < sizeof a.sun_path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request))
        for (ssize_t k; n < sizeof got - 1 && (k = recv(fd, got + n, sizeof got - 1 - n, 0)) > 0;)
            n += (size_t)k;
    got[n] = '\0';
    close(fd);
    if (n) assert_int_equal(sscanf(got, "HTTP/1.1 %d ", &status), 1);
    return status;
}

static void answering(void **state)
{
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"GET /version HTTP/1.0\r\nX-Request-Id: a\r\nOrigin: http://a\r\n\r\n", 200},
        {"GET /metrics HTTP/1.0\r\n\r\n", 200},
        {"GET /health HTTP/1.0\r\n\r\n", 503}, /* loading */
        {"GET /nowhere HTTP/1.0\r\n\r\n", 404},
        {"GET /v1/models HTTP/1.0\r\n\r\n", 401},
        {"POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\n{}", 503},
        {"POST /tokenize HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: "
         "close\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
         503},
        {"OPTIONS /v1/models HTTP/1.0\r\nOrigin: http://a\r\nAccess-Control-Request-Method: GET\r\n\r\n",
         200},
    };
    tempdir t;
    tempdir_make(&t);
    char path[300];
    snprintf(path, sizeof path, "%s/s", t.path);
    nb_metrics *m = metrics();
    nb_server *s = NULL;
    assert_int_equal(make(path, m, &s), NB_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 0;
        for (;; n++) {
            fault_arm(n);
            int status = ask(path, cases[i].request);
            if (!fault_disarm()) {
                assert_int_equal(status, cases[i].status);
                break;
            }
            assert_true(status == 0 || status == cases[i].status || status == 500 || status == 503);
        }
        assert_true(n > 2);
    }
    for (int i = 0; i < 60000 && !nb_server_idle(s); i++) usleep(1000);
    assert_true(nb_server_idle(s));
    nb_server_free(s);
    nb_metrics_free(m);
    tempdir_remove(&t);
}

static void planning(void **state)
{
    nb_plan_options o = {
        .memory = (uint64_t)1 << 32, .share = 1, .max_seqs = 4, .max_rows = 64, .prefix_cache = true};
    nb_plan p;
    size_t n = 0;
    for (;; n++) {
        nb_error err = {0};
        fault_arm(n);
        nb_status s = nb_plan_make(NB_TEST_DATA "/../models/demo", &o, &p, &err);
        bool fired = fault_disarm();
        if (!fired) {
            assert_int_equal(s, NB_OK);
            break;
        }
        assert_true(s == NB_ERR_NOMEM || s == NB_OK); /* jansson's own tables get by without growing */
    }
    assert_true(n > 10);
    assert_int_equal(p.max_context, 4096);
    assert_int_equal(p.at_once, 4);
}

int main(void)
{
    fault_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(making_a_server), cmocka_unit_test(answering),
                                       cmocka_unit_test(planning)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
