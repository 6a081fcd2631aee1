/* How long one row of logits takes to become a token: bench_sampler [VOCABULARY]... prints microseconds, the best of some rounds on one
 * thread, for what requests ask for. Logits are normally distributed with a standard deviation of 3, the prompt has 1,000 tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/sampler.h"

#define ROUNDS 200
#define PROMPT 1000
#define LOGPROBS 5

/* A sum of twelve uniform numbers less six is close to normal. */
static void fill(float *v, size_t n, uint32_t state)
{
    for (size_t i = 0; i < n; i++) {
        float sum = -6;
        for (int k = 0; k < 12; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) * 0x1p-24f;
        }
        v[i] = 3 * sum;
    }
}

/* The best round, or a negative number when one fails. */
static double best_of(const nb_sample_params *p, const float *logits, size_t vocab)
{
    uint32_t prompt[PROMPT];
    nb_sample_work *w = NULL;
    nb_sampler *s = NULL;
    nb_sampled out;
    nb_logprob top[LOGPROBS];
    size_t n_top;
    double best = -1;
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (uint32_t)(i * 7919u % vocab);
    nb_status st = nb_sample_work_new(vocab, &w, NULL);
    if (st == NB_OK) st = nb_sampler_new(p, vocab, prompt, PROMPT, &s, NULL);
    for (int i = 0; i < ROUNDS && st == NB_OK; i++) {
        double begin = nb_now();
        st = nb_sampler_choose(s, w, logits, &out, top, LOGPROBS, &n_top, NULL);
        double t = nb_now() - begin;
        if (st == NB_OK) nb_sampler_push(s, out.chosen.id);
        if (best < 0 || t < best) best = t;
    }
    nb_sampler_free(s);
    nb_sample_work_free(w);
    return st == NB_OK ? best : -1;
}

static int bench(size_t vocab)
{
    static const struct {
        const char *name;
        float temperature, top_p, min_p;
        uint32_t top_k;
        float repetition, presence;
        int logprobs;
    } cases[] = {
        {"greedy", 0, 1, 0, 0, 1, 0, -1},
        {"greedy, penalties", 0, 1, 0, 0, 1.1f, 0.5f, -1},
        {"greedy, logprobs 5", 0, 1, 0, 0, 1, 0, LOGPROBS},
        {"temperature", 1, 1, 0, 0, 1, 0, -1},
        {"top-k 20, top-p 0.95", 1, 0.95f, 0, 20, 1, 0, -1},
        {"top-p 0.95", 1, 0.95f, 0, 0, 1, 0, -1},
        {"min-p 0.05", 1, 1, 0.05f, 0, 1, 0, -1},
    };
    float *logits = calloc(vocab, sizeof *logits);
    if (!logits) return 1;
    fill(logits, vocab, 1);
    printf("vocabulary %zu, microseconds a row\n", vocab);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nb_sample_params p;
        nb_sample_defaults(&p);
        p.temperature = cases[i].temperature;
        p.top_p = cases[i].top_p;
        p.min_p = cases[i].min_p;
        p.top_k = cases[i].top_k;
        p.repetition_penalty = cases[i].repetition;
        p.presence_penalty = cases[i].presence;
        p.logprobs = cases[i].logprobs;
        printf("  %-22s %8.1f\n", cases[i].name, best_of(&p, logits, vocab));
    }
    free(logits);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) return bench(49152) || bench(151936);
    for (int i = 1; i < argc; i++) {
        unsigned long vocab = strtoul(argv[i], NULL, 10);
        if (!vocab || vocab > 1000000 || bench(vocab)) {
            fprintf(stderr, "usage: bench_sampler [VOCABULARY]...\n");
            return 1;
        }
    }
    return 0;
}
