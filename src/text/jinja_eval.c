/* Expressions. */
#include <string.h>

#include "text/jinja_internal.h"

jv nb_j_lookup(jx *x, uint32_t sym)
{
    for (const jframe *f = x->frame; f; f = f->parent) {
        nb_j_charge(x, f->n / 16);
        for (size_t i = f->n; i-- > 0;)
            if (f->vars[i].sym == sym) return f->vars[i].value;
    }
    return x->globals[sym];
}

static jv eval_sequence(jx *x, const jnode *n)
{
    jv *items = nb_j_new(x, n->body.n, sizeof *items);
    if (!items) return nb_j_none();
    for (size_t i = 0; i < n->body.n && x->status == NB_OK; i++) items[i] = nb_j_eval(x, n->body.items[i]);
    return nb_j_seq(n->kind == JN_LIST ? J_LIST : J_TUPLE, items, n->body.n);
}

static jv eval_dict(jx *x, const jnode *n)
{
    jdict *d = nb_j_dict_new(x, n->body.n / 2);
    for (size_t i = 0; d && i < n->body.n && x->status == NB_OK; i += 2) {
        jv key = nb_j_eval(x, n->body.items[i]);
        nb_j_dict_put(x, d, key, nb_j_eval(x, n->body.items[i + 1]));
    }
    return d ? (jv){.type = J_DICT, .u.dict = d} : nb_j_none();
}

static jv eval_concat(jx *x, const jnode *n)
{
    jv all = nb_j_text(x, nb_j_eval(x, n->body.items[0]));
    for (size_t i = 1; i < n->body.n && x->status == NB_OK; i++)
        all = nb_j_concat(x, all, nb_j_text(x, nb_j_eval(x, n->body.items[i])));
    return all;
}

/* a < b < c: each operand once, and no further than the first that is false. */
static jv eval_compare(jx *x, const jnode *n)
{
    jv left = nb_j_eval(x, n->a), result = nb_j_bool(true);
    for (size_t i = 0; i < n->body.n && x->status == NB_OK; i++) {
        const jnode *o = n->body.items[i];
        jv right = nb_j_eval(x, o->a);
        x->line = n->line;
        result = nb_j_compare(x, (jop)o->op, left, right);
        if (!nb_j_truth(x, result)) break;
        left = right;
    }
    return result;
}

static jv eval_item(jx *x, const jnode *n)
{
    const jnode *s = n->b;
    jv of = nb_j_eval(x, n->a);
    if (s->kind != JN_SLICE) {
        jv key = nb_j_eval(x, s);
        x->line = n->line;
        return nb_j_item(x, of, key);
    }
    jv from = s->a ? nb_j_eval(x, s->a) : nb_j_none(), to = s->b ? nb_j_eval(x, s->b) : nb_j_none();
    jv step = s->c ? nb_j_eval(x, s->c) : nb_j_none();
    x->line = n->line;
    return nb_j_slice(x, of, from, to, step);
}

static jv eval_sign(jx *x, const jnode *n)
{
    jv v = nb_j_eval(x, n->a);
    if (v.type == J_FLOAT) return n->kind == JN_NEG ? nb_j_float(-v.u.f) : v;
    if (v.type == J_UNDEFINED) return nb_j_undefined_error(x, v);
    if (v.type != J_INT && v.type != J_BOOL)
        return J_ERROR(x, "bad operand type for unary %c: '%s'", n->kind == JN_NEG ? '-' : '+', nb_j_type(v));
    return nb_j_binary(x, n->kind == JN_NEG ? J_SUB : J_ADD, nb_j_int(0), v);
}

static jv eval_call(jx *x, const jnode *n)
{
    jcall c;
    jv callee = nb_j_eval(x, n->a);
    if (!nb_j_eval_args(x, n->args, &c)) return nb_j_none();
    x->line = n->line;
    return nb_j_call(x, callee, &c);
}

/* A filter or test with its arguments applied to a value. */
static jv apply(jx *x, const jnode *n, const char *what, jv self)
{
    static const jargs none;
    jcall c;
    if (!nb_j_eval_args(x, n->args ? n->args : &none, &c)) return nb_j_none();
    x->line = n->line;
    if (!n->builtin) {
        int len = (int)(n->value.n < 100 ? n->value.n : 100);
        return J_ERROR(x, "No %s named '%.*s' found.", what, len, n->value.u.s);
    }
    return nb_j_call_builtin(x, n->builtin, what, self, &c);
}

jv nb_j_run_filters(jx *x, const jnode *n, jv block)
{
    if (!nb_j_deeper(x)) return block;
    jv v = apply(x, n, "filter", n->a ? nb_j_run_filters(x, n->a, block) : block);
    x->depth--;
    return v;
}

jv nb_j_eval(jx *x, const jnode *n)
{
    jv v = {.type = J_UNDEFINED};
    if (!nb_j_deeper(x)) return v;
    x->line = n->line;
    switch ((jkind)n->kind) {
    case JN_CONST: v = n->value; break;
    case JN_NAME: v = nb_j_lookup(x, n->sym); break;
    case JN_LIST:
    case JN_TUPLE: v = eval_sequence(x, n); break;
    case JN_DICT: v = eval_dict(x, n); break;
    case JN_COND:
        if (nb_j_truth(x, nb_j_eval(x, n->a)))
            v = nb_j_eval(x, n->b);
        else if (n->c)
            v = nb_j_eval(x, n->c);
        else
            v = nb_j_undefined(JU_HINT, J_MISSING, "an if-expression is false and has no else", 41);
        break;
    case JN_OR:
        v = nb_j_eval(x, n->a);
        if (!nb_j_truth(x, v)) v = nb_j_eval(x, n->b);
        break;
    case JN_AND:
        v = nb_j_eval(x, n->a);
        if (nb_j_truth(x, v)) v = nb_j_eval(x, n->b);
        break;
    case JN_NOT: v = nb_j_bool(!nb_j_truth(x, nb_j_eval(x, n->a))); break;
    case JN_NEG:
    case JN_POS: v = eval_sign(x, n); break;
    case JN_BINARY: {
        jv a = nb_j_eval(x, n->a), b = nb_j_eval(x, n->b);
        x->line = n->line;
        v = nb_j_binary(x, (jop)n->op, a, b);
        break;
    }
    case JN_CONCAT: v = eval_concat(x, n); break;
    case JN_COMPARE: v = eval_compare(x, n); break;
    case JN_ATTR:
        v = nb_j_eval(x, n->a);
        x->line = n->line;
        v = nb_j_attr(x, v, n->value);
        break;
    case JN_ITEM: v = eval_item(x, n); break;
    case JN_CALL: v = eval_call(x, n); break;
    case JN_FILTER: v = apply(x, n, "filter", nb_j_eval(x, n->a)); break;
    case JN_TEST: v = apply(x, n, "test", nb_j_eval(x, n->a)); break;
    default:
        nb_j_raise(x, NB_ERR_UNSUPPORTED, "an expression of kind %d", n->kind); /* statements: not reached */
    }
    x->depth--;
    return x->status == NB_OK ? v : (jv){.type = J_UNDEFINED};
}
