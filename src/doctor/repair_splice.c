/*
 * One value of a JSON object exchanged in its text. Config files are other people's: a library that reads and writes them again
 * would lose bare Infinity, the digits of floats and the layout. Only the text's outline is looked at here.
 */
#include <string.h>

#include "doctor/repair_plan.h"

typedef struct cursor {
    const char *text;
    size_t n, at;
} cursor;

static void space(cursor *c)
{
    while (c->at < c->n && strchr(" \t\r\n", c->text[c->at])) c->at++;
}

/* Skips a string that begins at the cursor. */
static bool string(cursor *c)
{
    if (c->at >= c->n || c->text[c->at] != '"') return false;
    for (c->at++; c->at < c->n; c->at++) {
        if (c->text[c->at] == '\\')
            c->at++;
        else if (c->text[c->at] == '"')
            return ++c->at, true;
    }
    return false;
}

/* Skips a value: up to the comma or bracket after it. *end is past its last character. */
static bool value(cursor *c, size_t *end)
{
    size_t depth = 0;
    const size_t begin = *end = c->at;
    while (c->at < c->n) {
        const char ch = c->text[c->at];
        if (ch == '"') {
            if (!string(c)) return false;
            *end = c->at;
            continue;
        }
        if (!depth && (ch == ',' || ch == '}' || ch == ']')) return *end > begin;
        if (ch == '{' || ch == '[') depth++;
        if (ch == '}' || ch == ']') depth--;
        c->at++;
        if (!strchr(" \t\r\n", ch)) *end = c->at;
    }
    return false;
}

bool nb_json_splice(const char *text, size_t n, const char *key, const char *with, nb_buf *out)
{
    cursor c = {text, n, 0};
    size_t begin = 0, end = 0, last = 0, e;
    bool found = false;
    space(&c);
    if (c.at >= n || text[c.at] != '{') return false;
    c.at++;
    last = c.at;
    space(&c);
    const bool empty = c.at < n && text[c.at] == '}';
    while (!empty) {
        space(&c);
        const size_t name = c.at + 1;
        if (!string(&c)) return false;
        const bool same = c.at - 1 - name == strlen(key) && memcmp(text + name, key, strlen(key)) == 0;
        space(&c);
        if (c.at >= n || text[c.at] != ':') return false;
        c.at++;
        space(&c);
        const size_t v = c.at;
        if (!value(&c, &e)) return false;
        if (same) { /* of a key given twice the last counts, as in Python */
            found = true;
            begin = v;
            end = e;
        }
        last = e;
        if (text[c.at] != ',') break;
        c.at++;
    }
    if (c.at >= n || text[c.at] != '}') return false;
    nb_buf_add(out, text, found ? begin : last);
    if (!found) nb_buf_addf(out, "%s\n  \"%s\": ", empty ? "" : ",", key);
    nb_buf_adds(out, with);
    if (!found) end = last;
    nb_buf_add(out, text + end, n - end);
    return true;
}
