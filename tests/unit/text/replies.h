/* What a parser of replies told, collected, and each way to cut the text that it is fed. */
#ifndef NB_TESTS_TEXT_REPLIES_H
#define NB_TESTS_TEXT_REPLIES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/reply.h"

/* One line: r(reasoning) c(content) 0:name(arguments) …, neighbours of one kind joined. */
typedef struct told {
    nb_buf line;
    char open;    /* the kind in work: 'r', 'c', 'a', or 0 */
    size_t calls; /* begun */
    size_t last;  /* whose arguments came last */
    bool wrong;   /* a broken promise of the sink */
} told;

static inline void told_part(told *t, char kind, const char *s, size_t n)
{
    if (!n) t->wrong = true;
    if (t->open != kind) {
        if (t->open) nb_buf_adds(&t->line, ") ");
        nb_buf_addf(&t->line, "%c(", kind);
    }
    t->open = kind;
    nb_buf_add(&t->line, s, n);
}

static inline void told_content(void *ctx, const char *s, size_t n)
{
    told_part(ctx, 'c', s, n);
}

static inline void told_reasoning(void *ctx, const char *s, size_t n)
{
    told_part(ctx, 'r', s, n);
}

static inline void told_call(void *ctx, size_t index, const char *name, size_t n)
{
    told *t = ctx;
    if (!n || index != t->calls) t->wrong = true;
    if (t->open) nb_buf_adds(&t->line, ") ");
    nb_buf_addf(&t->line, "%zu:", index);
    nb_buf_add(&t->line, name, n);
    nb_buf_addc(&t->line, '(');
    t->open = 'a';
    t->calls++;
}

static inline void told_arguments(void *ctx, size_t index, const char *s, size_t n)
{
    told *t = ctx;
    if (!n || t->open != 'a' || index + 1 != t->calls) t->wrong = true;
    nb_buf_add(&t->line, s, n);
}

static inline nb_reply_sink told_sink(told *t)
{
    return (nb_reply_sink){told_content, told_reasoning, told_call, told_arguments, t};
}

/* How a text is parsed. */
typedef struct how {
    const char *reasoning, *tools;
    bool thinking;
    const json_t *schemas; /* the request's tools, or NULL */
} how;

/* Feeds text in pieces that end where next says (which gets the position and gives the next one); the result is t->line, ended. */
static inline nb_status told_feed(told *t, how h, const char *text, size_t n,
                                  size_t (*next)(void *ctx, size_t at, size_t n), void *ctx, nb_error *err)
{
    nb_reply *r = NULL;
    nb_reply_sink to = told_sink(t);
    nb_status s = nb_reply_new(h.reasoning, h.tools, h.thinking, h.schemas, &r, err);
    for (size_t at = 0; s == NB_OK && at < n;) {
        size_t end = next(ctx, at, n);
        /* a copy of its own size: the sanitizer sees a look beyond it, and text must not be borrowed */
        char *piece = malloc(end - at);
        if (!piece) {
            s = NB_ERR_NOMEM;
            break;
        }
        memcpy(piece, text + at, end - at);
        s = nb_reply_push(r, piece, end - at, &to, err);
        free(piece);
        at = end;
    }
    if (s == NB_OK) s = nb_reply_end(r, &to, err);
    if (t->open) nb_buf_addc(&t->line, ')');
    nb_reply_free(r);
    return s;
}

/* Not between the bytes of one character. */
static inline size_t told_whole(const char *text, size_t at, size_t n)
{
    while (at < n && ((unsigned char)text[at] & 0xC0) == 0x80) at++;
    return at;
}

typedef struct cuts {
    const char *text;
    size_t step;     /* of equal pieces; 0: random ones, or one cut */
    size_t cut;      /* the one cut, when random is 0 */
    uint32_t random; /* state */
} cuts;

static inline size_t next_cut(void *ctx, size_t at, size_t n)
{
    cuts *c = ctx;
    size_t end;
    if (c->step) {
        end = at + c->step;
    } else if (c->random) {
        c->random = c->random * 1664525u + 1013904223u;
        end = at + 1 + (c->random >> 24) % 24;
    } else {
        end = at < c->cut ? c->cut : n;
    }
    return end < n ? told_whole(c->text, end, n) : n;
}

static inline void once(how h, const char *text, cuts c, const char *want)
{
    told t = {0};
    nb_error err = {0};
    c.text = text;
    if (told_feed(&t, h, text, strlen(text), next_cut, &c, &err)) fail_msg("%s: %s", text, err.cause);
    if (strcmp(nb_buf_str(&t.line), want) != 0)
        fail_msg("'%s'\n (step %zu, cut %zu, random %u) gave\n'%s', not\n'%s'", text, c.step, c.cut, c.random,
                 nb_buf_str(&t.line), want);
    if (t.wrong) fail_msg("'%s': the sink's promises are broken", text);
    nb_buf_free(&t.line);
}

/* The same is told whatever the cuts. */
static inline void expect(how h, const char *text, const char *want)
{
    size_t n = strlen(text);
    once(h, text, (cuts){.step = n + 1}, want);
    once(h, text, (cuts){.step = 1}, want);
    once(h, text, (cuts){.step = 2}, want);
    once(h, text, (cuts){.step = 3}, want);
    for (size_t cut = 1; cut < n; cut++) once(h, text, (cuts){.cut = cut}, want);
    for (uint32_t i = 1; i <= 40; i++) once(h, text, (cuts){.random = i * 2654435761u}, want);
}

#endif
