/* Reading HTTP/1.1 heads and chunks (RFC 9110, RFC 9112). */
#include "server/http_parse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool refuse(nb_http_refusal *no, int status, const char *why)
{
    *no = (nb_http_refusal){status, why};
    return false;
}

/* RFC 9110 5.6.2: what method and field names are made of. */
static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Decodes %XX in place. False: a broken escape, or a NUL. */
static bool unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (*s != '%') {
            *to++ = *s;
            continue;
        }
        int a = hex(s[1]), b = a < 0 ? -1 : hex(s[2]);
        if (b < 0 || (a == 0 && b == 0)) return false;
        *to++ = (char)(a * 16 + b);
        s += 2;
    }
    *to = '\0';
    return true;
}

/* METHOD SP TARGET SP HTTP/1.x, NUL-terminated. */
static bool request_line(char *line, nb_http_request *r, nb_http_refusal *no)
{
    char *sp = strchr(line, ' ');
    if (!sp || sp == line) return refuse(no, 400, "the request line is no METHOD TARGET HTTP/1.1");
    *sp = '\0';
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c)) return refuse(no, 400, "the method is no token");
    r->method = line;
    char *target = sp + 1, *end = strchr(target, ' ');
    if (!end) return refuse(no, 400, "the request line is no METHOD TARGET HTTP/1.1");
    *end = '\0';
    const char *version = end + 1;
    if (strncmp(version, "HTTP/", 5) != 0)
        return refuse(no, 400, "the request line is no METHOD TARGET HTTP/1.1");
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return refuse(no, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    r->minor = version[7] - '0';
    if ((size_t)(end - target) > NB_HTTP_MAX_TARGET) return refuse(no, 414, "the URI is longer than 16 KiB");
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return refuse(no, 400, "the URI holds a control character");
    if (strncasecmp(target, "http://", 7) == 0) { /* absolute form, as sent to proxies */
        target = strchr(target + 7, '/');
        if (!target) return refuse(no, 400, "the URI has no path");
    }
    if (*target != '/' && strcmp(target, "*") != 0) return refuse(no, 400, "the URI has no path");
    char *query = strchr(target, '?');
    if (query) *query++ = '\0';
    r->query = query ? query : "";
    if (!unescape(target)) return refuse(no, 400, "the URI holds a broken %-escape");
    r->path = target;
    return true;
}

/* Name: value, NUL-terminated. */
static bool field_line(char *line, nb_http_request *r, nb_http_refusal *no)
{
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return refuse(no, 400, "a header line is no NAME: VALUE");
    *colon = '\0';
    for (char *c = line; *c; c++) {
        if (!is_token((unsigned char)*c)) return refuse(no, 400, "a header name is no token");
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c + 'a' - 'A');
    }
    char *value = colon + 1;
    while (*value == ' ' || *value == '\t') value++;
    size_t n = strlen(value);
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) value[--n] = '\0';
    for (const char *c = value; *c; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f)
            return refuse(no, 400, "a header value holds a control character");
    if (r->n_fields == NB_HTTP_MAX_HEADERS) return refuse(no, 431, "more than 256 headers");
    r->field[r->n_fields++] = (nb_http_field){line, value};
    return true;
}

/* Whether a comma-separated list of tokens holds one. */
static bool lists(const char *value, const char *token)
{
    size_t n = strlen(token);
    for (const char *p = value; *p;) {
        while (*p == ' ' || *p == '\t' || *p == ',') p++;
        size_t len = strcspn(p, ", \t");
        if (len == n && strncasecmp(p, token, n) == 0) return true;
        p += len;
    }
    return false;
}

static bool content_length(const char *value, uint64_t *out)
{
    uint64_t v = 0;
    if (!*value) return false;
    for (const char *c = value; *c; c++) {
        if (*c < '0' || *c > '9' || v > (UINT64_MAX - 9) / 10) return false;
        v = v * 10 + (uint64_t)(*c - '0');
    }
    *out = v;
    return true;
}

/* What the headers say about body and connection. */
static bool framing(nb_http_request *r, nb_http_refusal *no)
{
    bool has_length = false, has_host = false;
    r->keep_alive = r->minor == 1;
    for (size_t i = 0; i < r->n_fields; i++) {
        const char *name = r->field[i].name, *value = r->field[i].value;
        if (strcmp(name, "content-length") == 0) {
            uint64_t v;
            if (!content_length(value, &v)) return refuse(no, 400, "Content-Length is no number");
            if (has_length && v != r->length) return refuse(no, 400, "two Content-Lengths differ");
            has_length = true;
            r->length = v;
        } else if (strcmp(name, "transfer-encoding") == 0) {
            if (r->chunked || r->minor == 0 || strcasecmp(value, "chunked") != 0)
                return refuse(no, 501, "the only Transfer-Encoding understood is chunked");
            r->chunked = true;
        } else if (strcmp(name, "connection") == 0) {
            if (lists(value, "close"))
                r->keep_alive = false;
            else if (r->minor == 0 && lists(value, "keep-alive"))
                r->keep_alive = true;
        } else if (strcmp(name, "expect") == 0) {
            if (strcasecmp(value, "100-continue") != 0)
                return refuse(no, 417, "the only expectation understood is 100-continue");
            r->wants_continue = r->minor == 1;
        } else if (strcmp(name, "host") == 0) {
            if (has_host) return refuse(no, 400, "two Host headers");
            has_host = true;
        }
    }
    if (r->minor == 1 && !has_host) return refuse(no, 400, "no Host header"); /* RFC 9112 3.2 */
    if (r->chunked && has_length) return refuse(no, 400, "both Content-Length and Transfer-Encoding");
    return true;
}

bool nb_http_parse_head(const char *bytes, size_t n, nb_http_request *out, nb_http_refusal *no)
{
    *out = (nb_http_request){.query = ""};
    if (n > NB_HTTP_MAX_HEAD) return refuse(no, 431, "the headers are longer than 64 KiB");
    if (memchr(bytes, '\0', n)) return refuse(no, 400, "a NUL among the headers");
    out->head = malloc(n + 1);
    if (!out->head) return refuse(no, 503, "no memory for the request");
    memcpy(out->head, bytes, n);
    out->head[n] = '\0';
    bool first = true;
    for (char *line = out->head;;) {
        char *end = strchr(line, '\n');
        if (!end || end == line || end[-1] != '\r')
            return refuse(no, 400, "a line does not end with carriage return and line feed");
        end[-1] = '\0';
        if (strchr(line, '\r')) return refuse(no, 400, "a carriage return inside a line");
        if (!*line) {
            if (first) return refuse(no, 400, "the request line is empty");
            return end + 1 == out->head + n ? framing(out, no) : refuse(no, 400, "bytes after the headers");
        }
        if (*line == ' ' || *line == '\t') return refuse(no, 400, "a header goes on over two lines");
        if (first ? !request_line(line, out, no) : !field_line(line, out, no)) return false;
        first = false;
        line = end + 1;
    }
}

void nb_http_request_free(nb_http_request *r)
{
    free(r->head);
    *r = (nb_http_request){0};
}

const char *nb_http_field_of(const nb_http_request *r, const char *name)
{
    for (size_t i = 0; i < r->n_fields; i++)
        if (strcmp(r->field[i].name, name) == 0) return r->field[i].value;
    return NULL;
}

enum {
    SIZE_FIRST,
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER,
    TRAILER_LINE,
    TRAILER_LF,
    END_LF
};

#define MAX_CHUNK_LINE 4096

static nb_http_more bad_chunk(nb_http_refusal *no, int status, const char *why)
{
    refuse(no, status, why);
    return NB_HTTP_REFUSED;
}

/* One byte that is no chunk data. */
static nb_http_more frame_byte(nb_http_chunks *c, char b, nb_http_refusal *no)
{
    int digit = hex(b);
    if (c->state != DATA_CR && c->state != DATA_LF && ++c->line > MAX_CHUNK_LINE)
        return bad_chunk(no, 400, "a chunk's size line or the trailers are too long");
    switch (c->state) {
    case SIZE_FIRST:
    case SIZE:
        if (digit >= 0) {
            if (c->left >> 56) return bad_chunk(no, 413, "a chunk is too large");
            c->left = c->left * 16 + (uint64_t)digit;
            c->state = SIZE;
            return NB_HTTP_MORE;
        }
        if (c->state == SIZE_FIRST) break;
        if (b == ';' || b == ' ' || b == '\t')
            c->state = EXTENSION;
        else if (b == '\r')
            c->state = SIZE_LF;
        else
            break;
        return NB_HTTP_MORE;
    case EXTENSION:
        if (b == '\r') c->state = SIZE_LF;
        if (b == '\n' || b == '\0') break;
        return NB_HTTP_MORE;
    case SIZE_LF:
        if (b != '\n') break;
        c->state = c->left ? DATA : TRAILER;
        c->line = 0;
        return NB_HTTP_MORE;
    case DATA_CR:
        if (b != '\r') break;
        c->state = DATA_LF;
        return NB_HTTP_MORE;
    case DATA_LF:
        if (b != '\n') break;
        c->state = SIZE_FIRST;
        c->line = 0;
        return NB_HTTP_MORE;
    case TRAILER: /* trailer fields are read and dropped */
        if (b == '\n' || b == '\0') break;
        c->state = b == '\r' ? END_LF : TRAILER_LINE;
        return NB_HTTP_MORE;
    case TRAILER_LINE:
        if (b == '\r') c->state = TRAILER_LF;
        if (b == '\n' || b == '\0') break;
        return NB_HTTP_MORE;
    case TRAILER_LF:
        if (b != '\n') break;
        c->state = TRAILER;
        return NB_HTTP_MORE;
    default: /* END_LF */
        if (b == '\n') return NB_HTTP_DONE;
    }
    return bad_chunk(no, 400, "the chunks of the body are malformed");
}

nb_http_more nb_http_chunks_feed(nb_http_chunks *c, const char *bytes, size_t n, size_t limit, size_t *used,
                                 nb_buf *body, nb_http_refusal *no)
{
    for (*used = 0; *used < n;) {
        if (c->state == DATA) {
            size_t take = n - *used < c->left ? n - *used : (size_t)c->left;
            if (take > limit - body->len) return bad_chunk(no, 413, "the body is too large");
            nb_buf_add(body, bytes + *used, take);
            if (!nb_buf_ok(body)) return bad_chunk(no, 503, "no memory for the body");
            *used += take;
            c->left -= take;
            if (!c->left) c->state = DATA_CR;
            continue;
        }
        nb_http_more more = frame_byte(c, bytes[(*used)++], no);
        if (more != NB_HTTP_MORE) return more;
    }
    return NB_HTTP_MORE;
}
