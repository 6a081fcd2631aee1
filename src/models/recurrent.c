/* Gated DeltaNet and Mamba-2. Shapes as in recurrent.h. */
#include "models/recurrent.h"

nb_status nb_recurrent_open(const nb_model *m, const nb_recurrent *r, nb_error *err)
{
    if (r->heads % r->key_heads == 0) return NB_OK;
    nb_fail(err, NB_ERR_FORMAT, "%zu heads cannot share %zu heads of keys equally", r->heads, r->key_heads);
    nb_error_at(err, m->cfg.file, NULL, -1);
    nb_error_remedy(err, "take the numbers of heads from the original model's config.json");
    return NB_ERR_FORMAT;
}

static size_t channels(const nb_recurrent *r)
{
    return 2 * r->key_heads * r->dk + r->heads * r->dv;
}

nb_status nb_recurrent_streams(nb_model *m, const nb_recurrent *r, nb_recurrent_layer *y, nb_error *err)
{
    const nb_stream_decl conv = {.cols = channels(r), .tokens_per_row = 1, .window = r->taps};
    const nb_stream_decl token = {.cols = nb_scan_columns(r->key_heads, r->heads, r->dk, r->dv),
                                  .tokens_per_row = 1,
                                  .window = NB_SCAN_CHUNK};
    const nb_stream_decl state = {
        .cols = r->heads * r->dk * r->dv, .tokens_per_row = NB_SCAN_CHUNK, .window = 2, .page_rows = 1};
    nb_status s = nb_model_stream(m, conv, &y->conv_stream, err);
    if (s == NB_OK) s = nb_model_stream(m, token, &y->token_stream, err);
    return s ? s : nb_model_stream(m, state, &y->state_stream, err);
}

nb_status nb_recurrent_prepare(nb_model *m, nb_recurrent *r, nb_error *err)
{
    const size_t K = r->key_heads * r->dk, V = r->heads * r->dv, C = channels(r);
    const bool one = m->part[NB_PART_MIX_IN] >= 0, ba = m->part[NB_PART_MIX_BA] >= 0;
    const struct {
        nb_tensor **to;
        size_t cols;
    } t[] = {{&r->in, one ? C + V + (r->delta ? 0 : r->heads) : 0},
             {&r->ba, ba ? 2 * r->heads : 0},
             {&r->q, ba ? K : 0},
             {&r->k, ba ? K : 0},
             {&r->v, ba ? V : 0},
             {&r->mixed, C},
             {&r->z, V},
             {&r->o, V},
             {&r->beta, r->delta ? r->heads : 0},
             {&r->step, r->heads}};
    nb_status s = NB_OK;
    for (size_t i = 0; s == NB_OK && i < sizeof t / sizeof *t; i++)
        if (t[i].cols) s = nb_model_tensor(m, false, m->x->max_rows, t[i].cols, t[i].to, err);
    return s;
}

/* Qwen3-Next: for each key head [q, k, v of its heads, z of its heads], and [beta, step] of its heads. */
static void project_by_key(nb_model *m, const nb_recurrent *r, const nb_slot *w, const nb_tensor *h)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const size_t rows = x->rows.n, per_key = r->heads / r->key_heads, values = per_key * r->dv;
    const size_t group = 2 * r->dk + 2 * values;
    const nb_linear *in[] = {nb_at(m, w, NB_PART_MIX_IN)->lin, nb_at(m, w, NB_PART_MIX_BA)->lin};
    op->linear(x, &(nb_linear_call){.w = in, .count = 2, .x = h, .y = (nb_tensor *[]){r->in, r->ba}});
    op->columns(x, r->in, rows, group, 0, r->q);
    op->columns(x, r->in, rows, group, r->dk, r->k);
    op->columns(x, r->in, rows, group, 2 * r->dk, r->v);
    op->columns(x, r->in, rows, group, 2 * r->dk + values, r->z);
    op->columns(x, r->ba, rows, 2 * per_key, 0, r->beta);
    op->columns(x, r->ba, rows, 2 * per_key, per_key, r->step);
    op->join(x, (const nb_tensor *[]){r->q, r->k, r->v}, 3, rows, r->mixed);
}

static void project(nb_model *m, const nb_recurrent *r, const nb_slot *w, const nb_tensor *h)
{
    const nb_linear *in[] = {nb_at(m, w, NB_PART_MIX_QKV)->lin, nb_at(m, w, NB_PART_MIX_Z)->lin,
                             nb_at(m, w, NB_PART_MIX_BETA)->lin, nb_at(m, w, NB_PART_MIX_DECAY)->lin};
    nb_tensor *to[] = {r->mixed, r->z, r->beta, r->step};
    m->x->ops->linear(m->x, &(nb_linear_call){.w = in, .count = 4, .x = h, .y = to});
}

/* Mamba-2: [z, (x, B, C), dt] */
static void project_mamba(nb_model *m, const nb_recurrent *r, const nb_slot *w, const nb_tensor *h)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const size_t rows = x->rows.n, V = r->heads * r->dv, all = channels(r) + V + r->heads;
    nb_lin(m, nb_at(m, w, NB_PART_MIX_IN), h, r->in);
    op->columns(x, r->in, rows, all, 0, r->z);
    op->columns(x, r->in, rows, all, V, r->mixed);
    op->columns(x, r->in, rows, all, all - r->heads, r->step);
}

/* o = RMS(o) silu(z), each head (DeltaNet), or RMS(o silu(z)), each group of heads (Mamba-2) */
static void gated_norm(nb_model *m, const nb_recurrent *r, const nb_slot *w)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const nb_tensor *norm = nb_at(m, w, NB_PART_MIX_NORM)->t;
    if (r->delta) op->rmsnorm(x, r->o, x->rows.n, norm, r->dv, r->eps, r->o);
    op->glu(x, NB_ACT_SILU, r->z, r->o, x->rows.n, 0, r->o);
    if (!r->delta) op->rmsnorm(x, r->o, x->rows.n, norm, r->heads / r->key_heads * r->dv, r->eps, r->o);
}

void nb_recurrent_run(nb_model *m, const nb_recurrent *r, const nb_recurrent_layer *y, const nb_slot *w,
                      const nb_tensor *h, nb_tensor *out)
{
    nb_exec *x = m->x;
    const nb_ops *op = x->ops;
    const size_t K = r->key_heads * r->dk, V = r->heads * r->dv;
    if (!r->delta)
        project_mamba(m, r, w, h);
    else if (nb_at(m, w, NB_PART_MIX_IN)->lin)
        project_by_key(m, r, w, h);
    else
        project(m, r, w, h);
    op->store(x, y->conv_stream, r->mixed, NULL);
    op->conv(x, &(nb_conv_call){.stream = y->conv_stream,
                                .w = nb_at(m, w, NB_PART_CONV)->t,
                                .bias = nb_at(m, w, NB_PART_CONV_BIAS)->t,
                                .y = r->mixed});
    /* columns: q, k, v of DeltaNet; x, B, C of Mamba-2 in the parts of v, k, q */
    op->scan(x, &(nb_scan_call){.in = r->mixed,
                                .q_at = r->delta ? 0 : V + K,
                                .k_at = r->delta ? K : V,
                                .v_at = r->delta ? 2 * K : 0,
                                .key_heads = r->key_heads,
                                .heads = r->heads,
                                .dk = r->dk,
                                .dv = r->dv,
                                .dt = r->step,
                                .beta = r->delta ? r->beta : NULL,
                                .a_log = nb_at(m, w, NB_PART_A_LOG)->t,
                                .dt_bias = nb_at(m, w, NB_PART_DT_BIAS)->t,
                                .skip = nb_at(m, w, NB_PART_SKIP)->t,
                                .dt_min = r->dt_min,
                                .dt_max = r->dt_max,
                                .token_stream = y->token_stream,
                                .state_stream = y->state_stream,
                                .out = r->o});
    gated_norm(m, r, w);
    nb_lin(m, nb_at(m, w, NB_PART_MIX_OUT), r->o, out);
}
