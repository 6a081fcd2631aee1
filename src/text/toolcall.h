/*
 * Parsers of one block of tool calls in a text that arrives in pieces. A block's first mark has been passed when a parser begins. Each
 * tells the calls as soon as they are certain and says how far it came; what becomes of a malformed rest is the caller's business.
 * Positions are the window's, from whose front nothing may be dropped while a block is in work.
 */
#ifndef NB_TEXT_TOOLCALL_H
#define NB_TEXT_TOOLCALL_H

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

/* What both parsers have. Zero-initialise, then set calls and safe. */
typedef struct nb_calls {
    size_t calls; /* told so far; the next one's index */
    size_t safe;  /* the text before has been told, or is markup of what has been told */
    bool open;    /* the last call is not complete */
    nb_buf out;   /* work memory; the caller frees it */
} nb_calls;

/* Hermes, Qwen2.5, Qwen3: {"name": …, "arguments": …} and </tool_call>. The text of the arguments is passed on as it stands; without any
 * it is {}. Of a member given twice the first counts, other members do not. */
#define HERMES_BEGIN "<tool_call>"
#define HERMES_END "</tool_call>"

typedef struct nb_hermes {
    nb_calls c;
    nb_json_push json;
    int state;
    size_t key, key_end; /* the last key's text, quotes included */
    size_t name;         /* where the name's value begins, 0: not there yet */
    size_t args, args_end,
        args_told; /* where the arguments begin and end, and how far they have been told; 0: not there yet */
    bool told, in_name, in_args;
} nb_hermes;

nb_toolcall nb_hermes_step(nb_hermes *h, nb_window *w, const nb_reply_sink *to, nb_error *err);

/*
 * DeepSeek-V4 (text/dsv4.h): ">\n", then <invoke …> elements up to the end of <tool_calls>. Values of parameters with string="true"
 * are passed on as they come, others when they are complete. strict: as the reference encoder, whose errors name what it found, and
 * which takes any text as a JSON value; then the window must be whole. Not strict: white space may differ, a parameter may come
 * twice, and a value that is no JSON is a string (vLLM).
 */
typedef struct nb_dsml {
    nb_calls c;
    bool strict;
    int state;
    size_t part, head; /* where the parameter's text begins; up to where no end of its head is */
    size_t parameters; /* of the call */
    bool text;         /* string="true" */
    nb_map seen;       /* strict: names of the call's parameters; nb_dsml_free */
} nb_dsml;

nb_toolcall nb_dsml_step(nb_dsml *d, nb_window *w, const nb_reply_sink *to, nb_error *err);
/* Frees d->c.out too. */
void nb_dsml_free(nb_dsml *d);

#endif
