/*
 * Memory runs out at the first allocation, the second, and so on, while a tokenizer is loaded, encodes and decodes, and while a
 * chat is rendered and a reply taken apart, whole and as it arrives: each time the call says NB_ERR_NOMEM (or got by without) and leaves nothing behind
 * (the sanitizer build sees leaks), until one gets through.
 */
#include "text/tiny.h"

#include "fault/alloc.h"

#include "base/json_tree.h"
#include "text/chat.h"
#include "text/replies.h"

static void fail_each_allocation(const char *name, nb_status (*work)(const void *), const void *ctx)
{
    size_t n = 0, reported = 0;
    for (;; n++) {
        fault_arm(n);
        nb_status s = work(ctx);
        if (!fault_disarm()) {
            assert_int_equal(s, NB_OK);
            break;
        }
        if (s != NB_OK && s != NB_ERR_NOMEM)
            fail_msg("%s: allocation %zu fails: %s", name, n, nb_status_name(s));
        reported += s == NB_ERR_NOMEM;
    }
    print_message("  %s: %zu allocations, %zu of them needed\n", name, n, reported);
    assert_int_equal(n, reported); /* nothing of ours is dispensable */
}

static nb_status load(const void *ctx)
{
    const nb_buf *json = ctx;
    static const char config[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"yy\",\"add_bos_token\":true}";
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    nb_status s = nb_tokenizer_parse(json->data, json->len, config, sizeof config - 1, &t, &err);
    nb_tokenizer_free(t);
    return s;
}

static nb_status use(const void *ctx)
{
    const nb_tokenizer *t = ctx;
    static const char text[] =
        "abc  <s> 12 yy ca\u0301b yy \u4f60 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    nb_ids ids = {0};
    nb_buf back = {0};
    nb_error err = {0};
    nb_tok_scratch *s = nb_tok_scratch_new(t);
    nb_status status = s ? nb_tokenizer_encode(t, s, text, sizeof text - 1, true, &ids, &err) : NB_ERR_NOMEM;
    if (!status) status = nb_tokenizer_decode(t, ids.data, ids.len, false, &back, &err);
    free(ids.data);
    nb_buf_free(&back);
    nb_tok_scratch_free(s);
    return status;
}

static void loading_and_using(void **state)
{
    (void)state;
#define FLAGS(normalized)                                                                                    \
    "\"single_word\":false,\"lstrip\":true,\"rstrip\":false,\"normalized\":" normalized ",\"special\":true"
    static const tiny k = {
        .vocab = ",\"ab\":256,\"\\u0120\\u0120\":257,\"<unk>\":258,\"\uff5c\":259",
        .merges = "\"a b\",[\"\\u0120\",\"\\u0120\"]",
        .model = ",\"unk_token\":\"<unk>\",\"fuse_unk\":true",
        .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
        .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{"
               "\"type\":\"Split\","
               "\"pattern\":{\"Regex\":\"\\\\s+|[\\\\p{L}&&[^\\\\p{Han}]]+|[^a[^b]&&[a-c]]\"},\"behavior\":"
               "\"Isolated\",\"invert\":false}"
               "," TINY_BYTE_LEVEL "]}",
        .added = "{\"id\":0,\"content\":\"<s>\"," FLAGS("false") "},{\"id\":0,\"content\":\"yy\"," FLAGS(
            "true") "},{\"id\":0,\"content\":\"e\u0301\"," FLAGS("true") "}",
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{"
                "\"SpecialToken\":"
                "{\"id\":\"E\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"E\":{\"id\":\"E\",\"ids\":["
                "261]}}}",
    };
    nb_buf json = {0};
    tiny_json(&k, &json);
    fail_each_allocation("load", load, &json);
    nb_tokenizer *t = NULL;
    assert_int_equal(nb_tokenizer_parse(json.data, json.len, NULL, 0, &t, NULL), NB_OK);
    fail_each_allocation("encode and decode", use, t);
    nb_tokenizer_free(t);
    nb_buf_free(&json);
}

/* The same with a vocabulary of SentencePiece's style. */
static void loading_and_using_characters(void **state)
{
    (void)state;
#define MARK "\u2581"
    tiny k = {
        .no_bytes = true,
        .vocab = "\"<unk>\":0,\"" MARK "\":1,\"a\":2,\"b\":3,\"ab\":4,\"" MARK
                 "a\":5,\"<0x0A>\":6,\"<s>\":7,\"yy\":8",
        .merges = "[\"a\",\"b\"],[\"" MARK "\",\"a\"]",
        .model = ",\"unk_token\":\"<unk>\",\"byte_fallback\":true",
        .normalizer =
            "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"},"
            "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]}",
        .pre = "null",
        .decoder =
            "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK
            "\"},\"content\":\" \"},"
            "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
            "\",\"start\":1,\"stop\":0}]}",
        .added = "{\"id\":7,\"content\":\"<s>\"," FLAGS("false") "},{\"id\":8,\"content\":\"yy\"," FLAGS(
            "false") "}",
    };
    for (int metaspace = 0; metaspace < 2; metaspace++) {
        nb_buf json = {0};
        nb_tokenizer *t = NULL;
        tiny_json(&k, &json);
        fail_each_allocation("load", load, &json);
        assert_int_equal(nb_tokenizer_parse(json.data, json.len, NULL, 0, &t, NULL), NB_OK);
        fail_each_allocation("encode and decode", use, t);
        nb_tokenizer_free(t);
        nb_buf_free(&json);
        k.normalizer = NULL;
        k.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
                "\",\"prepend_scheme\":\"first\",\"split\":true}";
    }
}

static nb_status render(const void *ctx)
{
    nb_buf out = {0};
    nb_error err = {0};
    nb_status s = nb_chat_deepseek_v4_render(ctx, &out, &err);
    nb_buf_free(&out);
    return s;
}

static nb_status take_apart(const void *ctx)
{
    json_t *message = NULL;
    nb_error err = {0};
    nb_status s = nb_chat_deepseek_v4_parse(ctx, strlen(ctx), true, &message, &err);
    json_decref(message);
    return s;
}

typedef struct answer {
    how how;
    const char *text;
} answer;

static size_t seven_more(void *ctx, size_t at, size_t n)
{
    (void)ctx;
    return n - at < 7 ? n : at + 7;
}

/* The sink's own memory may run out as well: its caller finds that in the buffer. */
static nb_status as_it_arrives(const void *ctx)
{
    const answer *a = ctx;
    told t = {0};
    nb_error err = {0};
    nb_status s = told_feed(&t, a->how, a->text, strlen(a->text), seven_more, NULL, &err);
    if (s == NB_OK && !nb_buf_ok(&t.line)) s = NB_ERR_NOMEM;
    nb_buf_free(&t.line);
    return s;
}

static void chat(void **state)
{
    (void)state;
    static const char request[] =
        "{\"tools\":[{\"function\":{\"name\":\"f\",\"x\":[1.5,\"t\"]}}],\"messages\":[{\"role\":\"user\","
        "\"content\":\"q\"},"
        "{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":"
        "\"f\",\"arguments\":"
        "{\"k\":\"v\"}}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\"}],"
        "\"response_format\":{\"type\":\"object\"}}";
    static const char reply[] =
        "why</think>c\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"k\" "
        "string=\"true\">v</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    json_t *r = NULL;
    assert_int_equal(nb_json_tree(NULL, request, sizeof request - 1, &r, NULL), NB_OK);
    fail_each_allocation("render", render, r);
    fail_each_allocation("parse", take_apart, reply);
    fail_each_allocation("parse as it arrives", as_it_arrives,
                         &(answer){{"deepseek_v4", "deepseek_v4", true}, reply});
    fail_each_allocation("parse Hermes as it arrives", as_it_arrives,
                         &(answer){{"qwen3", "hermes", true},
                                   "why</think><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"});
    static const answer forms[] = {
        {{NULL, "qwen3_xml"}, "<function=f><parameter=a>1</parameter><parameter=b>x</parameter></function>"},
        {{"glm45", "glm45"}, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"},
        {{NULL, "mistral"}, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}]"},
        {{NULL, "kimi_k2"}, "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}"},
        {{NULL, "gemma4"}, "<|tool_call>call:f{a:1,b:<|\"|>x<|\"|>,c:[y]}<tool_call|>"},
        {{"openai_gptoss", "openai"}, "<|channel|>commentary to=functions.f<|message|>{}<|call|>"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        fail_each_allocation(forms[i].how.tools, as_it_arrives, &forms[i]);
    json_decref(r);
}

int main(void)
{
    fault_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(loading_and_using),
                                       cmocka_unit_test(loading_and_using_characters),
                                       cmocka_unit_test(chat)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
