/* Dense MLP and mixture of experts. */
#include "models/ffn.h"

#include "models/settings.h"

nb_status nb_ffn_mlp(const nb_model *m, nb_ffn *f, nb_error *err)
{
    const nb_size_setting width = {"intermediate_size", &f->I};
    return nb_has_part(m, NB_PART_DOWN) ? nb_read_sizes(m, &width, 1, err) : NB_OK;
}

nb_status nb_ffn_experts(const nb_model *m, nb_ffn *f, const char *width, nb_error *err)
{
    const nb_size_setting sizes[] = {
        {m->cfg.arch->n_experts_key, &f->experts}, {"num_experts_per_tok", &f->slots}, {width, &f->expert_I}};
    f->scaling = 1;
    return nb_has_part(m, NB_PART_ROUTER) ? nb_read_sizes(m, sizes, 3, err) : NB_OK;
}

nb_status nb_ffn_softmax(const nb_model *m, nb_ffn *f, nb_error *err)
{
    const nb_size_setting shared = {"shared_expert_intermediate_size", &f->shared_I};
    f->score = NB_SCORE_SOFTMAX;
    nb_status s = nb_ffn_experts(m, f, "moe_intermediate_size", err);
    return s || !nb_has_part(m, NB_PART_SHARED_UP) ? s : nb_read_sizes(m, &shared, 1, err);
}

nb_status nb_ffn_noaux(const nb_model *m, nb_ffn *f, nb_error *err)
{
    size_t shared = 0;
    bool norm;
    const nb_size_setting sizes[] = {
        {"n_group", &f->groups}, {"topk_group", &f->top_groups}, {"n_shared_experts", &shared}};
    nb_status s;
    if ((s = nb_only_word(m, "scoring_func", "sigmoid", err)) ||
        (s = nb_only_word(m, "topk_method", "noaux_tc", err)) ||
        (s = nb_ffn_experts(m, f, "moe_intermediate_size", err)) ||
        (s = nb_read_sizes(m, sizes, sizeof sizes / sizeof *sizes, err)) ||
        (s = nb_read_number(m, "routed_scaling_factor", 0, 1e9, &f->scaling, err)) ||
        (s = nb_read_bool(m, "norm_topk_prob", &norm, err)))
        return s;
    f->score = NB_SCORE_SIGMOID;
    f->keep = !norm;
    f->shared_I = shared * f->expert_I;
    return NB_OK;
}

nb_status nb_ffn_open(nb_model *m, const nb_ffn *f, nb_error *err)
{
    if (!f->experts) return NB_OK;
    const size_t groups = f->groups > 1 ? f->groups : 1, in_group = f->experts / groups;
    const size_t allowed = groups > 1 ? f->top_groups * in_group : f->experts;
    const size_t least = f->group_max ? 1 : 2; /* of a group: it is worth the sum of its two best */
    if (f->slots >= 1 && f->slots <= 64 && f->slots <= allowed && f->experts % groups == 0 &&
        (groups == 1 || (in_group >= least && f->top_groups >= 1 && f->top_groups <= groups))) {
        m->experts_per_row = f->slots;
        return NB_OK;
    }
    nb_fail(err, NB_ERR_FORMAT,
            "a row cannot go to %zu of %zu experts in %zu groups of which %zu count (64 a row at most, %zu a "
            "group at least)",
            f->slots, f->experts, groups, groups > 1 ? f->top_groups : 1, least);
    nb_error_at(err, m->cfg.file, NULL, -1);
    nb_error_remedy(err, "take the numbers of experts and groups from the original model's config.json");
    return NB_ERR_FORMAT;
}

nb_status nb_ffn_prepare(nb_model *m, nb_ffn *f, nb_error *err)
{
    const size_t T = m->x->max_rows, Te = T * f->slots;
    const bool fused = m->part[NB_PART_GATE_UP] >= 0, on = m->part[NB_PART_SHARED_SWITCH] >= 0;
    const struct {
        nb_tensor **to;
        size_t rows, cols;
    } t[] = {{&f->gate, T, f->I},
             {&f->up, T, f->I},
             {&f->gate_up, T, fused ? 2 * f->I : 0},
             {&f->sgate, T, f->shared_I},
             {&f->sup, T, f->shared_I},
             {&f->shared, T, f->shared_I ? f->D : 0},
             {&f->on, T, on},
             {&f->router, T, f->experts},
             {&f->weight, T, f->slots},
             {&f->egate, Te, f->expert_I},
             {&f->eup, Te, f->expert_I},
             {&f->parts, Te, f->latent ? f->latent : f->D},
             {&f->latents, T, f->latent}};
    nb_status s = f->slots ? nb_model_tensor(m, true, T, f->slots, &f->ids, err) : NB_OK;
    for (size_t i = 0; s == NB_OK && i < sizeof t / sizeof *t; i++)
        if (t[i].rows && t[i].cols) s = nb_model_tensor(m, false, t[i].rows, t[i].cols, t[i].to, err);
    return s;
}

/* gate and up -> gate: act(gate) up, or act(up) where there is no gate projection. */
static void activate(nb_model *m, const nb_ffn *f, bool gated, size_t rows, nb_tensor *gate, nb_tensor *up)
{
    m->x->ops->glu(m->x, f->act, gated ? gate : up, gated ? up : NULL, rows, f->limit, gate);
}

/* One MLP whose projections are not fused: h [T, D] -> out [T, D]. */
static void gated_mlp(nb_model *m, const nb_ffn *f, const nb_slot *g, const nb_slot *u, const nb_slot *d,
                      nb_tensor *gate, nb_tensor *up, const nb_tensor *h, nb_tensor *out)
{
    const nb_linear *w[] = {g->lin, u->lin};
    nb_tensor *y[] = {gate, up};
    const size_t from = g->lin ? 0 : 1;
    m->x->ops->linear(m->x, &(nb_linear_call){.w = w + from, .count = 2 - from, .x = h, .y = y + from});
    activate(m, f, g->lin, m->x->rows.n, gate, up);
    nb_lin(m, d, gate, out);
}

void nb_mlp_run(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h, nb_tensor *out)
{
    const nb_slot *fused = nb_at(m, w, NB_PART_GATE_UP), *down = nb_at(m, w, NB_PART_DOWN);
    nb_exec *x = m->x;
    if (!fused->lin) {
        gated_mlp(m, f, nb_at(m, w, NB_PART_GATE), nb_at(m, w, NB_PART_UP), down, f->gate, f->up, h, out);
        return;
    }
    nb_lin(m, fused, h, f->gate_up);
    x->ops->columns(x, f->gate_up, x->rows.n, 2 * f->I, 0, f->gate);
    x->ops->columns(x, f->gate_up, x->rows.n, 2 * f->I, f->I, f->up);
    activate(m, f, true, x->rows.n, f->gate, f->up);
    nb_lin(m, down, f->gate, out);
}

/* What the router, which reads routed, and the shared expert make of a row: one call where both read h, so that few rows are one range of
 * work. */
static void first_products(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h,
                           const nb_tensor *routed)
{
    const nb_slot *in[] = {nb_at(m, w, NB_PART_SHARED_GATE), nb_at(m, w, NB_PART_SHARED_UP),
                           nb_at(m, w, NB_PART_ROUTER)};
    nb_tensor *to[] = {f->sgate, f->sup, f->router}, *y[3];
    const nb_linear *lin[3];
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        if (!in[i]->lin || (i == 2 && routed != h)) continue;
        lin[n] = in[i]->lin;
        y[n++] = to[i];
    }
    if (n) m->x->ops->linear(m->x, &(nb_linear_call){.w = lin, .count = n, .x = h, .y = y});
    if (routed != h) nb_lin(m, in[2], routed, f->router);
}

/* The router's logits -> ids and weight */
static void route(nb_model *m, const nb_ffn *f, const nb_slot *w)
{
    nb_exec *x = m->x;
    const nb_tensor *bias = nb_at(m, w, NB_PART_ROUTER_BIAS)->t;
    if (bias) x->ops->add_periodic(x, f->router, bias, 1);
    x->ops->route(x, &(nb_route_call){.logits = f->router,
                                      .bias = nb_at(m, w, NB_PART_CHOICE_BIAS)->t,
                                      .hash = nb_at(m, w, NB_PART_TOKEN_EXPERTS)->t,
                                      .score = f->score,
                                      .groups = f->groups,
                                      .top_groups = f->top_groups,
                                      .group_max = f->group_max,
                                      .keep = f->keep,
                                      .scaling = f->scaling,
                                      .expert_scale = nb_at(m, w, NB_PART_EXPERT_SCALE)->t,
                                      .ids = f->ids,
                                      .weights = f->weight});
}

/* h -> parts [T slots, D]: what each chosen expert makes of its row. Where there is a shared expert, also sgate, sup -> shared [T, D]. */
static void experts(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h)
{
    nb_exec *x = m->x;
    const nb_slot *g = nb_at(m, w, NB_PART_EXPERT_GATE), *u = nb_at(m, w, NB_PART_EXPERT_UP),
                  *d = nb_at(m, w, NB_PART_EXPERT_DOWN), *sd = nb_at(m, w, NB_PART_SHARED_DOWN);
    const nb_linear *in[] = {g->lin, u->lin}, *down = d->lin, *shared_down = sd->lin;
    const nb_tensor *in_bias = nb_at(m, w, NB_PART_EXPERT_GATE_UP_BIAS)->t,
                    *out_bias = nb_at(m, w, NB_PART_EXPERT_DOWN_BIAS)->t;
    nb_tensor *y[] = {f->egate, f->eup};
    const size_t from = g->lin ? 0 : 1;
    nb_linear_call c = {.w = in + from,
                        .count = 2 - from,
                        .n_experts = f->experts,
                        .x = h,
                        .y = y + from,
                        .ids = f->ids,
                        .slots = f->slots};
    x->ops->linear(x, &c);
    if (in_bias) {
        x->ops->expert_bias(x, f->egate, f->ids, in_bias, 0, 2);
        x->ops->expert_bias(x, f->eup, f->ids, in_bias, 1, 2);
    }
    activate(m, f, g->lin, x->rows.n * f->slots, f->egate, f->eup);
    if (shared_down) activate(m, f, nb_at(m, w, NB_PART_SHARED_GATE)->lin, x->rows.n, f->sgate, f->sup);
    nb_tensor *parts = f->parts, *shared = f->shared;
    const nb_linear_call beside = {.w = &shared_down, .count = 1, .x = f->sgate, .y = &shared};
    c.w = &down;
    c.count = 1;
    c.x = f->egate;
    c.y = &parts;
    c.x_per_slot = true;
    c.beside = shared_down ? &beside : NULL;
    x->ops->linear(x, &c);
    if (out_bias) x->ops->expert_bias(x, f->parts, f->ids, out_bias, 0, 1);
}

void nb_moe_run(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h, const nb_tensor *routed,
                nb_tensor *out)
{
    nb_exec *x = m->x;
    const nb_slot *down = nb_at(m, w, NB_PART_SHARED_DOWN), *on = nb_at(m, w, NB_PART_SHARED_SWITCH);
    const nb_slot *in = nb_at(m, w, NB_PART_LATENT_IN);
    first_products(m, f, w, h, routed);
    route(m, f, w);
    if (in->lin) nb_lin(m, in, h, f->latents);
    experts(m, f, w, in->lin ? f->latents : h);
    if (on->lin) {
        nb_lin(m, on, h, f->on);
        x->ops->glu(x, NB_ACT_SIGMOID, f->on, f->shared, x->rows.n, 0, f->shared);
    }
    const nb_tensor *shared = down->lin ? f->shared : NULL;
    x->ops->combine(x, f->parts, f->weight, f->slots, in->lin ? NULL : shared, in->lin ? f->latents : out);
    if (!in->lin) return;
    nb_lin(m, nb_at(m, w, NB_PART_LATENT_OUT), f->latents, out);
    if (shared) x->ops->add(x, out, shared, out);
}

void nb_ffn_run(nb_model *m, const nb_ffn *f, const nb_slot *w, const nb_tensor *h, nb_tensor *out)
{
    if (nb_at(m, w, NB_PART_ROUTER)->lin)
        nb_moe_run(m, f, w, h, h, out);
    else
        nb_mlp_run(m, f, w, h, out);
}
