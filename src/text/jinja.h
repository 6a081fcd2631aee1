/*
 * Jinja templates, the language that models' chat templates are written in, as transformers runs them: Jinja2's immutable
 * sandbox with trim_blocks, lstrip_blocks, loop controls and {% generation %}; tojson is json.dumps(ensure_ascii=False);
 * raise_exception and strftime_now are there. What is not implemented fails by name when it is reached (docs/formats.md lists
 * it). A template is foreign code: it can reach nothing but the variables it is given, and time, memory, output and depth are
 * bounded.
 */
#ifndef NB_TEXT_JINJA_H
#define NB_TEXT_JINJA_H

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct nb_jinja nb_jinja; /* a parsed template: immutable, used from any thread */

typedef struct nb_jinja_limits {
    size_t steps;  /* operations; 16 bytes of text worked on count as one */
    size_t memory; /* bytes of values, and again of text produced on the way */
    size_t output; /* bytes of one text: the output, a string */
} nb_jinja_limits;
/* What chats get: twenty times what the largest of them needs, and a second or two of a hostile template's time. */
#define NB_JINJA_LIMITS ((nb_jinja_limits){50000000, (size_t)256 << 20, (size_t)64 << 20})

/* Parses n bytes of UTF-8. A syntax error is NB_ERR_FORMAT with the byte (err->offset) and the line (in the cause).
 * Free with nb_jinja_free. */
nb_status nb_jinja_parse(const char *text, size_t n, nb_jinja **out, nb_error *err);
void nb_jinja_free(nb_jinja *t);

/*
 * Renders with the members of variables (an object, or NULL). now: seconds since the epoch, for strftime_now (local time).
 * Appends to out; after an error out is as it was. What Jinja2 would raise is NB_ERR_ARGUMENT: raise_exception's message is
 * the cause, word for word; other causes name the line. NB_ERR_LIMIT: a limit was passed, or a number left 64 bits.
 * NB_ERR_UNSUPPORTED: a feature that this build lacks, named.
 */
nb_status nb_jinja_render(const nb_jinja *t, const json_t *variables, int64_t now, nb_jinja_limits limits,
                          nb_buf *out, nb_error *err);

/* True when the template reads a variable of this name. */
bool nb_jinja_uses(const nb_jinja *t, const char *name);
/*
 * Does it loop over a message's content, or a macro over what it is given as such? Then it wants content as a list of parts:
 * how vLLM's --chat-template-content-format auto tells `openai` from `string` (vllm/renderers/hf.py). NB_ERR_NOMEM.
 */
nb_status nb_jinja_wants_parts(const nb_jinja *t, bool *parts, nb_error *err);

#endif
