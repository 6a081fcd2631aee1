/* Statements: {% ... %}, and the template as a whole. */
#include <string.h>

#include "text/jinja_internal.h"

static bool parse_block(jparser *p, jblock *out, const char *const *ends);

/* A name, or a tuple of names (in round brackets or not); with namespaces, also ns.attribute. stop: the word after it. */
static jnode *target_item(jparser *p, bool namespaces)
{
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    if (p->now.kind != JT_NAME)
        return nb_j_fail(p, "only names and tuples of names can be assigned to"), NULL;
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (nb_j_word(p, reserved[i])) return nb_j_fail(p, "cannot assign to %s", reserved[i]), NULL;
    bool member = namespaces && p->next.kind == JT_DOT;
    jnode *n = nb_j_node(p, member ? JN_NSREF : JN_NAME);
    if (!n) return NULL;
    n->sym = nb_j_symbol(p, p->now.s, p->now.n);
    nb_j_advance(p);
    if (!member) return n;
    nb_j_advance(p);
    n->value = nb_j_str(p->now.s, p->now.n);
    return nb_j_expect(p, JT_NAME) ? n : NULL;
}

static jnode *target(jparser *p, bool namespaces, const char *stop)
{
    jnode *first = NULL, *tuple = NULL;
    size_t cap = 0;
    bool brackets = p->now.kind == JT_LPAREN;
    if (!nb_j_enter(p)) return NULL;
    if (brackets) nb_j_advance(p);
    for (;;) {
        bool end = p->now.kind == JT_RPAREN || p->now.kind == JT_BLOCK_END || p->now.kind == JT_ASSIGN ||
                   (stop && nb_j_word(p, stop));
        if (end && tuple) break;
        jnode *n = p->now.kind == JT_LPAREN ? target(p, false, NULL) : target_item(p, namespaces);
        if (!n) return NULL;
        if (!first) first = n;
        if (tuple && !nb_j_push(p, &tuple->body, &cap, n)) return NULL;
        if (p->now.kind != JT_COMMA) break;
        if (!tuple && (!(tuple = nb_j_node(p, JN_TUPLE)) || !nb_j_push(p, &tuple->body, &cap, first)))
            return NULL;
        nb_j_advance(p);
    }
    p->depth--;
    if (brackets && !nb_j_expect(p, JT_RPAREN)) return NULL;
    return tuple ? tuple : first;
}

/* The body of a statement: from its %} to one of the ending words, which stays the token at hand. */
static bool body(jparser *p, jblock *out, const char *const *ends)
{
    nb_j_skip(p, JT_COLON);
    return nb_j_expect(p, JT_BLOCK_END) && parse_block(p, out, ends);
}

/* A body that one word ends, which is taken. */
static bool whole_body(jparser *p, jblock *out, const char *end)
{
    const char *const ends[] = {end, NULL};
    if (!body(p, out, ends)) return false;
    nb_j_advance(p);
    return true;
}

static jnode *parse_set(jparser *p, jnode *n)
{
    if (!(n->a = target(p, true, NULL))) return NULL;
    if (nb_j_skip(p, JT_ASSIGN)) return (n->b = nb_j_parse_tuple(p, true, NULL)) ? n : NULL;
    n->kind = JN_SET_BLOCK;
    if (p->now.kind == JT_PIPE && !(n->b = nb_j_parse_filters(p, NULL, false))) return NULL;
    return whole_body(p, &n->body, "endset") ? n : NULL;
}

static jnode *parse_for(jparser *p, jnode *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    if (!(n->a = target(p, false, "in"))) return NULL;
    if (!nb_j_skip_word(p, "in")) return nb_j_fail(p, "expected 'in'"), NULL;
    if (!(n->b = nb_j_parse_tuple(p, false, "recursive"))) return NULL;
    if (nb_j_skip_word(p, "if") && !(n->c = nb_j_parse_expression(p, true))) return NULL;
    n->op = nb_j_skip_word(p, "recursive");
    p->loops++;
    bool ok = body(p, &n->body, ends);
    p->loops--;
    if (!ok) return NULL;
    if (nb_j_skip_word(p, "endfor")) return n;
    nb_j_advance(p);
    return whole_body(p, &n->orelse, "endfor") ? n : NULL;
}

/* An elif is an if alone in the else. */
static jnode *parse_if(jparser *p, jnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (jnode *each = n;;) {
        if (!(each->a = nb_j_parse_tuple(p, false, NULL)) || !body(p, &each->body, ends)) return NULL;
        if (nb_j_skip_word(p, "elif")) {
            size_t cap = 0;
            jnode *more = nb_j_node(p, JN_IF);
            if (!nb_j_push(p, &each->orelse, &cap, more)) return NULL;
            each = more;
        } else if (nb_j_skip_word(p, "else")) {
            return whole_body(p, &each->orelse, "endif") ? n : NULL;
        } else {
            nb_j_advance(p);
            return n;
        }
    }
}

static bool push_symbol(jparser *p, jnode *n, size_t *cap, uint32_t sym)
{
    if (n->n_params == *cap) {
        size_t more = *cap ? *cap * 2 : 4;
        uint32_t *params = nb_j_lex_memory(&p->lex, more * sizeof *params);
        if (!params) return false;
        if (n->n_params) memcpy(params, n->params, n->n_params * sizeof *params);
        n->params = params;
        *cap = more;
    }
    n->params[n->n_params++] = sym;
    return true;
}

/* Parameters of a macro or a {% call %}: (a, b=1); defaults go to orelse. */
static bool signature(jparser *p, jnode *n)
{
    size_t cap = 0, defaults = 0;
    if (!nb_j_expect(p, JT_LPAREN)) return false;
    while (p->now.kind != JT_RPAREN) {
        if (n->n_params && !nb_j_expect(p, JT_COMMA)) return false;
        if (p->now.kind != JT_NAME) return nb_j_expect(p, JT_NAME);
        if (!push_symbol(p, n, &cap, nb_j_symbol(p, p->now.s, p->now.n))) return false;
        nb_j_advance(p);
        if (nb_j_skip(p, JT_ASSIGN)) {
            if (!nb_j_push(p, &n->orelse, &defaults, nb_j_parse_expression(p, true))) return false;
        } else if (n->orelse.n) {
            return nb_j_fail(p, "non-default argument follows default argument");
        }
    }
    return nb_j_expect(p, JT_RPAREN);
}

/* The body of a macro: loops outside of it are not its own, and what it reads of caller, varargs and kwargs is. */
static bool macro_body(jparser *p, jnode *n, const char *end)
{
    uint8_t reads = p->macro_reads;
    unsigned loops = p->loops;
    p->macro_reads = 0;
    p->loops = 0;
    bool ok = whole_body(p, &n->body, end);
    n->op = p->macro_reads;
    p->macro_reads |= reads; /* Jinja counts what macros within it read, too */
    p->loops = loops;
    return ok;
}

static jnode *parse_macro(jparser *p, jnode *n)
{
    if (p->now.kind == JT_NAME) n->sym = nb_j_symbol(p, p->now.s, p->now.n);
    if (!nb_j_expect(p, JT_NAME) || !signature(p, n)) return NULL;
    return macro_body(p, n, "endmacro") ? n : NULL;
}

static jnode *parse_call_block(jparser *p, jnode *n)
{
    n->sym = JS_CALLER;
    if (p->now.kind == JT_LPAREN && !signature(p, n)) return NULL;
    if (!(n->a = nb_j_parse_expression(p, true))) return NULL;
    if (n->a->kind != JN_CALL) return nb_j_fail(p, "expected a call"), NULL;
    return macro_body(p, n, "endcall") ? n : NULL;
}

static jnode *parse_filter_block(jparser *p, jnode *n)
{
    if (!(n->b = nb_j_parse_filters(p, NULL, true))) return NULL;
    return whole_body(p, &n->body, "endfilter") ? n : NULL;
}

static jnode *parse_with(jparser *p, jnode *n)
{
    size_t cap = 0, values = 0;
    while (p->now.kind != JT_BLOCK_END) {
        if (n->n_params && !nb_j_expect(p, JT_COMMA)) return NULL;
        jnode *t = target_item(p, false);
        if (!t || !push_symbol(p, n, &cap, t->sym) || !nb_j_expect(p, JT_ASSIGN)) return NULL;
        if (!nb_j_push(p, &n->orelse, &values, nb_j_parse_expression(p, true))) return NULL;
    }
    return whole_body(p, &n->body, "endwith") ? n : NULL;
}

static jnode *parse_generation(jparser *p, jnode *n)
{
    return whole_body(p, &n->body, "endgeneration") ? n : NULL;
}

static jnode *parse_jump(jparser *p, jnode *n)
{
    return p->loops ? n : (nb_j_fail(p, "break and continue are for loops"), NULL);
}

static const struct {
    const char *word;
    jkind kind;
    jnode *(*parse)(jparser *p, jnode *n);
} statements[] = {
    {"set", JN_SET, parse_set},
    {"for", JN_FOR, parse_for},
    {"if", JN_IF, parse_if},
    {"macro", JN_MACRO, parse_macro},
    {"call", JN_CALL_BLOCK, parse_call_block},
    {"filter", JN_FILTER_BLOCK, parse_filter_block},
    {"with", JN_WITH, parse_with},
    {"generation", JN_SCOPE, parse_generation},
    {"break", JN_BREAK, parse_jump},
    {"continue", JN_CONTINUE, parse_jump},
};

/* Tags of Jinja that load other templates, or that no chat template has. */
static const char *const absent[] = {"include", "import",     "from",  "extends",
                                     "block",   "autoescape", "print", "do"};

static jnode *statement(jparser *p)
{
    jnode *n = NULL;
    size_t i = 0, count = sizeof statements / sizeof *statements;
    while (i < count && !nb_j_word(p, statements[i].word)) i++;
    if (i == count) {
        for (size_t k = 0; k < sizeof absent / sizeof *absent; k++)
            if (nb_j_word(p, absent[k]))
                nb_j_fail(p, "the tag '%s' is not supported in chat templates", absent[k]);
        nb_j_fail(p, "unknown tag '%.*s'", (int)(p->now.n < 60 ? p->now.n : 60), p->now.n ? p->now.s : "");
        return NULL;
    }
    if (!nb_j_enter(p) || !(n = nb_j_node(p, statements[i].kind))) return NULL;
    nb_j_advance(p);
    n = statements[i].parse(p, n);
    p->depth--;
    return n;
}

static bool at_end(const jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (nb_j_word(p, *ends)) return true;
    return false;
}

/* Text, {{ }} and statements up to a tag that is one of `ends` (NULL: to the end of the template). */
static bool parse_block(jparser *p, jblock *out, const char *const *ends)
{
    size_t cap = 0;
    while (p->lex.status == NB_OK) {
        jnode *n = NULL;
        switch (p->now.kind) {
        case JT_DATA:
            if (!(n = nb_j_node(p, JN_DATA))) return false;
            n->value = nb_j_str(p->now.s, p->now.n);
            nb_j_advance(p);
            break;
        case JT_PRINT_BEGIN:
            if (!(n = nb_j_node(p, JN_PRINT))) return false;
            nb_j_advance(p);
            if (!(n->a = nb_j_parse_tuple(p, true, NULL)) || !nb_j_expect(p, JT_PRINT_END)) return false;
            break;
        case JT_BLOCK_BEGIN:
            nb_j_advance(p);
            if (at_end(p, ends)) return true;
            if (!(n = statement(p)) || !nb_j_expect(p, JT_BLOCK_END)) return false;
            break;
        case JT_EOF:
            if (!ends) return p->lex.status == NB_OK;
            while (ends[1]) ends++; /* the last is the one that must come */
            return nb_j_fail(p, "the template ends and %s is missing", *ends);
        default: return nb_j_fail(p, "unexpected text in a tag");
        }
        if (!nb_j_push(p, out, &cap, n)) return false;
    }
    return false;
}

jblock nb_j_parse_template(jparser *p)
{
    jblock b = {0};
    parse_block(p, &b, NULL);
    return b;
}
