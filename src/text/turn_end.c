/*
 * How a template ends a turn is seen by rendering small chats with it:
 *
 *     user, assistant                 what stands behind the answer; a chat that goes on may have another mark there (gpt-oss's <|end|>)
 *     user, assistant, user           where nothing does, what begins the next turn ends this one (GLM's <|user|>)
 *     user, assistant with two calls  the last token, if it stands nowhere else: one that closes each call does not end the turn,
 *     and a tool's answer             but what begins this does (GLM's <|observation|>)
 */
#include "text/turn_end.h"

#include <stdlib.h>
#include <string.h>

#include "text/window.h"

/* Texts that no template holds. */
#define ASKED "zq1zq"
#define ANSWERED "zq2zq"

static const char answered[] = "[{\"role\":\"user\",\"content\":\"" ASKED "\"},"
                               "{\"role\":\"assistant\",\"content\":\"" ANSWERED "\"}]";
static const char goes_on[] =
    "[{\"role\":\"user\",\"content\":\"" ASKED "\"},"
    "{\"role\":\"assistant\",\"content\":\"" ANSWERED "\"},{\"role\":\"user\",\"content\":\"a\"}]";
#define CALL "{\"type\":\"function\",\"id\":\"call00000\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"
#define CALLED                                                                                               \
    "[{\"role\":\"user\",\"content\":\"" ASKED "\"},"                                                        \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL "," CALL "]}"
static const char called[] = CALLED "]";
static const char returned[] =
    CALLED ",{\"role\":\"tool\",\"tool_call_id\":\"call00000\",\"content\":\"a\"}]";
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"f\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{}}}}]";

/* What the template writes behind the last `mark`, as ids; none where it refuses the chat. White space in front is left out. */
static nb_status render(const nb_chat_format *f, const nb_tokenizer *t, const char *messages,
                        const char *mark, nb_ids *ids, nb_error *err)
{
    nb_error probe;
    nb_buf text = {0};
    nb_tok_scratch *scratch = nb_tok_scratch_new(t);
    json_t *request = json_object(), *chat = json_loads(messages, 0, NULL),
           *functions = json_loads(tools, 0, NULL);
    nb_status s = NB_OK;
    ids->len = 0;
    bool ok =
        scratch && request && chat && functions && json_object_set(request, "messages", chat) == 0 &&
        json_object_set_new(request, "add_generation_prompt", json_false()) == 0 &&
        (messages == answered || messages == goes_on || json_object_set(request, "tools", functions) == 0);
    if (!ok)
        s = nb_fail_nomem(err, "a chat", 0);
    else if (nb_chat_format_render(f, request, 0, &text, &probe) == NB_OK) {
        const char *p = nb_buf_str(&text), *found = NULL;
        while ((p = strstr(p, mark))) found = p += strlen(mark);
        nb_span rest = {found ? found : "", found ? (size_t)(text.data + text.len - found) : 0};
        rest = nb_span_trim(rest);
        if (rest.n) s = nb_tokenizer_encode(t, scratch, rest.s, rest.n, false, ids, err);
    } else if (probe.status == NB_ERR_NOMEM) {
        s = NB_ERR_NOMEM;
        if (err) *err = probe;
    }
    json_decref(request);
    json_decref(chat);
    json_decref(functions);
    nb_buf_free(&text);
    nb_tok_scratch_free(scratch);
    return s;
}

static nb_status behind_calls(const nb_chat_format *f, const nb_tokenizer *t, uint32_t ids[NB_TURN_ENDS],
                              size_t *n, nb_error *err)
{
    nb_ids calls = {0}, more = {0};
    nb_status s = render(f, t, called, ASKED, &calls, err);
    if (s || !calls.len) goto out;
    uint32_t last = calls.data[calls.len - 1], next;
    size_t times = 0, same = 0;
    for (size_t i = 0; i < calls.len; i++) times += calls.data[i] == last;
    if (*n && ids[0] == last) goto out;
    if (times == 1 && nb_tokenizer_is_special(t, last)) {
        ids[(*n)++] = last;
        goto out;
    }
    if ((s = render(f, t, returned, ASKED, &more, err))) goto out;
    while (same < calls.len && same < more.len && calls.data[same] == more.data[same]) same++;
    if (same < calls.len || same == more.len) goto out;
    next = more.data[same];
    if (nb_tokenizer_is_special(t, next) && !(*n && ids[0] == next)) ids[(*n)++] = next;
out:
    free(calls.data);
    free(more.data);
    return s;
}

nb_status nb_turn_ends(const nb_chat_format *f, const nb_tokenizer *t, uint32_t ids[NB_TURN_ENDS], size_t *n,
                       nb_error *err)
{
    nb_ids rest = {0};
    nb_status s = NB_OK;
    *n = 0;
    if (strcmp(nb_chat_format_name(f), "jinja") != 0) return NB_OK;
    s = render(f, t, answered, ANSWERED, &rest, err);
    if (!s && !rest.len) s = render(f, t, goes_on, ANSWERED, &rest, err);
    if (!s && rest.len && nb_tokenizer_is_special(t, rest.data[0])) ids[(*n)++] = rest.data[0];
    if (!s) s = behind_calls(f, t, ids, n, err);
    free(rest.data);
    return s;
}
