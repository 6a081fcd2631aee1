/*
 * Replies taken apart. The first two bytes choose the parsers, the third where the text is cut; the rest is the text. Whole or in pieces, what
 * is told must be the same.
 */
#include <stdlib.h>
#include <string.h>

#include "text/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

typedef struct told {
    nb_buf line; /* kinds and texts, neighbours of one kind joined */
    char open;
    size_t calls;
} told;

static void part(told *t, char kind, const char *s, size_t n)
{
    require(n > 0);
    if (t->open != kind) nb_buf_addf(&t->line, "\n%c ", kind);
    t->open = kind;
    nb_buf_add(&t->line, s, n);
}

static void on_content(void *ctx, const char *s, size_t n)
{
    part(ctx, 'c', s, n);
}

static void on_reasoning(void *ctx, const char *s, size_t n)
{
    part(ctx, 'r', s, n);
}

static void on_call(void *ctx, size_t index, const char *name, size_t n)
{
    told *t = ctx;
    require(index == t->calls++);
    t->open = 0;
    part(t, 'n', name, n);
    t->open = 0;
}

static void on_arguments(void *ctx, size_t index, const char *s, size_t n)
{
    told *t = ctx;
    require(index + 1 == t->calls && (t->open == 0 || t->open == 'a'));
    part(t, 'a', s, n);
}

/* cut 0: in one piece; else pieces of pseudo-random length that begin with it. */
static void take_apart(const uint8_t *choice, uint8_t cut, const char *text, size_t n, told *t)
{
    const char *reasoning = NULL, *tools = NULL;
    nb_reply_tools_name((choice[0] >> 1) % (nb_reply_tools_name(SIZE_MAX, &tools) + 1), &tools);
    nb_reply_reasoning_name((choice[1] >> 1) % (nb_reply_reasoning_name(SIZE_MAX, &reasoning) + 1),
                            &reasoning);
    json_t *schemas = choice[1] & 1
                          ? json_loads("[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":"
                                       "{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}}}}}]",
                                       0, NULL)
                          : NULL;
    nb_reply *reply = NULL;
    nb_reply_sink to = {on_content, on_reasoning, on_call, on_arguments, t};
    uint32_t state = cut;
    require(nb_reply_new(reasoning, tools, choice[0] & 1, schemas, &reply, NULL) == NB_OK);
    for (size_t at = 0, m; at < n; at += m) {
        state = state * 1664525u + 1013904223u;
        m = cut ? 1 + (state >> 20) % cut : n;
        if (m > n - at) m = n - at;
        char *piece = malloc(m); /* of its own size, and gone afterwards */
        require(piece != NULL);
        memcpy(piece, text + at, m);
        require(nb_reply_push(reply, piece, m, &to, NULL) == NB_OK);
        free(piece);
    }
    require(nb_reply_end(reply, &to, NULL) == NB_OK);
    nb_reply_free(reply);
    json_decref(schemas);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    told whole = {0}, pieces = {0}, bytes = {0};
    if (size < 3) return 0;
    const char *text = (const char *)data + 3;
    take_apart(data, 0, text, size - 3, &whole);
    take_apart(data, data[2], text, size - 3, &pieces);
    take_apart(data, 1, text, size - 3, &bytes);
    require(whole.line.len == pieces.line.len && whole.line.len == bytes.line.len);
    if (whole.line.len) {
        require(memcmp(whole.line.data, pieces.line.data, whole.line.len) == 0);
        require(memcmp(whole.line.data, bytes.line.data, whole.line.len) == 0);
    }
    nb_buf_free(&whole.line);
    nb_buf_free(&pieces.line);
    nb_buf_free(&bytes.line);
    return 0;
}
