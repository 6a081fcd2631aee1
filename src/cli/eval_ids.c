/* eval --ids: raw logits, and each layer's output, of given token ids into safetensors files. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "cli/eval.h"

typedef struct id_lists {
    nb_ids *list;
    size_t n, longest;
} id_lists;

static void free_lists(id_lists *l)
{
    for (size_t i = 0; l->list && i < l->n; i++) free(l->list[i].data);
    free(l->list);
}

static nb_status bad_ids(const char *file, size_t i, nb_error *err)
{
    nb_fail(err, NB_ERR_FORMAT, "entry %zu is not a non-empty array of token ids (whole numbers)", i);
    nb_error_at(err, file, NULL, -1);
    nb_error_remedy(err, "write [[1, 2, 3], [4]]: one array for each sequence");
    return NB_ERR_FORMAT;
}

static nb_status read_lists(const char *file, id_lists *out, nb_error *err)
{
    nb_buf text = {0};
    json_t *root = NULL;
    nb_status s = nb_file_slurp(file, (size_t)1 << 30, &text, err);
    if (s != NB_OK) goto done;
    if ((s = nb_json_tree(file, nb_buf_str(&text), text.len, &root, err))) goto done;
    if (!json_array_size(root)) {
        s = nb_fail(err, NB_ERR_FORMAT, "expected a JSON array of arrays of token ids");
        nb_error_at(err, file, NULL, -1);
        goto done;
    }
    out->list = calloc(json_array_size(root), sizeof *out->list);
    if (!out->list) {
        s = nb_fail_nomem(err, file, json_array_size(root) * sizeof *out->list);
        goto done;
    }
    out->n = json_array_size(root);
    for (size_t i = 0; i < out->n; i++) {
        const json_t *a = json_array_get(root, i);
        size_t len = json_array_size(a);
        if (!len) {
            s = bad_ids(file, i, err);
            goto done;
        }
        nb_ids *l = &out->list[i];
        l->data = calloc(len, sizeof *l->data);
        if (!l->data) {
            s = nb_fail_nomem(err, file, len * sizeof *l->data);
            goto done;
        }
        for (; l->len < len; l->len++) {
            const json_t *v = json_array_get(a, l->len);
            if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX) {
                s = bad_ids(file, i, err);
                goto done;
            }
            l->data[l->len] = (uint32_t)json_integer_value(v);
        }
        if (len > out->longest) out->longest = len;
    }
done:
    json_decref(root);
    nb_buf_free(&text);
    return s;
}

/* Rows arrive in any order; they are kept until their file is written. */
typedef struct rows {
    nb_eval *e;
    float **logits; /* [n][T][V] */
    float **hidden; /* [n][L][T][D]; NULL when not wanted */
    const id_lists *ids;
    size_t *base;   /* [n] tokens of each sequence computed in earlier steps */
    size_t *seq_of; /* [parts] */
    size_t vocab, cols;
} rows;

static void take_logits(void *ctx, size_t part, size_t row, const float *v)
{
    rows *r = ctx;
    size_t i = r->seq_of[part];
    nb_eval_count(r->e, v, r->vocab);
    memcpy(r->logits[i] + (r->base[i] + row) * r->vocab, v, r->vocab * sizeof *v);
}

static void take_hidden(void *ctx, int layer, size_t part, size_t row, const float *v)
{
    rows *r = ctx;
    size_t i = r->seq_of[part], T = r->ids->list[i].len;
    memcpy(r->hidden[i] + ((size_t)layer * T + r->base[i] + row) * r->cols, v, r->cols * sizeof *v);
}

static nb_status compute(const nb_eval *e, nb_engine *g, rows *r, nb_error *err)
{
    const id_lists *ids = r->ids;
    size_t batch = e->together ? ids->n : 1;
    nb_status s = NB_OK;
    nb_step_part *parts = calloc(batch, sizeof *parts);
    uint32_t *slot = calloc(ids->n, sizeof *slot);
    if (!parts || !slot) {
        s = nb_fail_nomem(err, "a step", batch * sizeof *parts);
        goto out;
    }
    nb_step_out out = {.logits = take_logits, .hidden = r->hidden ? take_hidden : NULL, .ctx = r};
    for (size_t first = 0; first < ids->n; first += batch) {
        for (size_t i = first; i < first + batch; i++)
            if ((s = nb_seq_open(g, &slot[i], err))) goto out;
        for (;;) {
            size_t n = 0;
            for (size_t i = first; i < first + batch; i++) {
                size_t left = ids->list[i].len - r->base[i];
                if (!left) continue;
                r->seq_of[n] = i;
                parts[n++] =
                    (nb_step_part){slot[i], ids->list[i].data + r->base[i], left < e->chunk ? left : e->chunk,
                                   true, .known = ids->list[i].len};
            }
            if (!n) break;
            if ((s = nb_engine_step(g, parts, n, &out, err))) goto out;
            for (size_t p = 0; p < n; p++) {
                nb_seq_commit(g, parts[p].seq, parts[p].n);
                r->base[r->seq_of[p]] += parts[p].n;
            }
        }
        for (size_t i = first; i < first + batch; i++) nb_seq_close(g, slot[i]);
    }
out:
    free(parts);
    free(slot);
    return s;
}

/* Writes one file of F32 matrices: entry (i, l) is [T_i, cols] at data[i] + l T_i cols. layers 0: names have no layer. */
static nb_status write_rows(const char *path, const char *prefix, const id_lists *ids, float *const *data,
                            size_t layers, size_t cols, nb_error *err)
{
    nb_st_writer *w = NULL;
    char name[64];
    nb_status s = nb_st_writer_open(path, &w, err);
    size_t each = layers ? layers : 1;
    for (size_t i = 0; s == NB_OK && i < ids->n; i++) {
        for (size_t l = 0; s == NB_OK && l < each; l++) {
            if (layers)
                snprintf(name, sizeof name, "%s.%zu.%zu", prefix, i, l);
            else
                snprintf(name, sizeof name, "%s.%zu", prefix, i);
            s = nb_st_writer_declare(w, name, NB_DT_F32, 2, (uint64_t[]){ids->list[i].len, cols}, err);
        }
    }
    if (s == NB_OK) s = nb_st_writer_begin(w, err);
    for (size_t i = 0; s == NB_OK && i < ids->n; i++)
        s = nb_st_writer_put(w, data[i], each * ids->list[i].len * cols * sizeof(float), err);
    if (s == NB_OK) return nb_st_writer_commit(w, err);
    if (w) nb_st_writer_abort(w);
    return s;
}

nb_status nb_eval_ids(nb_eval *e, nb_error *err)
{
    id_lists ids = {0};
    rows r = {.e = e, .ids = &ids};
    nb_engine *g = NULL;
    nb_status s = nb_writer_try(e->logits_file, err); /* before the work, not after it */
    if (s == NB_OK && e->hidden_file) s = nb_writer_try(e->hidden_file, err);
    if (s == NB_OK) s = read_lists(e->ids_file, &ids, err);
    if (s != NB_OK) goto out;
    size_t chunk = e->chunk < ids.longest ? e->chunk : ids.longest;
    if ((s = nb_eval_engine(e, e->together ? ids.n : 1, ids.longest, chunk, &g, err))) goto out;
    const nb_model *m = nb_engine_model(g);
    size_t layers = (size_t)m->cfg.n_layers;
    r.vocab = m->vocab;
    r.cols = m->hidden_cols;
    r.logits = calloc(ids.n, sizeof *r.logits);
    r.hidden = e->hidden_file ? calloc(ids.n, sizeof *r.hidden) : NULL;
    r.base = calloc(ids.n, sizeof *r.base);
    r.seq_of = calloc(ids.n, sizeof *r.seq_of);
    bool ok = r.logits && r.base && r.seq_of && (r.hidden || !e->hidden_file);
    for (size_t i = 0; ok && i < ids.n; i++) {
        ok = (r.logits[i] = calloc(ids.list[i].len * r.vocab, sizeof(float))) != NULL;
        if (ok && r.hidden)
            ok = (r.hidden[i] = calloc(layers * ids.list[i].len * r.cols, sizeof(float))) != NULL;
    }
    if (!ok) {
        s = nb_fail_nomem(err, "logits", ids.longest * r.vocab * sizeof(float));
        goto out;
    }
    if ((s = compute(e, g, &r, err))) goto out;
    if (r.hidden && (s = write_rows(e->hidden_file, "hidden", &ids, r.hidden, layers, r.cols, err))) goto out;
    s = write_rows(e->logits_file, "logits", &ids, r.logits, 0, r.vocab, err);
out:
    for (size_t i = 0; r.logits && i < ids.n; i++) free(r.logits[i]);
    for (size_t i = 0; r.hidden && i < ids.n; i++) free(r.hidden[i]);
    free(r.logits);
    free(r.hidden);
    free(r.base);
    free(r.seq_of);
    free_lists(&ids);
    nb_engine_free(g);
    return s;
}
