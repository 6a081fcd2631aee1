/* What `nibble serve` puts together once it listens: engine, tokenizer, chat format, engine thread and API of one model. */
#ifndef NB_CLI_SERVE_LOAD_H
#define NB_CLI_SERVE_LOAD_H

#include "cli/serve_options.h"
#include "server/plan.h"
#include "server/server.h"

typedef struct nb_served {
    nb_engine *engine;
    nb_tokenizer *tok;
    nb_chat_format *chat; /* NULL: the folder has none */
    nb_generation_config generation;
    nb_core *core;
    nb_api *api;
    json_t *template_kwargs;
} nb_served;

/* Checks what needs no model: names of parsers, JSON options. Returns NB_EXIT_OK, or the exit code after having printed why. */
int nb_serve_check(const nb_serve_options *o);
/* Loads folder as the plan says. Requests may come as soon as this has returned NB_OK and nb_server_ready was called. Free with
 * nb_served_free either way. */
nb_status nb_serve_load(const nb_serve_options *o, const char *folder, const nb_llm_options *lo,
                        const nb_plan *plan, nb_server *server, nb_metrics *metrics, const nb_sink *sink,
                        nb_served *out, nb_error *err);
/* The engine must have nothing to do any more. */
void nb_served_free(nb_served *m);

#endif
