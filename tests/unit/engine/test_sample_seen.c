/* What penalties remember of many tokens: as a plain table of the vocabulary would have it, and in time that grows with their number, also
 * of tokens that were chosen to meet in the hash table. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { V = 5000, PROMPT = 700, OUTPUT = 3000, LARGE = 262144, MANY = 60000, SLOTS = 131072 };

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* The best after penalties by their definition: repetition over prompt and output, the others over the output alone. */
static uint32_t best(const nb_sample_params *p, const float *logits, const int *count, const bool *in_prompt)
{
    uint32_t at = 0;
    float most = -FLT_MAX;
    for (uint32_t i = 0; i < V; i++) {
        float l = logits[i];
        if (in_prompt[i] || count[i]) l = l > 0 ? l / p->repetition_penalty : l * p->repetition_penalty;
        l -= p->frequency_penalty * (float)count[i];
        if (count[i]) l -= p->presence_penalty;
        if (l > most) {
            most = l;
            at = i;
        }
    }
    return at;
}

static void as_a_plain_table_has_it(void **unused)
{
    static float logits[V];
    static int count[V];
    static bool in_prompt[V];
    uint32_t state = 1, prompt[PROMPT];
    size_t n_top;
    nb_sample_params p;
    nb_sample_work *w;
    nb_sampler *s;
    nb_sampled out;
    nb_sample_defaults(&p);
    p.temperature = 0;
    p.repetition_penalty = 1.5f;
    p.frequency_penalty = 0.25f; /* sums of quarters are exact */
    p.presence_penalty = 0.5f;
    for (size_t i = 0; i < PROMPT; i++) in_prompt[prompt[i] = draw(&state) % V] = true;
    assert_int_equal(nb_sample_work_new(V, &w, NULL), NB_OK);
    assert_int_equal(nb_sampler_new(&p, V, prompt, PROMPT, &s, NULL), NB_OK);
    for (size_t n = 0; n < OUTPUT; n++) {
        if (n % 50 == 0) {
            for (size_t i = 0; i < V; i++) logits[i] = (float)(draw(&state) % 4096) / 512 - 4;
            assert_int_equal(nb_sampler_choose(s, w, logits, &out, NULL, 0, &n_top, NULL), NB_OK);
            assert_int_equal(out.chosen.id, best(&p, logits, count, in_prompt));
        }
        uint32_t id = n % 2 ? draw(&state) % V : out.chosen.id;
        assert_int_equal(nb_sampler_push(s, id, NULL), NB_OK);
        count[id]++;
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
