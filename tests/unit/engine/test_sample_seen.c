/* What penalties remember of many tokens: as a plain table of the vocabulary would have it, and in time that grows with their number, also
 * of tokens that were chosen to meet in the hash table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum {
    V = 1000,
    NEVER = V - 1,
    LOGIT = 6,
    PROMPT = 300,
    OUTPUT = 700,
    LARGE = 262144,
    MANY = 60000,
    SLOTS = 131072
};

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* What penalties make of a logit, by their definition: repetition over prompt and output, the others over the output alone. */
static float penalised(const nb_sample_params *p, float l, bool in_prompt, int count)
{
    if (in_prompt || count) l /= p->repetition_penalty;
    return l - p->frequency_penalty * (float)count - (count ? p->presence_penalty : 0);
}

static uint32_t better(const nb_sampler *s, nb_sample_work *w, uint32_t id, float l)
{
    static float logits[V];
    nb_sampled out;
    size_t n_top;
    for (size_t i = 0; i < V; i++) logits[i] = -1000;
    logits[NEVER] = l;
    logits[id] = LOGIT;
    assert_int_equal(nb_sampler_choose(s, w, logits, &out, NULL, 0, &n_top, NULL), NB_OK);
    return out.chosen.id;
}

/* Each token beside one that never comes, whose logit is a little lower and a little higher than what penalties must leave. */
static void as_a_plain_table_has_it(void **unused)
{
    static int count[V];
    static bool in_prompt[V];
    uint32_t state = 1, prompt[PROMPT];
    nb_sample_params p;
    nb_sample_work *w;
    nb_sampler *s;
    nb_sample_defaults(&p);
    p.temperature = 0;
    p.repetition_penalty = 1.5f;
    p.frequency_penalty = 0.25f;
    p.presence_penalty = 0.5f;
    for (size_t i = 0; i < PROMPT; i++) in_prompt[prompt[i] = draw(&state) % NEVER] = true;
    assert_int_equal(nb_sample_work_new(V, &w, NULL), NB_OK);
    assert_int_equal(nb_sampler_new(&p, V, prompt, PROMPT, &s, NULL), NB_OK);
    for (size_t n = 0; n < OUTPUT; n++) {
        uint32_t id = draw(&state) % NEVER;
        assert_int_equal(nb_sampler_push(s, id, NULL), NB_OK);
        count[id]++;
    }
    for (uint32_t id = 0; id < NEVER; id++) {
        float l = penalised(&p, LOGIT, in_prompt[id], count[id]);
        assert_int_equal(better(s, w, id, l - 0.01f), id);
        assert_int_equal(better(s, w, id, l + 0.01f), NEVER);
    }
    nb_sampler_free(s);
    nb_sample_work_free(w);
}

static double seconds(const nb_sample_params *p, const uint32_t *prompt)
{
    nb_sampler *s;
    clock_t from = clock();
    assert_int_equal(nb_sampler_new(p, LARGE, prompt, MANY, &s, NULL), NB_OK);
    clock_t to = clock();
    nb_sampler_free(s);
    return (double)(to - from) / CLOCKS_PER_SEC;
}

/* The slot that a token would have alone. */
static size_t home(uint32_t id)
{
    return (id * UINT64_C(0x9E3779B97F4A7C15) >> 32) % SLOTS;
}

static int by_home(const void *a, const void *b)
{
    size_t x = home(*(const uint32_t *)a), y = home(*(const uint32_t *)b);
    return (x > y) - (x < y);
}

/* A row of slots that each token walks to its end takes a thousand times as long as the same number of others. Five tries: time that a
 * host takes from a virtual machine counts as its own. */
static void chosen_tokens_take_no_longer(void **unused)
{
    uint32_t *ids = malloc(LARGE * sizeof *ids), *plain = malloc(MANY * sizeof *plain);
    nb_sample_params p;
    bool fast = false;
    assert_true(ids && plain);
    nb_sample_defaults(&p);
    p.repetition_penalty = 1.1f;
    for (uint32_t i = 0; i < LARGE; i++) ids[i] = i;
    for (uint32_t i = 0; i < MANY; i++) plain[i] = i;
    qsort(ids, LARGE, sizeof *ids, by_home); /* the first MANY belong into less than a quarter of the slots */
    for (int i = 0; i < 5 && !fast; i++) fast = seconds(&p, ids) < 100 * seconds(&p, plain) + 0.2;
    assert_true(fast);
    free(plain);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_a_plain_table_has_it),
        cmocka_unit_test(chosen_tokens_take_no_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
