/* Texts and a streamed engine that runs them: what calibrate and `check --data` have in common. */
#ifndef NB_DOCTOR_TEXTS_H
#define NB_DOCTOR_TEXTS_H

#include "engine/engine.h"
#include "engine/prompts.h"

#define NB_TEXTS_ROWS 512 /* about 0.5 GB of activations for a model of DeepSeek-V4's size */

/* The texts of a data file (data NULL: the built-in ones) as ids of the folder's tokenizer. *of_data (may be NULL): it failed, and
 * the data is at fault, not the folder. Free *out with nb_prompts_free, after failure too. */
nb_status nb_texts_read(const char *dir, const char *data, bool *of_data, nb_prompts *out, nb_error *err);

/* An engine for these texts that reads its weights layer by layer, side by side as many texts as fill a step of `rows` tokens (0:
 * NB_TEXTS_ROWS). opt: threads, kernels (NULL: the best), arithmetic and types; the rest is set here. Room is taken for the texts
 * alone, whatever context the model could have. */
nb_status nb_texts_engine(const char *dir, const nb_prompts *texts, size_t rows, const nb_engine_options *opt,
                          const nb_sink *sink, nb_engine **out, nb_error *err);

#endif
