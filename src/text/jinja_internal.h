/*
 * The insides of the Jinja engine:
 *
 *     jinja_lex.c    template text -> tokens (white space control happens here)
 *     jinja_parse.c, jinja_parse_stmt.c    tokens -> tree of nodes, in an arena, never changed again
 *     jinja_exec.c   statements; jinja_eval.c expressions; jinja_call.c macros and argument binding
 *     jinja_value.c  values: truth, equality, order, text; jinja_dict.c; jinja_ops.c operators, subscripts, slices
 *     jinja_filters.c, jinja_seq.c, jinja_tests.c, jinja_methods.c, jinja_globals.c, jinja_format.c, jinja_json.c   built-ins
 *     jinja.c        the public functions, and what is asked about a template without running it
 *
 * Errors stick: the first one is kept in jx.err, and from then on every function returns at once, with a value that may be
 * looked at (undefined). So a caller tests x->status where it matters: in loops, and before it uses memory that may be missing.
 * Values are immutable (the sandbox refuses what would change them) but for namespaces and the position of an iterator.
 */
#ifndef NB_TEXT_JINJA_INTERNAL_H
#define NB_TEXT_JINJA_INTERNAL_H

#include "base/map.h"
#include "base/utf8.h"
#include "text/jinja.h"

/* ---- jinja.c: arena ---- */

typedef struct jarena {
    struct jchunk *chunks;
    size_t used, cap;   /* of the newest chunk */
    size_t total, most; /* bytes in all chunks, and their bound */
    bool nomem;         /* what the first failure was: memory (else the bound) */
} jarena;

/* n bytes, zeroed, aligned for any value. NULL: memory is out, or the bound. */
void *nb_j_alloc(jarena *a, size_t n);
void nb_j_arena_free(jarena *a);

/* ---- values ---- */

typedef enum jtype {
    J_MISSING, /* no value: an argument that was not given */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_RANGE, /* range(): a sequence that is no list */
    J_VIEW,  /* .keys() .values() .items() */
    J_ITER,  /* what Python makes a generator or an iterator: consumed by walking over it */
    J_DICT,
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_FUNCTION, /* a built-in function, or a method bound to its object */
} jtype;

/* Of an undefined value: why it is. */
typedef enum jwhy {
    JU_NAME,   /* no variable s */
    JU_MEMBER, /* an object of type `of` has no attribute s */
    JU_ITEM,   /* ... no element s */
    JU_UNSAFE, /* the sandbox keeps attribute s of an object of type `of` */
    JU_HINT,   /* s says it */
} jwhy;

typedef enum jview { JV_KEYS, JV_VALUES, JV_ITEMS } jview;

typedef struct jv {
    uint8_t type;
    uint8_t why; /* jwhy; of a view: jview */
    uint8_t of;  /* jtype of an undefined member's owner */
    bool grows;  /* a string or list that starts a block with a jgrow before it */
    size_t n;    /* bytes of a string, elements of a sequence */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;      /* valid UTF-8, may hold NUL, not terminated */
        const struct jv *v; /* J_LIST, J_TUPLE, J_RANGE, J_VIEW */
        struct jiter *iter;
        struct jdict *dict; /* J_DICT, J_NAMESPACE */
        struct jloop *loop;
        struct jmacro *macro;
        struct jbound *fn;
    } u;
} jv;

typedef struct jiter {
    const jv *v;
    size_t n, at;
} jiter;

/* Before the data of a string or list that concatenation made: room to append in place, so that text built piece by piece
 * takes linear time. Whoever holds an older, shorter value sees the same bytes as before. */
typedef struct jgrow {
    size_t used, cap;
} jgrow;

typedef struct jdict {
    jv *keys, *values; /* in order of insertion */
    size_t n, cap;
    uint32_t *slots; /* index + 1 by hash, once n > 8; n_slots is a power of two */
    size_t n_slots;
} jdict;

typedef struct jloop {
    const jv *items;
    size_t n, index0, depth;
    bool recursive;
    const struct jnode *node; /* the statement, for recursion */
    struct jframe *outer;     /* where it stands */
    jv last_changed;          /* of loop.changed() */
} jloop;

typedef struct jmacro {
    const struct jnode *node;
    struct jframe *scope; /* where it was defined */
    jv caller;            /* of a {% call %} block: unused otherwise */
} jmacro;

typedef struct jcall {
    const jv *args;
    size_t n;
    const jv *names, *values; /* keyword arguments */
    size_t n_named;
} jcall;

typedef struct jx jx;
/* A built-in: self is the filtered, tested or owning value. a: its parameters, bound by name and place, J_MISSING where not
 * given; of a variadic one (params "*") all is in c. */
typedef jv (*jfn)(jx *x, jv self, const jv *a, const jcall *c);
typedef struct jbuiltin {
    const char *name;
    const char
        *params; /* "chars? count?": names, optional ones with a question mark; "*": it reads c itself */
    jfn fn;      /* NULL: known, but not in this build */
} jbuiltin;
#define J_MAX_PARAMS 8

typedef struct jbound {
    const jbuiltin *fn;
    jv self;
} jbound;

/* ---- the tree ---- */

typedef enum jkind {
    /* expressions */
    JN_CONST,   /* value */
    JN_NAME,    /* sym */
    JN_LIST,    /* body */
    JN_TUPLE,   /* body */
    JN_DICT,    /* body: key, value, key, value ... */
    JN_COND,    /* a if b else c (c may be NULL) */
    JN_OR,      /* a, b */
    JN_AND,     /* a, b */
    JN_NOT,     /* a */
    JN_NEG,     /* a */
    JN_POS,     /* a */
    JN_BINARY,  /* a op b */
    JN_CONCAT,  /* body */
    JN_COMPARE, /* a, then body of JN_OPERAND */
    JN_OPERAND, /* op a */
    JN_ATTR,    /* a.value */
    JN_ITEM,    /* a[b] */
    JN_SLICE,   /* a:b:c, each may be NULL; only as b of JN_ITEM */
    JN_CALL,    /* a(args) */
    JN_FILTER,  /* a|value(args); a may be NULL: the block's text */
    JN_TEST,    /* a is value(args) */
    JN_NSREF,   /* sym.value, as a target */
    /* statements */
    JN_DATA,         /* value */
    JN_PRINT,        /* {{ a }} */
    JN_SET,          /* a = b */
    JN_SET_BLOCK,    /* a = body, through the filters b (may be NULL) */
    JN_FOR,          /* for a in b if c: body, else orelse; op: recursive */
    JN_IF,           /* if a: body, else orelse */
    JN_MACRO,        /* sym, params, body, defaults: orelse (the last ones); op: JM_ bits */
    JN_CALL_BLOCK,   /* as JN_MACRO without sym; a: the call */
    JN_FILTER_BLOCK, /* b, body */
    JN_WITH,         /* with params = defaults: body */
    JN_SCOPE,        /* body: {% generation %} */
    JN_BREAK,
    JN_CONTINUE,
} jkind;

enum { JM_CALLER = 1, JM_VARARGS = 2, JM_KWARGS = 4 }; /* names that a macro's body reads */

typedef enum jop {
    J_ADD,
    J_SUB,
    J_MUL,
    J_DIV,
    J_FLOORDIV,
    J_MOD,
    J_POW,
    J_EQ,
    J_NE,
    J_LT,
    J_LE,
    J_GT,
    J_GE,
    J_IN,
    J_NOT_IN
} jop;

typedef struct jblock {
    struct jnode **items;
    size_t n;
} jblock;

typedef struct jargs {
    jblock args;
    jv *names; /* of the keyword arguments */
    jblock named;
    struct jnode *star, *starstar;
} jargs;

typedef struct jnode {
    uint8_t kind, op;
    uint32_t line, sym;
    struct jnode *a, *b, *c;
    jv value;
    jblock body, orelse;
    uint32_t *params;
    size_t n_params;
    jargs *args;
    const jbuiltin *builtin; /* of JN_FILTER, JN_TEST; NULL: unknown */
} jnode;

/* Symbols that mean something by themselves. */
enum { JS_LOOP, JS_CALLER, JS_VARARGS, JS_KWARGS, JS_FIXED };

struct nb_jinja {
    jarena arena;
    char *text; /* with \n for every line end; names and data point into it */
    size_t n;
    nb_map symbols;
    jv *names;  /* [n_symbols] strings */
    bool *read; /* [n_symbols] some expression reads it */
    size_t n_symbols, symbols_cap;
    jblock body;
};

/* ---- jinja_lex.c ---- */

typedef enum jtok {
    JT_EOF,
    JT_DATA,
    JT_PRINT_BEGIN,
    JT_PRINT_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_ADD,
    JT_SUB,
    JT_DIV,
    JT_FLOORDIV,
    JT_MUL,
    JT_MOD,
    JT_POW,
    JT_TILDE,
    JT_LBRACKET,
    JT_RBRACKET,
    JT_LPAREN,
    JT_RPAREN,
    JT_LBRACE,
    JT_RBRACE,
    JT_EQ,
    JT_NE,
    JT_GT,
    JT_GE,
    JT_LT,
    JT_LE,
    JT_ASSIGN,
    JT_DOT,
    JT_COLON,
    JT_PIPE,
    JT_COMMA,
    JT_SEMICOLON,
} jtok;

typedef struct jtoken {
    jtok kind;
    const char *s; /* as written; of a string without its quotes; of data what white space control leaves */
    size_t n;
    size_t at; /* byte in the text */
    uint32_t line;
    jv value; /* of strings and numbers */
} jtoken;

typedef struct jlexer {
    jarena *arena;
    const char *text;
    size_t n, at;
    uint32_t line;
    size_t counted; /* lines are counted up to here */
    enum { JL_DATA, JL_PRINT, JL_BLOCK } state;
    bool line_starting; /* what was read last ended a line */
    char open[200];     /* closing brackets that are due */
    size_t n_open;
    nb_status status;
    nb_error *err;
} jlexer;

/* The next token; JT_EOF at the end and after an error (lex->status). */
jtoken nb_j_lex(jlexer *lex);
/* n bytes of the template's arena; NULL after an error, which this may be. */
void *nb_j_lex_memory(jlexer *lex, size_t n);
/* An error at byte `at` of the text; the first one counts. */
void nb_j_lex_fail(jlexer *lex, size_t at, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- jinja_parse.c, jinja_parse_stmt.c ---- */

#define J_MAX_NESTING 200

typedef struct jparser {
    jlexer lex;
    nb_jinja *t;
    jtoken now, next; /* the token at hand, and the one after it */
    unsigned depth;
    uint8_t macro_reads; /* JM_ bits of the innermost macro */
    unsigned loops;      /* that enclose the statement, within the innermost macro */
} jparser;

void nb_j_advance(jparser *p);
bool nb_j_fail(jparser *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));       /* at the token at hand; false */
bool nb_j_skip(jparser *p, jtok kind);           /* takes it if it is there */
bool nb_j_expect(jparser *p, jtok kind);         /* takes it or fails */
bool nb_j_word(const jparser *p, const char *w); /* is the token at hand this name? */
bool nb_j_skip_word(jparser *p, const char *w);
bool nb_j_enter(jparser *p); /* one level of nesting more; p->depth-- when it ends */
jnode *nb_j_node(jparser *p, jkind kind);
/* Appends to a block while it is being built; cap is the caller's. */
bool nb_j_push(jparser *p, jblock *b, size_t *cap, jnode *n);
uint32_t nb_j_symbol(jparser *p, const char *s, size_t n);
jnode *nb_j_parse_expression(jparser *p, bool with_cond);
/* A tuple without brackets, or one expression. stop: a word that ends it (may be NULL). */
jnode *nb_j_parse_tuple(jparser *p, bool with_cond, const char *stop);
jnode *nb_j_parse_primary(jparser *p);
jnode *nb_j_parse_filters(jparser *p, jnode *of, bool bare);
jblock nb_j_parse_template(jparser *p);

/* ---- running ---- */

typedef struct jvar {
    uint32_t sym;
    jv value;
} jvar;

/* A scope: of the template, a loop's body, a macro's call. */
typedef struct jframe {
    struct jframe *parent;
    jvar *vars;
    size_t n, cap;
} jframe;

#define J_MAX_DEPTH 800

struct jx {
    const nb_jinja *t;
    jarena arena;
    nb_jinja_limits limits;
    size_t steps, emitted;
    unsigned depth;
    uint32_t line;
    int64_t now;
    uint64_t seed;
    jv *globals; /* [n_symbols]: given variables, built-in functions, or undefined */
    jframe *frame;
    nb_buf *out;
    nb_status status;
    nb_error *err;
};

/* Records the first error, with the line. Returns an undefined value. */
jv nb_j_raise(jx *x, nb_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define J_ERROR(x, ...) nb_j_raise(x, NB_ERR_ARGUMENT, __VA_ARGS__)
/* Counts work. False: no more of it, or an error before. */
bool nb_j_charge(jx *x, size_t steps);
/* Recursion: false when it is too deep; else the caller does x->depth-- when done. */
bool nb_j_deeper(jx *x);
void *nb_j_new(jx *x, size_t count, size_t size); /* zeroed memory of the render; NULL after an error */
/* Appends text: all text goes through here, so that it is bounded. */
void nb_j_emit(jx *x, nb_buf *b, const char *s, size_t n);
void nb_j_emits(jx *x, nb_buf *b, const char *s);
/* The content of b as a string value; frees b. */
jv nb_j_take(jx *x, nb_buf *b);

/* ---- jinja_value.c ---- */

static inline jv nb_j_bool(bool b)
{
    return (jv){.type = J_BOOL, .u.b = b};
}
static inline jv nb_j_int(int64_t i)
{
    return (jv){.type = J_INT, .u.i = i};
}
static inline jv nb_j_float(double f)
{
    return (jv){.type = J_FLOAT, .u.f = f};
}
static inline jv nb_j_none(void)
{
    return (jv){.type = J_NONE};
}
/* A string that stays where it is. */
static inline jv nb_j_str(const char *s, size_t n)
{
    return (jv){.type = J_STR, .n = n, .u.s = s};
}
static inline jv nb_j_undefined(jwhy why, jtype of, const char *s, size_t n)
{
    return (jv){.type = J_UNDEFINED, .why = (uint8_t)why, .of = (uint8_t)of, .n = n, .u.s = s};
}
extern const jv nb_j_missing; /* where an array without elements points */
static inline jv nb_j_seq(jtype type, const jv *v, size_t n)
{
    return (jv){.type = (uint8_t)type, .n = n, .u.v = v ? v : &nb_j_missing};
}
const char *nb_j_type(jv v); /* Python's name of the type */
bool nb_j_equals_text(jv v, const char *s);
bool nb_j_truth(jx *x, jv v);
bool nb_j_equal(jx *x, jv a, jv b);
/* Order as Python's <: -1, 0, 1; an error when the types have none. 2: a NaN is in it. */
int nb_j_order(jx *x, jv a, jv b, const char *op);
uint64_t nb_j_hash(jx *x, jv v);
/* str(v), repr(v) appended. */
void nb_j_write(jx *x, nb_buf *b, jv v);
void nb_j_write_repr(jx *x, nb_buf *b, jv v);
jv nb_j_text(jx *x, jv v); /* str(v) */
/* The error that using an undefined value is. */
jv nb_j_undefined_error(jx *x, jv v);
/* iter(v) to the end: an array of elements; false after an error. An iterator is consumed. */
bool nb_j_elements(jx *x, jv v, const jv **items, size_t *n);
size_t nb_j_chars(const char *s, size_t n); /* code points of valid UTF-8 */
/* The character at s (n > 0 bytes are there); its length, 1 for a byte that is none. */
static inline size_t nb_j_char(const char *s, size_t n, uint32_t *cp)
{
    *cp = 0xFFFD;
    size_t w = nb_utf8_decode(s, n, cp);
    return w ? w : 1;
}
/* len(v); -1: it has none (an error only if complain). */
int64_t nb_j_length(jx *x, jv v, bool complain);
jv nb_j_from_json(jx *x, const json_t *j);

/* ---- jinja_dict.c ---- */

jdict *nb_j_dict_new(jx *x, size_t room);
void nb_j_dict_put(jx *x, jdict *d, jv key, jv value);
/* NULL: not there (or an unhashable key: an error). */
const jv *nb_j_dict_get(jx *x, const jdict *d, jv key);

/* ---- jinja_ops.c ---- */

jv nb_j_binary(jx *x, jop op, jv a, jv b);
jv nb_j_compare(jx *x, jop op, jv a, jv b);
bool nb_j_contains(jx *x, jv container, jv item);
jv nb_j_concat(jx *x, jv a, jv b);                   /* of two strings, or two lists */
jv nb_j_attr(jx *x, jv v, jv name);                  /* v.name */
jv nb_j_item(jx *x, jv v, jv key);                   /* v[key] */
jv nb_j_slice(jx *x, jv v, jv from, jv to, jv step); /* NONE where left out */
/* "a.b.0" of v, as map(attribute=...) takes it. */
jv nb_j_path(jx *x, jv v, jv path);

/* ---- jinja_call.c, jinja_eval.c, jinja_exec.c ---- */

jv nb_j_eval(jx *x, const jnode *n);
jv nb_j_call(jx *x, jv callee, const jcall *c);
jv nb_j_call_builtin(jx *x, const jbuiltin *f, const char *what, jv self, const jcall *c);
jv nb_j_call_macro(jx *x, const jmacro *m, const jcall *c);
bool nb_j_eval_args(jx *x, const jargs *a, jcall *out);
jv nb_j_run_filters(jx *x, const jnode *f, jv block); /* a chain whose innermost input is block */
jv nb_j_lookup(jx *x, uint32_t sym);
void nb_j_bind(jx *x, jframe *f, uint32_t sym, jv value);
jframe *nb_j_frame(jx *x, jframe *parent);
typedef enum jflow { JF_NEXT, JF_BREAK, JF_CONTINUE } jflow;
jflow nb_j_exec(jx *x, const jblock *b);
/* The text of a block, run in frame f. */
jv nb_j_capture(jx *x, const jblock *b, jframe *f);
/* loop(items) of a recursive loop. */
jv nb_j_loop_again(jx *x, const jloop *l, jv items);

/* ---- built-ins ---- */

const jbuiltin *nb_j_filter(const char *name, size_t n); /* NULL: none of that name */
const jbuiltin *nb_j_test(const char *name, size_t n);
const jbuiltin *nb_j_global(const char *name, size_t n);
/* The method that v's type has under this name; NULL: none. *unsafe: there is one that the sandbox keeps. */
const jbuiltin *nb_j_method(jv v, const char *name, size_t n, bool *unsafe);
const jbuiltin *nb_j_find(const jbuiltin *table, const char *name, size_t n);
/* (key, value) tuples of a dict, as a sequence of this type. */
jv nb_j_pairs(jx *x, const jdict *d, jtype type);
extern const jbuiltin nb_j_string_methods[];
extern const jbuiltin nb_j_sequence_filters[];
jv nb_j_loop_attr(jx *x, jloop *l, const char *name, size_t n); /* J_MISSING: none */
/* Arguments as what a built-in needs; `fallback` when not given. */
int64_t nb_j_int_arg(jx *x, jv v, int64_t fallback, const char *what);
bool nb_j_bool_arg(jx *x, jv v, bool fallback);

/* str.upper(), .lower(), .capitalize(), .title() ('u', 'l', 'c', 't'); strip: of white space or chars, at the ends of `sides`
 * (1 left, 2 right). */
jv nb_j_case(jx *x, jv s, char how);
jv nb_j_strip(jx *x, jv s, jv chars, int sides);
jv nb_j_replace(jx *x, jv s, jv from, jv to, int64_t count);
bool nb_j_is_space(uint32_t cp); /* str.isspace() */
/* "%s ..." % values, printf style; str.format(). */
jv nb_j_percent(jx *x, jv format, jv values);
jv nb_j_format(jx *x, jv format, const jcall *c);
/* A float as Python's repr has it; inf and nan too. */
void nb_j_write_float(jx *x, nb_buf *b, double v);
jv nb_j_tojson(jx *x, jv self, const jv *a, const jcall *c); /* the filter */
/* Sorts the indices `order` by keys[i], stably. */
void nb_j_sort(jx *x, const jv *keys, size_t *order, size_t n, bool reverse);

#endif
