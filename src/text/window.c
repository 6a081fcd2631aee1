/* The search for marks in a text that arrives in pieces. */
#include "text/window.h"

#include <string.h>

int nb_window_at(const nb_window *w, const char *mark)
{
    size_t len = strlen(mark), left = w->n - w->scan, m = left < len ? left : len;
    if (memcmp(w->s + w->scan, mark, m) != 0) return 0;
    return m == len ? 1 : w->whole ? 0 : -1;
}

int nb_window_find(nb_window *w, const char *const *marks, size_t n_marks)
{
    for (; w->scan < w->n; w->scan++) {
        bool begins = false;
        for (size_t i = 0; i < n_marks; i++) {
            if (w->s[w->scan] != marks[i][0]) continue;
            int there = nb_window_at(w, marks[i]);
            if (there > 0) return (int)i;
            begins |= there < 0;
        }
        if (begins) return -1;
    }
    return -1;
}

void nb_window_pass(nb_window *w, const char *mark)
{
    w->at = w->scan += strlen(mark);
}

bool nb_span_starts(nb_span t, const char *what)
{
    size_t n = strlen(what);
    return t.n >= n && memcmp(t.s, what, n) == 0;
}

bool nb_span_is(nb_span t, const char *what)
{
    return t.n == strlen(what) && nb_span_starts(t, what);
}

size_t nb_span_blank(nb_span t)
{
    size_t i = 0;
    while (i < t.n && (t.s[i] == ' ' || (t.s[i] >= '\t' && t.s[i] <= '\r'))) i++;
    return i;
}

bool nb_span_is_blank(nb_span t)
{
    return nb_span_blank(t) == t.n;
}

nb_span nb_span_trim(nb_span t)
{
    size_t blank = nb_span_blank(t);
    t = (nb_span){t.s + blank, t.n - blank};
    while (t.n && nb_span_is_blank((nb_span){t.s + t.n - 1, 1})) t.n--;
    return t;
}
