/*
 * Patterns. tokenizers runs Oniguruma (Ruby syntax), we run PCRE2, which is three times as fast and maintained. The two
 * read some spellings differently, so a pattern is not handed over but translated, by an allow-list:
 *
 *     \s            PCRE2's has U+180E too: written out as the White_Space characters
 *     \d            written as \p{Nd}
 *     \p{Han}       PCRE2 means Script_Extensions: \p{sc:Han}
 *     ^ $           Ruby's match at every line: PCRE2_MULTILINE, newline LF
 *     (?i:…)        Oniguruma folds several characters to one (ss, st, ff …): only the contractions of known patterns
 *     &&, [a[b]], \w, \b, \h, \R, (?m…), {n}+ …   mean something else or nothing in PCRE2: refused
 *
 * specs/libraries.md §4; Oniguruma 6.9.8 doc/RE; pcre2pattern(3) of 10.42.
 */
#include <stdlib.h>
#include <string.h>

#include "text/internal.h"

#define MAX_PATTERN ((size_t)16 << 10)
/* The White_Space property, Unicode 4.1 to 16. */
#define SPACES                                                                                               \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

typedef struct translation {
    const char *p;
    size_t n, at;
    nb_buf *out;
    nb_error *err;
} translation;

/* what (n bytes of the pattern, from byte at) has no equal. */
static nb_status refuse(const translation *t, size_t at, size_t n, const char *why)
{
    if (n > t->n - at) n = t->n - at;
    nb_fail(t->err, NB_ERR_UNSUPPORTED, "regular expression: '%.*s' at byte %zu of the pattern: %s", (int)n,
            t->p + at, at, why);
    nb_error_remedy(t->err, "the pre-tokenizer's pattern is outside the families that this build supports");
    return NB_ERR_UNSUPPORTED;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool starts(const translation *t, const char *what)
{
    size_t n = strlen(what);
    return t->n - t->at >= n && memcmp(t->p + t->at, what, n) == 0;
}

/* \p{…} or \P{…}: general categories as they are, anything longer is a script's name. */
static nb_status property(translation *t)
{
    size_t from = t->at, name = from + 3, end;
    if (t->n - from < 4 || t->p[from + 2] != '{') return refuse(t, from, 3, "expected \\p{NAME}");
    nb_buf_addc(t->out, '\\');
    nb_buf_addc(t->out, t->p[from + 1]);
    nb_buf_addc(t->out, '{');
    if (t->p[name] == '^') {
        nb_buf_addc(t->out, '^');
        name++;
    }
    for (end = name; end < t->n && (is_letter(t->p[end]) || t->p[end] == '_');) end++;
    size_t len = end - name;
    if (end == t->n || t->p[end] != '}') return refuse(t, from, end - from + 1, "expected \\p{NAME}");
    bool category = (len == 1 || (len == 2 && t->p[name + 1] >= 'a')) && strchr("LMNPSZC", t->p[name]);
    if (!category && len < 3) return refuse(t, from, end - from + 1, "unknown property");
    if (!category) nb_buf_adds(t->out, "sc:");
    nb_buf_add(t->out, t->p + name, len + 1);
    t->at = end + 1;
    return NB_OK;
}

/* A backslash and what follows, inside or outside a character class. */
static nb_status escape(translation *t, bool in_class)
{
    if (t->at + 1 == t->n) return refuse(t, t->at, 1, "nothing follows the backslash");
    char c = t->p[t->at + 1];
    if (c == 'p' || c == 'P') return property(t);
    if (c == 's')
        nb_buf_adds(t->out, in_class ? SPACES : "[" SPACES "]");
    else if (c == 'S' && !in_class)
        nb_buf_adds(t->out, "[^" SPACES "]");
    else if (c == 'd' || c == 'D')
        nb_buf_adds(t->out, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    else if ((c && strchr("nrtf", c)) ||
             ((unsigned char)c > 0x20 && (unsigned char)c < 0x7F && !is_letter(c) && !is_digit(c)))
        nb_buf_add(t->out, t->p + t->at, 2);
    else
        return refuse(t, t->at, 2, "PCRE2 has no equal escape");
    t->at += 2;
    return NB_OK;
}

static nb_status character_class(translation *t)
{
    size_t from = t->at++;
    nb_status s = NB_OK;
    nb_buf_addc(t->out, '[');
    if (t->at < t->n && t->p[t->at] == '^') {
        nb_buf_addc(t->out, '^');
        t->at++;
    }
    if (t->at < t->n && t->p[t->at] == ']')
        return refuse(t, from, t->at - from + 1, "a class that starts with ]");
    while (!s && t->at < t->n && t->p[t->at] != ']') {
        if (starts(t, "&&")) return refuse(t, t->at, 2, "intersection of classes (&&) is Oniguruma's alone");
        if (starts(t, "[")) return refuse(t, t->at, 1, "a class inside a class is Oniguruma's alone");
        if (t->p[t->at] == '\\')
            s = escape(t, true);
        else
            nb_buf_addc(t->out, t->p[t->at++]);
    }
    if (s) return s;
    if (t->at == t->n) return refuse(t, from, 8, "the class does not end");
    nb_buf_addc(t->out, ']');
    t->at++;
    return NB_OK;
}

/* An opening parenthesis and what gives the group its kind. */
static nb_status group(translation *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!starts(t, kinds[i])) continue;
        nb_buf_adds(t->out, kinds[i]);
        t->at += strlen(kinds[i]);
        return NB_OK;
    }
    if (starts(t, "(?i:")) {
        const char *text = t->p + t->at + 4, *end = memchr(text, ')', t->n - t->at - 4);
        size_t n = end ? (size_t)(end - text) : 0;
        for (size_t i = 0; i < n; i++) {
            bool folds = text[i] == 's' && i + 1 < n && (text[i + 1] == 's' || text[i + 1] == 't');
            if (!text[i] || !strchr("'|[]strevmld", text[i]) || folds) n = 0;
        }
        if (!n) return refuse(t, t->at, 4, "only the contractions ('s 't 're 've 'm 'll 'd) may ignore case");
        nb_buf_adds(t->out, "(?i:");
        t->at += 4;
        return NB_OK;
    }
    if (starts(t, "(?") || starts(t, "(*")) return refuse(t, t->at, 3, "PCRE2 has no equal group");
    nb_buf_addc(t->out, '(');
    t->at++;
    return NB_OK;
}

/* {n}, {n,} or {n,m}. Ruby repeats the repetition where Perl makes {n}+ possessive and {n}? lazy. */
static nb_status interval(translation *t)
{
    size_t from = t->at, at = from + 1;
    while (at < t->n && is_digit(t->p[at])) at++;
    bool ok = at > from + 1;
    if (ok && at < t->n && t->p[at] == ',') at++;
    while (ok && at < t->n && is_digit(t->p[at])) at++;
    if (!ok || at == t->n || t->p[at] != '}')
        return refuse(t, from, at - from + 1, "expected {n}, {n,} or {n,m}");
    if (at + 1 < t->n && (t->p[at + 1] == '+' || t->p[at + 1] == '?'))
        return refuse(t, from, at - from + 2, "means something else in PCRE2");
    nb_buf_add(t->out, t->p + from, at + 1 - from);
    t->at = at + 1;
    return NB_OK;
}

nb_status nb_regex_translate(const char *pattern, size_t n, nb_buf *out, nb_error *err)
{
    translation t = {.p = pattern, .n = n, .out = out, .err = err};
    nb_status s = NB_OK;
    if (n > MAX_PATTERN)
        return nb_fail(err, NB_ERR_LIMIT, "a regular expression of %zu bytes; %zu are supported", n,
                       MAX_PATTERN);
    while (!s && t.at < n) {
        switch (pattern[t.at]) {
        case '\\': s = escape(&t, false); break;
        case '[': s = character_class(&t); break;
        case '(': s = group(&t); break;
        case '{': s = interval(&t); break;
        default: nb_buf_addc(out, pattern[t.at++]);
        }
    }
    if (!s && !nb_buf_ok(out)) s = nb_fail_nomem(err, "a regular expression", n);
    return s;
}

nb_status nb_regex_compile(const char *pattern, size_t n, bool literal, pcre2_code **out, bool *jit,
                           nb_error *err)
{
    nb_buf text = {0};
    pcre2_compile_context *context = NULL;
    nb_status s = NB_OK;
    if (literal)
        nb_buf_add(&text, pattern, n);
    else
        s = nb_regex_translate(pattern, n, &text, err);
    if (s) goto out;
    context = pcre2_compile_context_create(NULL);
    if (!context || !nb_buf_ok(&text) || pcre2_set_newline(context, PCRE2_NEWLINE_LF)) {
        s = nb_fail_nomem(err, "a regular expression", n);
        goto out;
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE);
    *out = pcre2_compile((PCRE2_SPTR)nb_buf_str(&text), text.len, options, &code, &at, context);
    if (!*out) {
        char why[160] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        if (code == PCRE2_ERROR_HEAP_FAILED)
            s = nb_fail_nomem(err, "a regular expression", n);
        else
            s = nb_fail(err, NB_ERR_UNSUPPORTED, "regular expression '%.*s': %s (byte %zu)",
                        (int)(n < 200 ? n : 200), pattern, why, at);
        goto out;
    }
    /* No JIT where memory may not be both written and run (SELinux, MemoryDenyWriteExecute): the interpreter gives
     * the same matches, more slowly. */
    *jit = pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE) == 0;
out:
    pcre2_compile_context_free(context);
    nb_buf_free(&text);
    return s;
}
