/* DeepSeek-V4's chat encoding, built in because the model ships no template. Callers that serve any model go through
 * chat_format.h. */
#ifndef NB_TEXT_CHAT_H
#define NB_TEXT_CHAT_H

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"

/* request: {"messages": […], "tools"?, "add_generation_prompt"? (default true), "chat_template_kwargs"? , "response_format"?}.
 * Appends the prompt text (special tokens spelled out, BOS included). Bad requests are NB_ERR_ARGUMENT with the reference
 * encoder's message where it has one. vLLM tokenizers/deepseek_v4_encoding.py. */
nb_status nb_chat_deepseek_v4_render(const json_t *request, nb_buf *out, nb_error *err);

/* The reverse for one reply: text up to EOS -> {"role":"assistant","content","reasoning_content"?,"tool_calls"?}.
 * thinking: the prompt ended in <think>. *out is a new reference. */
nb_status nb_chat_deepseek_v4_parse(const char *text, size_t n, bool thinking, json_t **out, nb_error *err);

#endif
