/*
 * An answer as it arrives, taken apart: reasoning, content, tool calls. A parser sees pieces of text (any cut between characters) and tells
 * what each part is as soon as that is certain; text that may be the beginning of a mark is held. The same parser, fed the whole
 * text, serves answers that are not streamed, so that the two cannot differ.
 */
#ifndef NB_TEXT_REPLY_H
#define NB_TEXT_REPLY_H

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"

/* Where the parts go. Calls come in the order of the text; s is never empty but for a call without arguments. */
typedef struct nb_reply_sink {
    void (*content)(void *ctx, const char *s, size_t n);
    void (*reasoning)(void *ctx, const char *s, size_t n);
    void (*call)(void *ctx, size_t index, const char *name, size_t n); /* tool call number index begins */
    void (*arguments)(void *ctx, size_t index, const char *s,
                      size_t n); /* a piece of its arguments, JSON text */
    void *ctx;
} nb_reply_sink;

typedef struct nb_reply nb_reply;

/* True when there is a parser of that name. Names are vLLM's (--reasoning-parser, --tool-call-parser). */
bool nb_reply_has_reasoning(const char *name);
bool nb_reply_has_tools(const char *name);
/* *name becomes the i-th name, in order, for help and errors; static storage. Both return how many there are. */
size_t nb_reply_reasoning_name(size_t i, const char **name);
size_t nb_reply_tools_name(size_t i, const char **name);
/* True when the answer to this prompt (n bytes of text) begins inside reasoning: its last mark opens it, or it has none and the form begins
 * so unasked (vLLM: deepseek_r1, qwen3 and most others; not deepseek_v3). name NULL: false. */
bool nb_reply_begins_thinking(const char *name, const char *prompt, size_t n);
/* The special tokens whose text a parser must see (nb_request_spec.keep). Names may be NULL: none. Returns how many there are. */
#define NB_REPLY_MARKS 16
size_t nb_reply_marks(const char *reasoning, const char *tools, const char *marks[NB_REPLY_MARKS]);

/* reasoning, tools: parser names or NULL; NB_ERR_ARGUMENT lists those there are. thinking: the answer begins inside the reasoning
 * (nb_reply_begins_thinking). schemas: the request's tools (may be NULL), for parsers whose argument types come from them; borrowed. */
nb_status nb_reply_new(const char *reasoning, const char *tools, bool thinking, const json_t *schemas,
                       nb_reply **out, nb_error *err);
void nb_reply_free(nb_reply *r);
/* Memory that runs out is NB_ERR_NOMEM; text that no parser understands is content, never an error. */
nb_status nb_reply_push(nb_reply *r, const char *s, size_t n, const nb_reply_sink *to, nb_error *err);
/* The answer is over: what was held comes out. An unfinished call keeps the arguments that were told, as vLLM's does. */
nb_status nb_reply_end(nb_reply *r, const nb_reply_sink *to, nb_error *err);
/* True while the parser stands inside reasoning. */
bool nb_reply_thinking(const nb_reply *r);

#endif
