/* Operators, members, items and slices, as Python and Jinja's sandbox have them. Integers have 64 bits; beyond is an error. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja_internal.h"

static const char *const symbols[] = {
    "+", "-", "*", "/", "//", "%", "** or pow()", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static bool is_number(jv v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

static bool is_int(jv v)
{
    return v.type == J_BOOL || v.type == J_INT;
}

static int64_t int_of(jv v)
{
    return v.type == J_BOOL ? v.u.b : v.u.i;
}

static double float_of(jv v)
{
    return v.type == J_FLOAT ? v.u.f : (double)int_of(v);
}

/* ---- text and lists end to end ---- */

#define GROW_HEAD ((sizeof(jgrow) + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t))

static jgrow *grow_of(jv v)
{
    return (jgrow *)((char *)v.u.s - GROW_HEAD);
}

/* Is v, which grows, all that its block holds, with room for n more? */
static bool has_room(jv v, size_t n)
{
    return grow_of(v)->used == v.n && grow_of(v)->cap - v.n >= n;
}

jv nb_j_concat(jx *x, jv a, jv b)
{
    size_t size = a.type == J_STR ? 1 : sizeof(jv), n, bytes;
    if (!b.n) return a;
    if (!a.n && a.type == b.type) return b;
    if (!nb_j_charge(x, b.n * size / 16 + 1)) return a;
    if (!nb_add(a.n, b.n, &n) || (a.type == J_STR && n > x->limits.output)) {
        nb_j_raise(x, NB_ERR_LIMIT, "a text is longer than %zu bytes", x->limits.output);
        return a;
    }
    if (!a.grows || !has_room(a, b.n)) { /* a new block, half as large again as needed */
        size_t cap = n + n / 2 + 4;
        if (!nb_j_charge(x, a.n * size / 16) || !nb_mul(cap, size, &bytes)) return a;
        char *block = nb_j_new(x, 1, GROW_HEAD + bytes);
        if (!block) return a;
        memcpy(block + GROW_HEAD, a.u.s, a.n * size);
        a.u.s = block + GROW_HEAD;
        a.grows = true;
        grow_of(a)->cap = cap;
    }
    memcpy((char *)a.u.s + a.n * size, b.u.s, b.n * size);
    a.n = grow_of(a)->used = n;
    return a;
}

static jv repeat(jx *x, jv v, int64_t times)
{
    size_t n, size = v.type == J_STR ? 1 : sizeof(jv), bytes;
    jv empty = v;
    empty.n = 0;
    empty.grows = false;
    if (times <= 0 || !v.n) return empty;
    if (!nb_mul(v.n, (size_t)times, &n) || !nb_mul(n, size, &bytes) || bytes > x->limits.output) {
        nb_j_raise(x, NB_ERR_LIMIT, "a repetition is longer than %zu bytes", x->limits.output);
        return empty;
    }
    char *to = nb_j_charge(x, (size_t)times + bytes / 16) ? nb_j_new(x, 1, bytes) : NULL;
    if (!to) return empty;
    for (int64_t i = 0; i < times; i++) memcpy(to + (size_t)i * v.n * size, v.u.s, v.n * size);
    empty.u.s = to;
    empty.n = n;
    return empty;
}

/* ---- numbers ---- */

static jv zero_division(jx *x, const char *what)
{
    return J_ERROR(x, "%s", what);
}

static jv too_large(jx *x)
{
    return nb_j_raise(x, NB_ERR_LIMIT, "an integer leaves 64 bits");
}

static jv int_power(jx *x, int64_t base, int64_t exponent)
{
    int64_t r = 1;
    if (exponent < 0) {
        if (!base) return zero_division(x, "0.0 cannot be raised to a negative power");
        return nb_j_float(pow((double)base, (double)exponent));
    }
    for (; exponent; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(r, base, &r)) return too_large(x);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return too_large(x);
    }
    return nb_j_int(r);
}

static jv int_op(jx *x, jop op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case J_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case J_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case J_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case J_FLOORDIV:
    case J_MOD:
        if (!b)
            return zero_division(x, op == J_MOD ? "integer modulo by zero"
                                                : "integer division or modulo by zero");
        if (b == -1) { /* INT64_MIN / -1 traps */
            over = op == J_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
        } else { /* Python rounds down */
            int64_t q = a / b, m = a % b;
            if (m && (m < 0) != (b < 0)) {
                q--;
                m += b;
            }
            r = op == J_MOD ? m : q;
        }
        break;
    default: return int_power(x, a, b);
    }
    return over ? too_large(x) : nb_j_int(r);
}

static jv float_op(jx *x, jop op, double a, double b)
{
    double m;
    switch (op) {
    case J_ADD: return nb_j_float(a + b);
    case J_SUB: return nb_j_float(a - b);
    case J_MUL: return nb_j_float(a * b);
    case J_DIV: return b == 0 ? zero_division(x, "division by zero") : nb_j_float(a / b);
    case J_FLOORDIV:
    case J_MOD:
        if (b == 0) return zero_division(x, op == J_MOD ? "float modulo" : "float floor division by zero");
        m = fmod(a, b);
        if (m != 0 && (m < 0) != (b < 0)) m += b;
        if (m == 0) m = copysign(0, b);
        if (op == J_MOD) return nb_j_float(m);
        return nb_j_float((a - m) / b == 0 ? copysign(0, a / b) : round((a - m) / b));
    default:
        if (a == 0 && b < 0) return zero_division(x, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) return J_ERROR(x, "a negative number has no real power %g", b);
        m = pow(a, b);
        return isinf(m) && isfinite(a) && isfinite(b) ? J_ERROR(x, "Numerical result out of range")
                                                      : nb_j_float(m);
    }
}

jv nb_j_binary(jx *x, jop op, jv a, jv b)
{
    if (x->status != NB_OK) return a;
    if (a.type == J_UNDEFINED) return nb_j_undefined_error(x, a);
    if (op == J_MOD && a.type == J_STR) return nb_j_percent(x, a, b);
    if (b.type == J_UNDEFINED) return nb_j_undefined_error(x, b);
    if (is_int(a) && is_int(b) && op != J_DIV) return int_op(x, op, int_of(a), int_of(b));
    if (is_number(a) && is_number(b)) return float_op(x, op, float_of(a), float_of(b));
    bool text = a.type == J_STR || a.type == J_LIST || a.type == J_TUPLE;
    if (op == J_ADD && text && a.type == b.type) return nb_j_concat(x, a, b);
    if (op == J_MUL && text && is_int(b)) return repeat(x, a, int_of(b));
    if (op == J_MUL && is_int(a) && (b.type == J_STR || b.type == J_LIST || b.type == J_TUPLE))
        return repeat(x, b, int_of(a));
    if (op == J_ADD && text)
        return J_ERROR(x, "can only concatenate %s (not \"%s\") to %s", nb_j_type(a), nb_j_type(b),
                       nb_j_type(a));
    return J_ERROR(x, "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op], nb_j_type(a),
                   nb_j_type(b));
}

/* ---- comparisons ---- */

bool nb_j_contains(jx *x, jv in, jv item)
{
    const jv *items;
    size_t n;
    if (x->status != NB_OK) return false;
    if (in.type == J_STR) {
        if (item.type != J_STR)
            return J_ERROR(x, "'in <string>' requires string as left operand, not %s", nb_j_type(item)),
                   false;
        return nb_j_charge(x, in.n / 16) && memmem(in.u.s, in.n, item.u.s, item.n) != NULL;
    }
    if (in.type == J_DICT) return nb_j_dict_get(x, in.u.dict, item) != NULL;
    if (in.type == J_NONE || is_number(in) || in.type > J_DICT) {
        J_ERROR(x, "argument of type '%s' is not iterable", nb_j_type(in));
        return false;
    }
    if (!nb_j_elements(x, in, &items, &n)) return false;
    for (size_t i = 0; i < n && nb_j_charge(x, 1); i++) {
        if (!nb_j_equal(x, items[i], item)) continue;
        if (in.type == J_ITER) in.u.iter->at -= n - i - 1; /* it was walked over as far as the item */
        return true;
    }
    return false;
}

jv nb_j_compare(jx *x, jop op, jv a, jv b)
{
    if (x->status != NB_OK) return a;
    if (op == J_EQ || op == J_NE) return nb_j_bool(nb_j_equal(x, a, b) == (op == J_EQ));
    if (op == J_IN || op == J_NOT_IN) return nb_j_bool(nb_j_contains(x, b, a) == (op == J_IN));
    int order = nb_j_order(x, a, b, symbols[op]);
    if (order == 2) return nb_j_bool(false);
    return nb_j_bool(op == J_LT ? order < 0 : op == J_LE ? order <= 0 : op == J_GT ? order > 0 : order >= 0);
}

/* ---- members ---- */

static jv bind_method(jx *x, const jbuiltin *f, jv self)
{
    jbound *m = nb_j_new(x, 1, sizeof *m);
    if (!m) return self;
    *m = (jbound){f, self};
    return (jv){.type = J_FUNCTION, .u.fn = m};
}

/* A method, a loop's property or the like: not what a dict holds. J_MISSING: nothing. */
static jv own_attr(jx *x, jv v, jv name)
{
    bool unsafe = false;
    if (v.type == J_NAMESPACE) {
        const jv *found = nb_j_dict_get(x, v.u.dict, name);
        return found ? *found : (jv){0};
    }
    if (v.type == J_LOOP) {
        jv found = nb_j_loop_attr(x, v.u.loop, name.u.s, name.n);
        if (found.type != J_MISSING) return found;
    }
    if (v.type == J_MACRO && nb_j_equals_text(name, "name")) return x->t->names[v.u.macro->node->sym];
    const jbuiltin *f = nb_j_method(v, name.u.s, name.n, &unsafe);
    if (f) return bind_method(x, f, v);
    if (name.n > 1 && memcmp(name.u.s, "__", 2) == 0) unsafe = true;
    return unsafe ? nb_j_undefined(JU_UNSAFE, (jtype)v.type, name.u.s, name.n) : (jv){0};
}

static bool hashable(jx *x, jv v)
{
    bool all = v.type != J_LIST && v.type != J_DICT && nb_j_deeper(x);
    if (!all) return false;
    for (size_t i = 0; v.type == J_TUPLE && i < v.n && all; i++) all = hashable(x, v.u.v[i]);
    x->depth--;
    return all;
}

/* An item by position or key; J_MISSING: there is none. */
static jv own_item(jx *x, jv v, jv key)
{
    uint32_t cp;
    if (v.type == J_DICT || v.type == J_NAMESPACE) {
        if (!hashable(x, key)) return (jv){0};
        const jv *found = nb_j_dict_get(x, v.u.dict, key);
        return found ? *found : (jv){0};
    }
    bool seq = v.type == J_LIST || v.type == J_TUPLE || v.type == J_RANGE;
    if (!is_int(key) || (!seq && v.type != J_STR)) return (jv){0};
    int64_t i = int_of(key), n = nb_j_length(x, v, false);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return (jv){0};
    if (seq) return v.u.v[i];
    size_t at = 0;
    while (i--) at += nb_j_char(v.u.s + at, v.n - at, &cp);
    return nb_j_str(v.u.s + at, nb_j_char(v.u.s + at, v.n - at, &cp));
}

jv nb_j_attr(jx *x, jv v, jv name)
{
    if (x->status != NB_OK) return v;
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    jv found = own_attr(x, v, name);
    if (found.type == J_MISSING) found = own_item(x, v, name);
    return found.type != J_MISSING ? found : nb_j_undefined(JU_MEMBER, (jtype)v.type, name.u.s, name.n);
}

jv nb_j_item(jx *x, jv v, jv key)
{
    if (x->status != NB_OK) return v;
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (key.type == J_STR) {
        jv found = own_item(x, v, key);
        if (found.type == J_MISSING) found = own_attr(x, v, key);
        return found.type != J_MISSING ? found : nb_j_undefined(JU_MEMBER, (jtype)v.type, key.u.s, key.n);
    }
    jv found = own_item(x, v, key);
    if (found.type != J_MISSING || x->status != NB_OK) return found;
    nb_buf b = {0};
    if (key.type == J_ITER || key.type == J_FUNCTION)
        nb_j_emits(x, &b, nb_j_type(key));
    else
        nb_j_write_repr(x, &b, key);
    key = nb_j_take(x, &b);
    return nb_j_undefined(JU_ITEM, (jtype)v.type, key.u.s, key.n);
}

jv nb_j_path(jx *x, jv v, jv path)
{
    if (path.type != J_STR) return nb_j_item(x, v, path);
    for (size_t from = 0; from <= path.n && x->status == NB_OK;) {
        const char *dot = memchr(path.u.s + from, '.', path.n - from);
        size_t end = dot ? (size_t)(dot - path.u.s) : path.n;
        jv part = nb_j_str(path.u.s + from, end - from);
        int64_t number = 0;
        bool digits = part.n > 0 && part.n < 18;
        for (size_t i = 0; i < part.n && digits; i++) {
            digits = part.u.s[i] >= '0' && part.u.s[i] <= '9';
            number = number * 10 + (part.u.s[i] - '0');
        }
        v = nb_j_item(x, v, digits ? nb_j_int(number) : part);
        from = end + 1;
    }
    return v;
}

/* ---- slices ---- */

/* A bound of a slice as Python clamps it. */
static int64_t bound(jx *x, jv v, int64_t n, int64_t low, int64_t high, int64_t fallback)
{
    if (v.type == J_NONE) return fallback;
    if (!is_int(v)) {
        J_ERROR(x, "slice indices must be integers or None or have an __index__ method");
        return fallback;
    }
    int64_t i = int_of(v);
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

/* The bytes where each character of a string begins, and its end. */
static const size_t *starts_of(jx *x, jv v, int64_t n)
{
    uint32_t cp;
    size_t *starts = nb_j_charge(x, (size_t)n) ? nb_j_new(x, (size_t)n + 1, sizeof *starts) : NULL;
    if (!starts) return NULL;
    for (int64_t i = 0; i < n; i++)
        starts[i + 1] = starts[i] + nb_j_char(v.u.s + starts[i], v.n - starts[i], &cp);
    return starts;
}

static jv slice_text(jx *x, jv v, int64_t n, int64_t from, int64_t step, int64_t count)
{
    uint32_t cp;
    if (step == 1) {
        size_t begin = 0, end;
        nb_j_charge(x, (size_t)(from + count) / 16);
        if ((size_t)n == v.n) return nb_j_str(v.u.s + from, (size_t)count);
        for (int64_t i = 0; i < from; i++) begin += nb_j_char(v.u.s + begin, v.n - begin, &cp);
        end = begin;
        for (int64_t i = 0; i < count; i++) end += nb_j_char(v.u.s + end, v.n - end, &cp);
        return nb_j_str(v.u.s + begin, end - begin);
    }
    const size_t *starts = starts_of(x, v, n);
    nb_buf b = {0};
    for (int64_t i = from; starts && count-- > 0 && x->status == NB_OK; i += step)
        nb_j_emit(x, &b, v.u.s + starts[i], starts[i + 1] - starts[i]);
    return nb_j_take(x, &b);
}

jv nb_j_slice(jx *x, jv v, jv first, jv last, jv by)
{
    if (x->status != NB_OK) return v;
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (v.type != J_STR && v.type != J_LIST && v.type != J_TUPLE && v.type != J_RANGE)
        return J_ERROR(x, v.type == J_DICT ? "unhashable type: 'slice'" : "'%s' object is not subscriptable",
                       nb_j_type(v));
    int64_t n = nb_j_length(x, v, true), step = 1;
    if (is_int(by))
        step = int_of(by);
    else if (by.type != J_NONE)
        bound(x, by, n, 0, n, 0); /* complains */
    if (!step) return J_ERROR(x, "slice step cannot be zero");
    bool down = step < 0;
    int64_t from = bound(x, first, n, down ? -1 : 0, down ? n - 1 : n, down ? n - 1 : 0);
    int64_t to = bound(x, last, n, down ? -1 : 0, down ? n - 1 : n, down ? -1 : n);
    if (x->status != NB_OK) return v;
    int64_t count = 0;
    if (!down && from < to) count = (to - from - 1) / step + 1;
    if (down && from > to) count = (from - to - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1;
    if (v.type == J_STR) return slice_text(x, v, n, from, step, count);
    if (step == 1) return nb_j_seq((jtype)v.type, v.u.v + (count ? from : 0), (size_t)count);
    jv *items = nb_j_charge(x, (size_t)count) ? nb_j_new(x, (size_t)count, sizeof *items) : NULL;
    if (!items) return v;
    for (int64_t i = 0, at = from; i < count; i++, at = i < count ? at + step : at) items[i] = v.u.v[at];
    return nb_j_seq((jtype)v.type, items, (size_t)count);
}
