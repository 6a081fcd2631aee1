/* What templates can name without being given it: functions, the members of `loop`, methods of dicts and lists; and which
 * methods the sandbox keeps. */
#include <locale.h>
#include <string.h>
#include <time.h>

#include "text/jinja_internal.h"

const jbuiltin *nb_j_find(const jbuiltin *table, const char *name, size_t n)
{
    for (; table->name; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0) return table;
    return NULL;
}

/* ---- functions ---- */

static jv range(jx *x, jv self, const jv *a, const jcall *c)
{
    bool one = a[1].type == J_MISSING;
    int64_t from = one ? 0 : nb_j_int_arg(x, a[0], 0, "range()'s argument");
    int64_t to = nb_j_int_arg(x, a[one ? 0 : 1], 0, "range()'s argument");
    int64_t by = nb_j_int_arg(x, a[2], 1, "range()'s argument"), distance = 0, n = 0;
    if (!by) return J_ERROR(x, "range() arg 3 must not be zero");
    if (by > 0 ? from < to : from > to) {
        if (by == INT64_MIN || __builtin_sub_overflow(by > 0 ? to : from, by > 0 ? from : to, &distance))
            distance = INT64_MAX;
        n = (distance - 1) / (by > 0 ? by : by == INT64_MIN ? INT64_MAX : -by) + 1;
    }
    if (n > 100000)
        return J_ERROR(x, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    jv *items = nb_j_charge(x, (size_t)n) ? nb_j_new(x, (size_t)n, sizeof *items) : NULL;
    if (!items) return self;
    for (int64_t i = 0; i < n; i++)
        items[i] = nb_j_int((int64_t)((uint64_t)from + (uint64_t)i * (uint64_t)by));
    return nb_j_seq(J_RANGE, items, (size_t)n);
}

/* dict(mapping or pairs, **named), which namespace() is too. */
static jdict *dict_of(jx *x, const jcall *c, bool plain_names)
{
    const jv *items, *pair;
    size_t n, two;
    jdict *d = nb_j_dict_new(x, 0);
    if (!d) return NULL;
    if (c->n > 1) J_ERROR(x, "dict expected at most 1 argument, got %zu", c->n);
    if (c->n && c->args[0].type == J_DICT) {
        const jdict *from = c->args[0].u.dict;
        for (size_t i = 0; i < from->n; i++) nb_j_dict_put(x, d, from->keys[i], from->values[i]);
    } else if (c->n && nb_j_elements(x, c->args[0], &items, &n)) {
        for (size_t i = 0; i < n && nb_j_elements(x, items[i], &pair, &two); i++) {
            if (two != 2)
                J_ERROR(x, "dictionary update sequence element #%zu has length %zu; 2 is required", i, two);
            else
                nb_j_dict_put(x, d, pair[0], pair[1]);
        }
    }
    for (size_t i = 0; i < c->n_named; i++) nb_j_dict_put(x, d, c->names[i], c->values[i]);
    for (size_t i = 0; plain_names && i < d->n; i++)
        if (d->keys[i].type == J_STR && d->keys[i].n && d->keys[i].u.s[0] == '_')
            J_ERROR(x, "a namespace cannot hold attributes that begin with an underscore");
    return x->status == NB_OK ? d : NULL;
}

static jv dict(jx *x, jv self, const jv *a, const jcall *c)
{
    jdict *d = dict_of(x, c, false);
    return d ? (jv){.type = J_DICT, .u.dict = d} : self;
}

static jv namespace(jx *x, jv self, const jv *a, const jcall *c)
{
    jdict *d = dict_of(x, c, true);
    return d ? (jv){.type = J_NAMESPACE, .u.dict = d} : self;
}

static jv raise_exception(jx *x, jv self, const jv *a, const jcall *c)
{
    jv text = nb_j_text(x, a[0]);
    if (x->status != NB_OK) return self;
    x->status = nb_fail(x->err, NB_ERR_ARGUMENT, "%.*s", (int)(text.n < 500 ? text.n : 500), text.u.s);
    return self;
}

/* datetime.now().strftime(format): a naive time, which has no zone, in English (the C locale). */
static jv strftime_now(jx *x, jv self, const jv *a, const jcall *c)
{
    nb_buf form = {0}, text = {0};
    struct tm t;
    time_t now = (time_t)x->now;
    if (a[0].type != J_STR) return J_ERROR(x, "strftime() argument 1 must be str, not %s", nb_j_type(a[0]));
    if (memchr(a[0].u.s, '\0', a[0].n)) return J_ERROR(x, "embedded null character");
    for (size_t i = 0; i < a[0].n && nb_j_charge(x, 1); i++) {
        const char *s = a[0].u.s + i;
        bool pair = *s == '%' && i + 1 < a[0].n;
        if (pair && (s[1] == 'z' || s[1] == 'Z'))
            i++;
        else if (pair && s[1] == 'f')
            nb_j_emits(x, &form, "000000"), i++;
        else if (pair)
            nb_j_emit(x, &form, s, 2), i++;
        else
            nb_j_emit(x, &form, s, 1);
    }
    locale_t english = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!english || !localtime_r(&now, &t)) {
        if (x->status == NB_OK) x->status = nb_fail_nomem(x->err, "a date", 0);
        goto out;
    }
    nb_j_emits(x, &form, "|"); /* so that an empty result is told from one that did not fit */
    for (size_t room = 256; nb_j_charge(x, room / 16); room *= 4) {
        if (room > (1 << 20)) {
            nb_j_raise(x, NB_ERR_LIMIT, "a date longer than 1 MiB");
        } else if (!nb_buf_reserve(&text, room)) {
            x->status = nb_fail_nomem(x->err, "a date", room);
        } else if ((text.len = strftime_l(text.data, room, nb_buf_str(&form), &t, english))) {
            text.len--;
            break;
        }
    }
out:
    if (english) freelocale(english);
    nb_buf_free(&form);
    return nb_j_take(x, &text);
}

static const jbuiltin globals[] = {
    {"range", "start stop? step?", range},
    {"dict", "*", dict},
    {"namespace", "*", namespace},
    {"raise_exception", "message", raise_exception},
    {"strftime_now", "format", strftime_now},
    {0},
};

const jbuiltin *nb_j_global(const char *name, size_t n)
{
    return nb_j_find(globals, name, n);
}

/* ---- loop ---- */

static jv loop_cycle(jx *x, jv self, const jv *a, const jcall *c)
{
    if (!c->n) return J_ERROR(x, "no items for cycling given");
    return c->args[self.u.loop->index0 % c->n];
}

static jv loop_changed(jx *x, jv self, const jv *a, const jcall *c)
{
    jv now = nb_j_seq(J_TUPLE, c->args, c->n);
    bool same = self.u.loop->last_changed.type && nb_j_equal(x, self.u.loop->last_changed, now);
    if (!same) self.u.loop->last_changed = now;
    return nb_j_bool(!same);
}

static const jbuiltin loop_methods[] = {{"cycle", "*", loop_cycle}, {"changed", "*", loop_changed}, {0}};

jv nb_j_loop_attr(jx *x, jloop *l, const char *name, size_t n)
{
    enum { INDEX, INDEX0, REVINDEX, REVINDEX0, FIRST, LAST, LENGTH, DEPTH, DEPTH0, PREVIOUS, NEXT, NONE };
    static const char *const names[] = {"index",  "index0", "revindex", "revindex0", "first",   "last",
                                        "length", "depth",  "depth0",   "previtem",  "nextitem"};
    int i = 0;
    while (i < NONE && (strlen(names[i]) != n || memcmp(names[i], name, n) != 0)) i++;
    int64_t at = (int64_t)l->index0, all = (int64_t)l->n;
    switch (i) {
    case INDEX: return nb_j_int(at + 1);
    case INDEX0: return nb_j_int(at);
    case REVINDEX: return nb_j_int(all - at);
    case REVINDEX0: return nb_j_int(all - at - 1);
    case FIRST: return nb_j_bool(at == 0);
    case LAST: return nb_j_bool(at + 1 >= all);
    case LENGTH: return nb_j_int(all);
    case DEPTH: return nb_j_int((int64_t)l->depth + 1);
    case DEPTH0: return nb_j_int((int64_t)l->depth);
    case PREVIOUS:
        return at ? l->items[at - 1] : nb_j_undefined(JU_HINT, J_LOOP, "there is no previous item", 25);
    case NEXT:
        return at + 1 < all ? l->items[at + 1] : nb_j_undefined(JU_HINT, J_LOOP, "there is no next item", 21);
    default: return (jv){0};
    }
}

/* ---- methods of dicts and lists ---- */

static jv get(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *found = nb_j_dict_get(x, self.u.dict, a[0]);
    return found ? *found : a[1].type == J_MISSING ? nb_j_none() : a[1];
}

static jv view(jv v, jview kind)
{
    v.why = (uint8_t)kind;
    return v;
}

static jv keys(jx *x, jv self, const jv *a, const jcall *c)
{
    return view(nb_j_seq(J_VIEW, self.u.dict->keys, self.u.dict->n), JV_KEYS);
}

static jv values(jx *x, jv self, const jv *a, const jcall *c)
{
    return view(nb_j_seq(J_VIEW, self.u.dict->values, self.u.dict->n), JV_VALUES);
}

jv nb_j_pairs(jx *x, const jdict *d, jtype type)
{
    jv *items = nb_j_charge(x, d->n) ? nb_j_new(x, d->n, 3 * sizeof *items) : NULL;
    if (!items) return nb_j_none();
    jv *pairs = items + d->n;
    for (size_t i = 0; i < d->n; i++) {
        pairs[2 * i] = d->keys[i];
        pairs[2 * i + 1] = d->values[i];
        items[i] = nb_j_seq(J_TUPLE, pairs + 2 * i, 2);
    }
    return nb_j_seq(type, items, d->n);
}

static jv items(jx *x, jv self, const jv *a, const jcall *c)
{
    return view(nb_j_pairs(x, self.u.dict, J_VIEW), JV_ITEMS);
}

static jv copy(jx *x, jv self, const jv *a, const jcall *c)
{
    return self; /* nothing can change it */
}

static jv seq_count(jx *x, jv self, const jv *a, const jcall *c)
{
    int64_t n = 0;
    for (size_t i = 0; i < self.n && nb_j_charge(x, 1); i++) n += nb_j_equal(x, self.u.v[i], a[0]);
    return nb_j_int(n);
}

static jv seq_index(jx *x, jv self, const jv *a, const jcall *c)
{
    for (size_t i = 0; i < self.n && nb_j_charge(x, 1); i++)
        if (nb_j_equal(x, self.u.v[i], a[0])) return nb_j_int((int64_t)i);
    return J_ERROR(x, "the value is not in the list");
}

static const jbuiltin dict_methods[] = {{"get", "key default?", get}, {"keys", "", keys},
                                        {"values", "", values},       {"items", "", items},
                                        {"copy", "", copy},           {0}};
static const jbuiltin seq_methods[] = {
    {"count", "value", seq_count}, {"index", "value", seq_index}, {"copy", "", copy}, {0}};

static bool listed(const char *const *names, const char *name, size_t n)
{
    for (; *names; names++)
        if (strlen(*names) == n && memcmp(*names, name, n) == 0) return true;
    return false;
}

const jbuiltin *nb_j_method(jv v, const char *name, size_t n, bool *unsafe)
{
    /* jinja2/sandbox.py: what a MutableSequence or MutableMapping changes by. */
    static const char *const list_unsafe[] = {"append", "clear",  "pop",    "reverse", "insert",
                                              "sort",   "extend", "remove", NULL};
    static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    switch ((jtype)v.type) {
    case J_STR: return nb_j_find(nb_j_string_methods, name, n);
    case J_LIST: *unsafe = listed(list_unsafe, name, n); return nb_j_find(seq_methods, name, n);
    case J_TUPLE: return nb_j_find(seq_methods, name, n);
    case J_DICT: *unsafe = listed(dict_unsafe, name, n); return nb_j_find(dict_methods, name, n);
    case J_LOOP: return nb_j_find(loop_methods, name, n);
    default: return NULL;
    }
}
