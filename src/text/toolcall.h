/*
 * Parsers of one block of tool calls in a text that arrives in pieces. A block's first mark has been passed when a parser begins. Each
 * tells the calls as soon as they are certain and says how far it came; what becomes of a malformed rest is the caller's business.
 * Positions are the window's, from whose front nothing may be dropped while a block is in work.
 *
 * Model families share a few grammars. toolforms.c has a row for each name of --tool-call-parser: its marks and its grammar.
 */
#ifndef NB_TEXT_TOOLCALL_H
#define NB_TEXT_TOOLCALL_H

#include <jansson.h>

#include "base/error.h"
#include "base/map.h"
#include "text/json_push.h"
#include "text/reply.h"
#include "text/window.h"

typedef enum nb_toolcall {
    NB_TOOLCALL_MORE,  /* waits for text; never when the window is whole */
    NB_TOOLCALL_DONE,  /* the block is over, and the window stands behind it */
    NB_TOOLCALL_BAD,   /* not in the form; err says why */
    NB_TOOLCALL_NOMEM, /* err says so */
} nb_toolcall;

/* What all parsers have, in front. Zero-initialise, then set calls, safe, form and schemas. */
typedef struct nb_calls {
    const struct nb_tool_form *form;
    const json_t *schemas; /* the request's tools, or NULL; borrowed */
    size_t calls;          /* told so far; the next one's index */
    size_t first;          /* the first one's of this block */
    size_t safe;           /* the text before has been told, or is markup of what has been told */
    bool open;             /* the last call is not complete */
    bool bare;             /* the block began with its second mark */
    nb_buf out;            /* work memory; the caller frees it */
} nb_calls;

/* The longest head of a call or of an argument, and the most white space between two marks. So a text full of beginnings costs no more
 * than its length. */
#define NB_CALL_HEAD 4096
#define NB_CALL_BLANK 64

/* ---- toolcall.c: what the grammars share ---- */

/* NB_TOOLCALL_BAD with "a tool call: WHY" in err. */
nb_toolcall nb_call_bad(nb_calls *c, const nb_window *w, const char *why, nb_error *err);
nb_toolcall nb_call_no_memory(nb_error *err);
/* Tells that a call begins. A name that is empty or holds white space is BAD; so is one that the request's tools lack, where known. */
nb_toolcall nb_call_begin(nb_calls *c, const nb_window *w, nb_span name, bool known, const nb_reply_sink *to,
                          nb_error *err);
/* Tells n bytes of the last call's arguments. */
void nb_call_tell(const nb_calls *c, const char *s, size_t n, const nb_reply_sink *to);
/* The window's mark is certain: it stands at scan (1) or does not (0); -1: not yet. No mark (NULL) never stands. */
int nb_call_at(const nb_window *w, const char *mark);
/* Before a call: passes its mark (NULL: none, the block is one call) and sets *begins, or passes the end of the block (NULL: none),
 * which may be absent behind a call. */
nb_toolcall nb_call_next(nb_calls *c, nb_window *w, const char *call, const char *end, bool *begins,
                         nb_error *err);
/* Moves scan over white space. False: the text ends there, and more may come. */
bool nb_call_blank(nb_window *w);
/* The window up to most bytes behind from, whose end is then as certain as that of the text. */
nb_window nb_call_within(const nb_window *w, size_t from, size_t most);
/* 1: t is JSON; 0: it is not; -1: no memory to tell. */
int nb_call_is_json(nb_span t);
/* A call of NAME has this type for the argument KEY, by the request's schemas: "string", "integer" …; NULL: they do not say. A union of
 * types is its first that is not null. Borrowed from schemas. */
const char *nb_call_type(const json_t *schemas, const char *name, size_t name_n, nb_span key);

/* ---- hermes.c: JSON objects that hold the name and the arguments ---- */

/* {"name": …, "arguments": …}. The text of the arguments is passed on as it stands; without any it is {}. Of a member given twice the
 * first counts, other members do not. */
typedef struct nb_object_form {
    const char *arguments[2]; /* the member's names, in quotes; the second may be NULL */
    char open, between,
        close;       /* around and between several objects; 0: none. Without close between may be absent */
    const char *end; /* the mark behind, which may be absent; NULL: none */
    bool known;      /* the name must be one of the request's tools */
} nb_object_form;

#define HERMES_BEGIN "<tool_call>"
#define HERMES_END "</tool_call>"

typedef struct nb_hermes {
    nb_calls c;
    const nb_object_form *form;
    nb_json_push json;
    int state;
    size_t key, key_end; /* the last key's text, quotes included */
    size_t name;         /* where the name's value begins, 0: not there yet */
    size_t args, args_end,
        args_told; /* where the arguments begin and end, and how far they have been told; 0: not there yet */
    bool told, in_name, in_args, opened;
} nb_hermes;

nb_toolcall nb_hermes_step(nb_hermes *h, nb_window *w, const nb_reply_sink *to, nb_error *err);

/* ---- marked.c: a name and a JSON object between marks ---- */

typedef struct nb_marked_form {
    const char *call;     /* begins each call; NULL: nothing does, and the block is one call */
    const char *kind_end; /* ends what stands before the name; NULL: nothing stands there */
    const char *name_end;
    const char *id;                /* within the name: begins what is no part of it; NULL: nothing */
    bool numbered;                 /* the name is functions.NAME:NUMBER */
    const char *args_end;          /* may be absent; NULL: none */
    const char *end;               /* of the block, may be absent; NULL: the block is one call */
    const nb_object_form *objects; /* a block that begins with [ or { is of this form; NULL: none is */
} nb_marked_form;

typedef struct nb_marked {
    nb_calls c;
    const nb_marked_form *form;
    int state;
    nb_json_push json;
    size_t told; /* how far the arguments have been told */
} nb_marked;

/* ---- tagged.c: each argument between tags, its type from the request's tools ---- */

typedef struct nb_tagged_form {
    const char *call;     /* begins each call; NULL: the name does, and the block is one call */
    const char *name_end; /* NULL: what comes next does */
    const char *key, *key_end;
    const char *value; /* between key_end and the value; NULL: nothing */
    const char *value_end;
    const char *call_end;
    const char *end; /* of the block; NULL: the call's is */
    bool trims;      /* one line end at either end of a value is markup */
    bool
        guesses; /* an argument without a type is JSON if it reads as that, else a string; or else always a string */
} nb_tagged_form;

typedef struct nb_tagged {
    nb_calls c;
    const nb_tagged_form *form;
    int state;
    size_t name, name_n; /* where the call's name stands in the window */
    size_t key, key_n;   /* and that of the argument in work */
    size_t arguments;    /* of the call, told */
} nb_tagged;

/* ---- gemma.c: call:NAME{key:value,…} ---- */

typedef struct nb_gemma_form {
    const char *quote; /* on both sides of a string */
    const char *end;
} nb_gemma_form;

/*
 * DeepSeek-V4 (text/dsv4.h): ">\n", then <invoke …> elements up to the end of <tool_calls>. Values of parameters with string="true"
 * are passed on as they come, others when they are complete. strict: as the reference encoder, whose errors name what it found, and
 * which takes any text as a JSON value; then the window must be whole. Not strict: white space may differ, a parameter may come
 * twice, and a value that is no JSON is a string (vLLM).
 */
typedef struct nb_dsml {
    nb_calls c;
    bool strict;
    const char *end; /* of the block; NULL: DSV4_END_CALLS */
    int state;
    size_t part, head; /* where the parameter's text begins; up to where no end of its head is */
    size_t parameters; /* of the call */
    bool text;         /* string="true" */
    nb_map seen;       /* strict: names of the call's parameters; nb_dsml_free */
} nb_dsml;

nb_toolcall nb_dsml_step(nb_dsml *d, nb_window *w, const nb_reply_sink *to, nb_error *err);
/* Frees d->c.out too. */
void nb_dsml_free(nb_dsml *d);

/* ---- toolforms.c ---- */

/* A block in work, of whatever grammar. */
typedef union nb_block {
    nb_calls c; /* what all of them begin with */
    nb_hermes hermes;
    nb_marked marked;
    nb_tagged tagged;
    nb_dsml dsml;
} nb_block;

/* One name of --tool-call-parser. */
typedef struct nb_tool_form {
    const char *name;
    const char
        *begin[3]; /* marks that begin a block, NULL-terminated; the longer one first where they overlap */
    const char *special[8]; /* special tokens whose text the parser must see, NULL-terminated */
    bool
        at_start; /* a block is all of the content: it begins where that does. A mark { is part of the block */
    nb_toolcall (*step)(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err);
    const void *grammar;
} nb_tool_form;

extern const nb_tool_form nb_tool_forms[];
extern const size_t nb_tool_forms_n;
/* NULL: there is none of that name. */
const nb_tool_form *nb_tool_form_of(const char *name);
/* Begins a block; b->c is set. */
void nb_block_begin(nb_block *b);

nb_toolcall nb_marked_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err);
nb_toolcall nb_tagged_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err);
nb_toolcall nb_gemma_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err);

/* ---- harmony.c: gpt-oss, whose whole answer is messages in channels ---- */

#define HARMONY_SPECIAL                                                                                      \
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"

typedef struct nb_harmony {
    nb_calls c;
    bool tools; /* calls are told; else they are content */
    bool begun; /* a message has begun, or text without one */
    int state;
    int part;  /* of the body in work */
    bool told; /* some of the call's arguments */
} nb_harmony;

/* Takes what is certain of the answer. True while there may be more to take. */
bool nb_harmony_step(nb_harmony *h, nb_window *w, const nb_reply_sink *to);
/* Inside a message of the analysis channel. */
bool nb_harmony_thinks(const nb_harmony *h);

#endif
