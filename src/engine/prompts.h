/*
 * Texts to measure a model with: lines of a file, or prompts built in. The built-in ones are real text (questions with answers,
 * prose, code, figures, several languages) in the model's own chat format where it has one: random tokens excite other
 * channels than people's text does, and a scale measured with them is wrong.
 */
#ifndef NB_ENGINE_PROMPTS_H
#define NB_ENGINE_PROMPTS_H

#include "checkpoint/arch.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

/* The chat format of a model's folder; *out is NULL where the folder has none. Free with nb_chat_format_free. */
nb_status nb_prompts_format(const nb_ckpt *c, const nb_config *cfg, nb_chat_format **out, nb_error *err);

/* A chat request as the model's prompt text. The clock that a template may show stands still, so that what is measured today
 * can be measured again. chat NULL is NB_ERR_MISSING. */
nb_status nb_prompt_render(const nb_chat_format *chat, const json_t *request, nb_buf *out, nb_error *err);

typedef struct nb_prompts {
    nb_ids *ids; /* [n], none empty */
    size_t n, longest, tokens;
} nb_prompts; /* zero-initialise; nb_prompts_free */
void nb_prompts_free(nb_prompts *p);

/* The built-in texts. A model without a chat format (chat NULL) gets them as plain text, with its BOS if it wants one. */
nb_status nb_prompts_builtin(const nb_chat_format *chat, const nb_tokenizer *t, nb_prompts *out,
                             nb_error *err);

/* JSON lines {"text": …} (special tokens spelled out, none added) or {"messages": […]} (a chat request). Errors name file, byte
 * and line; a file without lines is one. */
nb_status nb_prompts_file(const nb_chat_format *chat, const nb_tokenizer *t, const char *path,
                          nb_prompts *out, nb_error *err);

#endif
