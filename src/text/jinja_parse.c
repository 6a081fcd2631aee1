/* Expressions: tokens -> tree. The grammar and its precedences are jinja2/parser.py's (3.1.6). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_internal.h"

/* ---- tokens ---- */

void nb_j_advance(jparser *p)
{
    p->now = p->next;
    p->next = nb_j_lex(&p->lex);
}

bool nb_j_fail(jparser *p, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    nb_j_lex_fail(&p->lex, p->now.at, p->now.line, "%s", text);
    return false;
}

bool nb_j_skip(jparser *p, jtok kind)
{
    if (p->now.kind != kind) return false;
    nb_j_advance(p);
    return true;
}

static const char *token_name(jtok kind)
{
    static const char *const names[] = {
        [JT_EOF] = "end of template",
        [JT_DATA] = "text",
        [JT_PRINT_BEGIN] = "'{{'",
        [JT_PRINT_END] = "'}}'",
        [JT_BLOCK_BEGIN] = "'{%'",
        [JT_BLOCK_END] = "'%}'",
        [JT_NAME] = "a name",
        [JT_STRING] = "a string",
        [JT_INT] = "a number",
        [JT_FLOAT] = "a number",
        [JT_ADD] = "'+'",
        [JT_SUB] = "'-'",
        [JT_DIV] = "'/'",
        [JT_FLOORDIV] = "'//'",
        [JT_MUL] = "'*'",
        [JT_MOD] = "'%'",
        [JT_POW] = "'**'",
        [JT_TILDE] = "'~'",
        [JT_LBRACKET] = "'['",
        [JT_RBRACKET] = "']'",
        [JT_LPAREN] = "'('",
        [JT_RPAREN] = "')'",
        [JT_LBRACE] = "'{'",
        [JT_RBRACE] = "'}'",
        [JT_EQ] = "'=='",
        [JT_NE] = "'!='",
        [JT_GT] = "'>'",
        [JT_GE] = "'>='",
        [JT_LT] = "'<'",
        [JT_LE] = "'<='",
        [JT_ASSIGN] = "'='",
        [JT_DOT] = "'.'",
        [JT_COLON] = "':'",
        [JT_PIPE] = "'|'",
        [JT_COMMA] = "','",
        [JT_SEMICOLON] = "';'",
    };
    return names[kind];
}

bool nb_j_expect(jparser *p, jtok kind)
{
    if (nb_j_skip(p, kind)) return true;
    return nb_j_fail(p, "expected %s, got %s", token_name(kind), token_name(p->now.kind));
}

static bool is_word(const jtoken *t, const char *w)
{
    return t->kind == JT_NAME && t->n == strlen(w) && memcmp(t->s, w, t->n) == 0;
}

bool nb_j_word(const jparser *p, const char *w)
{
    return is_word(&p->now, w);
}

bool nb_j_skip_word(jparser *p, const char *w)
{
    if (!nb_j_word(p, w)) return false;
    nb_j_advance(p);
    return true;
}

bool nb_j_enter(jparser *p)
{
    if (p->lex.status != NB_OK) return false;
    if (p->depth >= J_MAX_NESTING) return nb_j_fail(p, "the template nests too deeply");
    p->depth++;
    return true;
}

/* ---- nodes ---- */

static void *get(jparser *p, size_t n)
{
    return nb_j_lex_memory(&p->lex, n);
}

jnode *nb_j_node(jparser *p, jkind kind)
{
    jnode *n = get(p, sizeof *n);
    if (!n) return NULL;
    n->kind = (uint8_t)kind;
    n->line = p->now.line;
    return n;
}

bool nb_j_push(jparser *p, jblock *b, size_t *cap, jnode *n)
{
    if (!n) return false;
    if (b->n == *cap) {
        size_t more = *cap ? *cap * 2 : 4;
        jnode **items = get(p, more * sizeof *items);
        if (!items) return false;
        if (b->n) memcpy(items, b->items, b->n * sizeof *items);
        b->items = items;
        *cap = more;
    }
    b->items[b->n++] = n;
    return true;
}

uint32_t nb_j_symbol(jparser *p, const char *s, size_t n)
{
    nb_jinja *t = p->t;
    uint32_t sym = 0;
    if (nb_map_get(&t->symbols, s, n, &sym) || p->lex.status != NB_OK) return sym;
    if (t->n_symbols == t->symbols_cap) {
        size_t cap = t->symbols_cap ? t->symbols_cap * 2 : 32;
        jv *names = get(p, cap * sizeof *names);
        bool *read = get(p, cap * sizeof *read);
        if (!names || !read) return 0;
        if (t->n_symbols) {
            memcpy(names, t->names, t->n_symbols * sizeof *names);
            memcpy(read, t->read, t->n_symbols * sizeof *read);
        }
        t->names = names;
        t->read = read;
        t->symbols_cap = cap;
    }
    sym = (uint32_t)t->n_symbols;
    if (!nb_map_put(&t->symbols, s, n, sym, NULL)) {
        p->lex.status = nb_fail_nomem(p->lex.err, "a chat template", n);
        return 0;
    }
    t->names[t->n_symbols++] = nb_j_str(s, n);
    return sym;
}

static jnode *with_children(jparser *p, jkind kind, uint32_t line, jnode *a, jnode *b)
{
    jnode *n = a ? nb_j_node(p, kind) : NULL;
    if (!n) return NULL;
    n->line = line;
    n->a = a;
    n->b = b;
    return n;
}

/* ---- primaries ---- */

static jnode *constant(jparser *p, jv v)
{
    jnode *n = nb_j_node(p, JN_CONST);
    if (n) n->value = v;
    return n;
}

static jnode *name(jparser *p)
{
    if (nb_j_word(p, "true") || nb_j_word(p, "True")) return constant(p, nb_j_bool(true));
    if (nb_j_word(p, "false") || nb_j_word(p, "False")) return constant(p, nb_j_bool(false));
    if (nb_j_word(p, "none") || nb_j_word(p, "None")) return constant(p, nb_j_none());
    jnode *n = nb_j_node(p, JN_NAME);
    if (!n) return NULL;
    n->sym = nb_j_symbol(p, p->now.s, p->now.n);
    p->t->read[n->sym] = true;
    if (n->sym == JS_CALLER) p->macro_reads |= JM_CALLER;
    if (n->sym == JS_VARARGS) p->macro_reads |= JM_VARARGS;
    if (n->sym == JS_KWARGS) p->macro_reads |= JM_KWARGS;
    return n;
}

/* "a" "b" is one string. */
static jnode *strings(jparser *p)
{
    jnode *n = constant(p, p->now.value);
    nb_j_advance(p);
    while (n && p->now.kind == JT_STRING) {
        jv more = p->now.value;
        char *s = get(p, n->value.n + more.n);
        if (!s) return NULL;
        memcpy(s, n->value.u.s, n->value.n);
        memcpy(s + n->value.n, more.u.s, more.n);
        n->value = nb_j_str(s, n->value.n + more.n);
        nb_j_advance(p);
    }
    return n;
}

/* The elements of a list or dict up to its closing bracket. */
static jnode *elements(jparser *p, jkind kind, jtok close)
{
    jnode *n = nb_j_node(p, kind);
    size_t cap = 0;
    nb_j_advance(p);
    while (n && p->now.kind != close) {
        if (n->body.n && !nb_j_expect(p, JT_COMMA)) return NULL;
        if (p->now.kind == close) break;
        if (!nb_j_push(p, &n->body, &cap, nb_j_parse_expression(p, true))) return NULL;
        if (kind == JN_LIST) continue;
        if (!nb_j_expect(p, JT_COLON) || !nb_j_push(p, &n->body, &cap, nb_j_parse_expression(p, true)))
            return NULL;
    }
    return n && nb_j_expect(p, close) ? n : NULL;
}

jnode *nb_j_parse_primary(jparser *p)
{
    jnode *n = NULL;
    switch (p->now.kind) {
    case JT_NAME:
        n = name(p);
        nb_j_advance(p);
        return n;
    case JT_STRING: return strings(p);
    case JT_INT:
    case JT_FLOAT:
        n = constant(p, p->now.value);
        nb_j_advance(p);
        return n;
    case JT_LPAREN: {
        uint32_t line = p->now.line;
        nb_j_advance(p);
        if (p->now.kind == JT_RPAREN) {
            n = nb_j_node(p, JN_TUPLE);
            if (n) n->line = line;
        } else {
            n = nb_j_parse_tuple(p, true, NULL);
        }
        return n && nb_j_expect(p, JT_RPAREN) ? n : NULL;
    }
    case JT_LBRACKET: return elements(p, JN_LIST, JT_RBRACKET);
    case JT_LBRACE: return elements(p, JN_DICT, JT_RBRACE);
    default: nb_j_fail(p, "expected an expression, got %s", token_name(p->now.kind)); return NULL;
    }
}

jnode *nb_j_parse_tuple(jparser *p, bool with_cond, const char *stop)
{
    jnode *first = NULL, *n = NULL;
    size_t cap = 0;
    uint32_t line = p->now.line;
    for (;;) {
        bool end = p->now.kind == JT_PRINT_END || p->now.kind == JT_BLOCK_END || p->now.kind == JT_RPAREN ||
                   (stop && nb_j_word(p, stop));
        if (end && n) break;
        jnode *e = nb_j_parse_expression(p, with_cond);
        if (!e) return NULL;
        if (!first) first = e;
        if (n && !nb_j_push(p, &n->body, &cap, e)) return NULL;
        if (p->now.kind != JT_COMMA) break;
        if (!n && (!(n = nb_j_node(p, JN_TUPLE)) || !nb_j_push(p, &n->body, &cap, first))) return NULL;
        n->line = line;
        nb_j_advance(p);
    }
    return n ? n : first;
}

/* ---- postfix: members, items, calls, filters, tests ---- */

static jargs *call_args(jparser *p)
{
    jargs *a = get(p, sizeof *a);
    size_t cap = 0, named_cap = 0, names_cap = 0;
    if (!a || !nb_j_expect(p, JT_LPAREN)) return NULL;
    for (bool any = false; p->now.kind != JT_RPAREN; any = true) {
        if (any && !nb_j_expect(p, JT_COMMA)) return NULL;
        if (p->now.kind == JT_RPAREN) break;
        bool pair = p->now.kind == JT_NAME && p->next.kind == JT_ASSIGN;
        bool star = p->now.kind == JT_MUL, starstar = p->now.kind == JT_POW;
        if (a->starstar || (star && a->star) || (!pair && !star && !starstar && (a->star || a->named.n))) {
            nb_j_fail(p, "arguments out of order");
            return NULL;
        }
        if (star || starstar) {
            nb_j_advance(p);
            jnode *e = nb_j_parse_expression(p, true);
            if (!e) return NULL;
            *(star ? &a->star : &a->starstar) = e;
        } else if (pair) {
            jv key = nb_j_str(p->now.s, p->now.n);
            nb_j_advance(p);
            nb_j_advance(p);
            if (!nb_j_push(p, &a->named, &named_cap, nb_j_parse_expression(p, true))) return NULL;
            if (named_cap != names_cap) {
                jv *names = get(p, named_cap * sizeof *names);
                if (!names) return NULL;
                if (names_cap) memcpy(names, a->names, names_cap * sizeof *names);
                a->names = names;
                names_cap = named_cap;
            }
            a->names[a->named.n - 1] = key;
        } else if (!nb_j_push(p, &a->args, &cap, nb_j_parse_expression(p, true))) {
            return NULL;
        }
    }
    return nb_j_expect(p, JT_RPAREN) ? a : NULL;
}

/* name.name.name of a filter or test, which Jinja allows. */
static bool dotted_name(jparser *p, jv *out)
{
    const char *s = p->now.s;
    size_t end = p->now.at + p->now.n, begin = p->now.at;
    if (!nb_j_expect(p, JT_NAME)) return false;
    while (nb_j_skip(p, JT_DOT)) {
        end = p->now.at + p->now.n;
        if (!nb_j_expect(p, JT_NAME)) return false;
    }
    *out = nb_j_str(s, end - begin);
    return true;
}

jnode *nb_j_parse_filters(jparser *p, jnode *of, bool bare)
{
    while (bare || p->now.kind == JT_PIPE) {
        if (!bare) nb_j_advance(p);
        bare = false;
        jnode *n = nb_j_node(p, JN_FILTER);
        if (!n || !dotted_name(p, &n->value)) return NULL;
        n->a = of;
        n->builtin = nb_j_filter(n->value.u.s, n->value.n);
        if (p->now.kind == JT_LPAREN && !(n->args = call_args(p))) return NULL;
        of = n;
    }
    return of;
}

static jnode *item(jparser *p, jnode *of)
{
    jnode *n = with_children(p, JN_ITEM, p->now.line, of, NULL), *s;
    nb_j_advance(p);
    if (!n) return NULL;
    if (p->now.kind != JT_COLON && !(n->b = nb_j_parse_expression(p, true))) return NULL;
    if (p->now.kind != JT_COLON) {
        if (p->now.kind == JT_COMMA) { /* a tuple as key */
            jnode *tuple = nb_j_node(p, JN_TUPLE);
            size_t cap = 0;
            if (!tuple || !nb_j_push(p, &tuple->body, &cap, n->b)) return NULL;
            while (nb_j_skip(p, JT_COMMA))
                if (!nb_j_push(p, &tuple->body, &cap, nb_j_parse_expression(p, true))) return NULL;
            n->b = tuple;
        }
        return nb_j_expect(p, JT_RBRACKET) ? n : NULL;
    }
    if (!(s = nb_j_node(p, JN_SLICE))) return NULL;
    s->a = n->b;
    n->b = s;
    nb_j_advance(p);
    if (p->now.kind != JT_COLON && p->now.kind != JT_RBRACKET && !(s->b = nb_j_parse_expression(p, true)))
        return NULL;
    if (nb_j_skip(p, JT_COLON) && p->now.kind != JT_RBRACKET && !(s->c = nb_j_parse_expression(p, true)))
        return NULL;
    return nb_j_expect(p, JT_RBRACKET) ? n : NULL;
}

static jnode *postfix(jparser *p, jnode *n)
{
    while (n) {
        uint32_t line = p->now.line;
        if (p->now.kind == JT_LBRACKET) {
            n = item(p, n);
        } else if (p->now.kind == JT_LPAREN) {
            n = with_children(p, JN_CALL, line, n, NULL);
            if (n && !(n->args = call_args(p))) return NULL;
        } else if (nb_j_skip(p, JT_DOT)) {
            bool attr = p->now.kind == JT_NAME;
            n = with_children(p, attr ? JN_ATTR : JN_ITEM, line, n, NULL);
            if (!n) return NULL;
            if (attr)
                n->value = nb_j_str(p->now.s, p->now.n);
            else if (p->now.kind != JT_INT || !(n->b = constant(p, p->now.value)))
                return nb_j_fail(p, "expected a name or a number after '.'"), NULL;
            nb_j_advance(p);
        } else {
            break;
        }
    }
    return n;
}

static jnode *test(jparser *p, jnode *of)
{
    uint32_t line = p->now.line;
    nb_j_advance(p);
    bool negated = nb_j_skip_word(p, "not");
    jnode *n = with_children(p, JN_TEST, line, of, NULL);
    if (!n || !dotted_name(p, &n->value)) return NULL;
    n->builtin = nb_j_test(n->value.u.s, n->value.n);
    jtok k = p->now.kind;
    if (k == JT_LPAREN) {
        if (!(n->args = call_args(p))) return NULL;
    } else if (k == JT_STRING || k == JT_INT || k == JT_FLOAT || k == JT_LBRACKET || k == JT_LBRACE ||
               (k == JT_NAME && !nb_j_word(p, "else") && !nb_j_word(p, "or") && !nb_j_word(p, "and"))) {
        size_t cap = 0;
        if (nb_j_word(p, "is")) return nb_j_fail(p, "tests cannot be chained with is"), NULL;
        if (!(n->args = get(p, sizeof *n->args))) return NULL;
        jnode *arg = nb_j_parse_primary(p);
        if (!arg || !nb_j_push(p, &n->args->args, &cap, postfix(p, arg))) return NULL;
    }
    return negated ? with_children(p, JN_NOT, line, n, NULL) : n;
}

/* ---- operators ---- */

static jnode *unary(jparser *p, bool filters)
{
    jnode *n;
    if (!nb_j_enter(p)) return NULL;
    uint32_t line = p->now.line;
    jtok k = p->now.kind;
    if (k == JT_SUB || k == JT_ADD) {
        nb_j_advance(p);
        n = with_children(p, k == JT_SUB ? JN_NEG : JN_POS, line, unary(p, false), NULL);
    } else {
        n = nb_j_parse_primary(p);
    }
    n = postfix(p, n);
    while (filters && n) {
        if (p->now.kind == JT_PIPE) {
            n = nb_j_parse_filters(p, n, false);
        } else if (nb_j_word(p, "is")) {
            n = test(p, n);
        } else if (p->now.kind == JT_LPAREN) {
            n = with_children(p, JN_CALL, p->now.line, n, NULL);
            if (n && !(n->args = call_args(p))) n = NULL;
        } else {
            break;
        }
    }
    p->depth--;
    return n;
}

/* Binary operators, loosest first; each level is left-associative. */
static const struct {
    jtok token;
    jop op;
    int level;
} binaries[] = {{JT_ADD, J_ADD, 0}, {JT_SUB, J_SUB, 0}, {JT_TILDE, J_ADD, 1},         {JT_MUL, J_MUL, 2},
                {JT_DIV, J_DIV, 2}, {JT_MOD, J_MOD, 2}, {JT_FLOORDIV, J_FLOORDIV, 2}, {JT_POW, J_POW, 3}};

static jnode *binary(jparser *p, int level)
{
    if (level > 3) return unary(p, true);
    uint32_t line = p->now.line;
    jnode *left = binary(p, level + 1);
    size_t cap = 0;
    while (left) {
        size_t i = 0, n = sizeof binaries / sizeof *binaries;
        while (i < n && (binaries[i].token != p->now.kind || binaries[i].level != level)) i++;
        if (i == n) break;
        nb_j_advance(p);
        if (level == 1) { /* a ~ b ~ c is one node */
            if (!cap) {
                jnode *all = with_children(p, JN_CONCAT, line, left, NULL);
                if (!all || !nb_j_push(p, &all->body, &cap, left)) return NULL;
                all->a = NULL;
                left = all;
            }
            if (!nb_j_push(p, &left->body, &cap, binary(p, level + 1))) return NULL;
            continue;
        }
        jnode *right = binary(p, level + 1);
        jnode *both = right ? with_children(p, JN_BINARY, line, left, right) : NULL;
        if (!both) return NULL;
        both->op = (uint8_t)binaries[i].op;
        left = both;
    }
    return left;
}

static bool comparison(jparser *p, jop *op)
{
    static const struct {
        jtok token;
        jop op;
    } table[] = {{JT_EQ, J_EQ}, {JT_NE, J_NE}, {JT_LT, J_LT}, {JT_LE, J_LE}, {JT_GT, J_GT}, {JT_GE, J_GE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!nb_j_skip(p, table[i].token)) continue;
        *op = table[i].op;
        return true;
    }
    if (nb_j_word(p, "not") && is_word(&p->next, "in")) {
        nb_j_advance(p);
        nb_j_advance(p);
        *op = J_NOT_IN;
        return true;
    }
    *op = J_IN;
    return nb_j_skip_word(p, "in");
}

static jnode *compare(jparser *p)
{
    uint32_t line = p->now.line;
    jnode *first = binary(p, 0), *all = NULL;
    size_t cap = 0;
    jop op;
    while (first && comparison(p, &op)) {
        if (!all && !(all = with_children(p, JN_COMPARE, line, first, NULL))) return NULL;
        jnode *operand = with_children(p, JN_OPERAND, line, binary(p, 0), NULL);
        if (!nb_j_push(p, &all->body, &cap, operand)) return NULL;
        operand->op = (uint8_t)op;
    }
    return all ? all : first;
}

static jnode *negation(jparser *p)
{
    if (!nb_j_word(p, "not")) return compare(p);
    if (!nb_j_enter(p)) return NULL;
    uint32_t line = p->now.line;
    nb_j_advance(p);
    jnode *n = with_children(p, JN_NOT, line, negation(p), NULL);
    p->depth--;
    return n;
}

static jnode *logic(jparser *p, bool either)
{
    uint32_t line = p->now.line;
    jnode *left = either ? logic(p, false) : negation(p);
    while (left && nb_j_skip_word(p, either ? "or" : "and")) {
        jnode *right = either ? logic(p, false) : negation(p);
        if (!right) return NULL;
        left = with_children(p, either ? JN_OR : JN_AND, line, left, right);
    }
    return left;
}

jnode *nb_j_parse_expression(jparser *p, bool with_cond)
{
    if (!nb_j_enter(p)) return NULL;
    uint32_t line = p->now.line;
    jnode *n = logic(p, true);
    while (n && with_cond && nb_j_skip_word(p, "if")) {
        jnode *when = logic(p, true);
        jnode *cond = when ? with_children(p, JN_COND, line, when, n) : NULL;
        if (cond && nb_j_skip_word(p, "else") && !(cond->c = nb_j_parse_expression(p, true))) cond = NULL;
        n = cond;
    }
    p->depth--;
    return p->lex.status == NB_OK ? n : NULL;
}
