/* What is refused for its value: each limit of specs/http_api.md with its message, and what is inside the limit passes to the sampler. */
#include "server/fake_core.h"

#include <time.h>

#include "server/job.h"

#define BAD(json, param, message)                                                                            \
    fake_expect(NB_ROUTE_COMPLETIONS, "{\"prompt\":\"p\"," json "}", 400,                                    \
                "{\"error\":{\"message\":\"" message "\",\"type\":\"BadRequestError\",\"param\":" param      \
                ",\"code\":400}}")
#define TAKEN(json)                                                                                          \
    fake_expect_part(NB_ROUTE_COMPLETIONS, "{\"prompt\":\"p\"," json "}", 200,                               \
                     "\"object\":\"text_completion\"")
#define TEN "xxxxxxxxxx"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

static void sampling_ranges(void **state)
{
    BAD("\"n\":0", "\"n\"", "n must be at least 1, got 0. (parameter=n, value=0)");
    BAD("\"n\":16385", "null",
        "n must be at most 16384, got 16385. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
        "environment "
        "variable.");
    BAD("\"n\":2,\"temperature\":0", "null", "n must be 1 when using greedy sampling, got 2.");
    BAD("\"temperature\":-1", "\"temperature\"",
        "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)");
    BAD("\"temperature\":2.5", "\"temperature\"",
        "temperature must be in [0, 2], got 2.5. (parameter=temperature, value=2.5)");
    BAD("\"temperature\":\"nan\"", "\"temperature\"",
        "temperature must be in [0, 2], got nan. (parameter=temperature, value=nan)");
    BAD("\"top_p\":0", "\"top_p\"", "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)");
    BAD("\"top_p\":1.1", "\"top_p\"", "top_p must be in (0, 1], got 1.1. (parameter=top_p, value=1.1)");
    BAD("\"top_k\":-2", "\"top_k\"",
        "top_k must be 0 (disable), or at least 1, got -2. (parameter=top_k, value=-2)");
    BAD("\"min_p\":-0.1", "\"min_p\"", "min_p must be in [0, 1], got -0.1. (parameter=min_p, value=-0.1)");
    BAD("\"presence_penalty\":2.1", "\"presence_penalty\"",
        "presence_penalty must be in [-2, 2], got 2.1. (parameter=presence_penalty, value=2.1)");
    BAD("\"frequency_penalty\":-2.1", "\"frequency_penalty\"",
        "frequency_penalty must be in [-2, 2], got -2.1. (parameter=frequency_penalty, value=-2.1)");
    BAD("\"repetition_penalty\":0", "\"repetition_penalty\"",
        "repetition_penalty must be finite and greater than zero, got 0.0. (parameter=repetition_penalty, "
        "value=0.0)");
    BAD("\"max_tokens\":0", "\"max_tokens\"",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)");
    BAD("\"max_tokens\":-3", "\"max_tokens\"",
        "max_tokens must be at least 1, got -3. (parameter=max_tokens, value=-3)");
    BAD("\"min_tokens\":-1", "\"min_tokens\"",
        "min_tokens must be greater than or equal to 0, got -1. (parameter=min_tokens, value=-1)");
    BAD("\"min_tokens\":6,\"max_tokens\":5", "\"min_tokens\"",
        "min_tokens must be less than or equal to max_tokens=5, got 6. (parameter=min_tokens, value=6)");
    BAD("\"stop\":[\"a\",\"\"]", "\"stop\"", "stop cannot contain an empty string. (parameter=stop)");
    BAD("\"stop\":\"\"", "\"stop\"", "stop cannot contain an empty string. (parameter=stop)");
}

static void sampling_values(void **state)
{
    const nb_sample_params *s = &fake.spec.sampling;
    TAKEN("\"temperature\":0,\"top_p\":0.5,\"top_k\":3,\"min_p\":0.5");
    assert_true(s->temperature == 0 && s->top_p == 1 && s->top_k == 0 && s->min_p == 0); /* greedy */
    TAKEN("\"temperature\":0.001,\"top_p\":0.5,\"top_k\":3,\"min_p\":0.25,\"presence_penalty\":-2,"
          "\"frequency_penalty\":2,\"repetition_penalty\":1.5,\"seed\":-1,\"min_tokens\":2");
    assert_true(s->temperature == 0.01F && s->top_p == 0.5F && s->top_k == 3 && s->min_p == 0.25F);
    assert_true(s->presence_penalty == -2 && s->frequency_penalty == 2 && s->repetition_penalty == 1.5F);
    assert_int_equal(s->min_tokens, 2);
    uint64_t seed = s->seed; /* -1 is none: each sequence draws its own */
    TAKEN("\"seed\":-1");
    assert_true(s->seed != seed);
    TAKEN("\"seed\":-2");
    assert_true(s->seed == (uint64_t)-2);
    TAKEN("\"top_k\":-1");
    assert_true(s->temperature == 1 && s->top_p == 1 && s->top_k == 0 && s->min_p == 0);
    assert_true(s->repetition_penalty == 1 && s->logprobs == -1 && s->n_bias == 0 && !s->allowed);
    TAKEN("\"priority\":0,\"cache_salt\":\"s\",\"include_stop_str_in_output\":true,\"skip_special_tokens\":"
          "false");
    assert_true(fake.spec.include_stop && !fake.spec.skip_special);
}

static void defaults_of_the_model(void **state)
{
    const nb_sample_params *s = &fake.spec.sampling;
    nb_generation_config before = fake_generation;
    fake_generation.temperature = 0.6;
    fake_generation.top_p = 0.95;
    fake_generation.top_k = 20;
    fake_generation.min_p = 0.1;
    fake_generation.repetition_penalty = 1.1;
    fake_generation.eos[fake_generation.n_eos++] = 256;
    TAKEN("\"stop_token_ids\":[5]");
    assert_true(s->temperature == 0.6F && s->top_p == 0.95F && s->top_k == 20 && s->min_p == 0.1F);
    assert_true(s->repetition_penalty == 1.1F);
    assert_int_equal(s->n_stop_ids, 3);
    assert_true(fake.stop_ids[0] == 5 && fake.stop_ids[1] == 256 && fake.stop_ids[2] == 257);
    TAKEN("\"stop_token_ids\":[5],\"ignore_eos\":true,\"temperature\":1,\"top_p\":1,\"top_k\":0,\"min_p\":0,"
          "\"repetition_penalty\":1");
    assert_true(s->temperature == 1 && s->top_p == 1 && s->top_k == 0 && s->min_p == 0);
    assert_true(s->n_stop_ids == 1 && fake.stop_ids[0] == 5);
    fake_generation = before;
}

static void token_lists(void **state)
{
    BAD("\"logit_bias\":{\"a'\":1,\"5\":1,\"1.5\":2}", "\"logit_bias\"",
        "logit_bias contains key(s) that cannot be converted to integer token IDs: [\\\"a'\\\", '1.5'] "
        "(parameter=logit_bias)");
    BAD("\"logit_bias\":{\"5\":1,\"274\":1,\"-1\":2}", "\"logit_bias\"",
        "token_id(s) [274, -1] in logit_bias contain out-of-vocab token ids. Vocabulary size: 274 "
        "(parameter=logit_bias)");
    TAKEN("\"logit_bias\":{\"5\":-1000,\"273\":\"7.5\"}"); /* clamped */
    assert_int_equal(fake.spec.sampling.n_bias, 2);
    assert_true(fake.bias_ids[0] == 5 && fake.bias[0] == -100 && fake.bias_ids[1] == 273 &&
                fake.bias[1] == 7.5F);
    BAD("\"allowed_token_ids\":[]", "\"allowed_token_ids\"",
        "allowed_token_ids is not None and empty! (parameter=allowed_token_ids)");
    BAD("\"allowed_token_ids\":[1,274]", "\"allowed_token_ids\"",
        "allowed_token_ids contains out-of-vocab token id! (parameter=allowed_token_ids)");
    TAKEN("\"allowed_token_ids\":[1,2,3]");
    assert_int_equal(fake.spec.sampling.n_allowed, 3);
    /* An id counts once, however often and however it is written: no list is longer than the vocabulary. */
    TAKEN("\"allowed_token_ids\":[3,1,3,1,1],\"stop_token_ids\":[9,8,9,9,257],\"logit_bias\":{\"1\":1,\"01\":"
          "2,\"+1\":3,"
          "\"2\":4}");
    assert_int_equal(fake.spec.sampling.n_allowed, 2);
    assert_int_equal(fake.spec.sampling.n_stop_ids, 3);
    assert_true(fake.stop_ids[0] == 8 && fake.stop_ids[1] == 9 && fake.stop_ids[2] == 257);
    assert_int_equal(fake.spec.sampling.n_bias, 2);
    assert_true(fake.bias_ids[0] == 1 && fake.bias[0] == 3 && fake.bias_ids[1] == 2 && fake.bias[1] == 4);
}

/* Bytes are the tokens: "ab" is a b; with a space before it three tokens, one more than without, which does not count. */
#define SIXTY_FOUR "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"

static void bad_words(void **state)
{
    TAKEN("\"bad_words\":[\"ab\",\" c\"]");
    assert_int_equal(fake.spec.sampling.n_bad, 2);
    assert_true(fake.bad_len[0] == 2 && fake.bad[0] == 'a' && fake.bad[1] == 'b');
    assert_true(fake.bad_len[1] == 1 && fake.bad[2] == 'c');
    BAD("\"bad_words\":[\"\"]", "\"bad_words\"",
        "bad_words cannot contain an empty string. (parameter=bad_words)");
    TAKEN("\"bad_words\":[\"" SIXTY_FOUR "\"]"); /* the context */
    BAD("\"bad_words\":[\"a\",\"x" SIXTY_FOUR "\"]", "\"bad_words\"",
        "bad_words has an entry of 65 tokens, which no answer within the context of 64 can hold. "
        "(parameter=bad_words)");
    nb_buf body = {0}, got = {0};
    nb_buf_adds(&body, "{\"prompt\":\"p\",\"bad_words\":[\"x\"");
    for (int i = 1; i < 129; i++) nb_buf_adds(&body, ",\"x\"");
    nb_buf_adds(&body, "]}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(nb_buf_str(&got), "Too many bad words: at most 128"));
    nb_buf_free(&body);
    nb_buf_free(&got);
}

/* " it" is one token (260), "it" is two: the word as it follows another is banned with the word as it begins a text. " a" is a space and
 * "a": who bans "a" has banned it. White space alone is the space. */
static void bad_words_after_a_space(void **state)
{
    static const tiny k = {
        .vocab = ",\"\u0120i\":259,\"\u0120it\":260",
        .merges = "\"\u0120 i\",\"\u0120i t\"",
        .added = FAKE_SPECIAL(256, "<s>") "," FAKE_SPECIAL(257, "</s>") "," FAKE_SPECIAL(258, "<tool_call>")};
    nb_api_options opt = fake_options();
    fake_close();
    fake_tokenizer = tiny_new(&k);
    fake_open(&opt, NULL);
    fake_reset("z", NB_FINISH_LENGTH);
    TAKEN("\"bad_words\":[\"it\",\"\\n a\",\" \"]");
    assert_int_equal(fake.spec.sampling.n_bad, 4);
    assert_true(fake.bad_len[0] == 2 && fake.bad[0] == 'i' && fake.bad[1] == 't');
    assert_true(fake.bad_len[1] == 1 && fake.bad[2] == 260);
    assert_true(fake.bad_len[2] == 1 && fake.bad[3] == 'a');
    assert_true(fake.bad_len[3] == 1 && fake.bad[4] == ' ');
    fake_close();
    fake_open(&opt, NULL);
    fake_reset("z", NB_FINISH_LENGTH);
}

#define SIXTY TEN TEN TEN TEN TEN TEN

/* What each sequence copies is bounded for a request as a whole. Stop strings are bounded by themselves: their tables are larger than they. */
static void copies(void **state)
{
    nb_buf body = {0}, got = {0};
    nb_buf_adds(&body, "{\"prompt\":\"p\",\"stop\":\"");
    for (int i = 0; i < 4096; i++) nb_buf_addc(&body, 's');
    nb_buf_adds(&body, "\"}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 200);
    nb_buf_clear(&got);
    body.len -= 2;
    nb_buf_adds(&body, "s\"}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 400);
    assert_non_null(
        strstr(nb_buf_str(&got),
               "stop cannot contain a string of more than 4096 bytes, got 4097. (parameter=stop)"));
    /* 128 words of 64 tokens are 32 KiB for each of n sequences: 8192 of them are 256 MiB, and with the prompt and the end token more. */
    nb_buf_clear(&body);
    nb_buf_clear(&got);
    nb_buf_adds(&body, "{\"prompt\":\"p\",\"bad_words\":[\"" SIXTY_FOUR "\"");
    for (int i = 1; i < 128; i++) nb_buf_adds(&body, ",\"" SIXTY_FOUR "\"");
    nb_buf_adds(&body, "],\"n\":8192}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(
        nb_buf_str(&got), "Each of 8192 sequences takes a copy of its prompt, allowed_token_ids, bad_words"));
    assert_non_null(strstr(nb_buf_str(&got), "257 MiB in all, and 256 may. Ask for fewer at once"));
    nb_buf_clear(&got);
    body.len -= strlen("8192}");
    nb_buf_adds(&body, "16}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 200);
    /* 8100 times 32 KiB are 253 MiB; as many prompts of 60 tokens are 2, and with penalties 17. */
    nb_buf_clear(&got);
    body.len -= strlen("16}");
    nb_buf_adds(&body, "8100,\"max_tokens\":1,\"prompt\":\"" SIXTY "\"}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 200);
    nb_buf_clear(&got);
    body.len--;
    nb_buf_adds(&body, ",\"presence_penalty\":1}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(nb_buf_str(&got), "its prompt (with penalties, nine times as much), allowed"));
    nb_buf_free(&body);
    nb_buf_free(&got);
}

/* 16384 answers of 60 tokens with 16 others each at 64 bytes are 1020 MiB, with 17 others 1080. A stream tells them as they come. */
static void whole_answers_are_bounded(void **state)
{
#define MANY "\"n\":16384,\"max_tokens\":60,"
    BAD(MANY "\"logprobs\":17", "null",
        "The log-probabilities of this answer may take 1080 MiB, and an answer that is not streamed may have "
        "1024. "
        "Set stream, or ask for fewer logprobs, a smaller max_tokens, or fewer sequences at once.");
    TAKEN(MANY "\"logprobs\":16");
    TAKEN(MANY "\"logprobs\":17,\"stream\":true");
    /* 960 MiB, and 84 for 20 others at each of the prompt's four tokens */
    fake_expect_part(NB_ROUTE_COMPLETIONS,
                     "{" MANY "\"prompt\":\"pppp\",\"logprobs\":15,\"prompt_logprobs\":20}", 400,
                     "may take 1044 MiB");
#undef MANY
}

static void logprobs(void **state)
{
    BAD("\"logprobs\":21", "\"logprobs\"",
        "Requested sample logprobs of 21, which is greater than max allowed: 20 (parameter=logprobs)");
    BAD("\"logprobs\":-1", "\"logprobs\"",
        "`logprobs` must be a positive value. (parameter=logprobs, value=-1)");
    BAD("\"logprobs\":\"x\"", "\"logprobs\"", "`logprobs` must be an integer. (parameter=logprobs, value=x)");
    BAD("\"prompt_logprobs\":21", "\"prompt_logprobs\"",
        "Requested prompt logprobs of 21, which is greater than max allowed: 20 (parameter=prompt_logprobs)");
    BAD("\"prompt_logprobs\":-1", "\"prompt_logprobs\"", /* the whole vocabulary */
        "Requested prompt logprobs of 274, which is greater than max allowed: 20 "
        "(parameter=prompt_logprobs)");
    BAD("\"prompt_logprobs\":-2", "\"prompt_logprobs\"",
        "`prompt_logprobs` must be a positive value or -1. (parameter=prompt_logprobs, value=-2)");
    BAD("\"prompt_logprobs\":1,\"stream\":true", "\"prompt_logprobs\"",
        "prompt_logprobs are not available when stream=True (parameter=prompt_logprobs)");
    TAKEN("\"logprobs\":20");
    assert_int_equal(fake.spec.sampling.logprobs, 20);
    fake_expect_part(
        NB_ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":1}", 400,
        "\"when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)\"");
}

/* The context is 64 tokens; a prompt of ten bytes is ten tokens. The longest token is <tool_call>, eleven characters. */
static void lengths(void **state)
{
    BAD("\"max_tokens\":65", "\"max_tokens\"",
        "max_tokens=65 cannot be greater than max_model_len=max_total_tokens=64. Please request fewer output "
        "tokens. (parameter=max_tokens, value=65)");
    BAD("\"max_tokens\":55,\"prompt\":\"" TEN "\"", "\"input_tokens\"",
        "This model's maximum context length is 64 tokens. However, you requested 55 output tokens and your "
        "prompt "
        "contains 10 input tokens, for a total of 65 tokens. Please reduce the length of the input prompt or "
        "the "
        "number of requested output tokens. (parameter=input_tokens)");
    TAKEN("\"max_tokens\":54,\"prompt\":\"" TEN "\"");
    BAD("\"prompt\":\"" HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED "\"", "\"input_text\"",
        "This model's maximum context length is 64 tokens. However, you requested 16 output tokens and your "
        "prompt "
        "contains 600 characters (more than 528 characters, which is the upper bound for 48 input tokens). "
        "Please "
        "reduce the length of the input prompt or the number of requested output tokens. "
        "(parameter=input_text)");
    BAD("\"prompt\":[1,274]", "null", "Token id 274 is out of vocabulary");
    BAD("\"prompt\":[\"a\",\"\"]", "null", "The decoder prompt cannot be empty");
    BAD("\"prompt\":\"\"", "\"prompt\"",
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)");
    BAD("\"prompt\":null", "\"prompt\"",
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)");
    BAD("\"truncate_prompt_tokens\":65", "\"truncate_prompt_tokens\"",
        "truncate_prompt_tokens value (65) is greater than max_model_len (64). Please, select a smaller "
        "truncation "
        "size. (parameter=truncate_prompt_tokens, value=65)");
    TAKEN("\"prompt\":\"abcdef\",\"truncate_prompt_tokens\":2");
    assert_true(fake.spec.n_prompt == 2 && fake.prompt[0] == 'e');
    TAKEN("\"prompt\":\"abcdef\",\"truncate_prompt_tokens\":2,\"truncation_side\":\"right\"");
    assert_true(fake.spec.n_prompt == 2 && fake.prompt[0] == 'a');
    TAKEN("\"prompt\":\"" TEN TEN TEN TEN TEN TEN TEN "\",\"truncate_prompt_tokens\":-1,\"max_tokens\":60");
    assert_int_equal(fake.spec.n_prompt, 4);
}

static void many_prompts(void **state)
{
    nb_buf body = {0}, got = {0};
    nb_buf_adds(&body, "{\"prompt\":[\"x\"");
    for (int i = 1; i < 1025; i++) nb_buf_adds(&body, ",\"x\"");
    nb_buf_adds(&body, "]}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 400);
    assert_non_null(
        strstr(nb_buf_str(&got), "prompt list length 1025 exceeds the maximum allowed count of 1024"));
    nb_buf_free(&body);
    nb_buf_free(&got);
    BAD("\"prompt\":[\"a\",\"b\"],\"n\":8193", "null",
        "2 prompts times n=8193 are too many sequences for one request: at most 16384.");
}

static void other_fields(void **state)
{
    BAD("\"suffix\":\"x\"", "\"suffix\"", "suffix is not currently supported (parameter=suffix)");
    BAD("\"stream_options\":{\"include_usage\":true}", "\"stream_options\"",
        "Stream options can only be defined when `stream=True`. (parameter=stream_options)");
    TAKEN("\"stream_options\":{}");
    BAD("\"use_beam_search\":true,\"stream\":true", "null",
        "Streaming is not currently supported with beam search");
    BAD("\"use_beam_search\":true", "\"use_beam_search\"",
        "use_beam_search is not supported by nibble; use n with a temperature. (parameter=use_beam_search)");
    BAD("\"response_format\":{\"type\":\"json_schema\"}", "\"response_format\"",
        "When response_format type is 'json_schema', the 'json_schema' field must be provided. "
        "(parameter=response_format)");
    TAKEN("\"response_format\":{\"type\":\"text\"}");
    fake_expect_part(NB_ROUTE_COMPLETIONS,
                     "{\"prompt\":\"p\",\"response_format\":{\"type\":\"json_object\"}}", 400,
                     "Constrained output comes with a later version of nibble");
    fake_expect_part(NB_ROUTE_COMPLETIONS, "{\"prompt\":\"p\",\"structured_outputs\":{\"regex\":\"a\"}}", 400,
                     "Constrained output comes with a later version of nibble");
    BAD("\"priority\":1", "\"priority\"",
        "Got priority 1 but priority scheduling is not enabled: start the server with --scheduling-policy "
        "priority. "
        "(parameter=priority, value=1)");
    BAD("\"cache_salt\":\"a\\u0000b\"", "\"cache_salt\"",
        "cache_salt must not hold a NUL character. (parameter=cache_salt)");
    BAD("\"thinking_token_budget\":5", "\"thinking_token_budget\"",
        "thinking_token_budget requires --reasoning-parser to be set (parameter=thinking_token_budget)");
    BAD("\"logprob_token_ids\":[1]", "\"logprob_token_ids\"",
        "logprob_token_ids is not supported by nibble; use logprobs. (parameter=logprob_token_ids)");
    fake_expect(
        NB_ROUTE_COMPLETIONS, "{\"prompt\":\"p\",\"model\":\"none\"}", 404,
        "{\"error\":{\"message\":\"The model `none` does not exist.\",\"type\":\"NotFoundError\",\"param\":"
        "\"model\",\"code\":404}}");
    TAKEN("\"model\":\"other\"");
    TAKEN("\"model\":\"\"");
    TAKEN("\"model\":null");
    /* Nothing of the machine is told: absolute paths and addresses are taken out of messages. */
    fake_expect_part(
        NB_ROUTE_COMPLETIONS,
        "{\"prompt\":\"p\",\"model\":\"see /home/user/key.pem at 0x7f0011223344, not and/or a/b/c\"}", 404,
        "The model `see <path> at <path>, not and/or a/b/c` does not exist.");
}

/* "+/+/+/...": each slash could begin a path. Looked at again from each, these 320 kB took half a minute. */
static void messages_are_looked_through_once(void **state)
{
    nb_api_error e = {.status = 400};
    nb_buf out = {0};
    for (int i = 0; i < 160000; i++) nb_buf_adds(&e.message, "+/");
    nb_buf_adds(&e.message, " /a/b");
    clock_t start = clock();
    nb_api_error_body(&e, &out);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 5);
    assert_int_equal(out.len > 320000, 1);
    assert_non_null(strstr(nb_buf_str(&out), "+/+/ <path>\""));
    nb_buf_free(&e.message);
    nb_buf_free(&out);
}

/* What a client names comes back in part: 199 bytes and a character of two are cut before it. */
static void names_are_cut(void **state)
{
    nb_buf body = {0}, got = {0}, want = {0};
    nb_buf_adds(&body, "{\"prompt\":\"p\",\"model\":\"");
    nb_buf_adds(&want, "The model `");
    for (int i = 0; i < 199; i++) {
        nb_buf_addc(&body, 'm');
        nb_buf_addc(&want, 'm');
    }
    nb_buf_adds(&body, "\xC3\xA4xyz\"}");
    nb_buf_adds(&want, "` does not exist.");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 404);
    assert_non_null(strstr(nb_buf_str(&got), nb_buf_str(&want)));
    nb_buf_free(&body);
    nb_buf_free(&got);
    nb_buf_free(&want);
}

static int status_of_id(const char *header, const char *body)
{
    nb_job_meta meta = {.request_id = header, .arrival = 1};
    nb_job *j = NULL;
    nb_api_error e = {0};
    nb_buf out = {0};
    if (!nb_job_new(fake_api, fake_work, NB_ROUTE_COMPLETIONS, &meta, body, strlen(body), &j, &e)) {
        assert_string_equal(e.param, "request_id");
        nb_buf_free(&e.message);
        return e.status;
    }
    while (!nb_job_poll(j, &out)) {}
    nb_buf_free(&out);
    nb_job_free(j);
    return 200;
}

static void request_ids_are_bounded(void **state)
{
    char id[258], body[320];
    memset(id, 'i', 257);
    id[257] = '\0';
    assert_int_equal(status_of_id(id, "{\"prompt\":\"p\"}"), 400);
    snprintf(body, sizeof body, "{\"prompt\":\"p\",\"request_id\":\"%s\"}", id);
    assert_int_equal(status_of_id(NULL, body), 400);
    id[256] = '\0';
    assert_int_equal(status_of_id(id, "{\"prompt\":\"p\"}"), 200);
    snprintf(body, sizeof body, "{\"prompt\":\"p\",\"request_id\":\"%s\"}", id);
    assert_int_equal(status_of_id(NULL, body), 200);
}

/* Two unions of eight and of one error: the list that is full takes no more, and stays full. */
static void field_errors_stay_bounded(void **state)
{
    nb_field_errors f = {0}, more = {0};
    for (int i = 0; i < 7; i++) nb_field_error(&f, "a", "t", "m", NULL, NULL);
    nb_field_error(&more, "b", "t", "m", NULL, NULL);
    nb_field_error(&more, "b", "t", "m", NULL, NULL);
    nb_field_errors_add(&f, &more);
    assert_int_equal(f.count, 9); /* a union's branches are told whole */
    size_t len = f.text.len;
    nb_field_errors_add(&f, &more);
    nb_field_error(&f, "c", "t", "m", NULL, NULL);
    assert_int_equal(f.count, 9);
    assert_int_equal(f.text.len, len);
    nb_field_errors_free(&f);
    nb_field_errors_free(&more);
}

/* 4000 choices of four frames each do not become one piece: a poll leaves the rest to the next. */
static void a_poll_is_bounded(void **state)
{
    static const char body[] = "{\"prompt\":\"p\",\"n\":4000,\"stream\":true}";
    nb_job_meta meta = {.arrival = 1};
    nb_job *j = NULL;
    nb_api_error e = {0};
    nb_buf out = {0};
    size_t polls = 0, frames = 0;
    fake_reset("zzzz", NB_FINISH_LENGTH);
    assert_true(nb_job_new(fake_api, fake_work, NB_ROUTE_COMPLETIONS, &meta, body, sizeof body - 1, &j, &e));
    for (bool over = false; !over; polls++) {
        nb_buf_clear(&out);
        over = nb_job_poll(j, &out);
        assert_true(out.len > 0 && out.len < NB_JOB_POLL_BYTES + 4096);
        for (const char *p = nb_buf_str(&out); (p = strstr(p, "data: ")); p++) frames++;
    }
    assert_int_equal(frames, 4 * 4000 + 1);
    assert_true(polls >= 8);
    nb_job_free(j);
    nb_buf_free(&out);
    fake_reset("z", NB_FINISH_LENGTH);
}

static void bodies_of_too_many_values_are_refused(void **state)
{
    nb_buf body = {0}, got = {0};
    nb_buf_adds(&body, "{\"prompt\":\"p\",\"x\":[0"); /* the object, the prompt, the list */
    for (int i = 1; i < 2500000 - 3; i++) nb_buf_adds(&body, ",0");
    size_t n = body.len;
    nb_buf_adds(&body, "]}");
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 200);
    body.len = n;
    nb_buf_adds(&body, ",0]}");
    nb_buf_clear(&got);
    assert_int_equal(fake_ask(NB_ROUTE_COMPLETIONS, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(nb_buf_str(&got), "too many values"));
    nb_buf_free(&body);
    nb_buf_free(&got);
}

/* What waits for the engine holds no tree of its body; the stop string that is told at the end is kept. */
static void a_job_drops_its_body(void **state)
{
    static const char body[] = "{\"prompt\":\"p\",\"stop\":[\"q\",\"y\"],\"stop_token_ids\":[1]}";
    nb_job_meta meta = {.arrival = 1};
    nb_job *j = NULL;
    nb_api_error e = {0};
    nb_buf out = {0};
    fake_reset("z", NB_FINISH_STOP);
    fake.stop_string = 1;
    assert_true(nb_job_new(fake_api, fake_work, NB_ROUTE_COMPLETIONS, &meta, body, sizeof body - 1, &j, &e));
    assert_null(j->p.body);
    assert_null(j->p.stop_token_ids.v);
    while (!nb_job_poll(j, &out)) {}
    assert_non_null(strstr(nb_buf_str(&out), "\"stop_reason\":\"y\""));
    nb_job_free(j);
    nb_buf_free(&out);
    fake_reset("z", NB_FINISH_LENGTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampling_ranges),
        cmocka_unit_test(sampling_values),
        cmocka_unit_test(defaults_of_the_model),
        cmocka_unit_test(token_lists),
        cmocka_unit_test(bad_words),
        cmocka_unit_test(bad_words_after_a_space),
        cmocka_unit_test(copies),
        cmocka_unit_test(whole_answers_are_bounded),
        cmocka_unit_test(logprobs),
        cmocka_unit_test(lengths),
        cmocka_unit_test(many_prompts),
        cmocka_unit_test(other_fields),
        cmocka_unit_test(messages_are_looked_through_once),
        cmocka_unit_test(names_are_cut),
        cmocka_unit_test(request_ids_are_bounded),
        cmocka_unit_test(field_errors_stay_bounded),
        cmocka_unit_test(a_poll_is_bounded),
        cmocka_unit_test(bodies_of_too_many_values_are_refused),
        cmocka_unit_test(a_job_drops_its_body),
    };
    nb_api_options opt = fake_options();
    fake_open(&opt, NULL);
    fake_reset("z", NB_FINISH_LENGTH);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_close();
    return failed;
}
