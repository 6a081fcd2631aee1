/* The routes that need no engine: /tokenize, /detokenize, /v1/models, and the errors of all of them. */
#include "server/fake_core.h"

static void expect(nb_route route, const char *arg, const char *body, int status, const char *part)
{
    nb_buf out = {0};
    nb_buf_adds(&out, "before ");
    int s = nb_api_answer(fake_api, fake_work, route, arg, body, body ? strlen(body) : 0, &out);
    if (s != status || strncmp(nb_buf_str(&out), "before ", 7) != 0 || !strstr(nb_buf_str(&out), part))
        fail_msg("%s gave %d %s", body ? body : arg, s, nb_buf_str(&out));
    nb_buf_free(&out);
}

#define TOKENIZE(body, status, part) expect(NB_ROUTE_TOKENIZE, NULL, body, status, part)
#define DETOKENIZE(body, status, part) expect(NB_ROUTE_DETOKENIZE, NULL, body, status, part)

static void tokenize(void **state)
{
    TOKENIZE("{\"prompt\":\"ab\"}", 200,
             "before {\"count\":2,\"max_model_len\":64,\"tokens\":[97,98],\"token_strs\":null}");
    TOKENIZE("{\"prompt\":\"</s>\\u00e9\",\"return_token_strs\":true}", 200,
             "\"tokens\":[257,195,169],\"token_strs\":[\"</s>\",\"\xC3\x83\",\"\xC2\xA9\"]}");
    TOKENIZE("{\"prompt\":\"\"}", 200,
             "{\"count\":0,\"max_model_len\":64,\"tokens\":[],\"token_strs\":null}");
    TOKENIZE("{\"prompt\":\"a\\u0000\"}", 200, "\"tokens\":[97,0]");
    TOKENIZE("{}", 400,
             "{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required', 'input': {}}");
    TOKENIZE("{\"prompt\":[1]}", 400, "\"param\":\"body.prompt\"");
    TOKENIZE("{\"prompt\":\"a\",\"model\":\"no\"}", 404, "The model `no` does not exist.");
    TOKENIZE("{\"messages\":3}", 400, "\"param\":\"body.messages\"");
    TOKENIZE("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 400, "chat template");
    TOKENIZE("nonsense", 400, "json_invalid");
}

static void detokenize(void **state)
{
    DETOKENIZE("{\"tokens\":[104,105,257,195,169,195]}", 200, "{\"prompt\":\"hi</s>\xC3\xA9\xEF\xBF\xBD\"}");
    DETOKENIZE("{\"tokens\":[]}", 200, "{\"prompt\":\"\"}");
    DETOKENIZE("{\"tokens\":[274]}", 400, "Token id 274 is out of vocabulary");
    DETOKENIZE("{\"tokens\":[9223372036854775807]}", 400, "out of vocabulary");
    DETOKENIZE("{\"tokens\":[-1]}", 400, "Input should be greater than or equal to 0");
    DETOKENIZE("{}", 400, "Field required");
}

static void models(void **state)
{
    expect(NB_ROUTE_MODELS, NULL, NULL, 200,
           "before {\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":");
    expect(NB_ROUTE_MODELS, NULL, NULL, 200,
           "\"owned_by\":\"vllm\",\"root\":\"models/"
           "m\",\"parent\":null,\"max_model_len\":64,\"permission\":[{\"id\":\"modelperm-");
    expect(NB_ROUTE_MODELS, NULL, NULL, 200, "{\"id\":\"other\"");
    expect(NB_ROUTE_MODELS, "other", NULL, 200, "before {\"id\":\"other\",\"object\":\"model\"");
    expect(NB_ROUTE_MODELS, "none", NULL, 404,
           "before {\"error\":{\"message\":\"The model `none` does not "
           "exist.\",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokenize), cmocka_unit_test(detokenize),
                                       cmocka_unit_test(models)};
    nb_api_options opt = fake_options();
    fake_open(&opt, NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_close();
    return failed;
}
