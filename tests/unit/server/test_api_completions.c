/* /v1/completions against an engine that says what it is told: answers whole and streamed, field by field as specs/http_api.md §1. */
#include "server/fake_core.h"

#define ASK(body, status, want) fake_expect(NB_ROUTE_COMPLETIONS, body, status, want)
#define PART(body, status, want) fake_expect_part(NB_ROUTE_COMPLETIONS, body, status, want)

#define HEAD "{\"id\":\"cmpl-id\",\"object\":\"text_completion\",\"created\":0,\"model\":\"m\",\"choices\":["
#define NO_PROMPT                                                                                            \
    ",\"token_ids\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"routed_experts\":null}"
#define USAGE(p, t, c)                                                                                       \
    "\"usage\":{\"prompt_tokens\":" #p ",\"total_tokens\":" #t ",\"completion_tokens\":" #c                  \
    ",\"prompt_tokens_details\":null,\"completion_tokens_details\":null}"
#define TAIL(p, t, c)                                                                                        \
    "],\"service_tier\":null,\"system_fingerprint\":\"nibble-1.0\"," USAGE(                                  \
        p, t, c) ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}"

static void a_whole_answer(void **state)
{
    fake_reset("ok\n\"", NB_FINISH_LENGTH);
    ASK("{\"prompt\":\"abc\"}", 200,
        HEAD "{\"index\":0,\"text\":\"ok\\n\\\"\",\"logprobs\":null,\"finish_reason\":\"length\","
             "\"stop_reason\":null" NO_PROMPT TAIL(3, 7, 4));
    assert_int_equal(fake.spec.max_tokens, 16); /* the default of completions */
    assert_false(fake.spec.open_ended);
    assert_int_equal(fake.spec.n_prompt, 3);
    assert_int_equal(fake.prompt[0], 'a');
    assert_int_equal(fake.spec.sampling.n_stop_ids, 1);
    assert_int_equal(fake.stop_ids[0], 257);
}

/* Every key of the chunks is there, null or not; the chunk that finishes carries text; then usage and [DONE]. */
static void a_streamed_answer(void **state)
{
    /* Each token has a chunk, as clients of vLLM count them: the first byte of a character one without text. */
    fake_reset("a\xC3\xA9", NB_FINISH_LENGTH);
#define CHUNK(text, finish)                                                                                  \
    "data: " HEAD "{\"index\":0,\"text\":\"" text "\",\"logprobs\":null,\"finish_reason\":" finish           \
    ",\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]"
    ASK("{\"prompt\":\"abc\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}", 200,
        CHUNK("a", "null") "}\n\n" CHUNK("", "null") "}\n\n" CHUNK(
            "\xC3\xA9",
            "\"length\"") ",\"system_fingerprint\":\"nibble-1.0\"}\n\n"
                          "data: " HEAD
                          "],\"usage\":{\"prompt_tokens\":3,\"total_tokens\":6,\"completion_tokens\":3},"
                          "\"system_fingerprint\":\"nibble-1.0\"}\n\n"
                          "data: [DONE]\n\n");
    fake_reset("ab", NB_FINISH_LENGTH);
    ASK("{\"prompt\":\"abc\",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"continuous_usage_stats\":true}}",
        200,
        CHUNK("a", "null") ",\"usage\":{\"prompt_tokens\":3,\"total_tokens\":4,\"completion_tokens\":1}}"
                           "\n\n" CHUNK("b", "\"length\"") ",\"usage\":{\"prompt_tokens\":3,\"total_tokens\":"
                                                           "5,\"completion_tokens\":2},"
                                                           "\"system_fingerprint\":\"nibble-1.0\"}\n\n"
                                                           "data: " HEAD
                                                           "],\"usage\":{\"prompt_tokens\":3,\"total_"
                                                           "tokens\":5,\"completion_tokens\":2},"
                                                           "\"system_fingerprint\":\"nibble-1.0\"}\n\n"
                                                           "data: [DONE]\n\n");
    /* The first token at once, then by threes. */
    fake_reset("abcdefg", NB_FINISH_LENGTH);
    ASK("{\"prompt\":\"abc\",\"stream\":true,\"stream_interval\":3}", 200,
        CHUNK("a", "null") "}\n\n" CHUNK("bcd", "null") "}\n\n" CHUNK(
            "efg", "\"length\"") ",\"system_fingerprint\":\"nibble-1.0\"}\n\n"
                                 "data: [DONE]\n\n");
#undef CHUNK
}

static void why_it_ended(void **state)
{
    fake_reset("a", NB_FINISH_STOP);
    fake.end_token = 257; /* the model's own end: no reason */
    PART("{\"prompt\":\"p\"}", 200, "\"finish_reason\":\"stop\",\"stop_reason\":null");
    PART("{\"prompt\":\"p\",\"stop_token_ids\":[257]}", 200, "\"stop_reason\":null");
    PART("{\"prompt\":\"p\",\"stop_token_ids\":[257],\"ignore_eos\":true}", 200, "\"stop_reason\":257");
    fake_generation.own_eos = -1; /* generation_config.json alone names it */
    PART("{\"prompt\":\"p\"}", 200, "\"finish_reason\":\"stop\",\"stop_reason\":257");
    fake_generation.own_eos = 257;
    fake_generation.eos[fake_generation.n_eos++] = 98;
    fake.end_token = 98;
    PART("{\"prompt\":\"p\"}", 200, "\"finish_reason\":\"stop\",\"stop_reason\":98");
    fake_generation.n_eos--;
    PART("{\"prompt\":\"p\",\"stop_token_ids\":[98, 99999]}", 200,
         "\"finish_reason\":\"stop\",\"stop_reason\":98");
    assert_int_equal(fake.spec.sampling.n_stop_ids, 2); /* an id that no token has cannot come */
    fake_reset("a", NB_FINISH_STOP);
    fake.stop_string = 1;
    PART("{\"prompt\":\"p\",\"stop\":[\"x\",\"\\u0000y\"]}", 200, "\"stop_reason\":\"\\u0000y\"");
    assert_int_equal(fake.spec.n_stop, 2);
    assert_int_equal(fake.spec.stop_len[1], 2);
    fake_reset("a", NB_FINISH_STOP);
    fake.stop_string = 0;
    PART("{\"prompt\":\"p\",\"stop\":\"x\"}", 200, "\"stop_reason\":\"x\"");
    fake_reset("a", NB_FINISH_ABORT);
    PART("{\"prompt\":\"p\"}", 200, "\"finish_reason\":\"abort\",\"stop_reason\":null");
}

/* Two prompts of two choices: index = prompt * n + choice; a prompt counts once. */
static void batches(void **state)
{
    fake_reset("z", NB_FINISH_LENGTH);
#define CHOICE(i)                                                                                            \
    "{\"index\":" #i                                                                                         \
    ",\"text\":\"z\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null" NO_PROMPT
    ASK("{\"prompt\":[\"ab\",\"cde\"],\"n\":2,\"seed\":7}", 200,
        HEAD CHOICE(0) "," CHOICE(1) "," CHOICE(2) "," CHOICE(3) TAIL(5, 9, 4));
    assert_int_equal(fake.submitted, 4);
    assert_int_equal(fake.entered, 4);
    assert_int_equal(fake.records, 4);
    assert_int_equal(fake.n_sum,
                     4); /* vllm:request_params_n: 2 for each of the two prompts, not for each sequence */
    assert_int_equal(fake.last_record.longest, 1);
    assert_int_equal(fake.spec.sampling.seed, 8); /* child i of n draws from seed + i */
    fake_reset("z", NB_FINISH_LENGTH);
    ASK("{\"prompt\":[97,98]}", 200, HEAD CHOICE(0) TAIL(2, 3, 1));
    fake_reset("z", NB_FINISH_LENGTH);
    ASK("{\"prompt\":[[97,98],[99]]}", 200, HEAD CHOICE(0) "," CHOICE(1) TAIL(3, 5, 2));
#undef CHOICE
    assert_int_equal(fake.records, 2);
    assert_int_equal(fake.last_record.prompt_tokens, 1);
    assert_int_equal(fake.last_record.max_tokens, 16);
    assert_int_equal(fake.last_record.cached_tokens, 2);
}

static void log_probabilities(void **state)
{
    /* -0.5 and -0.75 for the two tokens, each successor 1 less; k best and the token itself, which is among them. */
    fake_reset("ab", NB_FINISH_LENGTH);
    PART("{\"prompt\":\"p\",\"logprobs\":2}", 200,
         "\"logprobs\":{\"text_offset\":[0,1],\"token_logprobs\":[-0.5,-0.75],\"tokens\":[\"a\",\"b\"],"
         "\"top_logprobs\":[{\"a\":-0.5,\"b\":-1.5},{\"b\":-0.75,\"c\":-1.75}]}");
    PART("{\"prompt\":\"p\",\"logprobs\":0}", 200, "\"top_logprobs\":[{\"a\":-0.5},{\"b\":-0.75}]");
    PART("{\"prompt\":\"p\",\"logprobs\":1,\"return_tokens_as_token_ids\":true}", 200,
         "\"tokens\":[\"token_id:97\",\"token_id:98\"],\"top_logprobs\":[{\"token_id:97\":-0.5},");
    /* float32(-0.1) as a double, as Python prints it. */
    fake_reset("a", NB_FINISH_LENGTH);
    fake.first = -0.1F;
    PART("{\"prompt\":\"p\",\"logprobs\":0}", 200, "\"token_logprobs\":[-0.10000000149011612]");
    fake.first = -INFINITY;
    PART("{\"prompt\":\"p\",\"logprobs\":0}", 200, "\"token_logprobs\":[-9999.0]");
    fake.first = NAN;
    PART("{\"prompt\":\"p\",\"logprobs\":0}", 200, "\"token_logprobs\":[-9999.0]");
    /* Offsets count characters: the second byte of one is where the character is. C3 and C4 alone are the same text. */
    fake_reset("\xC3\xA9z", NB_FINISH_LENGTH);
    PART("{\"prompt\":\"p\",\"logprobs\":2}", 200,
         "\"text_offset\":[0,0,1],\"token_logprobs\":[-0.5,-0.75,-1.0],\"tokens\":[\"\xEF\xBF\xBD\","
         "\"\xEF\xBF\xBD\",\"z\"],\"top_logprobs\":[{\"\xEF\xBF\xBD\":-0.5},{\"\xEF\xBF\xBD\":-0.75},"
         "{\"z\":-1.0,\"{\":-2.0}]");
}

static void echo(void **state)
{
    fake_reset("z", NB_FINISH_LENGTH);
    PART("{\"prompt\":\"hi\",\"echo\":true}", 200, "\"text\":\"hiz\",\"logprobs\":null");
    assert_int_equal(fake.spec.prompt_logprobs, -1);
    PART("{\"prompt\":[104,105],\"echo\":true}", 200, "\"text\":\"hiz\"");
    /* lm-eval's question: the prompt's log-probabilities before the answer's, the first token has none. */
    static const char lm_eval[] =
        "\"text\":\"hiz\",\"logprobs\":{\"text_offset\":[0,1,2],\"token_logprobs\":[null,-3.0,-0.5],"
        "\"tokens\":[\"h\",\"i\",\"z\"],\"top_logprobs\":[null,{\"i\":-3.0},{\"z\":-0.5}]},"
        "\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,"
        "\"prompt_logprobs\":[null,{\"105\":{\"logprob\":-3.0,\"rank\":1,\"decoded_token\":\"i\"}}]";
    PART("{\"prompt\":[[104,105]],\"max_tokens\":1,\"logprobs\":1,\"echo\":true,\"seed\":1234,"
         "\"temperature\":0}",
         200, lm_eval);
    assert_int_equal(fake.spec.prompt_logprobs, 1);
    /* Streamed, it comes with the first token. */
    PART("{\"prompt\":\"hi\",\"logprobs\":0,\"echo\":true,\"stream\":true}", 200,
         "\"text\":\"hiz\",\"logprobs\":{\"text_offset\":[0,1,2],\"token_logprobs\":[null,-3.0,-0.5]");
    /* Nothing but the prompt: one token is computed, and counted, but not told. */
    fake_reset("z", NB_FINISH_LENGTH);
    PART("{\"prompt\":\"hi\",\"echo\":true,\"max_tokens\":0,\"logprobs\":0}", 200,
         "\"text\":\"hi\",\"logprobs\":{\"text_offset\":[0,1],\"token_logprobs\":[null,-3.0]");
    PART("{\"prompt\":\"hi\",\"echo\":true,\"max_tokens\":0}", 200, "\"completion_tokens\":1");
    assert_int_equal(fake.spec.max_tokens, 1);
}

static void prompt_log_probabilities(void **state)
{
    fake_reset("z", NB_FINISH_LENGTH);
    PART("{\"prompt\":\"hi\",\"prompt_logprobs\":1}", 200,
         "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,"
         "\"prompt_logprobs\":[null,{\"105\":{\"logprob\":-3.0,\"rank\":1,\"decoded_token\":\"i\"}}]");
    PART("{\"prompt\":\"hi\",\"prompt_logprobs\":2}", 200,
         "{\"105\":{\"logprob\":-3.0,\"rank\":1,\"decoded_token\":\"i\"},"
         "\"106\":{\"logprob\":-4.0,\"rank\":2,\"decoded_token\":\"j\"}}");
}

static void token_ids(void **state)
{
    fake_reset("xy", NB_FINISH_LENGTH);
    PART("{\"prompt\":\"hi\",\"return_token_ids\":true}", 200,
         "\"token_ids\":[120,121],\"prompt_logprobs\":null,\"prompt_token_ids\":[104,105]");
    PART("{\"prompt\":\"hi\",\"return_token_ids\":true,\"stream\":true}", 200,
         "\"prompt_token_ids\":[104,105],\"token_ids\":[120]}");
    PART("{\"prompt\":\"hi\",\"return_token_ids\":true,\"stream\":true}", 200,
         "\"prompt_token_ids\":null,\"token_ids\":[121]}");
}

static void failures(void **state)
{
    static const char error[] =
        "{\"error\":{\"message\":\"Internal server error: non-finite logits\",\"type\":"
        "\"InternalServerError\",\"param\":null,\"code\":500}}";
    bool streams;
    nb_buf got = {0};
    fake_reset("abc", NB_FINISH_LENGTH);
    fake.error_at = 1;
    ASK("{\"prompt\":\"p\"}", 500, error);
    assert_int_equal(fake.last_record.finish, NB_FINISH_ERROR);
    /* Before the first frame a stream is a plain error; after it a frame. */
    fake.error_at = 0;
    static const char body[] = "{\"prompt\":\"p\",\"stream\":true}";
    assert_int_equal(fake_ask_n(NB_ROUTE_COMPLETIONS, body, sizeof body - 1, &streams, &got), 500);
    assert_false(streams);
    assert_string_equal(nb_buf_str(&got), error);
    nb_buf_clear(&got);
    fake.error_at = 1;
    assert_int_equal(fake_ask_n(NB_ROUTE_COMPLETIONS, body, sizeof body - 1, &streams, &got), 200);
    assert_true(streams);
    const char *at = strstr(nb_buf_str(&got), "data: {\"error\"");
    assert_non_null(at);
    assert_memory_equal(at + 6, error, sizeof error - 1);
    assert_string_equal(at + 6 + sizeof error - 1, "\n\ndata: [DONE]\n\n");
    nb_buf_free(&got);
    /* One of two fails: the whole request does, and the other is cancelled. */
    fake_reset("abc", NB_FINISH_LENGTH);
    fake.error_at = 0;
    ASK("{\"prompt\":[\"p\",\"q\"]}", 500, error);
}

static void no_room(void **state)
{
    static const char busy[] = "{\"error\":{\"message\":\"the queue is full\",\"type\":"
                               "\"ServiceUnavailableError\",\"param\":null,\"code\":503}}";
    fake_reset("abc", NB_FINISH_LENGTH);
    fake.busy = true;
    ASK("{\"prompt\":\"p\"}", 503, busy);
    assert_int_equal(fake.submitted, 0);
    fake_reset("abc", NB_FINISH_LENGTH);
    fake.refuse_at = 0;
    ASK("{\"prompt\":\"p\"}", 503, busy);
    /* After some were taken: they end first. */
    fake.refuse_at = 2;
    ASK("{\"prompt\":[\"p\",\"q\",\"r\"]}", 503, busy);
    assert_int_equal(fake.cancelled, 2);
    ASK("{\"prompt\":[\"p\",\"q\",\"r\"],\"stream\":true}", 503, busy);
}

static void cancelling(void **state)
{
    nb_job_meta meta = {.arrival = 1};
    nb_job *j = NULL;
    nb_api_error e = {0};
    nb_buf out = {0};
    static const char body[] = "{\"prompt\":[\"p\",\"q\"],\"stream\":true,\"request_id\":\"mine\"}";
    fake_reset("abc", NB_FINISH_LENGTH);
    assert_true(nb_job_new(fake_api, fake_work, NB_ROUTE_COMPLETIONS, &meta, body, sizeof body - 1, &j, &e));
    assert_string_equal(nb_job_request_id(j), "mine");
    nb_job_cancel(j);
    assert_true(nb_job_poll(j, &out));
    assert_int_equal(out.len, 0);
    assert_int_equal(fake.cancelled, 2);
    assert_int_equal(fake.last_record.finish, NB_FINISH_ABORT);
    nb_job_free(j);
    nb_buf_free(&out);
    assert_int_equal(fake.entered, fake.left);
}

/* X-Vllm-Priority wins over the body's; without --scheduling-policy priority only 0 passes. */
static void priorities(void **state)
{
    static const char body[] = "{\"prompt\":\"p\",\"priority\":5}", none[] = "{\"prompt\":\"p\"}";
    static const struct {
        bool enabled;
        const char *body, *header, *refusal;
        int64_t priority;
    } cases[] = {{true, body, NULL, NULL, 5},
                 {true, body, "-7", NULL, -7},
                 {true, none, "x", "X-Vllm-Priority must be an integer, got x.", 0},
                 {true, none, "99999999999999999999", "X-Vllm-Priority must be an integer", 0},
                 {false, none, "0", NULL, 0},
                 {false, none, "1", "Got priority 1 but priority scheduling is not enabled", 0},
                 {false, body, NULL, "Got priority 5 but priority scheduling is not enabled", 0}};
    nb_api_options opt = fake_options();
    nb_error err = {0};
    fake_reset("a", NB_FINISH_LENGTH);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nb_job_meta meta = {.priority = cases[i].header};
        nb_api_error e = {0};
        nb_job *j = NULL;
        nb_api *a = NULL;
        nb_buf out = {0};
        opt.priorities = cases[i].enabled;
        assert_int_equal(
            nb_api_new(&opt, &fake, FAKE_VOCAB, fake_tokenizer, NULL, &fake_generation, NULL, &a, &err),
            NB_OK);
        bool ok = nb_job_new(a, fake_work, NB_ROUTE_COMPLETIONS, &meta, cases[i].body, strlen(cases[i].body),
                             &j, &e);
        assert_true(ok == !cases[i].refusal);
        if (ok) {
            while (!nb_job_poll(j, &out)) continue;
            nb_job_free(j);
            assert_true(fake.spec.priority == cases[i].priority);
        } else {
            assert_int_equal(e.status, 400);
            assert_non_null(strstr(nb_buf_str(&e.message), cases[i].refusal));
        }
        nb_buf_free(&e.message);
        nb_buf_free(&out);
        nb_api_free(a);
    }
}

/* --max-logprobs -1: as many as asked for, -1 being all. */
static void any_number_of_logprobs(void **state)
{
    nb_api *before = fake_api;
    nb_api_options opt = fake_options();
    nb_error err = {0};
    opt.max_logprobs = -1;
    assert_int_equal(
        nb_api_new(&opt, &fake, FAKE_VOCAB, fake_tokenizer, NULL, &fake_generation, NULL, &fake_api, &err),
        NB_OK);
    fake_reset("a", NB_FINISH_LENGTH);
    PART("{\"prompt\":\"p\",\"logprobs\":30,\"prompt_logprobs\":-1}", 200, "\"tokens\":[\"a\"]");
    assert_int_equal(fake.spec.sampling.logprobs, 30);
    assert_int_equal(fake.spec.prompt_logprobs, NB_LOGPROBS_ALL);
    PART("{\"prompt\":\"p\",\"logprobs\":300}", 200, "\"tokens\":[\"a\"]"); /* more than there are */
    assert_int_equal(fake.spec.sampling.logprobs, NB_LOGPROBS_ALL);
    nb_api_free(fake_api);
    fake_api = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_answer),
        cmocka_unit_test(a_streamed_answer),
        cmocka_unit_test(why_it_ended),
        cmocka_unit_test(batches),
        cmocka_unit_test(log_probabilities),
        cmocka_unit_test(echo),
        cmocka_unit_test(prompt_log_probabilities),
        cmocka_unit_test(token_ids),
        cmocka_unit_test(failures),
        cmocka_unit_test(no_room),
        cmocka_unit_test(cancelling),
        cmocka_unit_test(priorities),
        cmocka_unit_test(any_number_of_logprobs),
    };
    nb_api_options opt = fake_options();
    fake_open(&opt, NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_close();
    return failed;
}
