/* Calls: arguments, built-ins with their parameters bound by place and name, macros. */
#include <string.h>

#include "base/mem.h"
#include "text/jinja_internal.h"

/* ---- arguments ---- */

/* Room for what * and ** add to what is written. */
static bool spread(jx *x, const jargs *a, jv *args, const jv **more, size_t *n_more, jdict **named)
{
    *n_more = 0;
    *named = NULL;
    if (a->star && !nb_j_elements(x, nb_j_eval(x, a->star), more, n_more)) return false;
    if (!a->starstar) return true;
    jv v = nb_j_eval(x, a->starstar);
    if (v.type != J_DICT)
        return J_ERROR(x, "argument after ** must be a mapping, not %s", nb_j_type(v)), false;
    *named = v.u.dict;
    return true;
}

bool nb_j_eval_args(jx *x, const jargs *a, jcall *out)
{
    const jv *more = &nb_j_missing;
    jdict *extra = NULL;
    size_t n_more = 0, n = a->args.n, n_named = a->named.n, total;
    *out = (jcall){.args = &nb_j_missing};
    if (!n && !n_named && !a->star && !a->starstar) return x->status == NB_OK;
    jv *args = nb_j_new(x, n + n_named, sizeof *args); /* evaluated in the order written */
    if (!args) return false;
    for (size_t i = 0; i < n; i++) args[i] = nb_j_eval(x, a->args.items[i]);
    for (size_t i = 0; i < n_named; i++) args[n + i] = nb_j_eval(x, a->named.items[i]);
    *out = (jcall){args, n, a->names, args + n, n_named};
    if (!a->star && !a->starstar) return x->status == NB_OK;
    if (!spread(x, a, args, &more, &n_more, &extra)) return false;
    size_t n_extra = extra ? extra->n : 0;
    if (!nb_add(n + n_more, 2 * (n_named + n_extra), &total) || !nb_j_charge(x, total)) return false;
    jv *all = nb_j_new(x, total, sizeof *all);
    if (!all) return false;
    jv *names = all + n + n_more, *values = names + n_named + n_extra;
    memcpy(all, args, n * sizeof *all);
    memcpy(all + n, more, n_more * sizeof *all);
    if (n_named) memcpy(names, a->names, n_named * sizeof *all);
    memcpy(values, args + n, n_named * sizeof *all);
    for (size_t i = 0; i < n_extra; i++) {
        if (extra->keys[i].type != J_STR) return J_ERROR(x, "keywords must be strings"), false;
        names[n_named + i] = extra->keys[i];
        values[n_named + i] = extra->values[i];
    }
    *out = (jcall){all, n + n_more, names, values, n_named + n_extra};
    return x->status == NB_OK;
}

/* ---- built-ins ---- */

/* The place of a parameter of this name in "a b? c?", or -1. */
static int place_of(const char *params, jv name)
{
    int i = 0;
    for (const char *p = params; *p; i++) {
        size_t n = strcspn(p, " ?");
        if (n == name.n && memcmp(p, name.u.s, n) == 0) return i;
        p += strcspn(p, " ");
        p += strspn(p, " ");
    }
    return -1;
}

jv nb_j_call_builtin(jx *x, const jbuiltin *f, const char *what, jv self, const jcall *c)
{
    jv a[J_MAX_PARAMS] = {{0}};
    size_t n = 0;
    if (x->status != NB_OK) return self;
    if (!f->fn) return nb_j_raise(x, NB_ERR_UNSUPPORTED, "%s '%s' is not in this build", what, f->name);
    if (strcmp(f->params, "*") == 0) return f->fn(x, self, a, c);
    for (const char *p = f->params; *p; n++) {
        p += strcspn(p, " ");
        p += strspn(p, " ");
    }
    if (c->n > n)
        return J_ERROR(x, "%s '%s' takes at most %zu argument%s, not %zu", what, f->name, n,
                       n == 1 ? "" : "s", c->n);
    for (size_t i = 0; i < c->n; i++) a[i] = c->args[i];
    for (size_t i = 0; i < c->n_named; i++) {
        int at = place_of(f->params, c->names[i]), len = (int)(c->names[i].n < 60 ? c->names[i].n : 60);
        if (at < 0) return J_ERROR(x, "%s '%s' has no argument '%.*s'", what, f->name, len, c->names[i].u.s);
        if (a[at].type != J_MISSING)
            return J_ERROR(x, "%s '%s' got argument '%.*s' twice", what, f->name, len, c->names[i].u.s);
        a[at] = c->values[i];
    }
    const char *p = f->params;
    for (size_t i = 0; i < n; i++) {
        size_t len = strcspn(p, " ?");
        if (a[i].type == J_MISSING && p[len] != '?')
            return J_ERROR(x, "%s '%s' needs argument '%.*s'", what, f->name, (int)len, p);
        p += strcspn(p, " ");
        p += strspn(p, " ");
    }
    return f->fn(x, self, a, c);
}

jv nb_j_call(jx *x, jv callee, const jcall *c)
{
    if (x->status != NB_OK) return callee;
    switch ((jtype)callee.type) {
    case J_UNDEFINED: return nb_j_undefined_error(x, callee);
    case J_FUNCTION: return nb_j_call_builtin(x, callee.u.fn->fn, "function", callee.u.fn->self, c);
    case J_MACRO: return nb_j_call_macro(x, callee.u.macro, c);
    case J_LOOP:
        if (c->n != 1 || c->n_named) return J_ERROR(x, "a loop is called with one argument");
        return nb_j_loop_again(x, callee.u.loop, c->args[0]);
    default: return J_ERROR(x, "'%s' object is not callable", nb_j_type(callee));
    }
}

/* ---- macros ---- */

/* Keyword arguments that no parameter took: for kwargs and caller, or one too many. */
static void rest_of_names(jx *x, const jnode *n, const jcall *c, const bool *used, jframe *f)
{
    jdict *d = n->op & JM_KWARGS ? nb_j_dict_new(x, 0) : NULL;
    bool caller = false;
    for (size_t i = 0; i < c->n_named && x->status == NB_OK; i++) {
        if (used[i]) continue;
        if (nb_j_equals_text(c->names[i], "caller") && (n->op & JM_CALLER)) {
            nb_j_bind(x, f, JS_CALLER, c->values[i]);
            caller = true;
        } else if (d) {
            nb_j_dict_put(x, d, c->names[i], c->values[i]);
        } else {
            J_ERROR(x, "macro '%.*s' takes no keyword argument '%.*s'", (int)x->t->names[n->sym].n,
                    x->t->names[n->sym].u.s, (int)(c->names[i].n < 60 ? c->names[i].n : 60), c->names[i].u.s);
        }
    }
    if (n->op & JM_CALLER && !caller)
        nb_j_bind(x, f, JS_CALLER, nb_j_undefined(JU_HINT, J_MISSING, "No caller defined", 17));
    if (d) nb_j_bind(x, f, JS_KWARGS, (jv){.type = J_DICT, .u.dict = d});
}

/* Binds the parameters of macro n in frame f. A default sees the parameters before it. */
static void bind_params(jx *x, const jnode *n, const jcall *c, jframe *f)
{
    bool *used = nb_j_new(x, c->n_named, sizeof *used);
    if (!used) return;
    size_t first_default = n->n_params - n->orelse.n;
    for (size_t i = 0; i < n->n_params && nb_j_charge(x, 1 + c->n_named / 4); i++) {
        jv name = x->t->names[n->params[i]];
        jv v = i < c->n ? c->args[i] : nb_j_undefined(JU_HINT, J_MISSING, "parameter was not provided", 26);
        bool given = i < c->n;
        for (size_t k = 0; k < c->n_named; k++) {
            if (c->names[k].n != name.n || memcmp(c->names[k].u.s, name.u.s, name.n) != 0) continue;
            if (given) {
                J_ERROR(x, "a macro got argument '%.*s' twice", (int)(name.n < 60 ? name.n : 60), name.u.s);
                return;
            }
            used[k] = given = true;
            v = c->values[k];
        }
        if (!given && i >= first_default) v = nb_j_eval(x, n->orelse.items[i - first_default]);
        nb_j_bind(x, f, n->params[i], v);
    }
    size_t extra = c->n > n->n_params ? c->n - n->n_params : 0;
    if (extra && !(n->op & JM_VARARGS)) {
        J_ERROR(x, "macro '%.*s' takes not more than %zu argument(s)", (int)x->t->names[n->sym].n,
                x->t->names[n->sym].u.s, n->n_params);
        return;
    }
    if (n->op & JM_VARARGS) nb_j_bind(x, f, JS_VARARGS, nb_j_seq(J_TUPLE, c->args + c->n - extra, extra));
    rest_of_names(x, n, c, used, f);
}

jv nb_j_call_macro(jx *x, const jmacro *m, const jcall *c)
{
    jframe *caller = x->frame, *f = nb_j_frame(x, m->scope);
    jv text = nb_j_str("", 0);
    if (!f) return text;
    x->frame = f; /* defaults see what the macro sees */
    bind_params(x, m->node, c, f);
    if (x->status == NB_OK) text = nb_j_capture(x, &m->node->body, f);
    x->frame = caller;
    return text;
}
