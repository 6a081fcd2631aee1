/* Paths, root path, keys and content types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/routes.h"

static void finds(const char *path, const char *pattern, const char *arg)
{
    const char *got;
    const nb_route_entry *e = nb_route_find(path, &got);
    if (!pattern) {
        assert_null(e);
        return;
    }
    assert_non_null(e);
    assert_string_equal(e->path, pattern);
    assert_string_equal(got, arg);
}

static void paths(void **state)
{
    finds("/", "/", "");
    finds("/v1/models", "/v1/models", "");
    finds("/v1/models/org/name", "/v1/models/{model}", "org/name");
    finds("/models/x", "/models/{model}", "x");
    finds("/v1/models/", NULL, NULL);
    finds("/v1/embeddings", NULL, NULL);
    finds("/v1", NULL, NULL);
    finds("", NULL, NULL);
    finds("/health", "/health", "");
    finds("/healthy", NULL, NULL);
}

static void root_path(void **state)
{
    assert_string_equal(nb_route_strip("/llm/v1/models", "/llm"), "/v1/models");
    assert_string_equal(nb_route_strip("/llm", "/llm"), "/");
    assert_string_equal(nb_route_strip("/llmx/v1", "/llm"), "/llmx/v1");
    assert_string_equal(nb_route_strip("/v1/models", "/llm"), "/v1/models");
    assert_string_equal(nb_route_strip("/v1/models", ""), "/v1/models");
    assert_string_equal(nb_route_strip("/llm/v1/models", "/llm/"), "/v1/models");
    assert_string_equal(nb_route_strip("/llm/v1/models", "llm"), "/v1/models");
    assert_string_equal(nb_route_strip("/v1/models", "/"), "/v1/models");
    assert_string_equal(nb_route_strip("*", "/l"), "*");
}

/* vLLM guards by prefix; names without the prefix that do the same are guarded too, and the rest is open. */
static void guarded(void **state)
{
    assert_true(nb_route_guarded("/v1/completions"));
    assert_true(nb_route_guarded("/v1/nothing"));
    assert_true(nb_route_guarded("/v2/x"));
    assert_true(nb_route_guarded("/inference/v1/generate"));
    assert_true(nb_route_guarded("/cohere/v2/embed"));
    assert_true(nb_route_guarded("/chat/completions"));
    assert_true(nb_route_guarded("/models/x"));
    assert_false(nb_route_guarded("/tokenize"));
    assert_false(nb_route_guarded("/health"));
    assert_false(nb_route_guarded("/metrics"));
    assert_false(nb_route_guarded("/"));
}

static void keys(void **state)
{
    char *const keys[] = {"secret", "other"};
    assert_true(nb_route_authorized("Bearer secret", keys, 2));
    assert_true(nb_route_authorized("bearer  other", keys, 2));
    assert_false(nb_route_authorized(NULL, keys, 2));
    assert_false(nb_route_authorized("secret", keys, 2));
    assert_false(nb_route_authorized("Basic secret", keys, 2));
    assert_false(nb_route_authorized("Bearer ", keys, 2));
    assert_false(nb_route_authorized("Bearer secre", keys, 2));
    assert_false(nb_route_authorized("Bearer secretx", keys, 2));
    assert_false(nb_route_authorized("Bearer secretsecret", keys, 2));
    assert_false(nb_route_authorized("Bearer Secret", keys, 2));
}

static void content_types(void **state)
{
    assert_true(nb_route_is_json("application/json"));
    assert_true(nb_route_is_json("Application/JSON ; charset=utf-8"));
    assert_false(nb_route_is_json(NULL));
    assert_false(nb_route_is_json(""));
    assert_false(nb_route_is_json("text/plain"));
    assert_false(nb_route_is_json("application/jsonp"));
    assert_false(nb_route_is_json("application/vnd.api+json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(paths), cmocka_unit_test(root_path),
                                       cmocka_unit_test(guarded), cmocka_unit_test(keys),
                                       cmocka_unit_test(content_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
