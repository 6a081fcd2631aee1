/* Statements and scopes. A scope is a frame of variables; a loop's body has one, renewed at each turn, so that what is set in
 * a loop is gone after it (namespaces are for what should stay). */
#include <string.h>

#include "text/jinja_internal.h"

jframe *nb_j_frame(jx *x, jframe *parent)
{
    jframe *f = nb_j_new(x, 1, sizeof *f);
    if (f) f->parent = parent;
    return f;
}

void nb_j_bind(jx *x, jframe *f, uint32_t sym, jv value)
{
    if (!nb_j_charge(x, f->n / 16)) return;
    for (size_t i = 0; i < f->n; i++) {
        if (f->vars[i].sym != sym) continue;
        f->vars[i].value = value;
        return;
    }
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 4;
        jvar *vars = nb_j_new(x, cap, sizeof *vars);
        if (!vars) return;
        if (f->n) memcpy(vars, f->vars, f->n * sizeof *vars);
        f->vars = vars;
        f->cap = cap;
    }
    f->vars[f->n++] = (jvar){sym, value};
}

/* Assigns to a name, a tuple of targets or a namespace's attribute. */
static void assign(jx *x, jframe *f, const jnode *target, jv value)
{
    const jv *items;
    size_t n;
    if (!nb_j_deeper(x)) return;
    if (target->kind == JN_NAME) {
        nb_j_bind(x, f, target->sym, value);
    } else if (target->kind == JN_NSREF) {
        jv ns = nb_j_lookup(x, target->sym);
        if (ns.type != J_NAMESPACE)
            J_ERROR(x, "cannot assign attribute on non-namespace object");
        else if (target->value.u.s[0] == '_')
            J_ERROR(x, "a namespace cannot hold attributes that begin with an underscore");
        else
            nb_j_dict_put(x, ns.u.dict, target->value, value);
    } else if (nb_j_elements(x, value, &items, &n)) {
        if (n > target->body.n)
            J_ERROR(x, "too many values to unpack (expected %zu)", target->body.n);
        else if (n < target->body.n)
            J_ERROR(x, "not enough values to unpack (expected %zu, got %zu)", target->body.n, n);
        for (size_t i = 0; i < n && x->status == NB_OK; i++) assign(x, f, target->body.items[i], items[i]);
    }
    x->depth--;
}

jv nb_j_capture(jx *x, const jblock *b, jframe *f)
{
    nb_buf text = {0}, *out = x->out;
    jframe *frame = x->frame;
    x->out = &text;
    x->frame = f;
    nb_j_exec(x, b);
    x->out = out;
    x->frame = frame;
    return nb_j_take(x, &text);
}

/* ---- loops ---- */

/* The elements that the loop's condition keeps. */
static bool filter_items(jx *x, const jnode *n, const jv **items, size_t *count)
{
    jframe *outer = x->frame, *f = nb_j_frame(x, outer);
    jv *kept = nb_j_new(x, *count, sizeof *kept);
    size_t k = 0;
    if (!f || !kept) return false;
    x->frame = f;
    for (size_t i = 0; i < *count && x->status == NB_OK; i++) {
        f->n = 0;
        assign(x, f, n->a, (*items)[i]);
        if (nb_j_truth(x, nb_j_eval(x, n->c))) kept[k++] = (*items)[i];
    }
    x->frame = outer;
    *items = kept;
    *count = k;
    return x->status == NB_OK;
}

static jflow run_loop(jx *x, const jnode *n, jv over, jframe *outer, size_t depth)
{
    const jv *items;
    size_t count;
    jflow flow = JF_NEXT;
    jframe *before = x->frame;
    x->frame = outer;
    if (!nb_j_elements(x, over, &items, &count) || (n->c && !filter_items(x, n, &items, &count))) goto out;
    jframe *f = nb_j_frame(x, outer);
    jloop *l = f ? nb_j_new(x, 1, sizeof *l) : NULL;
    if (!l) goto out;
    *l = (jloop){.items = items, .n = count, .depth = depth, .recursive = n->op, .node = n, .outer = outer};
    x->frame = f;
    for (; l->index0 < count && nb_j_charge(x, 1); l->index0++) {
        f->n = 0;
        nb_j_bind(x, f, JS_LOOP, (jv){.type = J_LOOP, .u.loop = l});
        assign(x, f, n->a, items[l->index0]);
        if (nb_j_exec(x, &n->body) == JF_BREAK) break;
    }
    if (!count && n->orelse.n) {
        f->n = 0;
        flow = nb_j_exec(x, &n->orelse);
    }
out:
    x->frame = before;
    return flow;
}

jv nb_j_loop_again(jx *x, const jloop *l, jv items)
{
    nb_buf text = {0}, *out = x->out;
    if (!l->recursive)
        return J_ERROR(x, "The loop must have the 'recursive' marker to be called recursively.");
    if (!nb_j_deeper(x)) return items;
    x->out = &text;
    run_loop(x, l->node, items, l->outer, l->depth + 1);
    x->out = out;
    x->depth--;
    return nb_j_take(x, &text);
}

/* ---- statements ---- */

static jv new_macro(jx *x, const jnode *n)
{
    jmacro *m = nb_j_new(x, 1, sizeof *m);
    if (!m) return nb_j_none();
    m->node = n;
    m->scope = x->frame;
    return (jv){.type = J_MACRO, .u.macro = m};
}

/* {% call %}: the call gets the block as a macro, under the name caller. */
static void call_block(jx *x, const jnode *n)
{
    jcall c;
    jv callee = nb_j_eval(x, n->a->a);
    if (!nb_j_eval_args(x, n->a->args, &c)) return;
    jv *both = nb_j_new(x, 2 * (c.n_named + 1), sizeof *both), *values;
    if (!both) return;
    values = both + c.n_named + 1;
    if (c.n_named) memcpy(both, c.names, c.n_named * sizeof *both);
    if (c.n_named) memcpy(values, c.values, c.n_named * sizeof *both);
    both[c.n_named] = nb_j_str("caller", 6);
    values[c.n_named] = new_macro(x, n);
    c.names = both;
    c.values = values;
    c.n_named++;
    x->line = n->line;
    nb_j_write(x, x->out, nb_j_call(x, callee, &c));
}

static void set_block(jx *x, const jnode *n)
{
    jframe *f = nb_j_frame(x, x->frame);
    if (!f) return;
    jv text = nb_j_capture(x, &n->body, f);
    if (n->b) text = nb_j_run_filters(x, n->b, text);
    assign(x, x->frame, n->a, text);
}

/* A body in a scope of its own; of {% with %} with its variables. */
static jflow scoped(jx *x, const jnode *n)
{
    jframe *outer = x->frame, *f = nb_j_frame(x, outer);
    jflow flow = JF_NEXT;
    if (!f) return flow;
    for (size_t i = 0; i < n->n_params; i++) /* they do not see each other */
        nb_j_bind(x, f, n->params[i], nb_j_eval(x, n->orelse.items[i]));
    x->frame = f;
    if (x->status == NB_OK) flow = nb_j_exec(x, &n->body);
    x->frame = outer;
    return flow;
}

static jflow exec_if(jx *x, const jnode *n)
{
    while (!nb_j_truth(x, nb_j_eval(x, n->a))) {
        if (n->orelse.n != 1 || n->orelse.items[0]->kind != JN_IF || x->status != NB_OK)
            return x->status == NB_OK ? nb_j_exec(x, &n->orelse) : JF_NEXT;
        n = n->orelse.items[0]; /* elif */
    }
    return nb_j_exec(x, &n->body);
}

static jflow exec_one(jx *x, const jnode *n)
{
    x->line = n->line;
    switch ((jkind)n->kind) {
    case JN_DATA: nb_j_emit(x, x->out, n->value.u.s, n->value.n); break;
    case JN_PRINT: {
        jv v = nb_j_eval(x, n->a);
        if (x->status == NB_OK) nb_j_write(x, x->out, v);
        break;
    }
    case JN_SET: assign(x, x->frame, n->a, nb_j_eval(x, n->b)); break;
    case JN_SET_BLOCK: set_block(x, n); break;
    case JN_FOR: return run_loop(x, n, nb_j_eval(x, n->b), x->frame, 0);
    case JN_IF: return exec_if(x, n);
    case JN_MACRO: nb_j_bind(x, x->frame, n->sym, new_macro(x, n)); break;
    case JN_CALL_BLOCK: call_block(x, n); break;
    case JN_FILTER_BLOCK: {
        jframe *f = nb_j_frame(x, x->frame);
        jv text = f ? nb_j_capture(x, &n->body, f) : nb_j_none();
        nb_j_write(x, x->out, nb_j_run_filters(x, n->b, text));
        break;
    }
    case JN_WITH:
    case JN_SCOPE: return scoped(x, n);
    case JN_BREAK: return JF_BREAK;
    case JN_CONTINUE: return JF_CONTINUE;
    default: break; /* expressions: the parser puts none here */
    }
    return JF_NEXT;
}

jflow nb_j_exec(jx *x, const jblock *b)
{
    jflow flow = JF_NEXT;
    if (!nb_j_deeper(x)) return flow;
    for (size_t i = 0; i < b->n && flow == JF_NEXT && nb_j_charge(x, 1); i++) flow = exec_one(x, b->items[i]);
    x->depth--;
    return flow;
}
