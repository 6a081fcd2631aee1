/* /v1/chat/completions without parsers: prompts from messages, answers whole and streamed as specs/http_api.md §2. */
#include "server/fake_core.h"

#include "server/api_internal.h"

#define ASK(body, status, want) fake_expect(NB_ROUTE_CHAT, body, status, want)
#define PART(body, status, want) fake_expect_part(NB_ROUTE_CHAT, body, status, want)
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* Shows all that a template is given. */
static const char template[] = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                               "{% if tools %}T{{ tools[0].function.name }};{% endif %}"
                               "{% if enable_thinking is defined %}E{{ enable_thinking }};{% endif %}"
                               "{% if reasoning_effort is defined %}R{{ reasoning_effort }};{% endif %}"
                               "{% if colour is defined %}C{{ colour }};{% endif %}"
                               "{% if add_generation_prompt %}a:{% endif %}";

#define HEAD                                                                                                 \
    "{\"id\":\"chatcmpl-id\",\"object\":\"chat.completion\",\"created\":0,\"model\":\"m\",\"choices\":["
#define MESSAGE(text)                                                                                        \
    "\"message\":{\"role\":\"assistant\",\"content\":" text ",\"refusal\":null,\"annotations\":null,"        \
    "\"audio\":null,\"function_call\":null,\"reasoning\":null,\"reasoning_content\":null}"
#define TAIL(p, t, c)                                                                                        \
    "],\"service_tier\":null,\"system_fingerprint\":\"nibble-1.0\",\"usage\":{\"prompt_tokens\":" #p         \
    ",\"total_tokens\":" #t ",\"completion_tokens\":" #c                                                     \
    ",\"prompt_tokens_details\":null,\"completion_tokens_details\":null},\"prompt_logprobs\":null,"          \
    "\"prompt_token_ids\":null,\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":"     \
    "null,\"metrics\":null}"

static void expect_prompt(const char *want)
{
    nb_buf got = {0};
    for (size_t i = 0; i < fake.spec.n_prompt; i++) nb_buf_addc(&got, (char)fake.prompt[i]);
    assert_string_equal(nb_buf_str(&got), want);
    nb_buf_free(&got);
}

static void a_whole_answer(void **state)
{
    fake_reset("yo", NB_FINISH_STOP);
    fake.end_token = 257;
    ASK("{" USER "}", 200,
        HEAD "{\"index\":0," MESSAGE(
            "\"yo\"") ",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,"
                      "\"token_ids\":null,\"routed_experts\":null}" TAIL(7, 10, 3));
    expect_prompt("u:hi;a:");
    assert_true(fake.spec.open_ended); /* no max_tokens: what the context holds, not reserved */
    assert_int_equal(fake.spec.max_tokens, 64 - 7);
    PART("{" USER ",\"max_tokens\":5}", 200, "\"finish_reason\":\"stop\"");
    assert_true(!fake.spec.open_ended && fake.spec.max_tokens == 5);
    PART("{" USER ",\"max_tokens\":5,\"max_completion_tokens\":6}", 200, "\"finish_reason\":\"stop\"");
    assert_int_equal(fake.spec.max_tokens, 6);
    fake_generation.max_new_tokens = 9;
    PART("{" USER "}", 200, "\"finish_reason\":\"stop\"");
    assert_true(fake.spec.open_ended && fake.spec.max_tokens == 9);
    fake_generation.max_new_tokens = -1;
}

#define CHUNK(rest)                                                                                          \
    "data: {\"id\":\"chatcmpl-id\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\","      \
    "\"choices\":[" rest "}\n\n"
#define ROLE(i, usage)                                                                                       \
    CHUNK("{\"index\":" #i ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"         \
          "\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null" usage)

static void a_streamed_answer(void **state)
{
    fake_reset("yo", NB_FINISH_LENGTH);
    ASK("{" USER ",\"stream\":true}", 200,
        ROLE(0, "") CHUNK(
            "{\"index\":0,\"delta\":{\"content\":\"y\"},\"logprobs\":null,\"finish_reason\":null}]")
            CHUNK("{\"index\":0,\"delta\":{\"content\":\"o\"},\"logprobs\":null,\"finish_reason\":\"length\","
                  "\"stop_reason\":null}],\"system_fingerprint\":\"nibble-1.0\"") "data: [DONE]\n\n");
    fake_reset("y", NB_FINISH_STOP);
    fake.end_token = 257; /* its chunk has no text */
    ASK("{" USER ",\"stream\":true,\"n\":2,\"stream_options\":{\"include_usage\":true,\"continuous_usage_"
        "stats\":true}}",
        200,
        ROLE(0, ",\"usage\":{\"prompt_tokens\":7,\"total_tokens\":7,\"completion_tokens\":0}")
            ROLE(1, ",\"usage\":{\"prompt_tokens\":7,\"total_tokens\":7,\"completion_tokens\":0}")
#define BOTH(i)                                                                                              \
    CHUNK("{\"index\":" #i ",\"delta\":{\"content\":\"y\"},\"logprobs\":null,\"finish_reason\":null}],"      \
          "\"usage\":{\"prompt_tokens\":7,\"total_tokens\":8,\"completion_tokens\":1}")                      \
    CHUNK(                                                                                                   \
        "{\"index\":" #i ",\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"stop\","       \
        "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":7,\"total_tokens\":9,\"completion_tokens\":2}," \
        "\"system_fingerprint\":\"nibble-1.0\"")
                BOTH(0) BOTH(1)
                    CHUNK("],\"usage\":{\"prompt_tokens\":7,\"total_tokens\":11,\"completion_tokens\":4},"
                          "\"system_fingerprint\":\"nibble-1.0\"") "data: [DONE]\n\n");
}

static void log_probabilities(void **state)
{
    fake_reset("a\xC3\xA9", NB_FINISH_LENGTH);
    PART("{" USER ",\"logprobs\":true}", 200,
         "\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97],\"top_logprobs\":[]},"
         "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.75,\"bytes\":[195],\"top_logprobs\":[]},"
         "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-1.0,\"bytes\":[169],\"top_logprobs\":[]}]}");
    PART("{" USER ",\"logprobs\":true,\"top_logprobs\":2,\"stream\":true}", 200,
         "\"delta\":{\"content\":\"a\"},\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.5,"
         "\"bytes\":[97],"
         "\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97]},{\"token\":\"b\",\"logprob\":-"
         "1.5,"
         "\"bytes\":[98]}]}]},\"finish_reason\":null}");
    assert_int_equal(fake.spec.sampling.logprobs, 2);
    PART("{" USER ",\"prompt_logprobs\":0}", 200, "\"prompt_logprobs\":[null,{\"58\":{\"logprob\":-3.0,");
    PART("{" USER ",\"return_token_ids\":true,\"return_prompt_text\":true}", 200,
         "\"prompt_token_ids\":[117,58,104,105,59,97,58],\"prompt_text\":\"u:hi;a:\"");
    PART("{" USER ",\"return_token_ids\":true,\"stream\":true}", 200,
         "\"finish_reason\":null,\"token_ids\":[97]}]");
}

static void what_templates_see(void **state)
{
    fake_reset("x", NB_FINISH_LENGTH);
    PART("{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
         "\"text\","
         "\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"}]}",
         200, "\"content\":\"x\"");
    expect_prompt("s:a\nb;u:c;a:");
    PART("{" USER ",\"add_generation_prompt\":false,\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{"
         "\"colour\":\"red\"}}",
         200, "\"content\":\"x\"");
    expect_prompt("u:hi;ETrue;Rhigh;Cred;");
    PART("{" USER ",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":7}}", 200,
         "\"content\":\"x\"");
    expect_prompt("u:hi;E7;Rnone;a:");
    PART("{" USER
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}",
         200, "\"content\":\"x\"");
    expect_prompt("u:hi;Tf;a:");
    fake_api->opt.exclude_tools = true; /* --exclude-tools-when-tool-choice-none */
    PART("{" USER
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}",
         200, "\"content\":\"x\"");
    expect_prompt("u:hi;a:");
    fake_api->opt.exclude_tools = false;
}

/* Templates that have no role "developer" get the messages of the system in its place. */
static void developers(void **state)
{
    fake_reset("x", NB_FINISH_LENGTH);
    PART("{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"c\"}]}",
         200, "\"content\":\"x\"");
    expect_prompt("s:d;u:c;a:");
}

static void continuing(void **state)
{
#define TWO "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"so\"}]"
    fake_reset("x", NB_FINISH_LENGTH);
    PART("{" TWO ",\"continue_final_message\":true,\"echo\":true}", 200,
         "\"message\":{\"role\":\"assistant\",\"content\":\"sox\"");
    expect_prompt("u:q;a:so");
    PART("{" TWO ",\"continue_final_message\":true,\"echo\":true,\"stream\":true}", 200,
         "\"delta\":{\"content\":\"sox\"}");
    PART("{" USER ",\"add_generation_prompt\":false,\"echo\":true}", 200,
         "\"message\":{\"role\":\"user\",\"content\":\"hix\"");
    PART("{" USER ",\"echo\":true}", 200, "\"message\":{\"role\":\"assistant\",\"content\":\"x\"");
    PART("{" TWO ",\"continue_final_message\":true,\"add_generation_prompt\":true}", 400,
         "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
}

static void refusals(void **state)
{
    fake_reset("x", NB_FINISH_LENGTH);
    ASK("{" USER ",\"tools\":[]}", 400,
        "{\"error\":{\"message\":\"`tools` must not be an empty array. Either provide at least one tool or "
        "omit the field "
        "entirely. (parameter=tools)\",\"type\":\"BadRequestError\",\"param\":\"tools\",\"code\":400}}");
    ASK("{" USER ",\"tool_choice\":\"auto\"}", 400,
        "{\"error\":{\"message\":\"When using `tool_choice`, `tools` must be set. "
        "(parameter=tool_choice)\",\"type\":"
        "\"BadRequestError\",\"param\":\"tool_choice\",\"code\":400}}");
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
    ASK("{" USER "," TOOLS "}", 400,
        "{\"error\":{\"message\":\"\\\"auto\\\" tool choice requires --enable-auto-tool-choice and "
        "--tool-call-parser to "
        "be set\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}");
    PART("{" USER "," TOOLS ",\"tool_choice\":\"required\"}", 400,
         "tool_choice=\\\"required\\\" requires --tool-call-parser to be set");
    PART("{" USER "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}", 400,
         "The tool specified in `tool_choice` does not match any of the specified `tools`.");
    PART("{" USER "," TOOLS ",\"tool_choice\":\"maybe\"}", 400, "Invalid value for `tool_choice`");
    PART("{" USER ",\"chat_template\":\"{{ messages }}\"}", 400,
         "Chat template is passed with request, but --trust-request-chat-template is not set. Refused "
         "request with "
         "untrusted chat template.");
    PART("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
         "\"x\"}}]}]}",
         400, "This model is served as text: a content part of type 'image_url' is not supported");
    static const char *const others[] = {"image",     "input_image", "input_audio",
                                         "audio_url", "video_url",   "file"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        nb_buf body = {0}, want = {0};
        nb_buf_addf(&body,
                    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                    "{\"type\":\"%s\"}]}]}",
                    others[i]);
        nb_buf_addf(&want, "served as text: a content part of type '%s'", others[i]);
        PART(nb_buf_str(&body), 400, nb_buf_str(&want));
        nb_buf_free(&body);
        nb_buf_free(&want);
    }
    PART("{\"messages\":[]}", 400, "`messages` must not be empty.");
    PART("{" USER ",\"response_format\":{\"type\":\"json_object\"}}", 400,
         "Constrained output comes with a later version");
    assert_int_equal(fake.submitted, 0);
}

/* The context is 64 tokens, five of which the template takes. A chat that names no max_tokens asks for none. */
static void lengths(void **state)
{
    nb_buf body = {0}, got = {0};
    fake_reset("x", NB_FINISH_LENGTH);
    for (size_t n = 58; n <= 60; n++) {
        nb_buf_clear(&body);
        nb_buf_clear(&got);
        nb_buf_adds(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (size_t i = 0; i < n; i++) nb_buf_addc(&body, 'x');
        nb_buf_adds(&body, "\"}]}");
        assert_int_equal(fake_ask(NB_ROUTE_CHAT, nb_buf_str(&body), &got), n == 58 ? 200 : 400);
        static const char *const want[] = {"\"completion_tokens\":1",
                                           "The decoder prompt (length 64) plus the number of requested "
                                           "output tokens (at least 1) is longer than the "
                                           "maximum model length of 64.",
                                           "This model's maximum context length is 64 tokens. However, you "
                                           "requested 0 output tokens and your prompt "
                                           "contains 65 input tokens, for a total of 65 tokens."};
        assert_non_null(strstr(nb_buf_str(&got), want[n - 58]));
    }
    nb_buf_free(&body);
    nb_buf_free(&got);
    PART("{" USER ",\"max_completion_tokens\":65}", 400,
         "max_completion_tokens=65 cannot be greater than max_model_len=max_total_tokens=64. Please request "
         "fewer output "
         "tokens. (parameter=max_completion_tokens, value=65)");
}

static void no_template(void **state)
{
    const nb_chat_format *none = NULL;
    nb_api *before = fake_api;
    nb_api_options opt = fake_options();
    nb_error err = {0};
    assert_int_equal(
        nb_api_new(&opt, &fake, FAKE_VOCAB, fake_tokenizer, none, &fake_generation, NULL, &fake_api, &err),
        NB_OK);
    PART("{" USER "}", 400, "As of transformers v4.44, default chat template is no longer allowed");
    nb_api_free(fake_api);
    /* A request's own template, when the server was told to trust it: its text, and never a file of the server. */
    opt.trust_chat_template = true;
    assert_int_equal(
        nb_api_new(&opt, &fake, FAKE_VOCAB, fake_tokenizer, none, &fake_generation, NULL, &fake_api, &err),
        NB_OK);
    fake_reset("x", NB_FINISH_LENGTH);
    PART("{" USER ",\"chat_template\":\"<{{ messages[0].content }}>\"}", 200, "\"content\":\"x\"");
    expect_prompt("<hi>");
    PART("{" USER ",\"chat_template\":\"/etc/passwd\"}", 400, "chat_template is not a template's text.");
    PART("{" USER ",\"chat_template\":\"{{ raise_exception('no way') }}\"}", 400, "no way");
    PART("{" USER ",\"chat_template\":\"{{\"}", 400, "BadRequestError");
    nb_api_free(fake_api);
    fake_api = before;
}

/* What the client names is repeated in part, or refused: every frame of a continued message tells its role. */
static void names_and_roles_are_bounded(void **state)
{
    nb_buf body = {0}, got = {0};
    char name[301];
    memset(name, 'r', 300);
    name[300] = '\0';
    nb_buf_addf(&body,
                "{\"messages\":[{\"role\":\"%s\",\"content\":\"x\"}],\"add_generation_prompt\":false,"
                "\"continue_final_message\":true}",
                name);
    assert_int_equal(fake_ask(NB_ROUTE_CHAT, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(nb_buf_str(&got), "role of the last message must have at most 256 bytes"));
    nb_buf_clear(&body);
    nb_buf_clear(&got);
    nb_buf_addf(
        &body,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"%s\"}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
        "\"%s\"}}}",
        name, name);
    assert_int_equal(fake_ask(NB_ROUTE_CHAT, nb_buf_str(&body), &got), 400);
    assert_non_null(strstr(nb_buf_str(&got), "requires --tool-call-parser"));
    assert_null(strstr(nb_buf_str(&got), name));
    nb_buf_free(&body);
    nb_buf_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_answer),    cmocka_unit_test(a_streamed_answer),
        cmocka_unit_test(log_probabilities), cmocka_unit_test(what_templates_see),
        cmocka_unit_test(developers),        cmocka_unit_test(continuing),
        cmocka_unit_test(refusals),          cmocka_unit_test(lengths),
        cmocka_unit_test(no_template),       cmocka_unit_test(names_and_roles_are_bounded),
    };
    nb_api_options opt = fake_options();
    nb_chat_format *chat = NULL;
    nb_error err = {0};
    if (nb_chat_format_open("/nowhere", NULL, template, &chat, &err)) fail_msg("%s", err.cause);
    fake_open(&opt, chat);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_close();
    nb_chat_format_free(chat);
    return failed;
}
