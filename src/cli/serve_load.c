/* Loading for `nibble serve`. */
#include "cli/serve_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"
#include "engine/policy.h"
#include "text/reply.h"

static int unknown_parser(const char *flag, const char *name, size_t (*names)(size_t, const char **))
{
    nb_buf list = {0};
    const char *each = "";
    for (size_t i = 0; i < names(i, &each); i++) nb_buf_addf(&list, "%s%s", i ? ", " : "", each);
    int code = nb_cli_usage("serve", "--%s is one of %s, not '%s'", flag, nb_buf_str(&list), name);
    nb_buf_free(&list);
    return code;
}

/* A JSON object given as an option; NULL text: none. */
static nb_status json_option(const char *flag, const char *text, json_t **out, nb_error *err)
{
    if (!text) return NB_OK;
    nb_status s = nb_json_tree(flag, text, strlen(text), out, err);
    if (s == NB_OK && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        s = nb_fail(err, NB_ERR_ARGUMENT, "%s takes a JSON object", flag);
    }
    return s;
}

/* --override-generation-config over what the folder says. */
static nb_status override_generation(const json_t *o, nb_generation_config *g, nb_error *err)
{
    const char *key;
    const json_t *v;
    void *at;
    for (at = json_object_iter((json_t *)o); at; at = json_object_iter_next((json_t *)o, at)) {
        key = json_object_iter_key(at);
        v = json_object_iter_value(at);
        double *real = strcmp(key, "temperature") == 0          ? &g->temperature
                       : strcmp(key, "top_p") == 0              ? &g->top_p
                       : strcmp(key, "min_p") == 0              ? &g->min_p
                       : strcmp(key, "repetition_penalty") == 0 ? &g->repetition_penalty
                                                                : NULL;
        int64_t *whole = strcmp(key, "top_k") == 0            ? &g->top_k
                         : strcmp(key, "max_new_tokens") == 0 ? &g->max_new_tokens
                                                              : NULL;
        bool fits = real ? json_is_number(v) : whole && json_is_integer(v);
        if (!fits) {
            nb_fail(err, NB_ERR_ARGUMENT, "--override-generation-config: '%.80s' %s", key,
                    real || whole ? "is no number" : "is not known");
            nb_error_remedy(
                err,
                "it takes numbers for temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens");
            return NB_ERR_ARGUMENT;
        }
        if (real) *real = json_number_value(v);
        if (whole) *whole = json_integer_value(v);
    }
    return NB_OK;
}

int nb_serve_check(const nb_serve_options *o)
{
    json_t *a = NULL, *b = NULL;
    nb_generation_config scratch = {0};
    nb_error err = {.offset = -1};
    if (o->tool_parser && !nb_reply_has_tools(o->tool_parser))
        return unknown_parser("tool-call-parser", o->tool_parser, nb_reply_tools_name);
    if (o->reasoning_parser && *o->reasoning_parser && !nb_reply_has_reasoning(o->reasoning_parser))
        return unknown_parser("reasoning-parser", o->reasoning_parser, nb_reply_reasoning_name);
    if (o->slow_rate <= 0)
        return nb_cli_usage("serve", "--slow-client-rate takes more than 0 bytes a second");
    if (o->auto_tools && !o->tool_parser)
        return nb_cli_usage("serve", "--enable-auto-tool-choice needs --tool-call-parser");
    nb_status s = json_option("--default-chat-template-kwargs", o->template_kwargs, &a, &err);
    if (s == NB_OK) s = json_option("--override-generation-config", o->generation_override, &b, &err);
    if (s == NB_OK && b) s = override_generation(b, &scratch, &err);
    json_decref(a);
    json_decref(b);
    if (s == NB_OK) return NB_EXIT_OK;
    return nb_cli_usage("serve", "%s%s%s", err.cause, err.remedy[0] ? "; " : "", err.remedy);
}

/* Sampling defaults: the folder's, another folder's, or none. End tokens are the model's in any case. */
static nb_status open_generation(const nb_serve_options *o, const char *folder, nb_served *m, nb_error *err)
{
    const nb_config *cfg = &nb_engine_model(m->engine)->cfg;
    nb_generation_config *g = &m->generation, other;
    json_t *override = NULL;
    nb_status s = nb_generation_open(folder, cfg, m->tok, g, err);
    if (s == NB_OK && strcmp(o->generation, "vllm") == 0) {
        g->temperature = g->top_p = g->min_p = g->repetition_penalty = NAN;
        g->top_k = g->max_new_tokens = -1;
    } else if (s == NB_OK && strcmp(o->generation, "auto") != 0) {
        s = nb_generation_open(o->generation, cfg, m->tok, &other, err);
        if (s == NB_OK) *g = other;
    }
    if (s == NB_OK) s = json_option("--override-generation-config", o->generation_override, &override, err);
    if (s == NB_OK && override) s = override_generation(override, g, err);
    json_decref(override);
    return s;
}

static nb_status open_text(const nb_serve_options *o, const char *folder, const nb_sink *sink, nb_served *m,
                           nb_error *err)
{
    const nb_config *cfg = &nb_engine_model(m->engine)->cfg;
    char *tokenizer = NULL;
    nb_error why;
    nb_status s = o->tokenizer ? nb_hub_resolve(o->tokenizer, &tokenizer, err) : NB_OK;
    if (s == NB_OK) s = nb_tokenizer_open(tokenizer ? tokenizer : folder, &m->tok, err);
    free(tokenizer);
    if (s != NB_OK) return s;
    s = nb_chat_format_open(folder, cfg->arch->name, o->chat_template, &m->chat, &why);
    if (s == NB_ERR_MISSING && !o->chat_template) {
        nb_log(sink, NB_LOG_WARN, "no chat format: %s; chat requests will be refused", why.cause);
        s = NB_OK;
    }
    if (s != NB_OK) {
        *err = why;
        return s;
    }
    size_t added = 0;
    s = open_generation(o, folder, m, err);
    if (s == NB_OK) s = nb_generation_add_ends(&m->generation, m->chat, m->tok, &added, err);
    for (size_t i = m->generation.n_eos - added; s == NB_OK && i < m->generation.n_eos; i++) {
        size_t n;
        const char *token = nb_tokenizer_bytes(m->tok, m->generation.eos[i], &n);
        nb_log(sink, NB_LOG_WARN,
               "answers end with %.*s too, as in the chat template: no eos_token_id names it", (int)n, token);
    }
    return s;
}

static nb_status start_engine(const nb_serve_options *o, const nb_plan *plan, nb_server *server,
                              const nb_sink *sink, nb_served *m, nb_error *err)
{
    size_t requests = o->queue_requests != UINT64_MAX ? o->queue_requests
                      : plan->max_seqs < 256          ? 1024 /* the most prompts of one request */
                                                      : 4 * plan->max_seqs;
    size_t tokens = o->queue_tokens == UINT64_MAX ? 64 * plan->max_context : o->queue_tokens;
    nb_core_options co = {.sched = {.max_seqs = plan->max_seqs,
                                    .max_rows = o->max_rows,
                                    .max_context = plan->max_context,
                                    .chunk_limit = o->chunk_limit,
                                    .reserve = o->reserve_prompt ? NB_RESERVE_PROMPT : NB_RESERVE_FULL,
                                    .queue_requests = requests,
                                    .queue_tokens = tokens,
                                    .bypass_seconds = 5,
                                    .priorities = strcmp(o->policy, "priority") == 0},
                          .guard = true,
                          .wake = nb_server_wake,
                          .wake_ctx = server,
                          .sink = *sink};
    return nb_core_new(m->engine, m->tok, &co, &m->core, err);
}

static nb_status start_api(const nb_serve_options *o, const char *folder, const nb_plan *plan,
                           nb_metrics *metrics, nb_served *m, nb_error *err)
{
    const char *const path[] = {o->model};
    nb_status s = json_option("--default-chat-template-kwargs", o->template_kwargs, &m->template_kwargs, err);
    if (s != NB_OK) return s;
    nb_api_options ao = {.names = o->names.n ? o->names.item : path,
                         .n_names = o->names.n ? o->names.n : 1,
                         .root = o->model,
                         .folder = folder,
                         .version = NB_VERSION,
                         .max_context = plan->max_context,
                         .max_logprobs = (int)o->max_logprobs,
                         .auto_tool_choice = o->auto_tools,
                         .exclude_tools = o->exclude_tools,
                         .tool_parser = o->tool_parser,
                         .reasoning_parser =
                             o->reasoning_parser && *o->reasoning_parser ? o->reasoning_parser : NULL,
                         .trust_chat_template = o->trust_template,
                         .prompt_tokens_details = o->prompt_details,
                         .force_usage = o->force_usage,
                         .tokens_as_ids = o->tokens_as_ids,
                         .response_role = o->response_role,
                         .template_kwargs = m->template_kwargs,
                         .priorities = strcmp(o->policy, "priority") == 0,
                         .seed = o->seed};
    return nb_api_new(&ao, m->core, nb_engine_model(m->engine)->vocab, m->tok, m->chat, &m->generation,
                      metrics, &m->api, err);
}

/* The facts of the model as a metric, for the page and for dashboards. */
static nb_status tell_facts(const nb_serve_options *o, const nb_llm_options *lo, const nb_plan *plan,
                            const nb_served *m, nb_metrics *metrics, nb_error *err)
{
    static const char *const names[NB_FMT_COUNT] = {"NVFP4", "MXFP4", "FP8", "BF16", "F16", "F32"};
    const nb_model *model = nb_engine_model(m->engine);
    const nb_engine_options *eo = nb_engine_limits(m->engine);
    uint64_t packed = 0;
    char formats[128] = "", text[10][32];
    for (size_t i = 0; i < NB_FMT_COUNT; i++) packed += model->format_bytes[i];
    for (size_t i = 0, n = 0; i < NB_FMT_COUNT && packed; i++)
        if (model->format_bytes[i])
            n += (size_t)snprintf(formats + n, sizeof formats - n, "%s%s %.0f %%", n ? ", " : "", names[i],
                                  100.0 * (double)model->format_bytes[i] / (double)packed);
    const uint64_t numbers[] = {
        plan->max_context, (uint64_t)model->cfg.n_layers,      model->vocab,
        eo->threads,       packed + model->other_bytes,        nb_engine_kv_bytes(m->engine),
        eo->kv_blocks,     eo->kv_blocks * plan->block_tokens, plan->at_once,
        plan->max_seqs};
    for (size_t i = 0; i < 10; i++) snprintf(text[i], sizeof text[i], "%llu", (unsigned long long)numbers[i]);
    const nb_label model_info[] = {{"architecture", model->cfg.arch->name},
                                   {"arithmetic", nb_arith_name(lo->arith)},
                                   {"formats", formats},
                                   {"kernels", nb_cpu_exec_kernels(model->x)},
                                   {"layers", text[1]},
                                   {"max_model_len", text[0]},
                                   {"threads", text[3]},
                                   {"version", NB_VERSION},
                                   {"vocabulary", text[2]},
                                   {"weight_bytes", text[4]}};
    const nb_label cache_info[] = {{"block_size", "16"},
                                   {"cache_dtype", "float32"},
                                   {"enable_prefix_caching", o->prefix_cache ? "True" : "False"},
                                   {"kv_cache_bytes", text[5]},
                                   {"kv_cache_max_concurrency", text[8]},
                                   {"kv_cache_size_tokens", text[7]},
                                   {"max_num_seqs", text[9]},
                                   {"num_gpu_blocks", text[6]}};
    nb_status s = nb_metrics_info(metrics, "nibble:model_info", "Facts of the model.", model_info,
                                  sizeof model_info / sizeof *model_info, err);
    if (s != NB_OK) return s;
    return nb_metrics_info(metrics, "vllm:cache_config_info", "Facts of the KV cache.", cache_info,
                           sizeof cache_info / sizeof *cache_info, err);
}

/* An expert that few prompts reach may lack its input scale: said before the first request, not to whoever reaches it. */
static nb_status need_scales(const nb_engine *e, nb_error *err)
{
    const nb_model *m = nb_engine_model(e);
    size_t rows = m->cfg.arch->n_tensors, n = rows * ((size_t)m->cfg.n_layers + 1);
    if (m->x->arith != NB_ARITH_W4A4) return NB_OK;
    for (size_t i = 0; i < n; i++) {
        const nb_slot *slot = i < rows ? &m->global[i] : &m->layers[i - rows];
        for (size_t k = 0; k < slot->n_lin; k++) {
            const nb_linear *l = &slot->lin[k];
            if (!l->fp4_input || l->has_input) continue;
            nb_fail(err, NB_ERR_MISSING,
                    "arithmetic w4a4 needs this linear's input scale, and the folder stores none");
            nb_error_at(err, NULL, l->module, -1);
            nb_error_remedy(
                err,
                "serve with --arith w4a4-dynamic, --scales warmup or the default arithmetic, or fill it: "
                "nibble repair");
            return NB_ERR_MISSING;
        }
    }
    return NB_OK;
}

nb_status nb_serve_load(const nb_serve_options *o, const char *folder, const nb_llm_options *lo,
                        const nb_plan *plan, nb_server *server, nb_metrics *metrics, const nb_sink *sink,
                        nb_served *out, nb_error *err)
{
    nb_policy *policy = NULL;
    *out = (nb_served){0};
    const nb_load_options load = {.packed_cache = lo->packed_cache};
    nb_engine_options eo = {.threads = lo->threads,
                            .load = &load,
                            .kernels = lo->kernels ? lo->kernels : "auto",
                            .arith = lo->arith,
                            .act_bf16 = lo->act_bf16,
                            .quant_bf16 = lo->quant_bf16,
                            .max_seqs = plan->max_seqs,
                            .max_context = plan->max_context,
                            .max_rows = o->max_rows,
                            .kv_blocks = plan->blocks,
                            .prefix_cache = o->prefix_cache};
    nb_status s = nb_policy_new(lo->scales, lo->dequant, lo->n_dequant, &policy, err);
    if (s == NB_OK) s = nb_policy_engine(folder, &eo, policy, sink, &out->engine, err);
    nb_policy_free(policy);
    if (s == NB_OK) s = need_scales(out->engine, err);
    if (s == NB_OK) s = open_text(o, folder, sink, out, err);
    if (s == NB_OK) s = start_engine(o, plan, server, sink, out, err);
    if (s == NB_OK) s = start_api(o, folder, plan, metrics, out, err);
    if (s == NB_OK) s = tell_facts(o, lo, plan, out, metrics, err);
    return s;
}

void nb_served_free(nb_served *m)
{
    nb_api_free(m->api);
    nb_core_free(m->core);
    nb_chat_format_free(m->chat);
    nb_tokenizer_free(m->tok);
    nb_engine_free(m->engine);
    json_decref(m->template_kwargs);
}
