/* Reading texts for a folder, and the engine they run on. */
#include "doctor/texts.h"

#include "engine/measure.h"

#define MAX_SEQS 256 /* texts side by side in one step */

nb_status nb_texts_read(const char *dir, const char *data, bool *of_data, nb_prompts *out, nb_error *err)
{
    nb_ckpt *c = NULL; /* for its config alone */
    nb_tokenizer *t = NULL;
    nb_chat_format *chat = NULL;
    nb_config cfg;
    bool in_data = false;
    nb_status s = nb_ckpt_open(dir, NULL, NULL, &c, err);
    if (s == NB_OK) s = nb_config_init(c, &cfg, err);
    if (s == NB_OK) s = nb_tokenizer_open(nb_ckpt_dir(c), &t, err);
    if (s == NB_OK) s = nb_prompts_format(c, &cfg, &chat, err);
    if (s == NB_OK) {
        in_data = data != NULL;
        s = data ? nb_prompts_file(chat, t, data, out, err) : nb_prompts_builtin(chat, t, out, err);
    }
    if (of_data) *of_data = in_data && s != NB_OK;
    nb_chat_format_free(chat);
    nb_tokenizer_free(t);
    nb_ckpt_close(c);
    return s;
}

nb_status nb_texts_engine(const char *dir, const nb_prompts *texts, size_t rows, const nb_engine_options *opt,
                          const nb_sink *sink, nb_engine **out, nb_error *err)
{
    const nb_load_options load = {.stream = true};
    nb_engine_options o = *opt;
    if (!rows) rows = NB_TEXTS_ROWS;
    o.kernels = opt->kernels ? opt->kernels : "auto";
    o.max_seqs = nb_texts_abreast(texts, rows, MAX_SEQS);
    o.max_context = texts->longest;
    o.max_rows = rows;
    o.load = &load;
    nb_status s = nb_engine_new(dir, &o, sink, out, err);
    if (s == NB_ERR_LIMIT) nb_error_remedy(err, "cut the longest text of the data");
    return s;
}
