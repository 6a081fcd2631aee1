/*
 * Gemma 3 and Gemma 4: a norm before and after each block; layers that see a window between layers that see everything, with
 * other frequencies. What Gemma 4 adds is in its table: layers of two shapes, values taken from keys, keys and values of an earlier
 * layer, experts beside the MLP, an embedding for each layer. After transformers models/gemma3/modeling_gemma3.py and
 * models/gemma4/modeling_gemma4.py.
 */
#include <math.h>

#include "checkpoint/arch_gemma.h"
#include "models/decoder.h"
#include "numerics/formats.h"

typedef struct gemma {
    nb_decoder base; /* attention and rope of layers that slide; the MLP, and the experts */
    nb_attention full;
    nb_rope full_rope;
    nb_ffn wide;          /* twice the width, in layers that share keys and values */
    float cap;            /* of logits; 0: none */
    size_t inputs;        /* P: columns of a layer's embedding; 0: none */
    nb_tensor *moe;       /* [T, D] what the experts put out */
    nb_tensor *each;      /* [T, L P] embeddings of all layers */
    nb_tensor *context;   /* [T, L P] what the input makes of them */
    nb_tensor *in, *gate; /* [T, P] */
} gemma;

/* Gemma 3 before transformers 5 keeps the windowed layers' frequencies apart; scaling is of the other layers alone. */
static nb_status open_ropes(nb_model *m, gemma *s, nb_error *err)
{
    double local;
    nb_status st = nb_rope_open(m, "full_attention", s->full.d, NB_ROTATES_ALL, &s->full_rope, err);
    if (st != NB_OK) return st;
    if (nb_config_get(&m->cfg, "rope_parameters"))
        return nb_rope_open(m, "sliding_attention", s->base.attn.d, NB_ROTATES_ALL, &s->base.rope, err);
    st = nb_config_num(&m->cfg, "rope_local_base_freq", 1, 1e12, &local, err);
    return st ? st : nb_rope_init(NULL, local, s->base.attn.d, 0, m->x->max_rows, &s->base.rope, err);
}

/* Rope, window and streams of each layer. */
static nb_status open_layers(nb_model *m, gemma *s, nb_error *err)
{
    size_t window;
    nb_status st = nb_read_sizes(m, &(nb_size_setting){"sliding_window", &window}, 1, err);
    for (int l = 0; st == NB_OK && l < m->cfg.n_layers; l++) {
        const bool full = nb_gemma_full(&m->cfg, l);
        const int of = nb_gemma_kv_of(&m->cfg, l);
        nb_attention_layer *y = &s->base.layer[l];
        y->rope = full ? &s->full_rope : &s->base.rope;
        y->window = full ? 0 : window;
        if (of == l) {
            st = nb_attention_streams(m, full ? &s->full : &s->base.attn, y, err);
        } else {
            y->k_stream = s->base.layer[of].k_stream;
            y->v_stream = s->base.layer[of].v_stream;
        }
    }
    return st;
}

/* What both have. The family has set the scale of attention and its norms in base.attn, and full has its sizes. */
static nb_status open_rest(nb_model *m, gemma *s, nb_error *err)
{
    nb_status st;
    s->base.ffn.act = NB_ACT_GELU_TANH;
    if (nb_config_get(&m->cfg, "final_logit_softcapping") &&
        (st = nb_read_number(m, "final_logit_softcapping", 1e-3, 1e6, &s->cap, err)))
        return st;
    if ((st = nb_only_word(m, "hidden_activation", "gelu_pytorch_tanh", err)) ||
        (st = nb_only_bool(m, "attention_bias", false, err)) || (st = nb_ffn_mlp(m, &s->base.ffn, err)) ||
        (st = nb_ffn_open(m, &s->base.ffn, err)) || (st = nb_attention_open(m, &s->full, err)) ||
        (st = open_ropes(m, s, err)))
        return st;
    return open_layers(m, s, err);
}

static nb_status open_gemma3(nb_model *m, nb_error *err)
{
    gemma *s;
    float scalar;
    nb_status st;
    if ((st = nb_only_number(m, "attn_logit_softcapping", 0, err)) ||
        (st = nb_only_bool(m, "use_bidirectional_attention", false, err)) ||
        (st = nb_decoder_open(m, sizeof *s, err)) ||
        (st = nb_read_number(m, "query_pre_attn_scalar", 1e-3, 1e6, &scalar, err)))
        return st;
    s = m->state;
    s->base.attn.scale = 1.0f / sqrtf(scalar);
    s->full = s->base.attn;
    return open_rest(m, s, err);
}

/* The first layer that sees everything, or 0. */
static int first_full(const nb_config *cfg)
{
    int l = 0;
    while (l < cfg->n_layers && !nb_gemma_full(cfg, l)) l++;
    return l < cfg->n_layers ? l : 0;
}

static nb_status open_experts(const nb_model *m, nb_ffn *f, nb_error *err)
{
    const nb_size_setting sizes[] = {
        {"num_experts", &f->experts}, {"top_k_experts", &f->slots}, {"moe_intermediate_size", &f->expert_I}};
    f->scaling = 1;
    f->score = NB_SCORE_SOFTMAX;
    return nb_has_part(m, NB_PART_ROUTER) ? nb_read_sizes(m, sizes, 3, err) : NB_OK;
}

/* Bidirectional attention is among the tokens of an image; "all" would be of text. */
static nb_status refuse_gemma4(const nb_model *m, nb_error *err)
{
    nb_status st = nb_only_word(m, "use_bidirectional_attention", "vision", err);
    if (json_is_false(nb_config_get(&m->cfg, "use_bidirectional_attention"))) st = NB_OK;
    return st;
}

static nb_status open_gemma4(nb_model *m, nb_error *err)
{
    gemma *s;
    int64_t d, kv;
    nb_status st;
    const int full = first_full(&m->cfg);
    if ((st = refuse_gemma4(m, err)) || (st = nb_decoder_open(m, sizeof *s, err)) ||
        (st = nb_config_int(&m->cfg, "head_dim", full, 1, 1 << 16, &d, err)) ||
        (st = nb_config_int(&m->cfg, "num_key_value_heads", full, 1, 1 << 30, &kv, err)))
        return st;
    s = m->state;
    s->base.attn.scale = 1;
    s->base.attn.norm_v = true;
    s->full = s->base.attn;
    s->full.d = (size_t)d;
    s->full.kv_heads = (size_t)kv;
    if ((st = open_experts(m, &s->base.ffn, err)) || (st = open_rest(m, s, err))) return st;
    if (json_is_true(nb_config_get(&m->cfg, "use_double_wide_mlp")))
        s->wide = (nb_ffn){.D = s->base.D, .I = 2 * s->base.ffn.I, .act = s->base.ffn.act};
    size_t vocab = m->vocab;
    const nb_size_setting sizes[] = {{"hidden_size_per_layer_input", &s->inputs},
                                     {"vocab_size_per_layer_input", &vocab}};
    if (nb_has_part(m, NB_PART_INPUT_GATE) && (st = nb_read_sizes(m, sizes, 2, err))) return st;
    if (vocab >= m->vocab) return NB_OK;
    nb_fail(err, NB_ERR_UNSUPPORTED, "vocab_size_per_layer_input %zu is below vocab_size %zu", vocab,
            m->vocab);
    nb_error_at(err, m->cfg.file, NULL, -1);
    return NB_ERR_UNSUPPORTED;
}

static nb_status prepare(nb_model *m, nb_error *err)
{
    gemma *s = m->state;
    const size_t all = (size_t)m->cfg.n_layers * s->inputs;
    const struct {
        nb_tensor **to;
        size_t cols;
    } t[] = {{&s->moe, s->base.ffn.experts ? s->base.D : 0},
             {&s->each, all},
             {&s->context, all},
             {&s->in, s->inputs},
             {&s->gate, s->inputs}};
    nb_status st = nb_decoder_prepare(m, err);
    if (st == NB_OK) st = nb_attention_prepare(m, &s->full, err);
    if (st == NB_OK) st = nb_ffn_prepare(m, &s->wide, err);
    for (size_t i = 0; st == NB_OK && i < sizeof t / sizeof *t; i++)
        if (t[i].cols) st = nb_model_tensor(m, false, m->x->max_rows, t[i].cols, t[i].to, err);
    return st;
}

/* sqrt(n), which transformers rounds to the dtype of the embeddings that it multiplies. */
static float root(const nb_model *m, size_t n)
{
    const float v = sqrtf((float)n);
    return m->x->act_bf16 ? nb_bf16_round(v) : v;
}

/* each = (sqrt(P) embedding + RMS(projection of x / sqrt(D))) / sqrt(2) */
static void embed_layers(nb_model *m, const gemma *s)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const size_t rows = x->rows.n;
    op->embed(x, nb_at(m, m->global, NB_PART_INPUTS_EMBED)->lin, s->each);
    op->scale(x, s->each, rows, NULL, root(m, s->inputs), s->each);
    nb_lin(m, nb_at(m, m->global, NB_PART_INPUTS_PROJ), s->base.x, s->context);
    op->scale(x, s->context, rows, NULL, 1.0f / sqrtf((float)s->base.D), s->context);
    op->rmsnorm(x, s->context, rows, nb_at(m, m->global, NB_PART_INPUTS_NORM)->t, s->inputs, s->base.eps,
                s->context);
    op->add(x, s->context, s->each, s->each);
    op->scale(x, s->each, rows, NULL, sqrtf(0.5f), s->each);
}

static void begin(nb_model *m)
{
    gemma *s = m->state;
    nb_decoder_begin(m);
    m->x->ops->rope_prepare(m->x, &s->full_rope);
    m->x->ops->scale(m->x, s->base.x, m->x->rows.n, NULL, root(m, s->base.D), s->base.x);
    if (s->inputs) embed_layers(m, s);
}

/* Normalises a block's output. */
static void norm_out(nb_model *m, const gemma *s, const nb_slot *w, nb_part norm, nb_tensor *t)
{
    m->x->ops->rmsnorm(m->x, t, m->x->rows.n, nb_at(m, w, norm)->t, s->base.D, s->base.eps, t);
}

/* out = RMS(out) + RMS(experts(RMS(x))), whose router reads RMS(x) scale / sqrt(D) */
static void add_experts(nb_model *m, const gemma *s, const nb_slot *w)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const nb_decoder *b = &s->base;
    norm_out(m, s, w, NB_PART_MLP_POST_NORM, b->out);
    op->rmsnorm(x, b->x, x->rows.n, NULL, b->D, b->eps, s->moe);
    op->scale(x, s->moe, x->rows.n, nb_at(m, w, NB_PART_ROUTER_SCALE)->t, 1.0f / sqrtf((float)b->D), s->moe);
    op->rmsnorm(x, b->x, x->rows.n, nb_at(m, w, NB_PART_MOE_NORM)->t, b->D, b->eps, b->h);
    nb_moe_run(m, &b->ffn, w, b->h, s->moe, s->moe);
    norm_out(m, s, w, NB_PART_MOE_POST_NORM, s->moe);
    op->add(x, b->out, s->moe, b->out);
}

/* x += RMS(projection of gelu(gate x) * this layer's embedding) */
static void add_input(nb_model *m, const gemma *s, int l, const nb_slot *w)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const nb_decoder *b = &s->base;
    const size_t rows = x->rows.n, all = (size_t)m->cfg.n_layers * s->inputs;
    op->columns(x, s->each, rows, all, (size_t)l * s->inputs, s->in);
    nb_lin(m, nb_at(m, w, NB_PART_INPUT_GATE), b->x, s->gate);
    op->glu(x, NB_ACT_GELU_TANH, s->gate, s->in, rows, 0, s->gate);
    nb_lin(m, nb_at(m, w, NB_PART_INPUT_PROJ), s->gate, b->out);
    norm_out(m, s, w, NB_PART_INPUT_NORM, b->out);
    op->add(x, b->x, b->out, b->x);
}

static void layer(nb_model *m, int l, const nb_slot *w)
{
    gemma *s = m->state;
    nb_decoder *b = &s->base;
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const nb_attention *attention = nb_gemma_full(&m->cfg, l) ? &s->full : &b->attn;
    const nb_ffn *mlp = s->wide.I && nb_gemma_kv_of(&m->cfg, l) != l ? &s->wide : &b->ffn;
    const nb_tensor *scalar = nb_at(m, w, NB_PART_LAYER_SCALAR)->t;
    op->rmsnorm(x, b->x, x->rows.n, nb_at(m, w, NB_PART_ATTN_NORM)->t, b->D, b->eps, b->h);
    nb_attention_run(m, attention, &b->layer[l], w, b->h, b->out);
    norm_out(m, s, w, NB_PART_ATTN_POST_NORM, b->out);
    op->add(x, b->x, b->out, b->x); /* x += RMS(attention(RMS(x))) */
    op->rmsnorm(x, b->x, x->rows.n, nb_at(m, w, NB_PART_FFN_NORM)->t, b->D, b->eps, b->h);
    nb_mlp_run(m, mlp, w, b->h, b->out);
    if (b->ffn.experts) add_experts(m, s, w);
    norm_out(m, s, w, NB_PART_FFN_POST_NORM, b->out);
    op->add(x, b->x, b->out, b->x); /* x += RMS(mlp(RMS(x))) */
    if (s->inputs) add_input(m, s, l, w);
    if (scalar) op->scale(x, b->x, x->rows.n, scalar, 1, b->x);
}

static void head(nb_model *m, const uint32_t *which, size_t n, nb_tensor *logits)
{
    const gemma *s = m->state;
    nb_decoder_head(m, which, n, logits);
    if (s->cap > 0) m->x->ops->softcap(m->x, logits, n, s->cap);
}

static void close(nb_model *m)
{
    gemma *s = m->state;
    nb_rope_free(&s->full_rope);
    nb_decoder_close(m);
}

#define GEMMA(ARCH, OPEN)                                                                                    \
    {                                                                                                        \
        .names = (ARCH), .open = (OPEN), .prepare = prepare, .begin = begin, .layer = layer,                 \
        .end = nb_decoder_end, .head = head, .hidden = nb_decoder_hidden, .close = close                     \
    }
const nb_forward nb_forward_gemma3 = GEMMA(&nb_arch_gemma3, open_gemma3);
const nb_forward nb_forward_gemma4 = GEMMA(&nb_arch_gemma4, open_gemma4);
