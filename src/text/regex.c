/*
 * Patterns. tokenizers runs Oniguruma (Ruby syntax), we run PCRE2, which is three times as fast and maintained. The two
 * read some spellings differently, so a pattern is not handed over but translated, by an allow-list:
 *
 *     \s            PCRE2's has U+180E too: written out as the White_Space characters
 *     \d            written as \p{Nd}
 *     \p{Han}       PCRE2 means Script_Extensions: \p{sc:Han}
 *     ^ $           Ruby's match at every line: PCRE2_MULTILINE, newline LF
 *     (?i:…)        Oniguruma folds several characters to one (ss, st, ff …): only the contractions of known patterns
 *     [a&&[^b]]     intersections and classes inside classes, which PCRE2 reads as something else: said otherwise (below)
 *     \w, \b, \h, \R, (?m…), {n}+ …   mean something else or nothing in PCRE2: refused
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

/* ---- character classes ---- */

/* General categories, in sets of bits. A category's group (L of Lu) is the union of those that begin with its letter. */
static const char categories[][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                     "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                     "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};
#define N_CATEGORIES (sizeof categories / sizeof *categories)
#define ALL_CATEGORIES ((1U << N_CATEGORIES) - 1)

static uint32_t category_set(const char *name, size_t n)
{
    uint32_t set = 0;
    for (size_t i = 0; i < N_CATEGORIES; i++)
        if (categories[i][0] == name[0] && (n == 1 || categories[i][1] == name[1])) set |= 1U << i;
    return set;
}

/*
 * A class as PCRE2 can say it. plain: [text] or, negated, [^text]; else text is an expression for one character. PCRE2 10.42 has no
 * intersections, but categories are a partition: what is in some of them and not in X is not in the others and not in X, so that
 * the classes of real patterns stay plain, which repeats of long words need.
 */
typedef struct class
{
    nb_buf text;
    bool plain, negated;
    bool only;    /* plain and not negated: nothing but categories, which are */
    uint32_t set; /* these */
} class;

#define MAX_CLASS_DEPTH 16

/* \p{…} or \P{…} into out: general categories as they are, anything longer is a script's name. *set: the categories; 0: none. */
static nb_status property(translation *t, nb_buf *out, uint32_t *set)
{
    size_t from = t->at, name = from + 3, end;
    bool not ;
    if (t->n - from < 4 || t->p[from + 2] != '{') return refuse(t, from, 3, "expected \\p{NAME}");
    not = (t->p[from + 1] == 'P') != (t->p[name] == '^');
    if (t->p[name] == '^') name++;
    for (end = name; end < t->n && (is_letter(t->p[end]) || t->p[end] == '_');) end++;
    size_t len = end - name;
    if (end == t->n || t->p[end] != '}' || !len) return refuse(t, from, end - from + 1, "expected \\p{NAME}");
    *set = len <= 2 ? category_set(t->p + name, len) : 0;
    if (len <= 2 && !*set) return refuse(t, from, end - from + 1, "unknown property");
    nb_buf_addf(out, "\\%c{%s", not ? 'P' : 'p', *set ? "" : "sc:");
    nb_buf_add(out, t->p + name, len + 1);
    if (not &&*set) *set = ALL_CATEGORIES & ~*set;
    t->at = end + 1;
    return NB_OK;
}

/* A backslash and what follows, inside or outside a character class. *set as in property. */
static nb_status escape(translation *t, bool in_class, nb_buf *out, uint32_t *set)
{
    *set = 0;
    if (t->at + 1 == t->n) return refuse(t, t->at, 1, "nothing follows the backslash");
    char c = t->p[t->at + 1];
    if (c == 'p' || c == 'P') return property(t, out, set);
    if (c == 's')
        nb_buf_adds(out, in_class ? SPACES : "[" SPACES "]");
    else if (c == 'S' && !in_class)
        nb_buf_adds(out, "[^" SPACES "]");
    else if (c == 'd' || c == 'D')
        nb_buf_adds(out, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    else if ((c && strchr("nrtf", c)) ||
             ((unsigned char)c > 0x20 && (unsigned char)c < 0x7F && !is_letter(c) && !is_digit(c)))
        nb_buf_add(out, t->p + t->at, 2);
    else
        return refuse(t, t->at, 2, "PCRE2 has no equal escape");
    if (c == 'd' || c == 'D') *set = category_set("Nd", 2);
    if (c == 'D') *set = ALL_CATEGORIES & ~*set;
    t->at += 2;
    return NB_OK;
}

/* The class as an expression for one character. */
static void add_class(const class *c, nb_buf *out)
{
    if (c->plain) nb_buf_adds(out, c->negated ? "[^" : "[");
    nb_buf_add(out, c->text.data, c->text.len);
    if (c->plain) nb_buf_addc(out, ']');
}

/* A class becomes another that is not plain. Memory that ran out stays known. */
static void become(class *c, nb_buf text)
{
    text.bad = text.bad || c->text.bad;
    nb_buf_free(&c->text);
    *c = (class){.text = text};
}

/* Negates a class. */
static void negate(class *c)
{
    if (c->plain) {
        c->negated = !c->negated;
        c->only = false;
        return;
    }
    nb_buf text = {0};
    nb_buf_adds(&text, "(?:(?!");
    nb_buf_add(&text, c->text.data, c->text.len);
    nb_buf_adds(&text, ")(?s:.))");
    become(c, text);
}

/* a becomes the union of both. A class that is not plain starts empty. */
static void unite(class *a, const class *b)
{
    nb_buf text = {0};
    a->text.bad = a->text.bad || b->text.bad;
    if (!b->text.len) return;
    if (!a->text.len || (a->plain && b->plain && !a->negated && !b->negated)) {
        if (!a->text.len) {
            a->plain = b->plain;
            a->negated = b->negated;
            a->only = b->only;
            a->set = b->set;
        } else {
            a->only = a->only && b->only;
            a->set |= b->set;
        }
        nb_buf_add(&a->text, b->text.data, b->text.len);
        return;
    }
    nb_buf_adds(&text, "(?:");
    add_class(a, &text);
    nb_buf_addc(&text, '|');
    add_class(b, &text);
    nb_buf_addc(&text, ')');
    become(a, text);
}

/* Writes what is outside the class, as the inside of one; false: not to be said so. */
static bool add_outside(const class *c, nb_buf *out)
{
    if (!c->plain || (!c->negated && !c->only)) return false;
    if (c->negated) nb_buf_add(out, c->text.data, c->text.len);
    for (size_t i = 0; !c->negated && i < N_CATEGORIES; i++)
        if (!(c->set >> i & 1)) nb_buf_addf(out, "\\p{%s}", categories[i]);
    return true;
}

/* a becomes the intersection of both. */
static void intersect(class *a, const class *b)
{
    nb_buf text = {0};
    a->text.bad = a->text.bad || b->text.bad;
    if (add_outside(a, &text) && add_outside(b, &text) && text.len) {
        become(a, text);
        a->plain = a->negated = true;
        return;
    }
    nb_buf_clear(&text);
    nb_buf_adds(&text, "(?:(?=");
    add_class(b, &text);
    nb_buf_addc(&text, ')');
    add_class(a, &text);
    nb_buf_addc(&text, ')');
    become(a, text);
}

static nb_status read_class(translation *t, class *out, unsigned depth);

/* One side of &&: items up to && or the end, into out, which is empty. */
static nb_status read_side(translation *t, class *out, unsigned depth)
{
    class items = {.plain = true, .only = true};
    nb_status s = NB_OK;
    size_t from = t->at;
    bool nested = false; /* the last item was a class */
    while (!s && t->at < t->n && t->p[t->at] != ']' && !starts(t, "&&")) {
        char c = t->p[t->at];
        uint32_t set = 0;
        /* Where Oniguruma's reading of a bare - or ^ hangs on what stands beside it, nothing is guessed. */
        bool edge = t->at + 1 == t->n || t->p[t->at + 1] == '[' ||
                    (t->n - t->at > 2 && memcmp(t->p + t->at + 1, "&&", 2) == 0);
        if ((c == '-' && (edge || nested)) || (c == '^' && t->at == from))
            s = refuse(t, t->at, 1, "write \\- or \\^ here");
        else if (c == '[') {
            class inner = {0};
            s = read_class(t, &inner, depth + 1);
            unite(out, &inner);
            nb_buf_free(&inner.text);
        } else if (c == '\\')
            s = escape(t, true, &items.text, &set);
        else if (c == '^' || (c == '-' && (!items.text.len || t->p[t->at + 1] == ']'))) {
            nb_buf_addf(&items.text, "\\%c", c); /* itself, whatever it comes to stand beside */
            t->at++;
        } else
            nb_buf_addc(&items.text, t->p[t->at++]);
        nested = c == '[';
        items.only = items.only && (set || nested);
        items.set |= set;
    }
    unite(out, &items);
    if (!s && !out->text.len && nb_buf_ok(&out->text)) s = refuse(t, from, 2, "an empty class");
    nb_buf_free(&items.text);
    return s;
}

/* The class that begins at t->at. Oniguruma: items and inner classes unite, && binds less than that, and ^ is for all of it. */
static nb_status read_class(translation *t, class *out, unsigned depth)
{
    size_t from = t->at++;
    bool not = t->at < t->n && t->p[t->at] == '^';
    if (not ) t->at++;
    if (depth == MAX_CLASS_DEPTH) return refuse(t, from, 1, "classes are nested too deep");
    if (t->at < t->n && t->p[t->at] == ']')
        return refuse(t, from, t->at - from + 1, "a class that starts with ]");
    if (t->at < t->n && t->p[t->at] == ':' && depth) return refuse(t, from, 2, "a POSIX class");
    nb_status s = read_side(t, out, depth);
    while (!s && starts(t, "&&")) {
        class side = {0};
        t->at += 2;
        s = read_side(t, &side, depth);
        if (!s) intersect(out, &side);
        nb_buf_free(&side.text);
    }
    if (s) return s;
    if (t->at == t->n) return refuse(t, from, 8, "the class does not end");
    t->at++;
    if (not ) negate(out);
    return NB_OK;
}

static nb_status character_class(translation *t)
{
    class c = {0};
    nb_status s = read_class(t, &c, 0);
    add_class(&c, t->out);
    if (!nb_buf_ok(&c.text)) t->out->bad = true;
    nb_buf_free(&c.text);
    return s;
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
    uint32_t set;
    if (n > MAX_PATTERN)
        return nb_fail(err, NB_ERR_LIMIT, "a regular expression of %zu bytes; %zu are supported", n,
                       MAX_PATTERN);
    while (!s && t.at < n) {
        switch (pattern[t.at]) {
        case '\\': s = escape(&t, false, out, &set); break;
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
