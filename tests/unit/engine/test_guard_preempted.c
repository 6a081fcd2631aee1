/* A request that is healed and then preempted computes all its tokens again, and gets what it gets undisturbed, to the bit. */
#include "engine/broken.h"
#include "engine/serve.h"

enum { STREAMS = 12, CHANNEL = 5, RARE = 399 };
static uint32_t prompts[STREAMS][40];
static nb_request_spec specs[STREAMS];
static answer have[STREAMS], want[STREAMS];

/* Zeroes the block scales of the inputs that CHANNEL belongs to. */
static void blind(tempdir *t, const char *scale, size_t rows)
{
    const uint8_t zero = 0;
    for (size_t r = 0; r < rows; r++) broken_poke(t, scale, r * 6 + CHANNEL / 16, &zero, 1, NULL);
}

/*
 * One channel of layer 0's input that only the token RARE has, and there 1e36: times codes and block scales that passes F32 in
 * q_proj before the global scale is applied, and weights dequantised to BF16, which have it in them, do not. So healing begins at
 * RARE, and from there on q_proj rounds what before it did not.
 */
static void make_folder(tempdir *t)
{
    const uint16_t none = 0, one = 0x3F80, huge = 0x7B41; /* 1.002e36 */
    broken_copy(t, SERVE_MODELS "llama_modelopt");
    for (size_t id = 0; id < 448; id++)
        broken_poke(t, "model.embed_tokens.weight", 2 * (96 * id + CHANNEL), id == RARE ? &one : &none, 2,
                    NULL);
    broken_poke(t, "model.layers.0.input_layernorm.weight", 2 * CHANNEL, &huge, 2, NULL);
    blind(t, "model.layers.0.self_attn.k_proj.weight_scale", 64);
    blind(t, "model.layers.0.self_attn.v_proj.weight_scale", 64);
}

static void make_specs(void)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        size_t n = 18 + i * 5 % 20;
        for (uint32_t k = 0; k < n; k++) prompts[i][k] = (k * 29 + i * 13 + 7) % RARE;
        if (i % 4) prompts[i][10 + i % 5] = RARE; /* after some rows that are computed plainly */
        specs[i] = serve_spec(prompts[i], n, 60 + i);
        specs[i].sampling.temperature = 1;
        specs[i].sampling.seed = i;
        specs[i].sampling.logprobs = 0;
    }
}

static void healed_and_preempted(void **unused)
{
    tempdir t;
    serve s;
    nb_core_stats st;
    nb_guard_count count;
    make_folder(&t);
    make_specs();
    serve_start(&s, t.path, NB_ARITH_EXACT, 16);
    serve_all(&s, specs, want, STREAMS);
    nb_core_read(s.core, &st);
    assert_true(st.corrupted >= STREAMS * 3 / 4 && st.preemptions == 0);
    assert_int_equal(nb_core_guard(s.core, &count, 1), 1);
    assert_string_equal(count.module, "model.layers.0.self_attn.q_proj");
    assert_string_equal(count.rung, "bf16");
    serve_stop(&s);

    serve_blocks = 25; /* one sequence's worst case */
    nb_core_options o = serve_options(&s, 16);
    o.sched.reserve = NB_RESERVE_PROMPT;
    serve_start_with(&s, t.path, NB_ARITH_EXACT, 16, &o);
    serve_blocks = 0;
    serve_all(&s, specs, have, STREAMS);
    nb_core_read(s.core, &st);
    assert_true(st.preemptions > 0);
    for (size_t i = 0; i < STREAMS; i++) {
        if (want[i].finish != NB_FINISH_LENGTH) fail_msg("%s", want[i].error.cause);
        serve_same_tokens(&have[i], &want[i], "healed and preempted");
        for (size_t k = 0; k < want[i].n; k++)
            assert_memory_equal(&have[i].chosen[k].logprob, &want[i].chosen[k].logprob, sizeof(float));
    }
    serve_stop(&s);
    tempdir_remove(&t);
}

int main(void)
{
    serve_threads = 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(healed_and_preempted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
