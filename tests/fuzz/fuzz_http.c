/* Any bytes as an HTTP head, and as a chunked body: taken or refused, and the same in one piece as byte by byte. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

static void head(const char *text, size_t n)
{
    nb_http_request r;
    nb_http_refusal no = {0};
    if (nb_http_parse_head(text, n, &r, &no)) {
        require(r.method[0] && (r.path[0] == '/' || strcmp(r.path, "*") == 0));
        require(strlen(r.path) < n && strlen(r.query) < n);
        for (size_t i = 0; i < r.n_fields; i++)
            require(r.field[i].name[0] && !strpbrk(r.field[i].value, "\r\n"));
        require(!(r.chunked && r.length));
    } else {
        require(no.status >= 400 && no.status < 600 && no.why);
    }
    nb_http_request_free(&r);
}

static nb_http_more chunks(const char *text, size_t n, size_t step, nb_buf *body, size_t *end)
{
    nb_http_chunks c = {0};
    nb_http_refusal no = {0};
    nb_http_more more = NB_HTTP_MORE;
    for (*end = 0; more == NB_HTTP_MORE && *end < n;) {
        size_t take = n - *end < step ? n - *end : step, used;
        more = nb_http_chunks_feed(&c, text + *end, take, 4096, &used, body, &no);
        require(used <= take && (more != NB_HTTP_MORE || used == take));
        *end += used;
    }
    require(body->len <= 4096);
    require(more != NB_HTTP_REFUSED || no.status >= 400);
    return more;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    nb_buf whole = {0}, bytes = {0};
    size_t a, b;
    head(text, size);
    nb_http_more x = chunks(text, size, size ? size : 1, &whole, &a), y = chunks(text, size, 1, &bytes, &b);
    require(x == y);
    if (x == NB_HTTP_DONE)
        require(a == b && whole.len == bytes.len &&
                (!whole.len || memcmp(whole.data, bytes.data, whole.len) == 0));
    nb_buf_free(&whole);
    nb_buf_free(&bytes);
    return 0;
}
