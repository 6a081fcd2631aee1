/* Jinja templates: the public functions, the arena that trees and values live in, and what can be said of a template without
 * running it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/jinja_internal.h"

/* ---- arena ---- */

typedef struct jchunk {
    struct jchunk *before;
    max_align_t data[];
} jchunk;

void *nb_j_alloc(jarena *a, size_t n)
{
    size_t size;
    if (n > a->most) return NULL;
    n = nb_round_up(n, sizeof(max_align_t));
    if (!a->chunks || n > a->cap - a->used) {
        size_t cap = a->total < 4096 ? 4096 : a->total < (1 << 20) ? a->total : (1 << 20);
        if (cap < n) cap = n;
        if (cap > a->most - a->total) cap = a->most - a->total;
        if (cap < n) return NULL;
        if (!nb_add(cap, sizeof(jchunk), &size)) return NULL;
        jchunk *c = malloc(size);
        if (!c) {
            a->nomem = true;
            return NULL;
        }
        c->before = a->chunks;
        a->chunks = c;
        a->total += cap;
        a->cap = cap;
        a->used = 0;
    }
    void *p = (char *)a->chunks->data + a->used;
    a->used += n;
    return memset(p, 0, n);
}

void nb_j_arena_free(jarena *a)
{
    for (jchunk *c = a->chunks; c;) {
        jchunk *before = c->before;
        free(c);
        c = before;
    }
    *a = (jarena){0};
}

/* ---- parsing ---- */

/* Line ends become \n, and one at the end goes, as Jinja has it. */
static nb_status copy_text(nb_jinja *t, const char *text, size_t n, nb_error *err)
{
    uint32_t cp;
    for (size_t i = 0, w; i < n; i += w) {
        if ((w = nb_utf8_decode(text + i, n - i, &cp))) continue;
        nb_fail(err, NB_ERR_FORMAT, "the template is not UTF-8");
        nb_error_at(err, NULL, NULL, (int64_t)i);
        return NB_ERR_FORMAT;
    }
    t->text = malloc(n + 1);
    if (!t->text) return nb_fail_nomem(err, "a chat template", n);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') i++;
        t->text[t->n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (t->n && t->text[t->n - 1] == '\n') t->n--;
    t->text[t->n] = '\0';
    return NB_OK;
}

/* A byte of the copy is one of the original further on, where \r\n became \n. */
static int64_t original_byte(const char *text, size_t n, int64_t at)
{
    size_t i = 0;
    for (int64_t k = 0; k < at && i < n; k++, i++)
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') i++;
    return (int64_t)i;
}

nb_status nb_jinja_parse(const char *text, size_t n, nb_jinja **out, nb_error *err)
{
    nb_error local = {.offset = -1};
    if (!err) err = &local;
    nb_jinja *t = calloc(1, sizeof *t);
    if (!t) return nb_fail_nomem(err, "a chat template", sizeof *t);
    t->arena.most = (size_t)256 << 20;
    nb_status s = copy_text(t, text, n, err);
    if (s == NB_OK) {
        static const char *const fixed[JS_FIXED] = {"loop", "caller", "varargs", "kwargs"};
        jparser p = {.t = t,
                     .lex = {.arena = &t->arena,
                             .text = t->text,
                             .n = t->n,
                             .line = 1,
                             .line_starting = true,
                             .err = err}};
        for (int i = 0; i < JS_FIXED; i++) nb_j_symbol(&p, fixed[i], strlen(fixed[i]));
        nb_j_advance(&p);
        nb_j_advance(&p);
        t->body = nb_j_parse_template(&p);
        s = p.lex.status;
        if (s == NB_ERR_FORMAT) err->offset = original_byte(text, n, err->offset);
    }
    if (s == NB_OK)
        *out = t;
    else
        nb_jinja_free(t);
    return s;
}

void nb_jinja_free(nb_jinja *t)
{
    if (!t) return;
    nb_map_free(&t->symbols);
    nb_j_arena_free(&t->arena);
    free(t->text);
    free(t);
}

/* ---- rendering ---- */

static void set_globals(jx *x, const json_t *variables)
{
    const nb_jinja *t = x->t;
    const char *key;
    json_t *v;
    uint32_t sym;
    if (!(x->globals = nb_j_new(x, t->n_symbols, sizeof *x->globals))) return;
    for (size_t i = 0; i < t->n_symbols; i++) {
        jv name = t->names[i];
        const jbuiltin *f = nb_j_global(name.u.s, name.n);
        x->globals[i] = nb_j_undefined(JU_NAME, J_MISSING, name.u.s, name.n);
        if (!f) continue;
        jbound *b = nb_j_new(x, 1, sizeof *b);
        if (!b) return;
        b->fn = f;
        x->globals[i] = (jv){.type = J_FUNCTION, .u.fn = b};
    }
    json_object_foreach((json_t *)variables, key, v)
    {
        if (nb_map_get(&t->symbols, key, strlen(key), &sym)) x->globals[sym] = nb_j_from_json(x, v);
    }
}

nb_status nb_jinja_render(const nb_jinja *t, const json_t *variables, int64_t now, nb_jinja_limits limits,
                          nb_buf *out, nb_error *err)
{
    nb_error local = {.offset = -1};
    size_t before = out->len;
    jx x = {.t = t,
            .arena = {.most = limits.memory},
            .limits = limits,
            .line = 1,
            .now = now,
            .seed = (uint64_t)(uintptr_t)t,
            .out = out,
            .err = err ? err : &local};
    set_globals(&x, variables);
    x.frame = nb_j_frame(&x, NULL);
    if (x.frame) nb_j_exec(&x, &t->body);
    nb_j_arena_free(&x.arena);
    if (x.status != NB_OK && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    return x.status;
}

jv nb_j_raise(jx *x, nb_status status, const char *fmt, ...)
{
    if (x->status != NB_OK) return (jv){.type = J_UNDEFINED};
    va_list ap;
    char text[sizeof x->err->cause];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    x->status = nb_fail(x->err, status, "line %u of the template: %.480s", x->line, text);
    return (jv){.type = J_UNDEFINED};
}

bool nb_j_charge(jx *x, size_t steps)
{
    if (x->status != NB_OK) return false;
    if (steps > x->limits.steps - x->steps) {
        nb_j_raise(x, NB_ERR_LIMIT, "the template takes more than %zu steps", x->limits.steps);
        return false;
    }
    x->steps += steps;
    return true;
}

bool nb_j_deeper(jx *x)
{
    if (!nb_j_charge(x, 1)) return false;
    if (x->depth >= J_MAX_DEPTH) {
        nb_j_raise(x, NB_ERR_LIMIT, "calls and values nest too deeply");
        return false;
    }
    x->depth++;
    return true;
}

void *nb_j_new(jx *x, size_t count, size_t size)
{
    size_t n;
    if (x->status != NB_OK) return NULL;
    void *p = nb_mul(count, size, &n) ? nb_j_alloc(&x->arena, n) : NULL;
    if (p) return p;
    if (x->arena.nomem)
        x->status = nb_fail_nomem(x->err, "a chat template's values", x->arena.total);
    else
        nb_j_raise(x, NB_ERR_LIMIT, "the template's values take more than %zu bytes", x->limits.memory);
    return NULL;
}

void nb_j_emit(jx *x, nb_buf *b, const char *s, size_t n)
{
    if (!nb_j_charge(x, n / 16)) return;
    if (n > x->limits.output - b->len || n > x->limits.memory - x->emitted) {
        nb_j_raise(x, NB_ERR_LIMIT, "the template makes more than %zu bytes of text",
                   n > x->limits.output - b->len ? x->limits.output : x->limits.memory);
        return;
    }
    x->emitted += n;
    nb_buf_add(b, s, n);
    if (!nb_buf_ok(b)) x->status = nb_fail_nomem(x->err, "a chat template's text", b->len + n);
}

void nb_j_emits(jx *x, nb_buf *b, const char *s)
{
    nb_j_emit(x, b, s, strlen(s));
}

jv nb_j_take(jx *x, nb_buf *b)
{
    char *s = nb_j_new(x, b->len ? b->len : 1, 1);
    jv v = nb_j_str("", 0);
    if (s && b->len) {
        memcpy(s, b->data, b->len);
        v = nb_j_str(s, b->len);
    }
    nb_buf_free(b);
    return v;
}

/* ---- questions about a template ---- */

bool nb_jinja_uses(const nb_jinja *t, const char *name)
{
    uint32_t sym;
    return nb_map_get(&t->symbols, name, strlen(name), &sym) && t->read[sym];
}

/* Walks over every node; stops when look says so, and where a tree is deeper than anyone writes. */
typedef struct walker {
    bool (*look)(const jnode *n, void *ctx);
    void *ctx;
    unsigned depth;
} walker;

static bool walk(walker *w, const jnode *n);

static bool walk_block(walker *w, const jblock *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (walk(w, b->items[i])) return true;
    return false;
}

static bool walk(walker *w, const jnode *n)
{
    if (!n || w->depth > 4096) return false;
    w->depth++;
    bool stop = w->look(n, w->ctx) || walk(w, n->a) || walk(w, n->b) || walk(w, n->c) ||
                walk_block(w, &n->body) || walk_block(w, &n->orelse) ||
                (n->args && (walk_block(w, &n->args->args) || walk_block(w, &n->args->named) ||
                             walk(w, n->args->star) || walk(w, n->args->starstar)));
    w->depth--;
    return stop;
}

/* What the variables of a template stand for, by symbol. */
enum { MESSAGES = 1, MESSAGE = 2, CONTENT = 4 };
typedef struct kinds {
    const nb_jinja *t;
    uint8_t *of;          /* [n_symbols] */
    const jnode **macros; /* [n_symbols] by name */
    bool changed, parts, odd;
} kinds;

/* The variable that n is, through filters, tests and slices; with a member's name, the variable whose member it is. */
static bool is_var(const kinds *k, const jnode *n, uint8_t kind, const char *member)
{
    for (;;) {
        if (n->kind == JN_FILTER || n->kind == JN_TEST || (n->kind == JN_ITEM && n->b->kind == JN_SLICE)) {
            if (!(n = n->a)) return false;
            continue;
        }
        break;
    }
    if (member) {
        const jv *name = n->kind == JN_ATTR                             ? &n->value
                         : n->kind == JN_ITEM && n->b->kind == JN_CONST ? &n->b->value
                                                                        : NULL;
        if (!name || !nb_j_equals_text(*name, member)) return false;
        n = n->a;
    }
    return n->kind == JN_NAME && (k->of[n->sym] & kind);
}

/* A target that gets what stands for `kind`. vLLM gives up at anything but a name. */
static void learn(kinds *k, const jnode *target, uint8_t kind)
{
    if (target->kind != JN_NAME) {
        k->odd = true;
    } else if (!(k->of[target->sym] & kind)) {
        k->of[target->sym] |= kind;
        k->changed = true;
    }
}

static bool look_messages(const jnode *n, void *ctx)
{
    kinds *k = ctx;
    if (n->kind == JN_SET && is_var(k, n->b, MESSAGES, NULL)) learn(k, n->a, MESSAGES);
    return k->odd;
}

static bool look_loops(const jnode *n, void *ctx)
{
    kinds *k = ctx;
    if (n->kind == JN_FOR && is_var(k, n->b, MESSAGES, NULL)) learn(k, n->a, MESSAGE);
    return k->odd;
}

static bool look_macros(const jnode *n, void *ctx)
{
    kinds *k = ctx;
    if (n->kind == JN_MACRO) k->macros[n->sym] = n;
    return false;
}

/* A macro's parameter that is given a message's content stands for it. */
static bool look_calls(const jnode *n, void *ctx)
{
    kinds *k = ctx;
    const jnode *m = n->kind == JN_CALL && n->a->kind == JN_NAME ? k->macros[n->a->sym] : NULL;
    for (size_t i = 0; m && i < n->args->args.n && i < m->n_params; i++)
        if (is_var(k, n->args->args.items[i], MESSAGE, "content")) k->of[m->params[i]] |= CONTENT;
    return false;
}

static bool look_content(const jnode *n, void *ctx)
{
    kinds *k = ctx;
    if (n->kind != JN_FOR || !(is_var(k, n->b, MESSAGE, "content") || is_var(k, n->b, CONTENT, NULL)))
        return false;
    k->parts = n->a->kind == JN_NAME;
    return true;
}

nb_status nb_jinja_wants_parts(const nb_jinja *t, bool *parts, nb_error *err)
{
    uint32_t sym;
    kinds k = {.t = t};
    nb_status s = NB_OK;
    *parts = false;
    if (!nb_map_get(&t->symbols, "messages", 8, &sym)) return NB_OK;
    k.of = calloc(t->n_symbols, sizeof *k.of);
    k.macros = calloc(t->n_symbols, sizeof *k.macros);
    if (!k.of || !k.macros) {
        s = nb_fail_nomem(err, "a chat template", t->n_symbols * sizeof *k.macros);
        goto out;
    }
    k.of[sym] = MESSAGES;
    bool (*const looks[])(const jnode *, void *) = {look_loops, look_macros, look_calls, look_content};
    k.changed = true;
    for (int i = 0; i < 64 && k.changed && !k.odd; i++) { /* a = messages; b = a; c = b ... in any order */
        k.changed = false;
        walk_block(&(walker){.look = look_messages, .ctx = &k}, &t->body);
    }
    for (size_t i = 0; i < sizeof looks / sizeof *looks && !k.odd; i++)
        walk_block(&(walker){.look = looks[i], .ctx = &k}, &t->body);
out:
    free(k.of);
    free(k.macros);
    *parts = k.parts;
    return s;
}
