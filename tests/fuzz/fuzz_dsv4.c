/* DeepSeek-V4's chat encoding. The first byte chooses: 'r' renders the rest as a request, 't' and 'c' take it apart as a reply
 * with and without thinking. */
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

static void render(const char *text, size_t n)
{
    json_t *request = NULL;
    nb_buf out = {0};
    nb_error err = {0};
    if (nb_json_tree(NULL, text, n, &request, NULL) != NB_OK) return;
    nb_status s = nb_chat_deepseek_v4_render(request, &out, &err);
    require(s ? s == NB_ERR_ARGUMENT && err.cause[0] && !out.len : out.len > 0);
    nb_buf_free(&out);
    json_decref(request);
}

static void take_apart(const char *text, size_t n, bool thinking)
{
    json_t *message = NULL;
    nb_error err = {0};
    nb_status s = nb_chat_deepseek_v4_parse(text, n, thinking, &message, &err);
    require(s ? !message && err.cause[0] : json_is_string(json_object_get(message, "content")));
    json_decref(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    const char *rest = (const char *)data + 1;
    if (data[0] == 'r') render(rest, size - 1);
    if (data[0] == 't' || data[0] == 'c') take_apart(rest, size - 1, data[0] == 't');
    return 0;
}
