/*
 * Any bytes as the body of a request: refused with an error in the right shape, or answered with JSON that a strict parser reads, each
 * frame of a stream too; and every seat and every sequence is given back. The first byte chooses route, engine and server.
 */
#include <stdio.h>

#include "base/json.h"
#include "base/utf8.h"
#include "tests/unit/server/fake_engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST_SEATS 64 /* more would only be slow */

static void require(bool what)
{
    if (!what) abort();
}

/* GPT-2's alphabet, so that byte b is token b, and the marks that parsers look for. */
static nb_tokenizer *make_tokenizer(void)
{
    static const char *const special[] = {"<s>",      "</s>",        "<think>",
                                          "</think>", "<tool_call>", "</tool_call>"};
    nb_tokenizer *t = NULL;
    nb_buf json = {0};
    nb_error err = {0};
    uint32_t next = 256;
    nb_buf_adds(&json, "{\"added_tokens\":[");
    for (int i = 0; i < 6; i++)
        nb_buf_addf(&json,
                    "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                    "\"normalized\":false,\"special\":true}",
                    i ? "," : "", 256 + i, special[i]);
    nb_buf_adds(&json,
                "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                "\"trim_offsets\":true,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
                "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                "\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (uint32_t b = 0; b < 256; b++) {
        char utf8[4];
        bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        size_t n = nb_utf8_encode(printable ? b : next++, utf8);
        nb_buf_addc(&json, b ? ',' : ' ');
        nb_buf_add_json(&json, utf8, n);
        nb_buf_addf(&json, ":%u", b);
    }
    nb_buf_adds(&json, "},\"merges\":[]}}");
    require(nb_tokenizer_parse(json.data, json.len, NULL, 0, &t, &err) == NB_OK);
    nb_buf_free(&json);
    return t;
}

static void is_json(const char *s, size_t n)
{
    nb_json j;
    nb_json_init(&j, s, n);
    require(nb_json_skip(&j) && nb_json_next(&j) == NB_J_EOF);
    nb_json_free(&j);
}

static void is_stream(const char *s, size_t n)
{
    static const char done[] = "data: [DONE]\n\n";
    size_t m = sizeof done - 1;
    require(n >= m && memcmp(s + n - m, done, m) == 0);
    for (size_t at = 0; at < n - m;) {
        const char *end = memmem(s + at, n - at, "\n\n", 2);
        require(end && memcmp(s + at, "data: ", 6) == 0);
        is_json(s + at + 6, (size_t)(end - (s + at)) - 6);
        at = (size_t)(end - s) + 2;
    }
}

static void answer(nb_api *a, nb_api_work *w, nb_route route, const char *body, size_t n)
{
    nb_buf out = {0};
    int status = nb_api_answer(a, w, route, NULL, body, n, &out);
    require(status == 200 || status == 400 || status == 404);
    is_json(out.data, out.len);
    nb_buf_free(&out);
}

static void ask(nb_api *a, nb_api_work *w, nb_route route, const char *body, size_t n)
{
    nb_job_meta meta = {.arrival = 1};
    nb_job *j = NULL;
    nb_api_error e = {0};
    nb_buf out = {0};
    bool streams = false;
    int status;
    if (nb_job_new(a, w, route, &meta, body, n, &j, &e)) {
        while (!nb_job_poll(j, &out)) continue;
        status = nb_job_status(j);
        streams = nb_job_streams(j);
        nb_job_free(j);
    } else {
        status = e.status;
        nb_api_error_body(&e, &out);
        require(!j);
    }
    require(status == 200 || status == 400 || status == 404 || status == 503 ||
            (status == 500 && fake.error_at != SIZE_MAX));
    require(fake.entered == fake.left && fake.submitted == fake.freed);
    if (streams)
        is_stream(out.data, out.len);
    else
        is_json(out.data, out.len);
    nb_buf_free(&e.message);
    nb_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char template[] =
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if tools %}{{ tools | tojson "
        "}}{% endif %}"
        "{% if add_generation_prompt %}{% if enable_thinking %}<think>{% endif %}{% endif %}";
    static const char said[] =
        "so\xC3\xA9 \"x\"</think>it \xF0\x9F is\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
        "{\"a\": [1, \"\\u00e9\"]}}\n</tool_call>end\xE2\x82";
    static const char *const names[] = {"m"};
    static nb_api *plain, *full; /* made once: a fuzzer's process is its own */
    static nb_api_work *work;
    nb_error err = {0};
    if (!plain) {
        static nb_generation_config g = {.eos = {257},
                                         .n_eos = 1,
                                         .temperature = NAN,
                                         .top_p = NAN,
                                         .min_p = NAN,
                                         .repetition_penalty = NAN,
                                         .top_k = -1,
                                         .max_new_tokens = -1};
        nb_chat_format *chat = NULL;
        nb_api_options o = {.names = names,
                            .n_names = 1,
                            .root = "m",
                            .version = "1",
                            .max_context = 200,
                            .max_logprobs = 20,
                            .response_role = "assistant"};
        fake_tokenizer = make_tokenizer();
        require(nb_chat_format_open("/nowhere", NULL, template, &chat, &err) == NB_OK);
        require(nb_api_new(&o, &fake, 270, fake_tokenizer, chat, &g, NULL, &plain, &err) == NB_OK);
        o.max_logprobs = -1;
        o.tool_parser = "hermes";
        o.reasoning_parser = "qwen3";
        o.auto_tool_choice = o.trust_chat_template = o.prompt_tokens_details = o.force_usage = o.priorities =
            true;
        require(nb_api_new(&o, &fake, 270, fake_tokenizer, chat, &g, NULL, &full, &err) == NB_OK);
        require(nb_api_work_new(plain, &work, &err) == NB_OK);
    }
    if (!size) return 0;
    fake_reset(said, data[0] & 8 ? NB_FINISH_STOP : NB_FINISH_LENGTH);
    fake.most_seats = MOST_SEATS;
    if (data[0] & 16) fake.error_at = data[0] >> 5;
    if (data[0] & 8) fake.end_token = data[0] & 32 ? 257 : 261;
    nb_route route = data[0] & 3;
    nb_api *a = data[0] & 4 ? full : plain;
    if (route == NB_ROUTE_COMPLETIONS || route == NB_ROUTE_CHAT)
        ask(a, work, route, (const char *)data + 1, size - 1);
    else
        answer(a, work, route, (const char *)data + 1, size - 1);
    return 0;
}
