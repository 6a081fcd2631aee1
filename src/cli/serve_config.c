/* Reading --config files. */
#include "cli/serve_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"

typedef struct reader {
    const char *path;
    size_t line;
    nb_serve_config *out;
} reader;

static int refuse(const reader *r, const char *why)
{
    return nb_cli_usage("serve",
                        "%s line %zu: %s; lines are `name: value`, `name: [a, b]`, or `- item` under `name:`",
                        r->path, r->line, why);
}

static int add(const reader *r, const char *prefix, const char *text, size_t n)
{
    nb_serve_config *c = r->out;
    char **grown = realloc(c->arg, (c->n + 1) * sizeof *grown);
    if (grown) c->arg = grown;
    char *arg = grown ? malloc(strlen(prefix) + n + 1) : NULL;
    if (!arg) return nb_cli_usage("serve", "%s: no memory", r->path);
    memcpy(arg, prefix, strlen(prefix));
    memcpy(arg + strlen(prefix), text, n);
    arg[strlen(prefix) + n] = '\0';
    c->arg[c->n++] = arg;
    return NB_EXIT_OK;
}

static void trim(const char **s, size_t *n)
{
    while (*n && (**s == ' ' || **s == '\t')) {
        (*s)++;
        (*n)--;
    }
    while (*n && strchr(" \t\r", (*s)[*n - 1])) (*n)--;
}

/* Drops a comment: a # at the beginning or after white space, outside quotes. */
static size_t without_comment(const char *s, size_t n)
{
    char quote = 0;
    for (size_t i = 0; i < n; i++) {
        if (quote) {
            if (s[i] == quote) quote = 0;
        } else if (s[i] == '"' || s[i] == '\'') {
            quote = s[i];
        } else if (s[i] == '#' && (i == 0 || s[i - 1] == ' ' || s[i - 1] == '\t')) {
            return i;
        }
    }
    return n;
}

/* One value: quotes taken off; what would mean more in YAML is refused. */
static int scalar(const reader *r, const char *s, size_t n)
{
    trim(&s, &n);
    if (!n) return refuse(r, "an empty value");
    if (*s == '"' || *s == '\'') {
        if (n < 2 || s[n - 1] != *s || memchr(s + 1, *s, n - 2))
            return refuse(r, "a quoted value that does not end");
        if (*s == '"' && memchr(s, '\\', n))
            return refuse(r, "escapes in double quotes are not read: use single quotes");
        return add(r, "", s + 1, n - 2);
    }
    if (strchr("{}[]&*!|>%@`?,", *s)) return refuse(r, "a value that is more than plain text: quote it");
    for (size_t i = 0; i + 1 < n; i++)
        if (s[i] == ':' && s[i + 1] == ' ')
            return refuse(r, "a nested mapping: give its JSON in single quotes");
    return add(r, "", s, n);
}

static int inline_list(const reader *r, const char *s, size_t n)
{
    if (n < 2 || s[n - 1] != ']') return refuse(r, "a list that does not end on its line");
    for (size_t at = 1; at < n - 1;) {
        const char *comma = memchr(s + at, ',', n - 1 - at);
        size_t end = comma ? (size_t)(comma - s) : n - 1;
        int rc = scalar(r, s + at, end - at);
        if (rc != NB_EXIT_OK) return rc;
        at = end + 1;
    }
    return NB_EXIT_OK;
}

static bool is(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

/* One line. *list: the line before was `name:` or an item, so that items may follow. */
static int read_line(const reader *r, const char *s, size_t n, bool *list)
{
    n = without_comment(s, n);
    bool indented = n && (*s == ' ' || *s == '\t');
    trim(&s, &n);
    if (!n || is(s, n, "---")) return NB_EXIT_OK;
    if (*s == '-' && n > 1 && s[1] == ' ')
        return *list ? scalar(r, s + 1, n - 1) : refuse(r, "an item without a name");
    if (indented) return refuse(r, "a nested mapping: give its JSON in single quotes");
    const char *colon = memchr(s, ':', n);
    if (!colon || colon == s || (colon + 1 < s + n && colon[1] != ' ' && colon[1] != '\t'))
        return refuse(r, "a line that is no `name: value`");
    const char *v = colon + 1;
    size_t nv = n - (size_t)(v - s), name = (size_t)(colon - s);
    trim(&v, &nv);
    *list = nv == 0;
    if (is(v, nv, "null") || is(v, nv, "~")) return NB_EXIT_OK; /* as if it were not there */
    if (is(v, nv, "false") || is(v, nv, "False")) return add(r, "--no-", s, name);
    int rc = add(r, "--", s, name);
    if (rc != NB_EXIT_OK || !nv || is(v, nv, "true") || is(v, nv, "True")) return rc;
    return *v == '[' ? inline_list(r, v, nv) : scalar(r, v, nv);
}

int nb_serve_config_read(const char *path, nb_serve_config *out)
{
    nb_buf text = {0};
    nb_error err = {.offset = -1};
    reader r = {.path = path, .out = out};
    bool list = false;
    int rc = NB_EXIT_OK;
    if (nb_file_slurp(path, 1 << 20, &text, &err) != NB_OK) return nb_cli_fail(&err);
    for (size_t at = 0; rc == NB_EXIT_OK && at < text.len;) {
        const char *end = memchr(text.data + at, '\n', text.len - at);
        size_t n = end ? (size_t)(end - text.data) - at : text.len - at;
        r.line++;
        rc = memchr(text.data + at, '\0', n) ? refuse(&r, "a NUL") : read_line(&r, text.data + at, n, &list);
        at += n + 1;
    }
    nb_buf_free(&text);
    return rc;
}

void nb_serve_config_free(nb_serve_config *c)
{
    for (size_t i = 0; i < c->n; i++) free(c->arg[i]);
    free(c->arg);
    *c = (nb_serve_config){0};
}
