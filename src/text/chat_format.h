/*
 * How a model wants its chats: the Jinja template that its folder ships (jinja.h), or an encoding built in because the family
 * ships none (DeepSeek-V4, chat.h). One object per served model; immutable after opening, used from any thread.
 */
#ifndef NB_TEXT_CHAT_FORMAT_H
#define NB_TEXT_CHAT_FORMAT_H

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct nb_chat_format nb_chat_format;

/*
 * Finds the chat format of the folder dir. source NULL: chat_template.jinja, else chat_template.json, else chat_template of
 * tokenizer_config.json (a string, or the list's entry "default", and "tool_use" for requests with tools), else the built-in
 * encoding of `architecture` (the name in nb_arch; may be NULL). source not NULL: a template file's path, or a template as text
 * (--chat-template).
 * NB_ERR_MISSING: the folder has no format, which says what to give. A template that does not parse is NB_ERR_FORMAT with file
 * and byte. Free with nb_chat_format_free.
 */
nb_status nb_chat_format_open(const char *dir, const char *architecture, const char *source,
                              nb_chat_format **out, nb_error *err);
void nb_chat_format_free(nb_chat_format *f);

/*
 * Renders a chat request: {"messages": […], "tools"?, "documents"?, "add_generation_prompt"? (default true, or false beside
 * the next), "continue_final_message"? (default false), "chat_template_kwargs"? {…}}. Messages are as they come off the wire:
 * content a string, a list of parts or null; tool-call arguments a JSON string (parsed to an object before a template sees it
 * when it is one); `reasoning` or `reasoning_content` are both offered under both names. What transformers'
 * render_jinja_template and vLLM do with them is what happens here; bos_token and eos_token come from the folder's
 * tokenizer_config.json.
 * now: seconds since the epoch, for strftime_now (local time). Appends the prompt text, special tokens spelled out.
 * NB_ERR_ARGUMENT: the template refused (raise_exception's message is the cause, word for word) or a message is malformed.
 * NB_ERR_LIMIT: it passed the bound on steps, output, memory or depth.
 */
nb_status nb_chat_format_render(const nb_chat_format *f, const json_t *request, int64_t now, nb_buf *out,
                                nb_error *err);

/* The second half of that, for a format that is a template: messages go to it as they are here, but for the reasoning's names. */
nb_status nb_chat_format_apply(const nb_chat_format *f, const json_t *request, int64_t now, nb_buf *out,
                               nb_error *err);

/* True when the template (or encoding) reads this variable: a key of chat_template_kwargs that it would see. */
bool nb_chat_format_uses(const nb_chat_format *f, const char *variable);
/* "deepseek_v4" for the built-in encoding, "jinja" otherwise. Static storage. */
const char *nb_chat_format_name(const nb_chat_format *f);

#endif
