/* Heads and chunks of HTTP/1.1: what RFC 9112 allows is read, what could be read in two ways is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/http_parse.h"

static void a_whole_head(void **state)
{
    static const char head[] =
        "POST /v1/models/a%2Fb%20c?x=1&y HTTP/1.1\r\nHost: h\r\nCONTENT-Type:  application/json \r\n"
        "X-Empty:\r\ncontent-length: 12\r\nExpect: 100-continue\r\n\r\n";
    nb_http_request r;
    nb_http_refusal no;
    assert_true(nb_http_parse_head(head, sizeof head - 1, &r, &no));
    assert_string_equal(r.method, "POST");
    assert_string_equal(r.path, "/v1/models/a/b c");
    assert_string_equal(r.query, "x=1&y");
    assert_string_equal(nb_http_field_of(&r, "content-type"), "application/json");
    assert_string_equal(nb_http_field_of(&r, "x-empty"), "");
    assert_null(nb_http_field_of(&r, "authorization"));
    assert_int_equal(r.length, 12);
    assert_true(r.keep_alive && r.wants_continue && !r.chunked);
    nb_http_request_free(&r);
}

/* The status of a head made of a request line and headers, 200 when it is taken. */
static int status_of(const char *line, const char *headers)
{
    char text[4096];
    nb_http_request r;
    nb_http_refusal no = {0};
    int n = snprintf(text, sizeof text, "%s\r\n%s\r\n", line, headers);
    bool ok = nb_http_parse_head(text, (size_t)n, &r, &no);
    nb_http_request_free(&r);
    if (!ok) assert_non_null(no.why);
    return ok ? 200 : no.status;
}

static void what_is_taken_and_refused(void **state)
{
    static const struct {
        const char *line, *headers;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1", "Host: h\r\n", 200},
        {"GET http://host:80/x HTTP/1.1", "Host: h\r\n", 200},
        {"OPTIONS * HTTP/1.1", "Host: h\r\n", 200},
        {"GET / HTTP/1.0", "", 200},
        {"GET / HTTP/1.1", "", 400}, /* no Host */
        {"GET http://host:80/x HTTP/1.1", "", 400},
        {"GET / HTTP/2.0", "", 505},
        {"GET / HTTP/1.11", "", 505},
        {"GET /", "", 400},
        {"GET  / HTTP/1.1", "Host: h\r\n", 400},
        {" GET / HTTP/1.1", "Host: h\r\n", 400},
        {"G(T / HTTP/1.1", "Host: h\r\n", 400},
        {"GET x HTTP/1.1", "Host: h\r\n", 400},
        {"GET http://host HTTP/1.1", "Host: h\r\n", 400},
        {"GET /%zz HTTP/1.1", "Host: h\r\n", 400},
        {"GET /%0 HTTP/1.1", "Host: h\r\n", 400},
        {"GET /%00 HTTP/1.1", "Host: h\r\n", 400},
        {"GET /\x01 HTTP/1.1", "Host: h\r\n", 400},
        {"", "", 400},
        {"GET / HTTP/1.1", "Host: h\r\nA: b\r\n c\r\n", 400}, /* obsolete folding */
        {"GET / HTTP/1.1", "Host: h\r\nA : b\r\n", 400},      /* white space before the colon */
        {"GET / HTTP/1.1", "Host: h\r\n: b\r\n", 400},
        {"GET / HTTP/1.1", "Host: h\r\nno colon\r\n", 400},
        {"GET / HTTP/1.1", "Host: h\r\nA: b\rc\r\n", 400},
        {"GET / HTTP/1.1", "Host: h\r\nA: b\nB: c\r\n", 400},
        {"GET / HTTP/1.1", "Host: h\r\nA: \x02\r\n", 400},
        {"GET / HTTP/1.1", "Host: a\r\nHost: a\r\n", 400},
        {"POST / HTTP/1.1", "Host: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n", 200},
        {"POST / HTTP/1.1", "Host: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n", 400},
        {"POST / HTTP/1.1", "Host: h\r\nContent-Length: +5\r\n", 400},
        {"POST / HTTP/1.1", "Host: h\r\nContent-Length: 5, 5\r\n", 400},
        {"POST / HTTP/1.1", "Host: h\r\nContent-Length:\r\n", 400},
        {"POST / HTTP/1.1", "Host: h\r\nContent-Length: 18446744073709551616\r\n", 400},
        {"POST / HTTP/1.1", "Host: h\r\nTransfer-Encoding: chunked\r\n", 200},
        {"POST / HTTP/1.1", "Host: h\r\nTransfer-Encoding: gzip, chunked\r\n", 501},
        {"POST / HTTP/1.1", "Host: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501},
        {"POST / HTTP/1.0", "Transfer-Encoding: chunked\r\n", 501},
        {"POST / HTTP/1.1", "Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n",
         400}, /* smuggling */
        {"POST / HTTP/1.1", "Host: h\r\nExpect: the unexpected\r\n", 417},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (status_of(cases[i].line, cases[i].headers) != cases[i].status)
            fail_msg("%s | %s: %d, not %d", cases[i].line, cases[i].headers,
                     status_of(cases[i].line, cases[i].headers), cases[i].status);
}

static void limits(void **state)
{
    nb_http_request r;
    nb_http_refusal no;
    char *big = malloc(NB_HTTP_MAX_HEAD + 100);
    assert_non_null(big);
    size_t n = (size_t)sprintf(big, "GET /");
    memset(big + n, 'a', NB_HTTP_MAX_TARGET);
    n += NB_HTTP_MAX_TARGET;
    n += (size_t)sprintf(big + n, " HTTP/1.1\r\n\r\n");
    assert_false(nb_http_parse_head(big, n, &r, &no));
    assert_int_equal(no.status, 414);
    nb_http_request_free(&r);

    n = (size_t)sprintf(big, "GET / HTTP/1.1\r\nHost: h\r\n");
    for (int i = 1; i < NB_HTTP_MAX_HEADERS; i++) n += (size_t)sprintf(big + n, "a: b\r\n");
    memcpy(big + n, "\r\n", 2);
    assert_true(nb_http_parse_head(big, n + 2, &r, &no));
    nb_http_request_free(&r);
    memcpy(big + n, "a: b\r\n\r\n", 8);
    assert_false(nb_http_parse_head(big, n + 8, &r, &no));
    assert_int_equal(no.status, 431);
    nb_http_request_free(&r);

    memset(big, 'a', NB_HTTP_MAX_HEAD + 1);
    assert_false(nb_http_parse_head(big, NB_HTTP_MAX_HEAD + 1, &r, &no));
    assert_int_equal(no.status, 431);
    nb_http_request_free(&r);
    free(big);
    assert_false(nb_http_parse_head("GET /\0 HTTP/1.1\r\n\r\n", 20, &r, &no));
    assert_int_equal(no.status, 400);
    nb_http_request_free(&r);
}

static bool keeps(const char *line, const char *headers)
{
    char text[512];
    nb_http_request r;
    nb_http_refusal no;
    int n = snprintf(text, sizeof text, "%s\r\n%s\r\n", line, headers);
    assert_true(nb_http_parse_head(text, (size_t)n, &r, &no));
    bool k = r.keep_alive;
    nb_http_request_free(&r);
    return k;
}

static void connections_stay_or_go(void **state)
{
    assert_true(keeps("GET / HTTP/1.1", "Host: h\r\n"));
    assert_false(keeps("GET / HTTP/1.1", "Host: h\r\nConnection: foo, Close\r\n"));
    assert_false(keeps("GET / HTTP/1.0", ""));
    assert_true(keeps("GET / HTTP/1.0", "Connection: Keep-Alive\r\n"));
}

/* Feeds text in pieces of `step` bytes; returns the body, or the status of the refusal. */
static int chunks(const char *text, size_t step, size_t limit, char *body, size_t cap, size_t *left)
{
    nb_http_chunks c = {0};
    nb_http_refusal no = {0};
    nb_buf b = {0};
    nb_http_more more = NB_HTTP_MORE;
    size_t n = strlen(text), at = 0;
    while (more == NB_HTTP_MORE && at < n) {
        size_t take = n - at < step ? n - at : step, used;
        more = nb_http_chunks_feed(&c, text + at, take, limit, &used, &b, &no);
        if (more == NB_HTTP_MORE) assert_int_equal(used, take);
        at += used;
    }
    snprintf(body, cap, "%s", nb_buf_str(&b));
    *left = n - at;
    nb_buf_free(&b);
    return more == NB_HTTP_DONE ? 200 : more == NB_HTTP_REFUSED ? no.status : 0;
}

static void chunked_bodies(void **state)
{
    static const struct {
        const char *text, *body;
        int status; /* 0: not complete */
        size_t left;
    } cases[] = {
        {"0\r\n\r\n", "", 200, 0},
        {"5\r\nhello\r\n0\r\n\r\nGET", "hello", 200, 3},
        {"A;name=\"v\"\r\n0123456789\r\n1 \r\nx\r\n000\r\nTrailer: y\r\n\r\n", "0123456789x", 200, 0},
        {"5\r\nhel", "hel", 0, 0},
        {"\r\n", "", 400, 0},
        {"g\r\n", "", 400, 1},
        {"-1\r\n", "", 400, 2},
        {"0x5\r\n", "", 400, 0},
        {"5\nhello", "", 400, 0},
        {"5\r\nhelloX", "hello", 400, 0},
        {"5\r\nhello\r\r", "hello", 400, 0},
        {"fffffffffffffffff\r\n", "", 413, 0},
        {"40\r\nx", "", 413, 0}, /* beyond the limit of 32 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step <= 64; step *= 4) {
            char body[128];
            size_t left;
            int status =
                chunks(cases[i].text, step, cases[i].status == 413 ? 32 : 1 << 20, body, sizeof body, &left);
            if (cases[i].status == 413 && i + 1 == sizeof cases / sizeof *cases) {
                /* 64 bytes are too many only as they come */
                char big[128] = "40\r\n";
                memset(big + 4, 'x', 64);
                big[68] = '\0';
                status = chunks(big, step, 32, body, sizeof body, &left);
                assert_int_equal(status, 413);
                assert_true(strlen(body) <= 32);
                continue;
            }
            if (status != cases[i].status)
                fail_msg("%s by %zu: %d, not %d", cases[i].text, step, status, cases[i].status);
            if (status == 200) assert_int_equal(left, cases[i].left);
            if (status != 413) assert_string_equal(body, cases[i].body);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_head), cmocka_unit_test(what_is_taken_and_refused), cmocka_unit_test(limits),
        cmocka_unit_test(connections_stay_or_go), cmocka_unit_test(chunked_bodies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
