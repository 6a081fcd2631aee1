/* A line reaches the sink whole, however long, and no sink is fine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"

typedef struct seen {
    nb_log_level level;
    char *line;
} seen;

static void keep(void *ctx, nb_log_level level, const char *line)
{
    seen *s = ctx;
    free(s->line);
    *s = (seen){level, strdup(line)};
}

static void lines_arrive_whole(void **state)
{
    seen s = {0};
    nb_sink sink = {.log = keep, .ctx = &s};
    nb_log(&sink, NB_LOG_WARN, "%s %d", "layer", 7);
    assert_string_equal(s.line, "layer 7");
    assert_int_equal(s.level, NB_LOG_WARN);
    for (size_t n = 510; n < 515; n++) { /* around the inner buffer of 512 bytes */
        char text[600];
        memset(text, 'x', n);
        text[n] = '\0';
        nb_log(&sink, NB_LOG_INFO, "%s", text);
        assert_string_equal(s.line, text);
    }
    free(s.line);
}

static void no_sink_is_fine(void **state)
{
    nb_sink empty = {0};
    nb_log(NULL, NB_LOG_INFO, "x");
    nb_log(&empty, NB_LOG_INFO, "x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_arrive_whole),
                                       cmocka_unit_test(no_sink_is_fine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
