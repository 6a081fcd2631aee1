/* Methods of strings, lists, tuples and dicts, with Python's semantics; what changes an object is kept by the sandbox. */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja_internal.h"

bool nb_j_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* The string that an argument must be. */
static bool text_arg(jx *x, jv v, const char *what)
{
    if (v.type == J_STR) return true;
    J_ERROR(x, "%s must be str, not %s", what, nb_j_type(v));
    return false;
}

int64_t nb_j_int_arg(jx *x, jv v, int64_t fallback, const char *what)
{
    if (v.type == J_MISSING) return fallback;
    if (v.type == J_INT) return v.u.i;
    if (v.type == J_BOOL) return v.u.b;
    J_ERROR(x, "%s must be an integer, not %s", what, nb_j_type(v));
    return fallback;
}

bool nb_j_bool_arg(jx *x, jv v, bool fallback)
{
    return v.type == J_MISSING ? fallback : nb_j_truth(x, v);
}

static jv part(jv s, size_t from, size_t to)
{
    return nb_j_str(s.u.s + from, to - from);
}

static size_t step(jv s, size_t at, uint32_t *cp)
{
    return nb_j_char(s.u.s + at, s.n - at, cp);
}

static size_t back(jv s, size_t at, uint32_t *cp)
{
    size_t i = at - 1;
    while (i && ((unsigned char)s.u.s[i] & 0xC0) == 0x80) i--;
    return nb_j_char(s.u.s + i, at - i, cp);
}

/* ---- case, strip ---- */

jv nb_j_case(jx *x, jv s, char how)
{
    nb_buf b = {0};
    bool start = true;
    uint32_t cp;
    char text[4];
    for (size_t i = 0, w; i < s.n && nb_j_charge(x, 1); i += w) {
        utf8proc_int32_t c;
        w = step(s, i, &cp);
        bool upper = how == 'u' || (how == 'c' && i == 0) || (how == 't' && start);
        if (how == 's')
            c = utf8proc_isupper((utf8proc_int32_t)cp) ? utf8proc_tolower((utf8proc_int32_t)cp)
                                                       : utf8proc_toupper((utf8proc_int32_t)cp);
        else
            c = !upper       ? utf8proc_tolower((utf8proc_int32_t)cp)
                : how == 'u' ? utf8proc_toupper((utf8proc_int32_t)cp)
                             : utf8proc_totitle((utf8proc_int32_t)cp);
        if (cp == 0xDF &&
            (upper || how == 's')) { /* the one letter with two capitals that utf8proc gives another */
            nb_j_emits(x, &b, how == 'u' || how == 's' ? "SS" : "Ss");
            start = false;
            continue;
        }
        start = utf8proc_toupper((utf8proc_int32_t)cp) == utf8proc_tolower((utf8proc_int32_t)cp);
        nb_j_emit(x, &b, text, nb_utf8_encode((uint32_t)c, text));
    }
    return nb_j_take(x, &b);
}

static bool strips(jx *x, jv chars, const char *s, size_t w, uint32_t cp)
{
    return chars.type == J_STR ? nb_j_charge(x, 1 + chars.n / 16) && memmem(chars.u.s, chars.n, s, w) != NULL
                               : nb_j_is_space(cp);
}

jv nb_j_strip(jx *x, jv s, jv chars, int sides)
{
    size_t from = 0, to = s.n, w;
    uint32_t cp;
    if (chars.type != J_MISSING && chars.type != J_NONE && chars.type != J_STR)
        return J_ERROR(x, "strip arg must be None or str");
    for (; sides & 1 && from < to && x->status == NB_OK; from += w) {
        w = step(s, from, &cp);
        if (!strips(x, chars, s.u.s + from, w, cp)) break;
    }
    for (; sides & 2 && to > from && x->status == NB_OK; to -= w) {
        w = back(s, to, &cp);
        if (!strips(x, chars, s.u.s + to - w, w, cp)) break;
    }
    nb_j_charge(x, (s.n - (to - from)) / 16);
    return part(s, from, to);
}

static jv upper(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_case(x, s, 'u');
}
static jv lower(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_case(x, s, 'l');
}
static jv capitalize(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_case(x, s, 'c');
}
static jv title(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_case(x, s, 't');
}
static jv swapcase(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_case(x, s, 's');
}
static jv strip(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_strip(x, s, a[0], 3);
}
static jv lstrip(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_strip(x, s, a[0], 1);
}
static jv rstrip(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_strip(x, s, a[0], 2);
}

/* ---- split ---- */

typedef struct parts {
    jv *v;
    size_t n, cap;
} parts;

static void add_part(jx *x, parts *p, jv s)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 8;
        jv *v = nb_j_new(x, cap, sizeof *v);
        if (!v) return;
        if (p->n) memcpy(v, p->v, p->n * sizeof *v);
        p->v = v;
        p->cap = cap;
    }
    p->v[p->n++] = s;
}

static void turn_round(parts *p)
{
    for (size_t i = 0; i + 1 < p->n - i; i++) {
        jv v = p->v[i];
        p->v[i] = p->v[p->n - 1 - i];
        p->v[p->n - 1 - i] = v;
    }
}

/* By runs of white space, at most `most` times (< 0: always); the rest keeps its white space, but where the last cut was. */
static void split_words(jx *x, jv s, int64_t most, bool right, parts *p)
{
    uint32_t cp;
    size_t from = 0, to = s.n, w;
    while (x->status == NB_OK) {
        jv rest = nb_j_strip(x, part(s, from, to), (jv){0}, right ? 2 : 1);
        from = (size_t)(rest.u.s - s.u.s);
        to = from + rest.n;
        if (!rest.n) break;
        if (most == 0) {
            add_part(x, p, rest);
            break;
        }
        most -= most > 0;
        size_t at = right ? to : from;
        while (right ? at > from : at < to) {
            w = right ? back(s, at, &cp) : step(s, at, &cp);
            if (nb_j_is_space(cp)) break;
            at = right ? at - w : at + w;
        }
        nb_j_charge(x, 1);
        add_part(x, p, right ? part(s, at, to) : part(s, from, at));
        *(right ? &to : &from) = at;
    }
}

/* The last place of sep in s[0, to), or NULL. */
static const char *find_last(jx *x, jv s, size_t to, jv sep)
{
    for (size_t i = to; i >= sep.n && nb_j_charge(x, 1 + sep.n / 16); i--)
        if (memcmp(s.u.s + i - sep.n, sep.u.s, sep.n) == 0) return s.u.s + i - sep.n;
    return NULL;
}

static void split_by(jx *x, jv s, jv sep, int64_t most, bool right, parts *p)
{
    size_t from = 0, to = s.n;
    for (; most != 0 && x->status == NB_OK; most -= most > 0) {
        const char *at = right ? find_last(x, s, to, sep) : memmem(s.u.s + from, to - from, sep.u.s, sep.n);
        if (!at) break;
        size_t i = (size_t)(at - s.u.s);
        nb_j_charge(x, 1);
        add_part(x, p, right ? part(s, i + sep.n, to) : part(s, from, i));
        *(right ? &to : &from) = right ? i : i + sep.n;
    }
    nb_j_charge(x, s.n / 16);
    add_part(x, p, part(s, from, to));
}

static jv split_either(jx *x, jv s, const jv *a, bool right)
{
    parts p = {0};
    int64_t most = nb_j_int_arg(x, a[1], -1, "maxsplit");
    if (a[0].type == J_MISSING || a[0].type == J_NONE) {
        split_words(x, s, most, right, &p);
    } else if (text_arg(x, a[0], "the separator")) {
        if (!a[0].n) return J_ERROR(x, "empty separator");
        split_by(x, s, a[0], most, right, &p);
    }
    if (right && p.n) turn_round(&p);
    return nb_j_seq(J_LIST, p.v, p.n);
}

static jv split(jx *x, jv s, const jv *a, const jcall *c)
{
    return split_either(x, s, a, false);
}
static jv rsplit(jx *x, jv s, const jv *a, const jcall *c)
{
    return split_either(x, s, a, true);
}

static jv splitlines(jx *x, jv s, const jv *a, const jcall *c)
{
    parts p = {0};
    bool keep = nb_j_bool_arg(x, a[0], false);
    uint32_t cp;
    size_t from = 0, w;
    for (size_t i = 0; i < s.n && nb_j_charge(x, 1); i += w) {
        w = step(s, i, &cp);
        if (!((cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
              cp == 0x2029))
            continue;
        if (cp == '\r' && i + 1 < s.n && s.u.s[i + 1] == '\n') w = 2;
        add_part(x, &p, part(s, from, keep ? i + w : i));
        from = i + w;
    }
    if (from < s.n) add_part(x, &p, part(s, from, s.n));
    return nb_j_seq(J_LIST, p.v, p.n);
}

static jv partition_at(jx *x, jv s, jv sep, bool right)
{
    jv *v = nb_j_new(x, 3, sizeof *v);
    if (!v || !text_arg(x, sep, "the separator")) return s;
    if (!sep.n) return J_ERROR(x, "empty separator");
    const char *at = right ? find_last(x, s, s.n, sep) : memmem(s.u.s, s.n, sep.u.s, sep.n);
    nb_j_charge(x, s.n / 16);
    v[0] = v[1] = v[2] = nb_j_str("", 0);
    if (!at) {
        v[right ? 2 : 0] = s;
    } else {
        size_t i = (size_t)(at - s.u.s);
        v[0] = part(s, 0, i);
        v[1] = part(s, i, i + sep.n);
        v[2] = part(s, i + sep.n, s.n);
    }
    return nb_j_seq(J_TUPLE, v, 3);
}

static jv partition(jx *x, jv s, const jv *a, const jcall *c)
{
    return partition_at(x, s, a[0], false);
}
static jv rpartition(jx *x, jv s, const jv *a, const jcall *c)
{
    return partition_at(x, s, a[0], true);
}

/* ---- search and replace ---- */

/* The bytes of s that characters [from, to) are, as s[from:to]; false when from is beyond the end. */
static bool window(jx *x, jv s, jv from, jv to, size_t *begin, jv *out)
{
    int64_t n = nb_j_length(x, s, false);
    jv none = nb_j_none();
    from = from.type == J_MISSING ? none : from;
    to = to.type == J_MISSING ? none : to;
    *out = nb_j_slice(x, s, from, to, none);
    *begin = out->type == J_STR ? (size_t)(out->u.s - s.u.s) : 0;
    return x->status == NB_OK && !(from.type == J_INT && from.u.i > n);
}

static bool has_end(jx *x, jv s, jv what, bool front)
{
    return s.n >= what.n && nb_j_charge(x, what.n / 16) &&
           memcmp(front ? s.u.s : s.u.s + s.n - what.n, what.u.s, what.n) == 0;
}

static jv ends_with(jx *x, jv s, const jv *a, bool front)
{
    size_t begin;
    jv in, what = a[0];
    bool inside = window(x, s, a[1], a[2], &begin, &in), found = false;
    const jv *each = what.type == J_TUPLE ? what.u.v : &what;
    size_t n = what.type == J_TUPLE ? what.n : 1;
    for (size_t i = 0; i < n && x->status == NB_OK; i++) {
        if (each[i].type != J_STR)
            return J_ERROR(x, "%s first arg must be str or a tuple of str, not %s",
                           front ? "startswith" : "endswith", nb_j_type(each[i]));
        found = found || (inside && has_end(x, in, each[i], front));
    }
    return nb_j_bool(found);
}

static jv startswith(jx *x, jv s, const jv *a, const jcall *c)
{
    return ends_with(x, s, a, true);
}
static jv endswith(jx *x, jv s, const jv *a, const jcall *c)
{
    return ends_with(x, s, a, false);
}

/* The character at which what begins in s[from:to], or -1. */
static int64_t find_text(jx *x, jv s, const jv *a, bool last)
{
    size_t begin;
    jv in;
    if (!text_arg(x, a[0], "what is looked for") || !window(x, s, a[1], a[2], &begin, &in)) return -1;
    nb_j_charge(x, s.n / 16);
    const char *at = last ? find_last(x, in, in.n, a[0]) : memmem(in.u.s, in.n, a[0].u.s, a[0].n);
    return at ? (int64_t)nb_j_chars(s.u.s, (size_t)(at - s.u.s)) : -1;
}

static jv find(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_int(find_text(x, s, a, false));
}
static jv rfind(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_int(find_text(x, s, a, true));
}
static jv first_index(jx *x, jv s, const jv *a, const jcall *c)
{
    int64_t i = find_text(x, s, a, false);
    return i < 0 ? J_ERROR(x, "substring not found") : nb_j_int(i);
}
static jv last_index(jx *x, jv s, const jv *a, const jcall *c)
{
    int64_t i = find_text(x, s, a, true);
    return i < 0 ? J_ERROR(x, "substring not found") : nb_j_int(i);
}

static jv count(jx *x, jv s, const jv *a, const jcall *c)
{
    size_t begin;
    jv in;
    int64_t n = 0;
    if (!text_arg(x, a[0], "what is counted") || !window(x, s, a[1], a[2], &begin, &in)) return nb_j_int(0);
    if (!a[0].n) return nb_j_int((int64_t)nb_j_chars(in.u.s, in.n) + 1);
    nb_j_charge(x, in.n / 16);
    for (const char *at = in.u.s, *end = at + in.n; nb_j_charge(x, 1); n++, at += a[0].n)
        if (!(at = memmem(at, (size_t)(end - at), a[0].u.s, a[0].n))) break;
    return nb_j_int(n);
}

jv nb_j_replace(jx *x, jv s, jv from, jv to, int64_t count_max)
{
    nb_buf b = {0};
    size_t at = 0;
    uint32_t cp;
    if (!text_arg(x, from, "what is replaced") || !text_arg(x, to, "the replacement")) return s;
    nb_j_charge(x, s.n / 16);
    for (; count_max != 0 && x->status == NB_OK; count_max -= count_max > 0) {
        if (!from.n) { /* before each character, and at the end */
            nb_j_emit(x, &b, to.u.s, to.n);
            if (at == s.n || !nb_j_charge(x, 1)) break;
            size_t w = step(s, at, &cp);
            nb_j_emit(x, &b, s.u.s + at, w);
            at += w;
            continue;
        }
        const char *found = memmem(s.u.s + at, s.n - at, from.u.s, from.n);
        if (!found || !nb_j_charge(x, 1)) break;
        size_t i = (size_t)(found - s.u.s);
        nb_j_emit(x, &b, s.u.s + at, i - at);
        nb_j_emit(x, &b, to.u.s, to.n);
        at = i + from.n;
    }
    nb_j_emit(x, &b, s.u.s + at, s.n - at);
    return nb_j_take(x, &b);
}

static jv replace(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_replace(x, s, a[0], a[1], nb_j_int_arg(x, a[2], -1, "count"));
}

static jv removeprefix(jx *x, jv s, const jv *a, const jcall *c)
{
    return text_arg(x, a[0], "the prefix") && has_end(x, s, a[0], true) ? part(s, a[0].n, s.n) : s;
}
static jv removesuffix(jx *x, jv s, const jv *a, const jcall *c)
{
    return text_arg(x, a[0], "the suffix") && has_end(x, s, a[0], false) ? part(s, 0, s.n - a[0].n) : s;
}

static jv join(jx *x, jv s, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    nb_buf b = {0};
    if (!nb_j_elements(x, a[0], &items, &n)) return s;
    for (size_t i = 0; i < n && nb_j_charge(x, 1); i++) {
        if (items[i].type != J_STR)
            J_ERROR(x, "sequence item %zu: expected str instance, %s found", i, nb_j_type(items[i]));
        else
            nb_j_emit(x, &b, s.u.s, i ? s.n : 0), nb_j_emit(x, &b, items[i].u.s, items[i].n);
    }
    return nb_j_take(x, &b);
}

/* ---- padding, properties ---- */

/* Padded to a width; fill is one character. left: the share of the padding that stands before, in halves. */
static jv pad(jx *x, jv s, const jv *a, int left)
{
    int64_t width = nb_j_int_arg(x, a[0], 0, "width"), n = nb_j_length(x, s, false);
    jv fill = a[1].type == J_MISSING ? nb_j_str(" ", 1) : a[1];
    nb_buf b = {0};
    if (!text_arg(x, fill, "the fill character")) return s;
    if (nb_j_chars(fill.u.s, fill.n) != 1)
        return J_ERROR(x, "The fill character must be exactly one character long");
    int64_t more = width > n ? width - n : 0;
    int64_t before = left == 1 ? more / 2 + (more & width & 1) : left ? more : 0; /* str.center's rounding */
    for (int64_t i = 0; i < before && nb_j_charge(x, 1); i++) nb_j_emit(x, &b, fill.u.s, fill.n);
    nb_j_emit(x, &b, s.u.s, s.n);
    for (int64_t i = before; i < more && nb_j_charge(x, 1); i++) nb_j_emit(x, &b, fill.u.s, fill.n);
    return nb_j_take(x, &b);
}

static jv ljust(jx *x, jv s, const jv *a, const jcall *c)
{
    return pad(x, s, a, 0);
}
static jv center(jx *x, jv s, const jv *a, const jcall *c)
{
    return pad(x, s, a, 1);
}
static jv rjust(jx *x, jv s, const jv *a, const jcall *c)
{
    return pad(x, s, a, 2);
}

static jv zfill(jx *x, jv s, const jv *a, const jcall *c)
{
    jv args[] = {a[0], nb_j_str("0", 1)};
    bool sign = s.n && (s.u.s[0] == '-' || s.u.s[0] == '+');
    if (!sign) return pad(x, s, args, 2);
    args[0] = nb_j_int(nb_j_int_arg(x, a[0], 0, "width"));
    if (args[0].u.i > INT64_MIN) args[0].u.i--;
    return nb_j_concat(x, part(s, 0, 1), pad(x, part(s, 1, s.n), args, 2));
}

/* Does every character have the property, and is there one? 'd' digits, 'a' letters, 'n' either, 's' spaces. */
static jv every(jx *x, jv s, char what)
{
    uint32_t cp;
    bool all = s.n > 0;
    for (size_t i = 0; i < s.n && all && nb_j_charge(x, 1); i += step(s, i, &cp)) {
        step(s, i, &cp);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO,
             digit = k == UTF8PROC_CATEGORY_ND;
        all = what == 'd' ? digit : what == 'a' ? letter : what == 'n' ? letter || digit : nb_j_is_space(cp);
    }
    return nb_j_bool(all);
}

static jv isdigit_all(jx *x, jv s, const jv *a, const jcall *c)
{
    return every(x, s, 'd');
}
static jv isalpha_all(jx *x, jv s, const jv *a, const jcall *c)
{
    return every(x, s, 'a');
}
static jv isalnum_all(jx *x, jv s, const jv *a, const jcall *c)
{
    return every(x, s, 'n');
}
static jv isspace_all(jx *x, jv s, const jv *a, const jcall *c)
{
    return every(x, s, 's');
}

static jv one_case(jx *x, jv s, bool up)
{
    uint32_t cp;
    bool any = false;
    for (size_t i = 0; i < s.n && nb_j_charge(x, 1); i += step(s, i, &cp)) {
        step(s, i, &cp);
        utf8proc_int32_t c = (utf8proc_int32_t)cp;
        if (up ? utf8proc_islower(c) : utf8proc_isupper(c)) return nb_j_bool(false);
        any = any || (up ? utf8proc_isupper(c) : utf8proc_islower(c));
    }
    return nb_j_bool(any);
}

static jv isupper_all(jx *x, jv s, const jv *a, const jcall *c)
{
    return one_case(x, s, true);
}
static jv islower_all(jx *x, jv s, const jv *a, const jcall *c)
{
    return one_case(x, s, false);
}

static jv format(jx *x, jv s, const jv *a, const jcall *c)
{
    return nb_j_format(x, s, c);
}

const jbuiltin nb_j_string_methods[] = {
    {"upper", "", upper},
    {"lower", "", lower},
    {"capitalize", "", capitalize},
    {"title", "", title},
    {"swapcase", "", swapcase},
    {"strip", "chars?", strip},
    {"lstrip", "chars?", lstrip},
    {"rstrip", "chars?", rstrip},
    {"split", "sep? maxsplit?", split},
    {"rsplit", "sep? maxsplit?", rsplit},
    {"splitlines", "keepends?", splitlines},
    {"partition", "sep", partition},
    {"rpartition", "sep", rpartition},
    {"startswith", "prefix start? end?", startswith},
    {"endswith", "suffix start? end?", endswith},
    {"find", "sub start? end?", find},
    {"rfind", "sub start? end?", rfind},
    {"index", "sub start? end?", first_index},
    {"rindex", "sub start? end?", last_index},
    {"count", "sub start? end?", count},
    {"replace", "old new count?", replace},
    {"removeprefix", "prefix", removeprefix},
    {"removesuffix", "suffix", removesuffix},
    {"join", "iterable", join},
    {"ljust", "width fillchar?", ljust},
    {"center", "width fillchar?", center},
    {"rjust", "width fillchar?", rjust},
    {"zfill", "width", zfill},
    {"isdigit", "", isdigit_all},
    {"isdecimal", "", isdigit_all},
    {"isnumeric", "", isdigit_all},
    {"isalpha", "", isalpha_all},
    {"isalnum", "", isalnum_all},
    {"isspace", "", isspace_all},
    {"isupper", "", isupper_all},
    {"islower", "", islower_all},
    {"format", "*", format},
    /* Python has these; they are not here. */
    {"casefold", "*", NULL},
    {"encode", "*", NULL},
    {"expandtabs", "*", NULL},
    {"format_map", "*", NULL},
    {"isascii", "*", NULL},
    {"isidentifier", "*", NULL},
    {"isprintable", "*", NULL},
    {"istitle", "*", NULL},
    {"maketrans", "*", NULL},
    {"translate", "*", NULL},
    {0},
};
