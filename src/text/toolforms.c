/* The names of --tool-call-parser: each a row of marks and a grammar. Names are vLLM's; marks are those of the families' chat templates. */
#include <string.h>

#include "text/dsv4.h"
#include "text/toolcall.h"

/* ---- objects ---- */

static const nb_object_form hermes = {.arguments = {"\"arguments\"", NULL}, .end = HERMES_END};
static const nb_object_form llama3 = {
    .arguments = {"\"parameters\"", "\"arguments\""}, .between = ';', .known = true};
static const nb_object_form mistral_list = {
    .arguments = {"\"arguments\"", NULL}, .open = '[', .between = ',', .close = ']'};

/* ---- marked ---- */

#define DEEPSEEK_CALLS "<｜tool▁calls▁begin｜>"
#define DEEPSEEK_CALL "<｜tool▁call▁begin｜>"
#define DEEPSEEK_SEP "<｜tool▁sep｜>"
#define DEEPSEEK_END "<｜tool▁call▁end｜>"
#define DEEPSEEK_CALLS_END "<｜tool▁calls▁end｜>"
#define DEEPSEEK_SPECIAL                                                                                     \
    {                                                                                                        \
        DEEPSEEK_CALLS, DEEPSEEK_CALL, DEEPSEEK_SEP, DEEPSEEK_END, DEEPSEEK_CALLS_END                        \
    }

static const nb_marked_form deepseek_v3 = {.call = DEEPSEEK_CALL,
                                           .kind_end = DEEPSEEK_SEP,
                                           .name_end = "```json",
                                           .args_end = "```" DEEPSEEK_END,
                                           .end = DEEPSEEK_CALLS_END};
static const nb_marked_form deepseek_v31 = {
    .call = DEEPSEEK_CALL, .name_end = DEEPSEEK_SEP, .args_end = DEEPSEEK_END, .end = DEEPSEEK_CALLS_END};
static const nb_marked_form kimi_k2 = {.call = "<|tool_call_begin|>",
                                       .name_end = "<|tool_call_argument_begin|>",
                                       .numbered = true,
                                       .args_end = "<|tool_call_end|>",
                                       .end = "<|tool_calls_section_end|>"};
static const nb_marked_form mistral = {.name_end = "[ARGS]", .id = "[CALL_ID]", .objects = &mistral_list};

/* ---- tagged ---- */

static const nb_tagged_form qwen3 = {.call = "<function=",
                                     .name_end = ">",
                                     .key = "<parameter=",
                                     .key_end = ">",
                                     .value_end = "</parameter>",
                                     .call_end = "</function>",
                                     .end = "</tool_call>",
                                     .trims = true};
static const nb_tagged_form seed_oss = {.call = "<function=",
                                        .name_end = ">",
                                        .key = "<parameter=",
                                        .key_end = ">",
                                        .value_end = "</parameter>",
                                        .call_end = "</function>",
                                        .end = "</seed:tool_call>",
                                        .trims = true};
static const nb_tagged_form glm45 = {.key = "<arg_key>",
                                     .key_end = "</arg_key>",
                                     .value = "<arg_value>",
                                     .value_end = "</arg_value>",
                                     .call_end = "</tool_call>",
                                     .guesses = true};
static const nb_tagged_form minimax_m2 = {.call = "<invoke name=\"",
                                          .name_end = "\">",
                                          .key = "<parameter name=\"",
                                          .key_end = "\">",
                                          .value_end = "</parameter>",
                                          .call_end = "</invoke>",
                                          .end = "</minimax:tool_call>",
                                          .trims = true};

/* ---- Gemma ---- */

static const nb_gemma_form gemma4 = {.quote = "<|\"|>", .end = "<tool_call|>"};
static const nb_gemma_form functiongemma = {.quote = "<escape>", .end = "<end_function_call>"};

/* ---- the names ---- */

static nb_toolcall hermes_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    return nb_hermes_step(&b->hermes, w, to, err);
}

static nb_toolcall dsml_step(nb_block *b, nb_window *w, const nb_reply_sink *to, nb_error *err)
{
    return nb_dsml_step(&b->dsml, w, to, err);
}

#define DSML_V32 "<" DSV4_DSML "function_calls"
static const char dsml_v32_end[] = "</" DSV4_DSML "function_calls>";

#define QWEN(n)                                                                                              \
    {                                                                                                        \
        n, {"<tool_call>", "<function="}, {"<tool_call>", "</tool_call>"}, false, nb_tagged_step, &qwen3     \
    }
#define GLM(n)                                                                                               \
    {                                                                                                        \
        n, {"<tool_call>"},                                                                                  \
            {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},       \
            false, nb_tagged_step, &glm45                                                                    \
    }

/* Sorted by name. openai has no grammar: Harmony marks the whole answer (harmony.h). */
const nb_tool_form nb_tool_forms[] = {
    {"deepseek_v3", {DEEPSEEK_CALLS}, DEEPSEEK_SPECIAL, false, nb_marked_step, &deepseek_v3},
    {"deepseek_v31", {DEEPSEEK_CALLS}, DEEPSEEK_SPECIAL, false, nb_marked_step, &deepseek_v31},
    {"deepseek_v32", {"\n\n" DSML_V32, DSML_V32}, {DSV4_DSML}, false, dsml_step, dsml_v32_end},
    {"deepseek_v4", {"\n\n" DSV4_CALLS, DSV4_CALLS}, {DSV4_DSML}, false, dsml_step, NULL},
    {"functiongemma",
     {"<start_function_call>"},
     {"<start_function_call>", "<end_function_call>", "<escape>"},
     false,
     nb_gemma_step,
     &functiongemma},
    {"gemma4", {"<|tool_call>"}, {"<|tool_call>", "<tool_call|>", "<|\"|>"}, false, nb_gemma_step, &gemma4},
    GLM("glm45"),
    GLM("glm47"),
    {"hermes", {HERMES_BEGIN}, {HERMES_BEGIN, HERMES_END}, false, hermes_step, &hermes},
    {"kimi_k2",
     {"<|tool_calls_section_begin|>"},
     {"<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
      "<|tool_call_end|>", "<|tool_calls_section_end|>"},
     false,
     nb_marked_step,
     &kimi_k2},
    {"llama3_json", {"<|python_tag|>", "{"}, {"<|python_tag|>"}, true, hermes_step, &llama3},
    {"llama4_json", {"<|python_tag|>", "{"}, {"<|python_tag|>"}, true, hermes_step, &llama3},
    {"minimax_m2",
     {"<minimax:tool_call>"},
     {"<minimax:tool_call>", "</minimax:tool_call>"},
     false,
     nb_tagged_step,
     &minimax_m2},
    {"mistral", {"[TOOL_CALLS]"}, {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}, false, nb_marked_step, &mistral},
    {"openai", {NULL}, {NULL}, false, NULL, NULL},
    QWEN("qwen3_coder"),
    QWEN("qwen3_xml"),
    {"seed_oss",
     {"<seed:tool_call>"},
     {"<seed:tool_call>", "</seed:tool_call>"},
     false,
     nb_tagged_step,
     &seed_oss},
    QWEN("step3p5"),
};
const size_t nb_tool_forms_n = sizeof nb_tool_forms / sizeof *nb_tool_forms;

const nb_tool_form *nb_tool_form_of(const char *name)
{
    for (size_t i = 0; name && i < nb_tool_forms_n; i++)
        if (strcmp(name, nb_tool_forms[i].name) == 0) return &nb_tool_forms[i];
    return NULL;
}

void nb_block_begin(nb_block *b)
{
    nb_calls c = b->c;
    const nb_tool_form *f = c.form;
    if (f->step == nb_marked_step)
        b->marked = (nb_marked){.c = c, .form = f->grammar};
    else if (f->step == nb_tagged_step)
        b->tagged = (nb_tagged){.c = c, .form = f->grammar};
    else if (f->step == hermes_step)
        b->hermes = (nb_hermes){.c = c, .form = f->grammar};
    else if (f->step == dsml_step)
        b->dsml = (nb_dsml){.c = c, .end = f->grammar};
}
