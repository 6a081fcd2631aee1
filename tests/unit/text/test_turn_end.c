/* The token with which a chat template ends a turn is found, whatever its name; what closes a call or a message within a turn is not taken
 * for one. */
#include "tiny.h"

#include "text/turn_end.h"

#define SPECIAL(text)                                                                                        \
    "{\"content\":\"" text                                                                                   \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}"
/* Ids 256 and up, in this order. */
#define ADDED                                                                                                \
    SPECIAL("<|im_start|>")                                                                                  \
    "," SPECIAL("<|im_end|>") "," SPECIAL("<|end|>") "," SPECIAL("<|return|>") "," SPECIAL(                  \
        "<|call|>") "," SPECIAL("<|user|>") "," SPECIAL("<|start|>") "," SPECIAL("</call>") "," SPECIAL("<|" \
                                                                                                        "re" \
                                                                                                        "sp" \
                                                                                                        "on" \
                                                                                                        "se" \
                                                                                                        "|"  \
                                                                                                        ">")

static void expect(const char *source, size_t want, uint32_t first, uint32_t second)
{
    nb_tokenizer *t = tiny_new(&(tiny){.added = ADDED});
    nb_chat_format *f = NULL;
    nb_error err = {.offset = -1};
    uint32_t ids[NB_TURN_ENDS] = {0};
    size_t n = 9;
    if (nb_chat_format_open("", NULL, source, &f, &err)) fail_msg("%s", err.cause);
    assert_int_equal(nb_turn_ends(f, t, ids, &n, &err), NB_OK);
    assert_int_equal(n, want);
    if (n > 0) assert_int_equal(ids[0], first);
    if (n > 1) assert_int_equal(ids[1], second);
    nb_chat_format_free(f);
    nb_tokenizer_free(t);
}

#define EACH(body) "{% for m in messages %}" body "{% endfor %}"

static void behind_the_answer(void **state)
{
    (void)state;
    expect(EACH("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"), 1, 257, 0);
    expect(EACH("{{ m.role }}: {{ m.content }} \n <|end|>"), 1, 258, 0);
}

/* The answer's own end differs from that of a message which another follows. */
static void of_the_last_message(void **state)
{
    (void)state;
    expect(
        EACH("<|start|>{{ m.role }}{% if m.tool_calls %} to={{ m.tool_calls[0].function.name }}{}<|call|>"
             "{% else %}{{ m.content }}{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endif %}"),
        2, 259, 260);
}

/* Where nothing ends a turn, the next one's beginning does. */
static void by_the_next_turn(void **state)
{
    (void)state;
    expect(EACH("{% if m.role == 'user' %}<|user|>{% endif %}\n{{ m.content }}"), 1, 261, 0);
}

/* A mark that closes each call is none; one behind all of them is. */
static void behind_calls(void **state)
{
    (void)state;
    expect(EACH("{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}</call>{% endfor %}{% if not "
                "m.tool_calls %}<|im_end|>{% endif %}"),
           1, 257, 0);
    expect(EACH("{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}</call>{% endfor %}"
                "{% if m.tool_calls %}<|response|>{% else %}<|im_end|>{% endif %}"),
           2, 257, 264);
    /* nothing, but that the tool's answer begins */
    expect(EACH("{% if m.role == 'user' %}<|user|>{% elif m.role == 'tool' %}<|response|>{% endif %}{{ "
                "m.content }}"
                "{% for c in m.tool_calls %}{{ c.function.name }}</call>{% endfor %}"),
           2, 261, 264);
}

static void none(void **state)
{
    (void)state;
    expect(EACH("{{ m.role }}: {{ m.content }}\n"), 0, 0, 0);
    expect("{{ raise_exception('no chats') }}", 0, 0, 0);
    expect("{{ messages[0].content }}", 0, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behind_the_answer),
        cmocka_unit_test(of_the_last_message),
        cmocka_unit_test(by_the_next_turn),
        cmocka_unit_test(behind_calls),
        cmocka_unit_test(none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
