/*
 * The tokens that end an assistant's turn, as the chat template writes them: <|im_end|>, <|eot_id|>, <end_of_turn>, <|return|> … A
 * generation_config.json that was lost or copied from the base model does not name them, and then answers run on.
 */
#ifndef NB_TEXT_TURN_END_H
#define NB_TEXT_TURN_END_H

#include "text/chat_format.h"
#include "text/tokenizer.h"

#define NB_TURN_ENDS 2

/* ids becomes the special tokens that the template puts behind an answer and behind tool calls, *n how many those are: 0 where it shows
 * none, or cannot be rendered. A chat format that is no template (DeepSeek-V4) ends with the tokenizer's own token: 0. */
nb_status nb_turn_ends(const nb_chat_format *f, const nb_tokenizer *t, uint32_t ids[NB_TURN_ENDS], size_t *n,
                       nb_error *err);

#endif
