/*
 * The DeepSeek-V4 table. Two families of names exist (the release's own and transformers'), exporters mix them, and the config
 * has two dialects; all of it is met here, so that the forward pass sees one model.
 */
#include "checkpoint/arch_deepseek_v4.h"

#include <math.h>
#include <string.h>

#include "checkpoint/arch_rows.h"

static const char *const model_types[] = {"deepseek_v4", NULL};
static const char *const prefixes[] = {"", "model.", NULL};
static const char *const skip[] = {"mtp.*", "*.k_scale", "*.v_scale", NULL};

int64_t nb_ds4_ratio(const nb_config *cfg, int layer)
{
    const json_t *ratios = nb_config_get(cfg, "compress_ratios");
    if (json_is_array(ratios)) {
        const json_t *r = json_array_get(ratios, (size_t)layer);
        return json_is_integer(r) && json_integer_value(r) >= 0 ? json_integer_value(r) : -1;
    }
    const char *type = json_string_value(json_array_get(nb_config_get(cfg, "layer_types"), (size_t)layer));
    if (!type) return -1;
    if (strcmp(type, "sliding_attention") == 0) return 0;
    if (strcmp(type, "compressed_sparse_attention") != 0 && strcmp(type, "heavily_compressed_attention") != 0)
        return -1;
    const json_t *rate = json_object_get(nb_config_get(cfg, "compress_rates"), type);
    return json_is_integer(rate) && json_integer_value(rate) > 0 ? json_integer_value(rate) : -1;
}

bool nb_ds4_is_hca(const nb_config *cfg, int layer)
{
    const char *type = json_string_value(json_array_get(nb_config_get(cfg, "layer_types"), (size_t)layer));
    if (type && !json_is_array(nb_config_get(cfg, "compress_ratios")))
        return strcmp(type, "heavily_compressed_attention") == 0;
    int64_t r = nb_ds4_ratio(cfg, layer);
    return r > 0 && r != 4;
}

bool nb_ds4_is_hash(const nb_config *cfg, int layer)
{
    const json_t *n = nb_config_get(cfg, "num_hash_layers");
    if (json_is_integer(n)) return layer < json_integer_value(n);
    const char *type =
        json_string_value(json_array_get(nb_config_get(cfg, "mlp_layer_types"), (size_t)layer));
    return type && strcmp(type, "hash_moe") == 0;
}

static bool compressed(const nb_config *cfg, int layer)
{
    return nb_ds4_ratio(cfg, layer) > 0;
}
static bool indexed(const nb_config *cfg, int layer)
{
    return compressed(cfg, layer) && !nb_ds4_is_hca(cfg, layer);
}
static bool scored(const nb_config *cfg, int layer)
{
    return !nb_ds4_is_hash(cfg, layer);
}

#define ATTN NB_L "(attn|self_attn)."
#define COMP ATTN "compressor."
#define INDEX ATTN "(indexer|compressor.indexer)."
#define FFN NB_L "(ffn|mlp)."
#define EXPERT FFN "experts.{e}."
#define SHARED FFN "shared_experts."
#define W1 "(w1|gate_proj|wgate)"
#define W3 "(w3|up_proj)"
#define W2 "(w2|down_proj)"

static const nb_arch_tensor tensors[DS4_COUNT] = {
    [DS4_EMBED] = {"(embed|embed_tokens)", "vocab_size,hidden_size", NB_ROLE_EMBED, .part = NB_PART_EMBED},
    [DS4_HC_ATTN_FN] = {NB_L "(hc_attn_fn|attn_hc.fn)", "hc_mix,hc_mult*hidden_size", NB_ROLE_PARAM},
    [DS4_HC_ATTN_BASE] = {NB_L "(hc_attn_base|attn_hc.base)", "hc_mix", NB_ROLE_PARAM},
    [DS4_HC_ATTN_SCALE] = {NB_L "(hc_attn_scale|attn_hc.scale)", "3", NB_ROLE_PARAM},
    [DS4_ATTN_NORM] = {NB_L "(attn_norm|input_layernorm).weight", "hidden_size", NB_ROLE_NORM,
                       .part = NB_PART_ATTN_NORM},
    [DS4_WQ_A] = {ATTN "(wq_a|q_a_proj)", "q_lora_rank,hidden_size", NB_ROLE_LINEAR, NB_SPLIT_NONE,
                  "wq_a_wkv"},
    [DS4_Q_NORM] = {ATTN "(q_norm|q_a_norm|q_a_layernorm).weight", "q_lora_rank", NB_ROLE_NORM},
    [DS4_WQ_B] = {ATTN "(wq_b|q_b_proj)", "num_attention_heads*head_dim,q_lora_rank", NB_ROLE_LINEAR,
                  NB_SPLIT_COLUMN},
    [DS4_WKV] = {ATTN "(wkv|kv_proj)", "head_dim,hidden_size", NB_ROLE_LINEAR, NB_SPLIT_NONE, "wq_a_wkv"},
    [DS4_KV_NORM] = {ATTN "(kv_norm|norm|kv_layernorm).weight", "head_dim", NB_ROLE_NORM},
    [DS4_SINK] = {ATTN "(attn_sink|sinks)", "num_attention_heads", NB_ROLE_PARAM, NB_SPLIT_COLUMN},
    [DS4_WO_A] = {ATTN "(wo_a|o_a_proj)", "o_groups*o_lora_rank,num_attention_heads*head_dim/o_groups",
                  NB_ROLE_LINEAR, NB_SPLIT_COLUMN, .blocks = "o_groups"},
    [DS4_WO_B] = {ATTN "(wo_b|o_b_proj)", "hidden_size,o_groups*o_lora_rank", NB_ROLE_LINEAR, NB_SPLIT_ROW},
    [DS4_COMP_WKV] = {COMP "(wkv|kv_proj)", "compressor_series*head_dim,hidden_size", NB_ROLE_LINEAR,
                      .fused = "comp", .when = compressed},
    [DS4_COMP_WGATE] = {COMP "(wgate|gate_proj)", "compressor_series*head_dim,hidden_size", NB_ROLE_LINEAR,
                        .fused = "comp", .when = compressed},
    [DS4_COMP_APE] = {COMP "(ape|position_bias)", "compress_ratio,compressor_series*head_dim", NB_ROLE_PARAM,
                      .when = compressed},
    [DS4_COMP_NORM] = {COMP "(norm|kv_norm).weight", "head_dim", NB_ROLE_NORM, .when = compressed},
    [DS4_INDEX_WQ_B] = {INDEX "(wq_b|q_b_proj)", "index_n_heads*index_head_dim,q_lora_rank", NB_ROLE_LINEAR,
                        .when = indexed},
    [DS4_INDEX_WEIGHTS] = {INDEX "(weights_proj|scorer.weights_proj)", "index_n_heads,hidden_size",
                           NB_ROLE_LINEAR, .when = indexed},
    [DS4_INDEX_WKV] = {INDEX "(compressor.wkv|kv_proj|wkv|compressor.kv_proj)",
                       "2*index_head_dim,hidden_size", NB_ROLE_LINEAR, .fused = "index", .when = indexed},
    [DS4_INDEX_WGATE] = {INDEX "(compressor.wgate|gate_proj|wgate|compressor.gate_proj)",
                         "2*index_head_dim,hidden_size", NB_ROLE_LINEAR, .fused = "index", .when = indexed},
    [DS4_INDEX_APE] = {INDEX "(compressor.ape|position_bias|compressor.position_bias)",
                       "compress_ratio,2*index_head_dim", NB_ROLE_PARAM, .when = indexed},
    [DS4_INDEX_NORM] = {INDEX "(compressor.norm|kv_norm|compressor.kv_norm|norm).weight", "index_head_dim",
                        NB_ROLE_NORM, .when = indexed},
    [DS4_HC_FFN_FN] = {NB_L "(hc_ffn_fn|ffn_hc.fn)", "hc_mix,hc_mult*hidden_size", NB_ROLE_PARAM},
    [DS4_HC_FFN_BASE] = {NB_L "(hc_ffn_base|ffn_hc.base)", "hc_mix", NB_ROLE_PARAM},
    [DS4_HC_FFN_SCALE] = {NB_L "(hc_ffn_scale|ffn_hc.scale)", "3", NB_ROLE_PARAM},
    [DS4_FFN_NORM] = {NB_L "(ffn_norm|post_attention_layernorm).weight", "hidden_size", NB_ROLE_NORM,
                      .part = NB_PART_FFN_NORM},
    [DS4_GATE] = {FFN "gate", "n_routed_experts,hidden_size", NB_ROLE_LINEAR, .part = NB_PART_ROUTER},
    [DS4_GATE_BIAS] = {FFN "gate.(bias|e_score_correction_bias)", "n_routed_experts", NB_ROLE_PARAM,
                       .when = scored, .part = NB_PART_CHOICE_BIAS},
    [DS4_TID2EID] = {FFN "gate.tid2eid", "vocab_size,num_experts_per_tok", NB_ROLE_INDEX,
                     .when = nb_ds4_is_hash, .part = NB_PART_TOKEN_EXPERTS},
    [DS4_W1] = {EXPERT W1, "moe_intermediate_size,hidden_size", NB_ROLE_LINEAR, NB_SPLIT_COLUMN, "gate_up",
                .part = NB_PART_EXPERT_GATE},
    [DS4_W3] = {EXPERT W3, "moe_intermediate_size,hidden_size", NB_ROLE_LINEAR, NB_SPLIT_COLUMN, "gate_up",
                .part = NB_PART_EXPERT_UP},
    [DS4_W2] = {EXPERT W2, "hidden_size,moe_intermediate_size", NB_ROLE_LINEAR, NB_SPLIT_ROW,
                .part = NB_PART_EXPERT_DOWN},
    [DS4_SHARED_W1] = {SHARED W1, "n_shared_experts*moe_intermediate_size,hidden_size", NB_ROLE_LINEAR,
                       NB_SPLIT_COLUMN, "shared_gate_up", .part = NB_PART_SHARED_GATE},
    [DS4_SHARED_W3] = {SHARED W3, "n_shared_experts*moe_intermediate_size,hidden_size", NB_ROLE_LINEAR,
                       NB_SPLIT_COLUMN, "shared_gate_up", .part = NB_PART_SHARED_UP},
    [DS4_SHARED_W2] = {SHARED W2, "hidden_size,n_shared_experts*moe_intermediate_size", NB_ROLE_LINEAR,
                       NB_SPLIT_ROW, .part = NB_PART_SHARED_DOWN},
    [DS4_HC_HEAD_FN] = {"(hc_head_fn|hc_head.hc_fn|hc_head.fn)", "hc_mult,hc_mult*hidden_size",
                        NB_ROLE_PARAM},
    [DS4_HC_HEAD_BASE] = {"(hc_head_base|hc_head.hc_base|hc_head.base)", "hc_mult", NB_ROLE_PARAM},
    [DS4_HC_HEAD_SCALE] = {"(hc_head_scale|hc_head.hc_scale|hc_head.scale)", "1", NB_ROLE_PARAM},
    [DS4_NORM] = {"norm.weight", "hidden_size", NB_ROLE_NORM, .part = NB_PART_NORM},
    [DS4_HEAD] = {"(head|lm_head)", "vocab_size,hidden_size", NB_ROLE_HEAD, NB_SPLIT_COLUMN,
                  .when = nb_arch_untied, .part = NB_PART_HEAD},
};

/* Derived: hc_mix = (2 + M) M; compress_ratio of a layer; compressor_series = 2 (CSA: two halves) or 1 (HCA);
 * qk_rope_head_dim where the config gives partial_rotary_factor instead. */
static bool symbol(const nb_config *cfg, const char *name, int layer, int64_t *out)
{
    int64_t v;
    if (strcmp(name, "hc_mix") == 0) {
        if (nb_config_int(cfg, "hc_mult", -1, 1, 64, &v, NULL) != NB_OK) return false;
        *out = (2 + v) * v;
        return true;
    }
    if (strcmp(name, "compress_ratio") == 0) {
        *out = nb_ds4_ratio(cfg, layer);
        return *out >= 0;
    }
    if (strcmp(name, "compressor_series") == 0) {
        *out = nb_ds4_is_hca(cfg, layer) ? 1 : 2;
        return true;
    }
    if (strcmp(name, "qk_rope_head_dim") == 0 && !nb_config_get(cfg, name)) {
        const json_t *f = nb_config_get(cfg, "partial_rotary_factor");
        if (!f) f = nb_config_get(cfg, "rope_parameters.main.partial_rotary_factor");
        if (!json_is_number(f) || nb_config_int(cfg, "head_dim", -1, 1, 1 << 16, &v, NULL) != NB_OK)
            return false;
        *out = llround(json_number_value(f) * (double)v);
        return true;
    }
    return false;
}

static nb_status validate(const nb_config *cfg, nb_error *err)
{
    /* The narrower limits are for what no tensor's shape confirms before memory or time depends on it. */
    static const nb_arch_size keys[] = {{"vocab_size", 1 << 30},
                                        {"hidden_size", 1 << 30},
                                        {"num_attention_heads", 1 << 30},
                                        {"head_dim", 1 << 16},
                                        {"qk_rope_head_dim", 1 << 16},
                                        {"q_lora_rank", 1 << 30},
                                        {"o_groups", 1 << 20},
                                        {"o_lora_rank", 1 << 30},
                                        {"sliding_window", 1 << 30},
                                        {"n_routed_experts", NB_MAX_EXPERTS},
                                        {"n_shared_experts", 1 << 20},
                                        {"num_experts_per_tok", 1 << 10},
                                        {"moe_intermediate_size", 1 << 30},
                                        {"hc_mult", 16},
                                        {"hc_sinkhorn_iters", 1000},
                                        {"index_n_heads", 1 << 30},
                                        {"index_head_dim", 1 << 16},
                                        {"index_topk", 1 << 16}};
    nb_status s = nb_arch_check_sizes(cfg, keys, sizeof keys / sizeof *keys, err);
    if (s != NB_OK) return s;
    for (int l = 0; l < cfg->n_layers; l++) {
        if (nb_ds4_ratio(cfg, l) >= 0) continue;
        nb_fail(err, NB_ERR_MISSING,
                "layer %d has neither compress_ratios[%d] nor layer_types[%d] with its compress_rates", l, l,
                l);
        nb_error_at(err, "config.json", NULL, -1);
        nb_error_remedy(
            err,
            "restore compress_ratios from the original model's config.json (re-saved configs often drop it)");
        return NB_ERR_MISSING;
    }
    if (!nb_config_get(cfg, "num_hash_layers") && !nb_config_get(cfg, "mlp_layer_types")) {
        nb_fail(err, NB_ERR_MISSING, "neither num_hash_layers nor mlp_layer_types is given");
        nb_error_at(err, "config.json", NULL, -1);
        nb_error_remedy(err, "restore num_hash_layers from the original model's config.json");
        return NB_ERR_MISSING;
    }
    return NB_OK;
}

const nb_arch nb_arch_deepseek_v4 = {
    .name = "deepseek_v4",
    .model_types = model_types,
    .prefixes = prefixes,
    .skip = skip,
    .tensors = tensors,
    .n_tensors = DS4_COUNT,
    .n_experts_key = "n_routed_experts",
    .symbol = symbol,
    .validate = validate,
};
