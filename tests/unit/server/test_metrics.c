/* The text of /metrics against vLLM's names, labels and sums (specs/http_api.md, section 5). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "server/metrics.h"

static nb_metrics *metrics(const char *model)
{
    nb_metrics *m = NULL;
    nb_error err;
    assert_int_equal(nb_metrics_new(model, 4096, &m, &err), NB_OK);
    return m;
}

/* Whether the page has this whole line. */
static void has(nb_buf *page, const char *line)
{
    char want[512];
    snprintf(want, sizeof want, "\n%s\n", line);
    if (!strstr(nb_buf_str(page), want)) fail_msg("no line: %s\n%s", line, nb_buf_str(page));
}

/* Whether the sample's value is a time of the last minute. */
static void since_now(nb_buf *page, const char *sample)
{
    char want[256];
    snprintf(want, sizeof want, "\n%s", sample);
    const char *at = strstr(nb_buf_str(page), want);
    if (!at) fail_msg("no sample: %s", sample);
    double age = (double)time(NULL) - strtod(at + strlen(want), NULL);
    assert_true(age > -2 && age < 60);
}

/* Three requests of 5 prompt tokens (2 of them cached) and 7 output tokens, as the loop records them. */
static void after_three_requests(void **state)
{
    nb_metrics *m = metrics("m");
    nb_buf page = {0};
    static const double bounds[] = {1, 8, 16};
    nb_hist iterations;
    nb_hist_init(&iterations, bounds, 3);
    for (int i = 0; i < 3; i++) {
        nb_request_record r = {
            .prompt_tokens = 5,
            .cached_tokens = 2,
            .output_tokens = 7,
            .max_tokens = 7,
            .n = i ? 2 : 0, /* the first has a sibling that is not over: it is not counted as a request */
            .longest = 7,
            .finish = NB_FINISH_LENGTH,
            /* queue 0.5 s, prefill 0.25 s, decode 3 s: half a second a token */
            .times = {.arrival = 100, .scheduled = 100.5, .first_token = 100.75, .last_token = 103.75},
            .finished = 104};
        nb_metrics_request(m, &r);
        for (int t = 1; t < 7; t++) nb_metrics_token(m, 0.5);
        nb_hist_add(&iterations, 5, 1);
        nb_hist_add(&iterations, 1, 7);
    }
    nb_metrics_engine e = {.stats = {.running = 2,
                                     .waiting = 1,
                                     .blocks = 8,
                                     .blocks_used = 2,
                                     .prompt_tokens = 15,
                                     .prompt_cached = 6,
                                     .generation_tokens = 21,
                                     .prefix_queries = 15,
                                     .prefix_hits = 6,
                                     .corrupted = 1,
                                     .preemptions = 4},
                           .iteration_tokens = &iterations};
    nb_metrics_write_page(m, &e, &page);
    assert_true(nb_buf_ok(&page));
    has(&page, "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 2.0");
    has(&page, "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1.0");
    has(&page, "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"m\",reason=\"capacity\"} 1.0");
    has(&page, "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25");
    has(&page, "# TYPE vllm:prompt_tokens_total counter");
    has(&page, "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 15.0");
    has(&page,
        "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_compute\"} 9.0");
    has(&page,
        "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_cache_hit\"} 6.0");
    has(&page, "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 21.0");
    has(&page, "vllm:num_preemptions_total{engine=\"0\",model_name=\"m\"} 4.0");
    has(&page, "vllm:corrupted_requests_total{engine=\"0\",model_name=\"m\"} 1.0");
    has(&page, "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"m\"} 3.0");
    has(&page, "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} 0.0");
    /* N = 3, P = 5, T = 7: the sums that vLLM's own test asks for */
    has(&page, "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} 3.0");
    has(&page, "vllm:time_to_first_token_seconds_sum{engine=\"0\",model_name=\"m\"} 2.25"); /* 3 x 0.75 */
    has(&page, "vllm:inter_token_latency_seconds_count{engine=\"0\",model_name=\"m\"} 18.0");
    has(&page, "vllm:request_prompt_tokens_sum{engine=\"0\",model_name=\"m\"} 15.0");
    has(&page, "vllm:request_generation_tokens_sum{engine=\"0\",model_name=\"m\"} 21.0");
    has(&page, "vllm:request_params_n_count{engine=\"0\",model_name=\"m\"} 2.0");
    has(&page, "vllm:request_params_n_sum{engine=\"0\",model_name=\"m\"} 4.0");
    has(&page, "vllm:request_max_num_generation_tokens_sum{engine=\"0\",model_name=\"m\"} 14.0");
    has(&page, "vllm:request_prefill_kv_computed_tokens_sum{engine=\"0\",model_name=\"m\"} 9.0");
    has(&page, "vllm:iteration_tokens_total_sum{engine=\"0\",model_name=\"m\"} 36.0"); /* 3 x (5 + 7) */
    has(&page, "vllm:iteration_tokens_total_bucket{engine=\"0\",le=\"1.0\",model_name=\"m\"} 21.0");
    has(&page, "vllm:iteration_tokens_total_bucket{engine=\"0\",le=\"+Inf\",model_name=\"m\"} 24.0");
    has(&page, "vllm:e2e_request_latency_seconds_sum{engine=\"0\",model_name=\"m\"} 12.0");
    has(&page, "vllm:request_queue_time_seconds_sum{engine=\"0\",model_name=\"m\"} 1.5");
    has(&page, "vllm:request_prefill_time_seconds_sum{engine=\"0\",model_name=\"m\"} 0.75");
    has(&page, "vllm:request_decode_time_seconds_sum{engine=\"0\",model_name=\"m\"} 9.0");
    has(&page, "vllm:request_inference_time_seconds_sum{engine=\"0\",model_name=\"m\"} 9.75");
    has(&page, "vllm:request_time_per_output_token_seconds_sum{engine=\"0\",model_name=\"m\"} 1.5");
    /* Buckets: seconds as vLLM has them, tokens 1-2-5 up to the context. */
    has(&page, "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.75\",model_name=\"m\"} 3.0");
    has(&page, "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.5\",model_name=\"m\"} 0.0");
    has(&page, "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"2560.0\",model_name=\"m\"} 3.0");
    has(&page, "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"7680.0\",model_name=\"m\"} 3.0");
    has(&page, "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"5.0\",model_name=\"m\"} 3.0");
    has(&page, "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"2.0\",model_name=\"m\"} 0.0");
    has(&page, "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"2000.0\",model_name=\"m\"} 3.0");
    assert_null(strstr(nb_buf_str(&page), "request_prompt_tokens_bucket{engine=\"0\",le=\"5000.0\""));
    /* since when each counts, as prometheus_client has it */
    has(&page, "# TYPE vllm:prompt_tokens_created gauge");
    has(&page, "# TYPE vllm:iteration_tokens_total_created gauge");
    since_now(&page, "vllm:prompt_tokens_created{engine=\"0\",model_name=\"m\"} ");
    since_now(&page, "vllm:request_success_created{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} ");
    since_now(&page, "vllm:e2e_request_latency_seconds_created{engine=\"0\",model_name=\"m\"} ");
    assert_null(strstr(nb_buf_str(&page), "num_requests_running_created"));
    nb_buf_free(&page);
    nb_metrics_free(m);
}

/* An aborted request that never ran has no times to observe. */
static void a_request_that_never_ran(void **state)
{
    nb_metrics *m = metrics("m");
    nb_buf page = {0};
    nb_request_record r = {.prompt_tokens = 5,
                           .max_tokens = 7,
                           .n = 1,
                           .finish = NB_FINISH_ABORT,
                           .times = {.arrival = 100},
                           .finished = 101};
    nb_metrics_request(m, &r);
    nb_metrics_write_page(m, &(nb_metrics_engine){0}, &page);
    has(&page, "vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"m\"} 1.0");
    has(&page, "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} 0.0");
    has(&page, "vllm:request_queue_time_seconds_count{engine=\"0\",model_name=\"m\"} 0.0");
    has(&page, "vllm:e2e_request_latency_seconds_count{engine=\"0\",model_name=\"m\"} 1.0");
    has(&page, "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.0");
    nb_buf_free(&page);
    nb_metrics_free(m);
}

static void labels_are_escaped(void **state)
{
    nb_metrics *m = metrics("a\\b\"c\nd");
    nb_buf page = {0};
    const nb_label facts[] = {{"architecture", "x\"y"}};
    assert_int_equal(nb_metrics_info(m, "nibble:model_info", "Facts.", facts, 1, NULL), NB_OK);
    nb_metrics_write_page(m, &(nb_metrics_engine){0}, &page);
    has(&page, "vllm:num_requests_running{engine=\"0\",model_name=\"a\\\\b\\\"c\\nd\"} 0.0");
    has(&page, "nibble:model_info{engine=\"0\",architecture=\"x\\\"y\",model_name=\"a\\\\b\\\"c\\nd\"} 1.0");
    nb_buf_free(&page);
    nb_metrics_free(m);
}

/* Modules at fault are summed to the labels there are: each set of labels once. */
static void guard_events(void **state)
{
    nb_metrics *m = metrics("m");
    nb_buf page = {0};
    const nb_guard_count events[] = {{3, "linear", "a", "dynamic", 2},
                                     {3, "linear", "b", "dynamic", 5},
                                     {3, "linear", "a", "failed", 1},
                                     {4, "rmsnorm", "", "dynamic", 1}};
    nb_metrics_write_page(m, &(nb_metrics_engine){.guard = events, .n_guard = 4}, &page);
    has(&page, "nibble:guard_events_total{engine=\"0\",layer=\"3\",model_name=\"m\",operator=\"linear\",rung="
               "\"dynamic\"} 7.0");
    has(&page, "nibble:guard_events_total{engine=\"0\",layer=\"3\",model_name=\"m\",operator=\"linear\",rung="
               "\"failed\"} 1.0");
    has(&page, "nibble:guard_events_total{engine=\"0\",layer=\"4\",model_name=\"m\",operator=\"rmsnorm\","
               "rung=\"dynamic\"} 1.0");
    const char *first =
        strstr(nb_buf_str(&page), "layer=\"3\",model_name=\"m\",operator=\"linear\",rung=\"dynamic\"");
    assert_null(strstr(first + 1, "layer=\"3\",model_name=\"m\",operator=\"linear\",rung=\"dynamic\""));
    nb_buf_free(&page);
    nb_metrics_free(m);
}

static void http_requests(void **state)
{
    nb_metrics *m = metrics("m");
    nb_buf page = {0};
    nb_metrics_http(m, &(nb_http_record){"/v1/models", "GET", 200, 0.0625, 0, 100});
    nb_metrics_http(m, &(nb_http_record){"/v1/models", "GET", 204, 0.25, 0, 0});
    nb_metrics_http(m, &(nb_http_record){"none", "POST", 404, 0, 7, 50});
    nb_metrics_http(m, &(nb_http_record){"/v1/models", "GET", 404, 2, 0, 50});
    nb_metrics_http(m, &(nb_http_record){"/v1/models", "HEAD", 200, 0.5, 1, 2});
    nb_metrics_http(
        m, &(nb_http_record){"/v1/models", "GET", 0, 9, 1000, 0}); /* no answer: in no count, and in no sum */
    nb_metrics_write_page(m, &(nb_metrics_engine){0}, &page);
    has(&page, "http_requests_total{handler=\"/v1/models\",method=\"GET\",status=\"2xx\"} 2.0");
    has(&page, "http_requests_total{handler=\"/v1/models\",method=\"GET\",status=\"4xx\"} 1.0");
    has(&page, "http_requests_total{handler=\"none\",method=\"POST\",status=\"4xx\"} 1.0");
    has(&page, "http_request_duration_seconds_bucket{handler=\"/v1/models\",le=\"0.1\",method=\"GET\"} 1.0");
    has(&page, "http_request_duration_seconds_sum{handler=\"/v1/models\",method=\"GET\"} 2.3125");
    has(&page, "# TYPE http_request_size_bytes summary\n"
               "http_request_size_bytes_count{handler=\"/v1/models\"} 4.0\n"
               "http_request_size_bytes_sum{handler=\"/v1/models\"} 1.0\n"
               "http_request_size_bytes_count{handler=\"none\"} 1.0\n"
               "http_request_size_bytes_sum{handler=\"none\"} 7.0");
    has(&page, "http_response_size_bytes_count{handler=\"/v1/models\"} 4.0\n"
               "http_response_size_bytes_sum{handler=\"/v1/models\"} 152.0");
    nb_buf_free(&page);
    nb_metrics_free(m);
}

/* Each name has its HELP and TYPE once, before its samples, and the process tells about itself. */
static void the_page_is_well_formed(void **state)
{
    nb_metrics *m = metrics("m");
    nb_buf page = {0};
    char name[128] = "", seen[128][96];
    size_t n = 0;
    nb_metrics_write_page(m, &(nb_metrics_engine){0}, &page);
    char *save = NULL;
    assert_true(page.data[page.len - 1] == '\n');
    for (char *line = strtok_r(page.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 7, " "), line + 7);
            for (size_t i = 0; i < n; i++) assert_string_not_equal(seen[i], name);
            assert_true(n < 128);
            snprintf(seen[n++], sizeof seen[0], "%.95s", name);
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            assert_memory_equal(line + 7, name, strlen(name));
        } else {
            assert_memory_equal(line, name, strlen(name));
        }
    }
    assert_true(n > 40);
    nb_buf_free(&page);
    nb_metrics_write_page(m, &(nb_metrics_engine){0}, &page);
    const char *rss = strstr(nb_buf_str(&page), "\nprocess_resident_memory_bytes ");
    assert_non_null(rss);
    assert_true(strtod(rss + 31, NULL) > 1e5);
    nb_buf_free(&page);
    nb_metrics_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_three_requests), cmocka_unit_test(a_request_that_never_ran),
        cmocka_unit_test(labels_are_escaped),   cmocka_unit_test(guard_events),
        cmocka_unit_test(http_requests),        cmocka_unit_test(the_page_is_well_formed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
