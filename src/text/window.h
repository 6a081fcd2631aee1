/*
 * A text that arrives in pieces, and the search for marks in it. What could be the beginning of a mark is left alone until more text
 * tells, so that a mark is found wherever the pieces were cut. Used by the parsers of replies.
 */
#ifndef NB_TEXT_WINDOW_H
#define NB_TEXT_WINDOW_H

#include <stdbool.h>
#include <stddef.h>

typedef struct nb_window {
    const char *s; /* [n] so far; may move when it grows */
    size_t n;
    bool whole;  /* nothing more comes */
    size_t at;   /* what stands before has been dealt with */
    size_t scan; /* at <= scan <= n: no mark begins in [at, scan) */
} nb_window;

/* A run of a text that someone else owns. */
typedef struct nb_span {
    const char *s;
    size_t n;
} nb_span;

/* Moves scan to the nearest of the marks and returns its index in the list; -1: none is certain, and scan stands where one may begin
 * (at n when whole). Over all calls each byte is looked at a bounded number of times. */
int nb_window_find(nb_window *w, const char *const *marks, size_t n_marks);
/* 1: the mark stands at scan; 0: it does not; -1: the text so far does not tell. */
int nb_window_at(const nb_window *w, const char *mark);
/* Deals with everything up to and including the mark that stands at scan. */
void nb_window_pass(nb_window *w, const char *mark);
/* [at, scan). */
static inline nb_span nb_window_free(const nb_window *w)
{
    return (nb_span){w->s + w->at, w->scan - w->at};
}

bool nb_span_starts(nb_span t, const char *what);
bool nb_span_is(nb_span t, const char *what);
/* Space, tab, newline, carriage return, form feed, vertical tab alone, or nothing. */
bool nb_span_is_blank(nb_span t);
/* t without white space at either end. */
nb_span nb_span_trim(nb_span t);
/* The length of the white space that t begins with. */
size_t nb_span_blank(nb_span t);

#endif
