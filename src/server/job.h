/*
 * One completion or chat request inside: its choices, and what each has said since it was last sent. Answers that are not streamed are
 * the same with one sending, at the end, so that the two cannot differ.
 *
 *     event of the engine -> job_delta.c: text, reasoning, calls, log-probabilities as JSON elements
 *                         -> job_write.c: a frame each time something is due, or the whole body
 */
#ifndef NB_SERVER_JOB_H
#define NB_SERVER_JOB_H

#include "server/api_internal.h"
#include "text/reply.h"

/* Said, not yet sent. text and reasoning are plain; the others elements of JSON arrays, with commas between. */
typedef struct nb_delta {
    nb_buf text, reasoning;
    nb_buf calls; /* objects; the last is unfinished while call_open */
    bool call_open;
    nb_buf tokens, token_logprobs, top_logprobs, offsets; /* completions */
    nb_buf content;                                       /* chat: logprobs.content */
    nb_buf prompt;                                        /* prompt_logprobs */
    nb_buf token_ids;
    size_t n_tokens;
} nb_delta;

typedef struct nb_choice {
    struct nb_job *job;
    nb_request *request; /* NULL once its last event was taken */
    size_t prompt, index;
    nb_delta d;
    nb_reply *reply; /* NULL: text is content as it comes */
    size_t call;     /* index of the call that arguments belong to */
    bool called, sent;
    size_t prompt_events, output, reasoning, cached, max_tokens;
    size_t chars; /* begun by the tokens so far, for text_offset */
    double last;  /* time of the last token */
    nb_finish finish;
    uint32_t stop_token; /* the last token, when finish is STOP and stop_string -1 */
    int stop_string;
} nb_choice;

/* What is known of a prompt when its ids are gone. */
typedef struct nb_prompt_tally {
    size_t len;            /* tokens */
    size_t ended, longest; /* of its sequences: how many have, and the most output tokens of one */
} nb_prompt_tally;

struct nb_job {
    nb_api *a;
    nb_params p;          /* its body is dropped once all is submitted */
    json_t *stop, *tools; /* references of its own to what of the body the answer needs */
    bool chat, stream, include_usage, continuous_usage, echo_only, logprobs, tokens_as_ids, token_ids;
    bool prompt_events; /* prompt_logprobs are wanted, or echoed */
    size_t interval, n;
    char *id;
    char *role; /* chat */
    int64_t created, priority;
    double arrival;
    nb_sampling_set sampling;
    uint32_t *keep; /* [n_keep] */
    size_t n_keep;
    nb_prompt *prompts;
    size_t n_prompts;
    nb_prompt_tally *tally; /* [n_prompts] */
    nb_choice *choices;
    size_t n_choices, live, seats;
    nb_buf head; /* of every frame, up to the choices */
    bool sent, cancelled, failed;
    nb_api_error error;
};

/* job_delta.c: takes one event into its choice's delta. *err: the reply's parser failed. Memory that runs out marks a buffer, which nb_delta_ok tells. */
void nb_delta_take(nb_choice *c, const nb_event *ev, nb_error *err);
/* The answer is over: what the parser held comes out. */
void nb_delta_end(nb_choice *c, nb_error *err);
bool nb_delta_ok(const nb_delta *d);
/* Something that a frame would tell. */
bool nb_delta_any(const nb_delta *d);
/* Ends the call that is being written, for a frame; its arguments go on in the next one. */
void nb_delta_close(nb_delta *d);
void nb_delta_clear(nb_delta *d);
void nb_delta_free(nb_delta *d);

/* job_write.c */
void nb_job_write_head(nb_job *j);
void nb_job_write_roles(nb_job *j, nb_buf *out); /* chat: the first frame of each choice */
void nb_job_write_chunk(nb_choice *c, nb_buf *out);
void nb_job_write_usage(nb_job *j, nb_buf *out);
void nb_job_write_body(nb_job *j, nb_buf *out);

#endif
