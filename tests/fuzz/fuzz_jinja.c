/* Jinja templates: the bytes up to the first NUL are the template, what follows is JSON, the variables. */
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nb_jinja_limits limits = {200000, 8 << 20, 1 << 20};
    const char *text = (const char *)data, *end = memchr(text, '\0', size);
    size_t n = end ? (size_t)(end - text) : size;
    json_t *variables = NULL;
    nb_jinja *t = NULL;
    nb_buf out = {0};
    nb_error err = {.offset = -1};
    bool parts;
    if (end) nb_json_tree(NULL, end + 1, size - n - 1, &variables, NULL);
    if (nb_jinja_parse(text, n, &t, &err) != NB_OK) {
        require(err.status == NB_ERR_FORMAT && err.cause[0] && err.offset >= 0 && err.offset <= (int64_t)n);
    } else {
        nb_status s =
            nb_jinja_render(t, json_is_object(variables) ? variables : NULL, 1773480413, limits, &out, &err);
        require(s == NB_OK || (!out.len && err.status == s &&
                               (s == NB_ERR_ARGUMENT || s == NB_ERR_LIMIT || s == NB_ERR_UNSUPPORTED)));
        require(nb_jinja_wants_parts(t, &parts, NULL) == NB_OK);
        nb_jinja_uses(t, "messages");
    }
    nb_jinja_free(t);
    nb_buf_free(&out);
    json_decref(variables);
    return 0;
}
