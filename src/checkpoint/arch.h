/*
 * One table per architecture: every tensor it needs, every spelling met in the wild, its shape, role, fused siblings and
 * tensor-parallel split. Loader, check, repair, calibrate and quantise read these tables; a forward pass is not needed.
 * To add one: docs/models.md.
 */
#ifndef NB_CHECKPOINT_ARCH_H
#define NB_CHECKPOINT_ARCH_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/linear.h"

#define NB_MAX_EXPERTS (1 << 20)

typedef struct nb_config nb_config;

typedef enum nb_role {
    NB_ROLE_LINEAR, /* name is a module; any format */
    NB_ROLE_EMBED,  /* a linear that is looked up by row; never NVFP4-quantised input */
    NB_ROLE_HEAD,   /* a linear; absent when embeddings are tied */
    NB_ROLE_NORM,   /* float vector; name is a tensor */
    NB_ROLE_PARAM,  /* other float tensor; name is a tensor */
    NB_ROLE_INDEX,  /* integer tensor; name is a tensor */
} nb_role;

typedef enum nb_split { NB_SPLIT_NONE, NB_SPLIT_COLUMN, NB_SPLIT_ROW } nb_split;

/* What a row is to the blocks that many architectures share (src/models/attention.h, ffn.h, decoder.h). A table has one row of a
 * part, or none: then its layers do not have that part. NB_PART_NONE: only the architecture's own file reads it. */
typedef enum nb_part {
    NB_PART_NONE,
    NB_PART_EMBED,
    NB_PART_NORM, /* the last one, before the head */
    NB_PART_HEAD,
    NB_PART_ATTN_NORM,      /* before attention, or before the one mixer of a layer */
    NB_PART_FFN_NORM,       /* before the feed-forward block */
    NB_PART_ATTN_POST_NORM, /* of what attention, the feed-forward block put out */
    NB_PART_FFN_POST_NORM,
    NB_PART_LAYER_SCALAR, /* [1] factor of a layer's output */
    /* attention: linears, their biases (float vectors), norms */
    NB_PART_Q,
    NB_PART_K,
    NB_PART_V,
    NB_PART_QKV, /* all three in one: rows of q, then k, then v */
    NB_PART_O,
    NB_PART_Q_BIAS,
    NB_PART_K_BIAS,
    NB_PART_V_BIAS,
    NB_PART_O_BIAS,
    NB_PART_Q_NORM,
    NB_PART_K_NORM,
    NB_PART_SINKS, /* [heads] */
    /* latent attention; with a low-rank query Q is absent */
    NB_PART_Q_A,
    NB_PART_Q_A_NORM,
    NB_PART_Q_B,
    NB_PART_KV_A, /* rows of the latent, then of the key with positions */
    NB_PART_KV_A_NORM,
    NB_PART_KV_B, /* for each head rows of its key, then of its value */
    NB_PART_INDEX_Q,
    NB_PART_INDEX_K,
    NB_PART_INDEX_K_NORM,
    NB_PART_INDEX_K_BIAS,
    NB_PART_INDEX_WEIGHTS,
    /* dense feed-forward */
    NB_PART_GATE,
    NB_PART_UP,
    NB_PART_GATE_UP, /* both in one: rows of gate, then up */
    NB_PART_DOWN,
    /* mixture of experts */
    NB_PART_ROUTER,
    NB_PART_ROUTER_BIAS,   /* [experts] added to the logits */
    NB_PART_ROUTER_SCALE,  /* [hidden] factors of the router's input */
    NB_PART_CHOICE_BIAS,   /* [experts] added to the scores for the choice alone */
    NB_PART_EXPERT_SCALE,  /* [experts] factors of the weights */
    NB_PART_TOKEN_EXPERTS, /* [vocabulary, slots] experts by token id */
    NB_PART_EXPERT_GATE,
    NB_PART_EXPERT_UP,
    NB_PART_EXPERT_DOWN,
    NB_PART_EXPERT_GATE_UP_BIAS, /* [experts, 2 width]: gate and up in turn */
    NB_PART_EXPERT_DOWN_BIAS,    /* [experts, hidden] */
    NB_PART_SHARED_GATE,
    NB_PART_SHARED_UP,
    NB_PART_SHARED_DOWN,
    NB_PART_SHARED_SWITCH, /* [1, hidden]: sigmoid of its output weighs the shared expert */
    NB_PART_LATENT_IN,     /* the experts alone work on a projection of the row … */
    NB_PART_LATENT_OUT,    /* … and their sum is projected back */
    /* recurrent mixer (models/recurrent.h) */
    NB_PART_MIX_IN,  /* Qwen3-Next: q, k, v, z of each key head in turn; Mamba-2: z, x, B, C, dt */
    NB_PART_MIX_BA,  /* Qwen3-Next: write strengths and decays of each key head in turn */
    NB_PART_MIX_QKV, /* later Qwens: these, and the next three */
    NB_PART_MIX_Z,
    NB_PART_MIX_BETA,
    NB_PART_MIX_DECAY,
    NB_PART_CONV, /* [channels, 1, taps] */
    NB_PART_CONV_BIAS,
    NB_PART_A_LOG, /* [heads], as the next two */
    NB_PART_DT_BIAS,
    NB_PART_SKIP,
    NB_PART_MIX_NORM,
    NB_PART_MIX_OUT,
    NB_PART_MLP_POST_NORM, /* where an MLP stands beside the experts: of its output, of their input and output */
    NB_PART_MOE_NORM,
    NB_PART_MOE_POST_NORM,
    /* embeddings for each layer: table, projection and norm for all layers at once; gate, projection and norm within one */
    NB_PART_INPUTS_EMBED,
    NB_PART_INPUTS_PROJ,
    NB_PART_INPUTS_NORM,
    NB_PART_INPUT_GATE,
    NB_PART_INPUT_PROJ,
    NB_PART_INPUT_NORM,
    NB_PART_COUNT
} nb_part;

typedef struct nb_arch_tensor {
    /* Spellings: "layers.{l}.(attn|self_attn).(wq_a|q_a_proj)". {l} layer, {e} expert; (a|b) alternatives, the first of each is
     * canonical; all combinations are tried under all of the architecture's prefixes. An alternative may be a part of a stack, as
     * linear.h writes it: "experts.({e}.gate_proj|gate_up_proj[{e}][:half])". */
    const char *name;
    /* Comma-separated dimensions of integers and config keys with * / +, products before sums, quotients exact:
     * "num_attention_heads*head_dim,hidden_size". */
    const char *shape;
    nb_role role;
    nb_split split;
    const char *
        fused; /* siblings with the same word here share one input and, in engines that fuse them, one scale */
    const char *
        blocks; /* config key: number of diagonal blocks (o_groups); the stored rows are the blocks one after another */
    /* NULL: in every layer (or once, when name has no {l}). */
    bool (*when)(const nb_config *cfg, int layer);
    nb_part part;
    float
        plus; /* added to each value of a float tensor when it is loaded: 1 for norms stored as their distance from 1 */
} nb_arch_tensor;

/* What an absent number stands for: the default of the class that the published configs were written with and read by. */
typedef struct nb_arch_default {
    const char *key;
    double value;
} nb_arch_default;

typedef struct nb_arch {
    const char *name;               /* "deepseek_v4" */
    const char *const *model_types; /* NULL-terminated: config.json model_type values */
    const char *const *prefixes;    /* NULL-terminated; "" among them where it occurs */
    const char *const *
        skip; /* NULL-terminated globs of tensors known and not needed ("mtp.*"), matched with prefixes off */
    const nb_arch_tensor *tensors;
    size_t n_tensors;
    const char *n_experts_key; /* config key for the range of {e}; NULL without experts */
    /* Those that published configs leave out, or that loaders do not agree to derive; terminated by a NULL key, NULL: none. An absent
     * number that is not here is an error. */
    const nb_arch_default *defaults;
    /* A derived or per-layer symbol of shape expressions; also consulted before config keys, so that it may supply one under a
     * canonical name from other spellings. False: not mine. layer is -1 outside layers. */
    bool (*symbol)(const nb_config *cfg, const char *name, int layer, int64_t *out);
    /* Checks the config for what this architecture needs: names the key that is absent in every spelling, or out of range. */
    nb_status (*validate)(const nb_config *cfg, nb_error *err);
} nb_arch;

extern const nb_arch nb_arch_deepseek_v3;
extern const nb_arch nb_arch_deepseek_v4;
extern const nb_arch nb_arch_gemma3;
extern const nb_arch nb_arch_gemma4;
extern const nb_arch nb_arch_glm4_moe;
extern const nb_arch nb_arch_gpt_oss;
extern const nb_arch nb_arch_llama;
extern const nb_arch nb_arch_minimax_m2;
extern const nb_arch nb_arch_mistral;
extern const nb_arch nb_arch_mixtral;
extern const nb_arch nb_arch_nemotron_h;
extern const nb_arch nb_arch_phi3;
extern const nb_arch nb_arch_qwen2;
extern const nb_arch nb_arch_qwen2_moe;
extern const nb_arch nb_arch_qwen3;
extern const nb_arch nb_arch_qwen3_moe;
extern const nb_arch nb_arch_qwen3_next;
extern const nb_arch *const nb_archs[]; /* NULL-terminated */

struct nb_config {
    const nb_arch
        *arch; /* NULL: unknown model_type (nb_config_init says so, the struct is otherwise usable) */
    const json_t *root;     /* borrowed from the checkpoint */
    const json_t *text;     /* root, or root's text_config */
    const char *model_type; /* borrowed */
    int64_t n_layers;       /* 0: not given */
    const char *file;       /* where the config is from, for errors; borrowed */
};

/* Looks at config.json of c. An unknown or absent model_type is NB_ERR_UNSUPPORTED and lists the known ones; *out is filled as
 * far as it goes even then. validate is called for known ones. */
nb_status nb_config_init(const nb_ckpt *c, nb_config *out, nb_error *err);
/* The same from parsed JSON; root (may be NULL: no config) and file are borrowed by *out. */
nb_status nb_config_from_json(const json_t *root, const char *file, nb_config *out, nb_error *err);

/* The architecture's default of a number; NULL: it has none. */
const nb_arch_default *nb_config_default(const nb_config *cfg, const char *key);
/* An integer by name: the architecture's symbol() first, then text_config/root, then the defaults. Missing: NB_ERR_MISSING naming
 * key and file; not an integer or outside [min, max]: NB_ERR_FORMAT. */
nb_status nb_config_int(const nb_config *cfg, const char *key, int layer, int64_t min, int64_t max,
                        int64_t *out, nb_error *err);
/* The same for a number (symbol() is not asked). Infinity and NaN count in every spelling: bare, or {"__float__": …}. */
nb_status nb_config_num(const nb_config *cfg, const char *key, double min, double max, double *out,
                        nb_error *err);
/* The JSON value at a dotted path ("rope_parameters.compress.factor", "time_step_limit.1") in text_config, else root; NULL: absent
 * or null. */
const json_t *nb_config_get(const nb_config *cfg, const char *path);
/* Evaluates a shape expression; dims has room for 4. Returns the rank, or 0 with *err set (a key is absent; an inexact
 * quotient or an overflow is NB_ERR_FORMAT). */
size_t nb_config_shape(const nb_config *cfg, const char *expr, int layer, uint64_t dims[4], nb_error *err);

/* A list of a sound config that has *n entries more than there are layers, more even than drafting layers account for: they are not
 * read. NULL: none. */
const char *nb_config_spare(const nb_config *cfg, int64_t *n);

/* The number of layers {l} and experts {e} that a table row ranges over (1 when it has no such index). */
int64_t nb_arch_layers(const nb_config *cfg, const nb_arch_tensor *t);
int64_t nb_arch_experts(const nb_config *cfg, const nb_arch_tensor *t);

/* Writes the canonical name (first alternatives, no prefix) of t at layer l, expert e. */
void nb_arch_name(const nb_arch_tensor *t, int64_t l, int64_t e, char *buf, size_t cap);
/* Finds the stored spelling. For LINEAR, EMBED, HEAD: the module name is written to buf and true is returned when it exists;
 * for the others the tensor is returned. *tensor may be NULL for linears. False: absent in every spelling (buf then holds the
 * most likely stored name: the spelling that most of this checkpoint's tensors use). */
bool nb_arch_find(const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *t, int64_t l, int64_t e,
                  char *buf, size_t cap, const nb_tensor_info **tensor);

/* Layer l stands after the last one for drafting, as num_nextn_predict_layers says: known and not needed. */
bool nb_arch_is_draft(const nb_config *cfg, int64_t l);

/* For the doctor: which table row, layer and expert a stored name (tensor or module) belongs to; they may lie beyond what the
 * config says, and are -1 where the row has no such index, or where the tensor is a stack of all experts (the row is then the
 * first that has a part in it). NULL: none (a bias of a linear is none: no table has one but as a row of its own). Skipped names
 * give NULL with *skipped set; so do those of a drafting layer that no layer has. */
const nb_arch_tensor *nb_arch_identify(const nb_config *cfg, const char *stored, int64_t *l, int64_t *e,
                                       bool *skipped);

#endif
