/* Stop strings are matched with one Knuth-Morris-Pratt automaton each: its state is how many bytes at the end of the text begin the
 * string, which is what must be held back. */
#include "engine/output.h"

#include <stdlib.h>
#include <string.h>

typedef struct stop {
    char *bytes;
    size_t len, state;
    size_t *fall; /* [len + 1]: the longest proper prefix that ends the first i bytes */
} stop;

struct nb_output {
    nb_detok detok;
    bool include_stop, stopped;
    size_t min_tokens, tokens;
    uint32_t *keep;
    size_t n_keep;
    stop *stops;
    size_t n_stop;
    nb_buf piece; /* of one token */
    nb_buf text;  /* taken, certain, held */
    size_t taken, certain, most;
};

/* What one token adds at most: each byte may become U+FFFD, and so may a character that was begun before. */
static size_t most_of(size_t token_bytes)
{
    return 3 * token_bytes + 8;
}

static nb_status stop_init(stop *s, const char *bytes, size_t len, nb_error *err)
{
    s->bytes = malloc(len);
    s->fall = calloc(len + 1, sizeof *s->fall);
    if (!s->bytes || !s->fall) return nb_fail_nomem(err, "a stop string", len * (1 + sizeof *s->fall));
    memcpy(s->bytes, bytes, len);
    s->len = len;
    for (size_t i = 1, k = 0; i < len; i++) {
        while (k && bytes[i] != bytes[k]) k = s->fall[k];
        if (bytes[i] == bytes[k]) k++;
        s->fall[i + 1] = k;
    }
    return NB_OK;
}

nb_status nb_output_new(const nb_output_options *opt, nb_output **out, nb_error *err)
{
    nb_status s = NB_OK;
    size_t longest = 0;
    nb_output *o = calloc(1, sizeof *o);
    if (!o) return nb_fail_nomem(err, "text output", sizeof *o);
    nb_detok_init(&o->detok, opt->tokenizer, opt->skip_special, true);
    o->include_stop = opt->include_stop;
    o->min_tokens = opt->min_tokens;
    o->keep = calloc(opt->n_keep + 1, sizeof *o->keep);
    o->stops = calloc(opt->n_stop + 1, sizeof *o->stops);
    if (!o->keep || !o->stops) {
        s = nb_fail_nomem(err, "text output", (opt->n_keep + 1) * sizeof *o->keep);
        goto out;
    }
    if (opt->n_keep) memcpy(o->keep, opt->keep, opt->n_keep * sizeof *o->keep);
    o->n_keep = opt->n_keep;
    for (; o->n_stop < opt->n_stop; o->n_stop++) {
        size_t len = opt->stop_len[o->n_stop];
        if ((s = stop_init(&o->stops[o->n_stop], opt->stop[o->n_stop], len, err))) {
            o->n_stop++; /* half made: freed with the rest */
            goto out;
        }
        if (len > longest) longest = len;
    }
    o->most = most_of(opt->token_bytes) + longest + 3;
    if (!nb_buf_reserve(&o->piece, most_of(opt->token_bytes)) || !nb_buf_reserve(&o->text, o->most))
        s = nb_fail_nomem(err, "text output", o->most);
out:
    if (s == NB_OK)
        *out = o;
    else
        nb_output_free(o);
    return s;
}

void nb_output_free(nb_output *o)
{
    if (!o) return;
    for (size_t i = 0; i < o->n_stop; i++) {
        free(o->stops[i].bytes);
        free(o->stops[i].fall);
    }
    free(o->stops);
    free(o->keep);
    nb_buf_free(&o->piece);
    nb_buf_free(&o->text);
    free(o);
}

size_t nb_output_most(const nb_output *o)
{
    return o->most;
}

static bool kept(const nb_output *o, uint32_t id)
{
    for (size_t i = 0; i < o->n_keep; i++)
        if (o->keep[i] == id) return true;
    return false;
}

/* Takes one byte; the first stop string that it completes, or -1. */
static int match(nb_output *o, char b)
{
    int hit = -1;
    for (size_t i = 0; i < o->n_stop; i++) {
        stop *s = &o->stops[i];
        while (s->state && (s->state == s->len || s->bytes[s->state] != b)) s->state = s->fall[s->state];
        if (s->bytes[s->state] == b) s->state++;
        if (s->state == s->len && hit < 0) hit = (int)i;
    }
    return hit;
}

/* Bytes at the end of the text that may be the beginning of a stop string. What stays in the text anyway need not wait. */
static size_t held(const nb_output *o)
{
    size_t most = 0;
    for (size_t i = 0; i < o->n_stop && !o->include_stop; i++) {
        const stop *s = &o->stops[i];
        size_t n = s->state == s->len ? s->fall[s->len] : s->state; /* a whole one that did not count */
        if (n > most) most = n;
    }
    return most;
}

int nb_output_push(nb_output *o, uint32_t id, bool silent)
{
    memmove(o->text.data, o->text.data + o->taken, o->text.len - o->taken);
    o->text.len -= o->taken;
    o->certain -= o->taken;
    o->taken = 0;
    o->tokens++;
    if (silent) return -1;
    nb_buf_clear(&o->piece);
    if (kept(o, id)) {
        size_t n;
        const char *bytes = nb_tokenizer_bytes(o->detok.t, id, &n);
        nb_detok_flush(&o->detok, &o->piece);
        if (bytes) nb_buf_add(&o->piece, bytes, n);
    } else {
        nb_detok_push(&o->detok, id, &o->piece);
    }
    for (size_t i = 0; i < o->piece.len; i++) {
        nb_buf_addc(&o->text, o->piece.data[i]);
        int hit = match(o, o->piece.data[i]);
        if (hit < 0 || o->tokens <= o->min_tokens) continue;
        o->stopped = true;
        o->certain = o->text.len - (o->include_stop ? 0 : o->stops[hit].len);
        return hit;
    }
    o->certain = o->text.len - held(o);
    return -1;
}

void nb_output_finish(nb_output *o)
{
    if (o->stopped) return;
    nb_buf_clear(&o->piece);
    nb_detok_flush(&o->detok, &o->piece);
    nb_buf_add(&o->text, o->piece.data, o->piece.len);
    o->certain = o->text.len;
}

const char *nb_output_take(nb_output *o, size_t *n)
{
    const char *p = o->text.data + o->taken;
    *n = o->certain - o->taken;
    o->taken = o->certain;
    return p;
}
