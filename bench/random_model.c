/*
 * Makes a folder of a family's real widths for measuring: every tensor that its architecture's table asks for under a config.json, of
 * random values; linears in ModelOpt's NVFP4 where their columns are whole blocks, all else in BF16. It says nothing sensible.
 *
 *     random_model CONFIG.json OUT      OUT must exist; writes OUT/config.json and OUT/model.safetensors
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "checkpoint/arch.h"
#include "numerics/formats.h"

typedef struct maker {
    nb_config cfg;
    nb_st_writer *w;
    bool writing; /* second pass: bytes; the first declares */
    uint64_t seed;
    uint8_t *piece;
    nb_error err;
} maker;

#define PIECE ((size_t)1 << 20)

static uint64_t draw(maker *m)
{
    m->seed ^= m->seed << 13;
    m->seed ^= m->seed >> 7;
    return m->seed ^= m->seed << 17;
}

/* One tensor: declared, or its bytes written as fill makes them, a piece at a time. */
static void tensor(maker *m, const char *name, nb_dtype dtype, size_t rank, const uint64_t *shape,
                   void (*fill)(maker *m, size_t bytes, double v), double v)
{
    if (m->err.status) return;
    if (!m->writing) {
        nb_st_writer_declare(m->w, name, dtype, rank, shape, &m->err);
        return;
    }
    size_t left = nb_dtype_bits(dtype) / 8;
    for (size_t i = 0; i < rank; i++) left *= shape[i];
    while (left && !m->err.status) {
        size_t n = left < PIECE ? left : PIECE;
        fill(m, n, v);
        nb_st_writer_put(m->w, m->piece, n, &m->err);
        left -= n;
    }
}

static void random_bytes(maker *m, size_t bytes, double unused)
{
    for (size_t i = 0; i < PIECE / 8 && i * 8 < bytes; i++) ((uint64_t *)(void *)m->piece)[i] = draw(m);
}

/* Block scales from 0.5 to below 2. */
static void scale_bytes(maker *m, size_t bytes, double unused)
{
    for (size_t i = 0; i < bytes; i++) m->piece[i] = (uint8_t)(0x30 + draw(m) % 16);
}

static void one_f32(maker *m, size_t bytes, double v)
{
    float f = (float)v;
    memcpy(m->piece, &f, sizeof f);
}

/* Uniform in [-v, v]. */
static void bf16_values(maker *m, size_t bytes, double v)
{
    for (size_t i = 0; i < bytes / 2; i++) {
        uint16_t h = nb_bf16_encode((float)(v * ((double)(draw(m) >> 40) / (1 << 23) - 1)));
        memcpy(m->piece + 2 * i, &h, 2);
    }
}

static void bf16_ones(maker *m, size_t bytes, double v)
{
    uint16_t h = nb_bf16_encode((float)v);
    for (size_t i = 0; i < bytes / 2; i++) memcpy(m->piece + 2 * i, &h, 2);
}

static void expert_ids(maker *m, size_t bytes, double experts)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        int64_t id = (int64_t)(draw(m) % (uint64_t)experts);
        memcpy(m->piece + 8 * i, &id, 8);
    }
}

static void linear(maker *m, const char *module, const uint64_t *dims, bool nvfp4)
{
    char name[300];
    snprintf(name, sizeof name, "%s.weight", module);
    if (!nvfp4) {
        tensor(m, name, NB_DT_BF16, 2, dims, bf16_values, sqrt(3.0 / (double)dims[1]));
        return;
    }
    tensor(m, name, NB_DT_U8, 2, (uint64_t[]){dims[0], dims[1] / 2}, random_bytes, 0);
    snprintf(name, sizeof name, "%s.weight_scale", module);
    tensor(m, name, NB_DT_F8_E4M3, 2, (uint64_t[]){dims[0], dims[1] / 16}, scale_bytes, 0);
    snprintf(name, sizeof name, "%s.weight_scale_2", module);
    tensor(m, name, NB_DT_F32, 0, dims, one_f32,
           1 / (3.4 * sqrt((double)dims[1]))); /* random codes: rms 2.9 */
    snprintf(name, sizeof name, "%s.input_scale", module);
    tensor(m, name, NB_DT_F32, 0, dims, one_f32, 8.0 / (448 * 6));
}

static void row(maker *m, const nb_arch_tensor *t, int64_t l, int64_t e)
{
    char bare[256], name[300];
    uint64_t dims[4];
    size_t rank = nb_config_shape(&m->cfg, t->shape, (int)l, dims, &m->err);
    int64_t experts = 1;
    if (!rank) return;
    nb_arch_name(t, l, e, bare, sizeof bare);
    snprintf(name, sizeof name, "%s%s", t->role == NB_ROLE_HEAD ? "" : m->cfg.arch->prefixes[0], bare);
    switch (t->role) {
    case NB_ROLE_LINEAR: linear(m, name, dims, dims[1] % 16 == 0 && t->part != NB_PART_ROUTER); break;
    case NB_ROLE_EMBED:
    case NB_ROLE_HEAD: linear(m, name, dims, false); break;
    case NB_ROLE_NORM: tensor(m, name, NB_DT_BF16, rank, dims, bf16_ones, 1 - t->plus); break;
    case NB_ROLE_PARAM: tensor(m, name, NB_DT_BF16, rank, dims, bf16_values, 0.5); break;
    case NB_ROLE_INDEX:
        nb_config_int(&m->cfg, m->cfg.arch->n_experts_key, -1, 1, INT32_MAX, &experts, &m->err);
        tensor(m, name, NB_DT_I64, rank, dims, expert_ids, (double)experts);
        break;
    }
}

static void all_rows(maker *m)
{
    const nb_arch *a = m->cfg.arch;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const nb_arch_tensor *t = &a->tensors[i];
        bool layered = strstr(t->name, "{l}") != NULL, indexed = strstr(t->name, "{e}") != NULL;
        for (int64_t l = 0; l < nb_arch_layers(&m->cfg, t); l++) {
            if (t->when && !t->when(&m->cfg, layered ? (int)l : -1)) continue;
            for (int64_t e = 0; e < nb_arch_experts(&m->cfg, t) && !m->err.status; e++)
                row(m, t, layered ? l : -1, indexed ? e : -1);
        }
    }
}

int main(int argc, char **argv)
{
    maker m = {.seed = 88172645463325252u, .piece = calloc(PIECE, 1)};
    nb_buf path = {0};
    json_error_t je;
    if (argc != 3 || !m.piece) {
        fputs("usage: random_model CONFIG.json OUT\n", stderr);
        return 64;
    }
    json_t *root = json_load_file(argv[1], 0, &je);
    nb_buf_addf(&path, "%s/model.safetensors", argv[2]);
    if (!root)
        nb_fail(&m.err, NB_ERR_FORMAT, "%s: %s", argv[1], je.text);
    else if (nb_config_from_json(root, argv[1], &m.cfg, &m.err) == NB_OK &&
             nb_st_writer_open(nb_buf_str(&path), &m.w, &m.err) == NB_OK) {
        all_rows(&m);
        if (!m.err.status) nb_st_writer_begin(m.w, &m.err);
        m.writing = true;
        all_rows(&m);
        if (m.err.status)
            nb_st_writer_abort(m.w);
        else
            nb_st_writer_commit(m.w, &m.err);
    }
    nb_buf_clear(&path);
    nb_buf_addf(&path, "%s/config.json", argv[2]);
    if (!m.err.status && json_dump_file(root, nb_buf_str(&path), JSON_INDENT(1)))
        nb_fail(&m.err, NB_ERR_IO, "cannot write %s", nb_buf_str(&path));
    if (m.err.status) fprintf(stderr, "random_model: %s\n", m.err.cause);
    json_decref(root);
    nb_buf_free(&path);
    free(m.piece);
    return m.err.status != NB_OK;
}
