/*
 * Template text -> tokens. White space control is here: -%} and {%- take the white space beside them, trim_blocks takes the
 * line end after a block's or comment's end, lstrip_blocks the blanks between a line's start and a block or comment.
 * Semantics: jinja2/lexer.py, Lexer.tokeniter (3.1.6).
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/jinja_internal.h"

void nb_j_lex_fail(jlexer *l, size_t at, uint32_t line, const char *fmt, ...)
{
    if (l->status != NB_OK) return;
    char text[sizeof l->err->cause];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    l->status = nb_fail(l->err, NB_ERR_FORMAT, "line %u of the template: %.480s", line, text);
    nb_error_at(l->err, NULL, NULL, (int64_t)at);
}

void *nb_j_lex_memory(jlexer *l, size_t n)
{
    void *p = l->status == NB_OK ? nb_j_alloc(l->arena, n) : NULL;
    if (p || l->status != NB_OK) return p;
    if (l->arena->nomem)
        l->status = nb_fail_nomem(l->err, "a chat template", n);
    else
        nb_j_lex_fail(l, l->at, l->line, "the template takes more than %zu bytes of memory", l->arena->most);
    return NULL;
}

/* The line of a place that is not before the last one asked for. */
static uint32_t line_at(jlexer *l, size_t at)
{
    for (; l->counted < at; l->counted++) l->line += l->text[l->counted] == '\n';
    return l->line;
}

static bool looking_at(const jlexer *l, size_t at, const char *s)
{
    size_t n = strlen(s);
    return l->n - at >= n && memcmp(l->text + at, s, n) == 0;
}

static size_t skip_space(const jlexer *l, size_t at)
{
    uint32_t cp;
    for (size_t w; at < l->n && (w = nb_utf8_decode(l->text + at, l->n - at, &cp)); at += w)
        if (!nb_j_is_space(cp)) break;
    return at;
}

/* The start of the white space that ends at `at`, not before `from`. */
static size_t back_over_space(const jlexer *l, size_t from, size_t at)
{
    while (at > from) {
        size_t i = at - 1;
        uint32_t cp = 0;
        while (i > from && ((unsigned char)l->text[i] & 0xC0) == 0x80) i--;
        if (!nb_utf8_decode(l->text + i, at - i, &cp) || !nb_j_is_space(cp)) break;
        at = i;
    }
    return at;
}

/* After the end of a tag: what its sign and trim_blocks take. */
static size_t after_tag(const jlexer *l, size_t at, char sign, bool trim)
{
    if (sign == '-') return skip_space(l, at);
    return trim && sign != '+' && at < l->n && l->text[at] == '\n' ? at + 1 : at;
}

/* Where the data that began at `from` ends, given the tag at `tag` and its sign. */
static size_t data_end(const jlexer *l, size_t from, size_t tag, char sign, bool block)
{
    if (sign == '-') return back_over_space(l, from, tag);
    if (sign == '+' || !block) return tag;
    size_t line = tag;
    while (line > from && l->text[line - 1] != '\n') line--;
    if (line == from && !l->line_starting) return tag;
    return back_over_space(l, line, tag) == line ? line : tag;
}

/* An end of a comment or of raw at `at`: "-#}", "+#}" or "#}". Its length, or 0. */
static size_t closing(const jlexer *l, size_t at, const char *end, char *sign)
{
    *sign = looking_at(l, at, "-") ? '-' : looking_at(l, at, "+") ? '+' : '\0';
    size_t skip = *sign ? 1 : 0;
    return looking_at(l, at + skip, end) ? skip + 2 : 0;
}

static char sign_at(const jlexer *l, size_t at)
{
    return at < l->n && (l->text[at] == '-' || l->text[at] == '+') ? l->text[at] : '\0';
}

static void ends_at(jlexer *l, size_t at)
{
    l->at = at;
    l->line_starting = at > 0 && l->text[at - 1] == '\n';
}

static void comment(jlexer *l, size_t begin)
{
    uint32_t line = line_at(l, begin);
    char sign;
    for (size_t at = begin + 2 + (sign_at(l, begin + 2) != '\0'); at < l->n; at++) {
        size_t n = closing(l, at, "#}", &sign);
        if (!n) continue;
        ends_at(l, after_tag(l, at + n, sign, true));
        return;
    }
    nb_j_lex_fail(l, begin, line, "Missing end of comment tag");
    l->at = l->n;
}

/* "{% WORD %}" at `at`: the place after it, or 0. *sign: of the opening, *end_sign: of the closing. */
static size_t bare_tag(const jlexer *l, size_t at, const char *word, char *sign, char *end_sign, bool plus)
{
    if (!looking_at(l, at, "{%")) return 0;
    *sign = sign_at(l, at + 2);
    at = skip_space(l, at + 2 + (*sign != '\0'));
    if (!looking_at(l, at, word)) return 0;
    at = skip_space(l, at + strlen(word));
    size_t n = closing(l, at, "%}", end_sign);
    return n && (plus || *end_sign != '+') ? at + n : 0;
}

/* After {% raw %}: one token of data up to {% endraw %}. */
static jtoken raw(jlexer *l, size_t begin, size_t from)
{
    uint32_t line = line_at(l, begin);
    char sign, end_sign;
    for (size_t at = from; at < l->n; at++) {
        size_t end = l->text[at] == '{' ? bare_tag(l, at, "endraw", &sign, &end_sign, true) : 0;
        if (!end) continue;
        size_t stop = data_end(l, from, at, sign, true);
        ends_at(l, after_tag(l, end, end_sign, true));
        return (jtoken){.kind = JT_DATA, .s = l->text + from, .n = stop - from, .at = from, .line = line};
    }
    nb_j_lex_fail(l, begin, line, "Missing end of raw directive");
    l->at = l->n;
    return (jtoken){.kind = JT_EOF, .at = begin, .line = line};
}

/* Outside of tags: data up to the next one, then the tag. Empty data is passed over. */
static jtoken lex_data(jlexer *l)
{
    while (l->at < l->n && l->status == NB_OK) {
        size_t from = l->at, tag = from;
        while (tag < l->n && !(l->text[tag] == '{' && tag + 1 < l->n && strchr("{%#", l->text[tag + 1]) &&
                               l->text[tag + 1] != '\0'))
            tag++;
        char sign = tag < l->n ? sign_at(l, tag + 2) : '\0', end_sign;
        size_t stop = tag < l->n ? data_end(l, from, tag, sign, l->text[tag + 1] != '{') : tag;
        if (stop > from) { /* the next call begins at the tag */
            ends_at(l, tag);
            jtoken t = {.kind = JT_DATA, .s = l->text + from, .n = stop - from, .at = from};
            t.line = line_at(l, from);
            return t;
        }
        if (tag >= l->n) {
            l->at = l->n;
            break;
        }
        if (l->text[tag + 1] == '#') {
            comment(l, tag);
            continue;
        }
        size_t after = bare_tag(l, tag, "raw", &sign, &end_sign, false);
        if (after) {
            size_t at = after_tag(l, after, end_sign, false);
            ends_at(l, at);
            jtoken t = raw(l, tag, at);
            if (t.n || t.kind != JT_DATA) return t;
            continue;
        }
        bool print = l->text[tag + 1] == '{';
        l->state = print ? JL_PRINT : JL_BLOCK;
        l->n_open = 0;
        l->at = tag + 2 + (sign != '\0');
        return (jtoken){.kind = print ? JT_PRINT_BEGIN : JT_BLOCK_BEGIN, .at = tag, .line = line_at(l, tag)};
    }
    return (jtoken){.kind = JT_EOF, .at = l->n, .line = line_at(l, l->n)};
}

/* ---- inside of tags ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int digit_value(char c)
{
    if (is_digit(c)) return c - '0';
    char low = (char)(c | 0x20);
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : 99;
}

/* Digits of a base with single underscores between them, from `at`. */
static size_t digits(const jlexer *l, size_t at, int base)
{
    while (at < l->n) {
        size_t d = at + (l->text[at] == '_');
        if (d >= l->n || digit_value(l->text[d]) >= base) break;
        at = d + 1;
    }
    return at;
}

static size_t decimal(const jlexer *l, size_t at)
{
    return at < l->n && is_digit(l->text[at]) ? digits(l, at, 10) : at;
}

static void real(jlexer *l, jtoken *t)
{
    char text[128];
    size_t n = 0;
    nb_json j;
    double v = 0;
    for (size_t i = 0; i < t->n && n + 1 < sizeof text; i++)
        if (t->s[i] != '_') text[n++] = t->s[i];
    size_t zeros = 0; /* JSON, whose reader does not depend on the locale, allows none in front */
    while (zeros + 1 < n && text[zeros] == '0' && is_digit(text[zeros + 1])) zeros++;
    nb_json_init(&j, text + zeros, n - zeros);
    if (n + 1 == sizeof text || nb_json_next(&j) != NB_J_NUMBER || !nb_json_f64(&j, &v))
        nb_j_lex_fail(l, t->at, t->line, "the number %.*s is out of range", (int)(n < 40 ? n : 40), text);
    nb_json_free(&j);
    t->kind = JT_FLOAT;
    t->value = nb_j_float(v);
}

static void number(jlexer *l, jtoken *t)
{
    static const struct {
        char letter;
        int base;
    } bases[] = {{'b', 2}, {'o', 8}, {'x', 16}};
    size_t at = l->at, end = decimal(l, at), start = at;
    int base = 10;
    bool fraction = false;
    for (int i = 0; i < 3 && end == at + 1; i++) {
        if (l->text[at] != '0' || at + 1 >= l->n || (l->text[at + 1] | 0x20) != bases[i].letter) continue;
        size_t stop = digits(l, at + 2, bases[i].base);
        if (stop == at + 2) continue;
        base = bases[i].base;
        start = at + 2;
        end = stop;
    }
    if (base == 10 && !(at && l->text[at - 1] == '.')) { /* x.0.1 is an item of an item */
        size_t point = end;
        if (end < l->n && l->text[end] == '.' && decimal(l, end + 1) > end + 1) point = decimal(l, end + 1);
        size_t e = point;
        if (e < l->n && (l->text[e] | 0x20) == 'e') {
            e++;
            if (e < l->n && (l->text[e] == '+' || l->text[e] == '-')) e++;
            if (decimal(l, e) > e) point = decimal(l, e);
        }
        fraction = point > end;
        end = point;
    }
    t->n = end - at;
    l->at = end;
    if (fraction) {
        real(l, t);
        return;
    }
    /* Jinja's integers do not begin with 0: 01 is two of them. */
    if (base == 10 && l->text[at] == '0') {
        size_t z = at;
        while (z < end && (l->text[z] == '0' || l->text[z] == '_')) z++;
        l->at = end = l->text[z - 1] == '_' ? z - 1 : z;
        t->n = end - at;
    }
    int64_t v = 0;
    for (size_t i = start; i < end; i++) {
        if (l->text[i] == '_') continue;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, digit_value(l->text[i]), &v)) {
            nb_j_lex_fail(l, t->at, t->line, "the number %.*s is beyond 64 bits",
                          (int)(t->n < 40 ? t->n : 40), t->s);
            return;
        }
    }
    t->kind = JT_INT;
    t->value = nb_j_int(v);
}

/* One escape of a string, after the backslash at s[0]; bytes taken, 0: wrong. */
static size_t escape(const char *s, size_t n, char *to, size_t *out)
{
    static const char from[] = "\\'\"abfnrtv", is[] = "\\'\"\a\b\f\n\r\t\v";
    if (n < 2) return 0;
    char c = s[1];
    if (c == '\n') return 2; /* a line that goes on */
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) return to[(*out)++] = is[simple - from], 2;
    size_t want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, used = 2;
    uint32_t cp = 0;
    if (want) {
        if (n < 2 + want) return 0;
        for (; used < 2 + want; used++) {
            int d = digit_value(s[used]);
            if (d > 15) return 0;
            cp = cp << 4 | (uint32_t)d;
        }
    } else if (c >= '0' && c <= '7') {
        used = 1;
        while (used < n && used < 4 && s[used] >= '0' && s[used] <= '7')
            cp = cp * 8 + (uint32_t)(s[used++] - '0');
    } else if (c == 'N') {
        return 0; /* a character by its name */
    } else {      /* no escape: the backslash stays */
        to[(*out)++] = '\\';
        return 1;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return 0;
    *out += nb_utf8_encode(cp, to + *out);
    return used;
}

static void string(jlexer *l, jtoken *t)
{
    size_t begin = l->at + 1, end = begin;
    char quote = l->text[l->at];
    while (end < l->n && l->text[end] != quote) end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->n) {
        nb_j_lex_fail(l, t->at, t->line, "the string that begins here has no end");
        return;
    }
    t->kind = JT_STRING;
    t->s = l->text + begin;
    t->n = end - begin;
    l->at = end + 1;
    t->value = nb_j_str(t->s, t->n);
    if (!memchr(t->s, '\\', t->n)) return;
    /* No escape is shorter than what it stands for. */
    char *to = nb_j_lex_memory(l, t->n);
    size_t n = 0, used;
    if (!to) return;
    for (size_t i = 0; i < t->n; i += used) {
        used = 1;
        if (t->s[i] != '\\') {
            to[n++] = t->s[i];
        } else if (!(used = escape(t->s + i, t->n - i, to, &n))) {
            nb_j_lex_fail(l, begin + i, t->line, "a string holds an escape that stands for no character");
            return;
        }
    }
    t->value = nb_j_str(to, n);
}

static bool name_char(uint32_t cp, bool first)
{
    if (cp < 0x80) {
        char c = (char)cp;
        return c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (!first && is_digit(c));
    }
    return !nb_j_is_space(cp);
}

static bool name(jlexer *l, jtoken *t)
{
    size_t at = l->at, w;
    uint32_t cp;
    while (at < l->n && (w = nb_utf8_decode(l->text + at, l->n - at, &cp)) && name_char(cp, at == l->at))
        at += w;
    t->kind = JT_NAME;
    t->n = at - l->at;
    l->at = at;
    return t->n > 0;
}

static void operator(jlexer *l, jtoken *t)
{
    static const struct {
        const char *s;
        jtok kind;
    } table[] = {{"//", JT_FLOORDIV}, {"**", JT_POW},     {"==", JT_EQ},    {"!=", JT_NE},
                 {">=", JT_GE},       {"<=", JT_LE},      {"+", JT_ADD},    {"-", JT_SUB},
                 {"/", JT_DIV},       {"*", JT_MUL},      {"%", JT_MOD},    {"~", JT_TILDE},
                 {"[", JT_LBRACKET},  {"]", JT_RBRACKET}, {"(", JT_LPAREN}, {")", JT_RPAREN},
                 {"{", JT_LBRACE},    {"}", JT_RBRACE},   {">", JT_GT},     {"<", JT_LT},
                 {"=", JT_ASSIGN},    {".", JT_DOT},      {":", JT_COLON},  {"|", JT_PIPE},
                 {",", JT_COMMA},     {";", JT_SEMICOLON}};
    static const char opens[] = "([{", closes[] = ")]}";
    char c = l->text[l->at];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!looking_at(l, l->at, table[i].s)) continue;
        t->kind = table[i].kind;
        t->n = strlen(table[i].s);
        l->at += t->n;
        const char *open = strchr(opens, c), *close = strchr(closes, c);
        if (open && l->n_open == sizeof l->open)
            nb_j_lex_fail(l, t->at, t->line, "brackets nest too deeply");
        else if (open)
            l->open[l->n_open++] = closes[open - opens];
        else if (close && (!l->n_open || l->open[l->n_open - 1] != c))
            nb_j_lex_fail(l, t->at, t->line, "unexpected '%c'", c);
        else if (close)
            l->n_open--;
        return;
    }
    nb_j_lex_fail(l, t->at, t->line, "unexpected character '%c'", c);
}

static jtoken lex_tag(jlexer *l)
{
    size_t at = skip_space(l, l->at);
    l->at = at;
    jtoken t = {.kind = JT_EOF, .s = l->text + at, .at = at, .line = line_at(l, at)};
    if (at >= l->n) return t;
    bool print = l->state == JL_PRINT;
    char sign;
    size_t n = l->n_open ? 0 : closing(l, at, print ? "}}" : "%}", &sign);
    if (n && !(print && sign == '+')) {
        t.kind = print ? JT_PRINT_END : JT_BLOCK_END;
        ends_at(l, after_tag(l, at + n, sign, !print));
        l->state = JL_DATA;
        return t;
    }
    char c = l->text[at];
    if (is_digit(c))
        number(l, &t);
    else if (c == '"' || c == '\'')
        string(l, &t);
    else if (!name(l, &t))
        operator(l, &t);
    return t;
}

jtoken nb_j_lex(jlexer *l)
{
    jtoken t = {.kind = JT_EOF, .at = l->at, .line = l->line};
    if (l->status == NB_OK) t = l->state == JL_DATA ? lex_data(l) : lex_tag(l);
    if (l->status != NB_OK) t.kind = JT_EOF;
    return t;
}
