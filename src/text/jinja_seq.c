/* Filters of sequences: order, choice, mapping. What is a generator in Jinja is an iterator here, worked out at once. */
#include <string.h>

#include "text/jinja_internal.h"

static jv iterator(jx *x, const jv *v, size_t n)
{
    jiter *i = nb_j_new(x, 1, sizeof *i);
    if (!i) return nb_j_none();
    *i = (jiter){v ? v : &nb_j_missing, n, 0};
    return (jv){.type = J_ITER, .u.iter = i};
}

/* ---- order ---- */

/* Is b to stand before a? */
static bool before(jx *x, jv b, jv a, bool reverse)
{
    return reverse ? nb_j_order(x, a, b, "<") == -1 : nb_j_order(x, b, a, "<") == -1;
}

void nb_j_sort(jx *x, const jv *keys, size_t *order, size_t n, bool reverse)
{
    size_t *to = nb_j_new(x, n, sizeof *to);
    if (!to) return;
    for (size_t width = 1; width < n && x->status == NB_OK; width *= 2) { /* merges runs of this width */
        for (size_t from = 0; from < n; from += 2 * width) {
            size_t mid = from + width < n ? from + width : n, end = mid + width < n ? mid + width : n;
            size_t a = from, b = mid, k = from;
            while (a < mid || b < end) {
                bool right = a == mid || (b < end && nb_j_charge(x, 1) &&
                                          before(x, keys[order[b]], keys[order[a]], reverse));
                to[k++] = order[right ? b++ : a++];
            }
        }
        memcpy(order, to, n * sizeof *to);
    }
}

/* What an element is sorted or compared by: itself or its attribute, in lower case where case does not count. */
static jv key_of(jx *x, jv v, jv attribute, bool with_case)
{
    if (attribute.type != J_MISSING && attribute.type != J_NONE) v = nb_j_path(x, v, attribute);
    return v.type == J_STR && !with_case ? nb_j_case(x, v, 'l') : v;
}

/* A list of keys: of "a,b" two. A list even of one, as Jinja has it: lists ask for equality first, so that what has no order
 * but is equal sorts. */
static jv keys_of(jx *x, jv v, jv attribute, bool with_case)
{
    size_t n = 1, from = 0;
    bool text = attribute.type == J_STR && nb_j_charge(x, attribute.n / 16);
    for (size_t i = 0; text && i < attribute.n; i++) n += attribute.u.s[i] == ',';
    jv *keys = nb_j_new(x, n, sizeof *keys);
    for (size_t i = 0; keys && i < n; i++) {
        if (!text) {
            keys[i] = key_of(x, v, attribute, with_case);
            break;
        }
        const char *comma = memchr(attribute.u.s + from, ',', attribute.n - from);
        size_t end = comma ? (size_t)(comma - attribute.u.s) : attribute.n;
        keys[i] = key_of(x, v, nb_j_str(attribute.u.s + from, end - from), with_case);
        from = end + 1;
    }
    return nb_j_seq(J_LIST, keys, keys ? n : 0);
}

static jv sorted(jx *x, const jv *items, const jv *keys, size_t n, bool reverse)
{
    size_t *order = nb_j_new(x, n, sizeof *order);
    jv *out = nb_j_new(x, n, sizeof *out);
    if (!order || !out) return nb_j_none();
    for (size_t i = 0; i < n; i++) order[i] = i;
    nb_j_sort(x, keys, order, n, reverse);
    for (size_t i = 0; i < n; i++) out[i] = items[order[i]];
    return nb_j_seq(J_LIST, out, n);
}

static jv sort(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    if (!nb_j_elements(x, self, &items, &n)) return self;
    jv *keys = nb_j_new(x, n, sizeof *keys);
    for (size_t i = 0; keys && i < n && nb_j_charge(x, 1); i++)
        keys[i] = keys_of(x, items[i], a[2], nb_j_bool_arg(x, a[1], false));
    return keys ? sorted(x, items, keys, n, nb_j_bool_arg(x, a[0], false)) : self;
}

static jv dictsort(jx *x, jv self, const jv *a, const jcall *c)
{
    bool by_value = a[1].type != J_MISSING && nb_j_equals_text(a[1], "value");
    if (a[1].type != J_MISSING && !by_value && !nb_j_equals_text(a[1], "key"))
        return J_ERROR(x, "You can only sort by either \"key\" or \"value\"");
    if (self.type == J_UNDEFINED) return nb_j_undefined_error(x, self);
    if (self.type != J_DICT) return J_ERROR(x, "'%s' object has no attribute 'items'", nb_j_type(self));
    jv pairs = nb_j_pairs(x, self.u.dict, J_LIST);
    jv *keys = nb_j_new(x, pairs.n, sizeof *keys);
    for (size_t i = 0; keys && i < pairs.n; i++)
        keys[i] = key_of(x, pairs.u.v[i].u.v[by_value], (jv){0}, nb_j_bool_arg(x, a[0], false));
    return keys ? sorted(x, pairs.u.v, keys, pairs.n, nb_j_bool_arg(x, a[2], false)) : self;
}

static jv extreme(jx *x, jv self, const jv *a, bool largest)
{
    const jv *items;
    size_t n, best = 0;
    jv best_key = {0};
    if (!nb_j_elements(x, self, &items, &n)) return self;
    if (!n) return nb_j_undefined(JU_HINT, J_MISSING, "No aggregated item, sequence was empty.", 39);
    for (size_t i = 0; i < n && nb_j_charge(x, 1); i++) {
        jv key = key_of(x, items[i], a[1], nb_j_bool_arg(x, a[0], false));
        if (i && !before(x, key, best_key, largest)) continue;
        best = i;
        best_key = key;
    }
    return items[best];
}

static jv smallest(jx *x, jv self, const jv *a, const jcall *c)
{
    return extreme(x, self, a, false);
}
static jv largest(jx *x, jv self, const jv *a, const jcall *c)
{
    return extreme(x, self, a, true);
}

static jv unique(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n, kept = 0;
    if (!nb_j_elements(x, self, &items, &n)) return self;
    jdict *seen = nb_j_dict_new(x, 0);
    jv *out = nb_j_new(x, n, sizeof *out);
    for (size_t i = 0; seen && out && i < n && nb_j_charge(x, 1); i++) {
        size_t had = seen->n;
        nb_j_dict_put(x, seen, key_of(x, items[i], a[1], nb_j_bool_arg(x, a[0], false)), nb_j_none());
        if (seen->n > had) out[kept++] = items[i];
    }
    return iterator(x, out, kept);
}

static jv reverse(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    if (self.type == J_STR) return nb_j_slice(x, self, nb_j_none(), nb_j_none(), nb_j_int(-1));
    if (!nb_j_elements(x, self, &items, &n)) return self;
    jv *out = nb_j_charge(x, n) ? nb_j_new(x, n, sizeof *out) : NULL;
    for (size_t i = 0; out && i < n; i++) out[i] = items[n - 1 - i];
    return out ? iterator(x, out, n) : self;
}

/* ---- ends and sums ---- */

static jv first(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    if (self.type == J_STR && self.n) return nb_j_item(x, self, nb_j_int(0));
    if (!nb_j_elements(x, self, &items, &n)) return self;
    if (self.type == J_ITER && n) self.u.iter->at -= n - 1; /* one is taken */
    return n ? items[0] : nb_j_undefined(JU_HINT, J_MISSING, "No first item, sequence was empty.", 34);
}

static jv last(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    if (self.type == J_ITER) return J_ERROR(x, "'generator' object is not reversible");
    if (self.type == J_STR && self.n) return nb_j_item(x, self, nb_j_int(-1));
    if (!nb_j_elements(x, self, &items, &n)) return self;
    return n ? items[n - 1] : nb_j_undefined(JU_HINT, J_MISSING, "No last item, sequence was empty.", 33);
}

static jv sum(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    jv total = a[1].type == J_MISSING ? nb_j_int(0) : a[1];
    if (!nb_j_elements(x, self, &items, &n)) return self;
    if (total.type == J_STR) return J_ERROR(x, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < n && nb_j_charge(x, 1); i++)
        total = nb_j_binary(x, J_ADD, total,
                            a[0].type == J_MISSING || a[0].type == J_NONE ? items[i]
                                                                          : nb_j_path(x, items[i], a[0]));
    return total;
}

static jv join(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    nb_buf b = {0};
    jv between = a[0].type == J_MISSING ? nb_j_str("", 0) : nb_j_text(x, a[0]);
    if (!nb_j_elements(x, self, &items, &n)) return self;
    for (size_t i = 0; i < n && nb_j_charge(x, 1); i++) {
        nb_j_emit(x, &b, between.u.s, i ? between.n : 0);
        nb_j_write(x, &b,
                   a[1].type == J_MISSING || a[1].type == J_NONE ? items[i] : nb_j_path(x, items[i], a[1]));
    }
    return nb_j_take(x, &b);
}

static jv list(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    return nb_j_elements(x, self, &items, &n) ? nb_j_seq(J_LIST, items, n) : self;
}

static jv items(jx *x, jv self, const jv *a, const jcall *c)
{
    if (self.type == J_UNDEFINED) return iterator(x, NULL, 0);
    if (self.type != J_DICT) return J_ERROR(x, "Can only get item pairs from a mapping.");
    jv pairs = nb_j_pairs(x, self.u.dict, J_LIST);
    return pairs.type == J_LIST ? iterator(x, pairs.u.v, pairs.n) : pairs;
}

/* ---- by other filters and tests ---- */

/* The arguments from place `skip` on, for the filter or test that is named before them. */
static jcall without(const jcall *c, size_t skip)
{
    jcall rest = *c;
    size_t n = c->n < skip ? c->n : skip;
    rest.args += n;
    rest.n -= n;
    return rest;
}

static jv unknown(jx *x, const char *what, jv name)
{
    jv text = nb_j_text(x, name);
    return J_ERROR(x, "No %s named '%.*s'.", what, (int)(text.n < 60 ? text.n : 60), text.u.s);
}

/* map('upper'), map('join', ', '), map(attribute='a.b', default=0) */
static jv map(jx *x, jv self, const jv *a, const jcall *c)
{
    const jv *items;
    size_t n;
    jv attribute = {0}, fallback = nb_j_none();
    jcall rest = without(c, 1);
    for (size_t i = 0; !c->n && i < c->n_named; i++) {
        if (nb_j_equals_text(c->names[i], "attribute")) attribute = c->values[i];
        if (nb_j_equals_text(c->names[i], "default")) fallback = c->values[i];
    }
    if (!nb_j_truth(x, self)) return iterator(x, NULL, 0);
    if (!c->n && attribute.type == J_MISSING) return J_ERROR(x, "map requires a filter argument");
    const jbuiltin *f = c->n && c->args[0].type == J_STR ? nb_j_filter(c->args[0].u.s, c->args[0].n) : NULL;
    if (c->n && !f) return unknown(x, "filter", c->args[0]);
    if (!nb_j_elements(x, self, &items, &n)) return self;
    jv *out = nb_j_new(x, n, sizeof *out);
    for (size_t i = 0; out && i < n && nb_j_charge(x, 1); i++) {
        out[i] = f ? nb_j_call_builtin(x, f, "filter", items[i], &rest) : nb_j_path(x, items[i], attribute);
        if (!f && out[i].type == J_UNDEFINED && fallback.type != J_NONE) out[i] = fallback;
    }
    return iterator(x, out, out ? n : 0);
}

/* select and reject, of the elements or of an attribute of theirs. */
static jv choose(jx *x, jv self, const jcall *c, bool keep, bool attr)
{
    const jv *items;
    size_t n, kept = 0, at = attr ? 1 : 0;
    const jbuiltin *f = NULL;
    jcall rest = without(c, at + 1);
    if (!nb_j_truth(x, self)) return iterator(x, NULL, 0);
    if (attr && !c->n) return J_ERROR(x, "Missing parameter for attribute name");
    if (c->n > at && !(c->args[at].type == J_STR && (f = nb_j_test(c->args[at].u.s, c->args[at].n))))
        return unknown(x, "test", c->args[at]);
    if (!nb_j_elements(x, self, &items, &n)) return self;
    jv *out = nb_j_new(x, n, sizeof *out);
    for (size_t i = 0; out && i < n && nb_j_charge(x, 1); i++) {
        jv v = attr ? nb_j_path(x, items[i], c->args[0]) : items[i];
        if (f) v = nb_j_call_builtin(x, f, "test", v, &rest);
        if (nb_j_truth(x, v) == keep) out[kept++] = items[i];
    }
    return iterator(x, out, kept);
}

static jv keep_items(jx *x, jv self, const jv *a, const jcall *c)
{
    return choose(x, self, c, true, false);
}
static jv drop_items(jx *x, jv self, const jv *a, const jcall *c)
{
    return choose(x, self, c, false, false);
}
static jv selectattr(jx *x, jv self, const jv *a, const jcall *c)
{
    return choose(x, self, c, true, true);
}
static jv rejectattr(jx *x, jv self, const jv *a, const jcall *c)
{
    return choose(x, self, c, false, true);
}

const jbuiltin nb_j_sequence_filters[] = {
    {"dictsort", "case_sensitive? by? reverse?", dictsort},
    {"first", "", first},
    {"items", "", items},
    {"join", "d? attribute?", join},
    {"last", "", last},
    {"list", "", list},
    {"map", "*", map},
    {"max", "case_sensitive? attribute?", largest},
    {"min", "case_sensitive? attribute?", smallest},
    {"reject", "*", drop_items},
    {"rejectattr", "*", rejectattr},
    {"reverse", "", reverse},
    {"select", "*", keep_items},
    {"selectattr", "*", selectattr},
    {"sort", "reverse? case_sensitive? attribute?", sort},
    {"sum", "attribute? start?", sum},
    {"unique", "case_sensitive? attribute?", unique},
    {0},
};
