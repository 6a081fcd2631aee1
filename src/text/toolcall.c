/* What the grammars of tool calls share: the errors, how a call begins, what an argument's type is. */
#include "text/toolcall.h"

#include <string.h>

#include "base/json.h"

nb_toolcall nb_call_bad(nb_calls *c, const nb_window *w, const char *why, nb_error *err)
{
    nb_fail(err, NB_ERR_FORMAT, "a tool call: %s", why);
    nb_error_at(err, NULL, NULL, (int64_t)w->scan);
    return NB_TOOLCALL_BAD;
}

nb_toolcall nb_call_no_memory(nb_error *err)
{
    nb_fail_nomem(err, "a tool call", 0);
    return NB_TOOLCALL_NOMEM;
}

/* The function of that name among the request's tools; NULL: there is none. */
static const json_t *tool_of(const json_t *schemas, const char *name, size_t n)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(schemas, i, tool)
    {
        const json_t *function = json_object_get(tool, "function"), *own = json_object_get(function, "name");
        if (json_string_length(own) == n && memcmp(json_string_value(own), name, n) == 0) return function;
    }
    return NULL;
}

nb_toolcall nb_call_begin(nb_calls *c, const nb_window *w, nb_span name, bool known, const nb_reply_sink *to,
                          nb_error *err)
{
    if (!name.n) return nb_call_bad(c, w, "its name is empty", err);
    for (size_t i = 0; i < name.n; i++)
        if (nb_span_is_blank((nb_span){name.s + i, 1}))
            return nb_call_bad(c, w, "its name holds a space", err);
    if (known && c->schemas && !tool_of(c->schemas, name.s, name.n))
        return nb_call_bad(c, w, "no tool has its name", err);
    c->open = true;
    to->call(to->ctx, c->calls++, name.s, name.n);
    return NB_TOOLCALL_MORE;
}

void nb_call_tell(const nb_calls *c, const char *s, size_t n, const nb_reply_sink *to)
{
    if (n) to->arguments(to->ctx, c->calls - 1, s, n);
}

int nb_call_at(const nb_window *w, const char *mark)
{
    return mark ? nb_window_at(w, mark) : 0;
}

nb_toolcall nb_call_next(nb_calls *c, nb_window *w, const char *call, const char *end, bool *begins,
                         nb_error *err)
{
    bool more = nb_call_blank(w), some = c->calls > c->first;
    *begins = false;
    if (!more && !w->whole) return NB_TOOLCALL_MORE;
    int at_call = !more ? 0 : call ? nb_window_at(w, call) : !some, at_end = more ? nb_call_at(w, end) : 0;
    if (at_end == 1) {
        nb_window_pass(w, end);
        return some ? NB_TOOLCALL_DONE : nb_call_bad(c, w, "a block without one", err);
    }
    if (at_call == 1) {
        if (call)
            nb_window_pass(w, call);
        else
            w->at = w->scan;
        *begins = true;
        return NB_TOOLCALL_MORE;
    }
    if (at_call < 0 || at_end < 0) return NB_TOOLCALL_MORE;
    w->scan = w->at;
    return some ? NB_TOOLCALL_DONE : nb_call_bad(c, w, "none where one has to begin", err);
}

bool nb_call_blank(nb_window *w)
{
    w->scan += nb_span_blank((nb_span){w->s + w->scan, w->n - w->scan});
    return w->scan < w->n;
}

nb_window nb_call_within(const nb_window *w, size_t from, size_t most)
{
    nb_window v = *w;
    if (v.n - from < most) return v;
    v.n = from + most;
    v.whole = true;
    return v;
}

int nb_call_is_json(nb_span t)
{
    nb_json j;
    nb_json_init(&j, t.s, t.n);
    int is = nb_json_skip(&j) && nb_json_next(&j) == NB_J_EOF ? 1 : nb_json_nomem(&j) ? -1 : 0;
    nb_json_free(&j);
    return is;
}

/* The type of one schema, or of the first of a list of schemas or names that is not null. */
static const char *type_of(const json_t *schema)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type"), *each;
    size_t i;
    if (json_is_string(type)) return json_string_value(type);
    json_array_foreach(type, i, each) if (json_is_string(each) && strcmp(json_string_value(each), "null") !=
                                                                      0) return json_string_value(each);
    for (size_t k = 0; k < 2; k++) json_array_foreach(json_object_get(schema, unions[k]), i, each)
        {
            const char *name = json_string_value(json_object_get(each, "type"));
            if (name && strcmp(name, "null") != 0) return name;
        }
    return json_object_get(schema, "enum") ? "string" : NULL;
}

const char *nb_call_type(const json_t *schemas, const char *name, size_t name_n, nb_span key)
{
    const json_t *function = tool_of(schemas, name, name_n);
    const json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    return type_of(json_object_getn(properties, key.s, key.n));
}
