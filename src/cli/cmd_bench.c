/* nibble bench: prefill and decode rates of a model beside this machine's roofs, measured on the same cores in the same run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "bench/roof.h"
#include "cli/bench_ops.h"
#include "cli/cli.h"
#include "engine/policy.h"

static const char usage[] =
    "usage: nibble bench DIR [--prompt N] [--tokens N] [--streams N,…] [--context N] [options]\n\n"
    "Measures the machine's roofs, then prefill of N tokens (128) and decode of N tokens (64), each three\n"
    "times; prints the best. gbs counts the weights that a step reads once, those in F32, too. "
    "share_of_roof\n"
    "is against fma_gflops for prefill. For decode it is what the median token reads (median_gbs) against\n"
    "the median of the passes over memory (roof_gbs) that are made between tokens, four a second: on a\n"
    "machine that others use, too, the roof before decode is not the roof during it. Below stands where the\n"
    "time went, by operator.\n\n"
    "  --prompt N          tokens of the prefill (128)\n"
    "  --tokens N          tokens of the decode (64)\n"
    "  --streams N,N,…     sequences that decode side by side, each number in turn (1)\n"
    "  --context N         tokens that a sequence holds before it decodes (those of the prefill); beyond the "
    "prefill\n"
    "                      the cache is filled with rows of no meaning\n";

enum { OPT_PROMPT = 1, OPT_TOKENS, OPT_STREAMS, OPT_CONTEXT, ROUNDS = 3, MAX_LIST = 16, MAX_STREAMS = 1024 };

static const struct option options[] = {{"prompt", required_argument, NULL, OPT_PROMPT},
                                        {"tokens", required_argument, NULL, OPT_TOKENS},
                                        {"streams", required_argument, NULL, OPT_STREAMS},
                                        {"context", required_argument, NULL, OPT_CONTEXT},
                                        NB_CLI_MODEL_OPTIONS,
                                        {0}};

/* What a step of n tokens must read and compute: bytes of the weights that it goes through, and one token's multiply-adds in
 * linears. Of E experts n tokens reach E (1 - (1 - slots / E)^n) when they choose evenly. */
typedef struct work {
    double bytes, flops;
} work;

/* Of E experts or rows that a token reads share * E of, the part that n tokens read. */
static double reached(double share, size_t n)
{
    return 1 - pow(1 - share, (double)n);
}

/* Bytes of a parameter that n tokens read: a row of those that are looked up by token or position, the chosen experts' biases, else all. */
static double count_parameter(const nb_model *m, const nb_arch_tensor *row, const nb_tensor *t, size_t n)
{
    const double bytes = (double)m->x->ops->tensor_bytes(t), line = (double)m->x->ops->tensor_cols(t) * 4;
    if (row->part == NB_PART_EXPERT_GATE_UP_BIAS || row->part == NB_PART_EXPERT_DOWN_BIAS)
        return bytes * reached((double)m->experts_per_row * line / bytes, n);
    if (row->role == NB_ROLE_INDEX || strncmp(row->shape, "compress_ratio,", 15) == 0)
        return bytes * reached(line / bytes, n);
    return bytes;
}

static void count_slots(const nb_model *m, const nb_slot *slots, size_t n, work *w)
{
    for (size_t i = 0; i < m->cfg.arch->n_tensors; i++) {
        const nb_arch_tensor *row = &m->cfg.arch->tensors[i];
        if (slots[i].t) w->bytes += count_parameter(m, row, slots[i].t, n);
        for (size_t e = 0; slots[i].lin && e < slots[i].n_lin; e++) {
            const nb_linear *l = &slots[i].lin[e];
            double share = slots[i].n_lin > 1 ? (double)m->experts_per_row / (double)slots[i].n_lin : 1;
            const nb_linear *head = nb_head_of(m);
            if (row->role == NB_ROLE_EMBED && (!head || l != head))
                continue; /* one row is looked up; tied, it is the head as well */
            size_t read = l->n_derived ? m->x->ops->derived_bytes(l->w) : m->x->ops->weight_bytes(l->w);
            w->bytes += reached(share, n) * (double)read;
            w->flops += share * 2.0 * (double)l->n * (double)l->k;
        }
    }
}

static work count_work(const nb_model *m, size_t n)
{
    work w = {0};
    count_slots(m, m->global, n, &w);
    for (int64_t l = 0; l < m->cfg.n_layers; l++)
        count_slots(m, m->layers + (size_t)l * m->cfg.arch->n_tensors, n, &w);
    return w;
}

/* Bytes of the cache that the query of a token after `context` others is to see. */
static double count_cache(const nb_model *m, size_t context)
{
    double bytes = 0;
    for (size_t i = 0; m->x->kv && i < m->x->kv->n_streams; i++) {
        const nb_stream_decl *d = &m->x->kv->streams[i].decl;
        size_t rows = context / d->tokens_per_row;
        if (d->window && rows > d->window) rows = d->window;
        bytes += (double)(rows * d->cols) * sizeof(float);
    }
    return bytes;
}

static void ignore(void *ctx, size_t part, size_t row, const float *logits)
{
}

/* What is measured: a prefill of n tokens, then k more of each of `streams` sequences side by side. */
typedef struct plan {
    const uint32_t *ids; /* [n]; the tokens themselves do not matter */
    size_t n, k, streams, context;
    nb_step_part *parts; /* [streams] */
} plan;

/* What decode is compared with, and with what: samples that alternate. */
typedef struct samples {
    nb_roof_reader *roof;
    double *token,
        *pass; /* seconds of a step, GB/s of a pass over memory: [ROUNDS * k], [ROUNDS * (k + 1)] */
    size_t tokens, passes;
} samples;

#define PASS_EVERY 0.25 /* seconds of decode between two passes: a pass empties the caches for a token */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Seconds of a part of the plan, and of them those in operators. */
typedef struct timing {
    double seconds, op[NB_BENCH_OPS];
} timing;

/* Lengthens a sequence of w->n tokens to w->context. */
static nb_status fill(nb_engine *e, const plan *w, uint32_t seq, nb_step_out *out, nb_error *err)
{
    nb_status s = NB_OK;
    nb_bench_ops_skip(true);
    for (size_t at = w->n; s == NB_OK && at < w->context;) {
        nb_step_part p = {.seq = seq, .tokens = w->ids, .n = w->context - at < w->n ? w->context - at : w->n};
        if ((s = nb_engine_step(e, &p, 1, out, err)) != NB_OK) break;
        nb_seq_commit(e, seq, p.n);
        at += p.n;
    }
    nb_bench_ops_skip(false);
    return s;
}

/* k tokens of the open sequences. */
static nb_status decode_all(nb_engine *e, const plan *w, samples *m, timing *decode, nb_error *err)
{
    const nb_step_out out = {.logits = ignore};
    nb_status s = NB_OK;
    double since = 0;
    for (size_t i = 0; s == NB_OK && i < w->k; i++) {
        const double t0 = nb_now();
        for (size_t q = 0; q < w->streams; q++)
            w->parts[q] = (nb_step_part){
                .seq = w->parts[q].seq, .tokens = w->ids + (i + q) % w->n, .n = 1, .known = w->n + w->k};
        s = nb_engine_step(e, w->parts, w->streams, &out, err);
        for (size_t q = 0; s == NB_OK && q < w->streams; q++) nb_seq_commit(e, w->parts[q].seq, 1);
        const double took = nb_now() - t0;
        m->token[m->tokens++] = took;
        decode->seconds += took;
        since += took;
        if (since < PASS_EVERY && i + 1 < w->k) continue;
        m->pass[m->passes++] = nb_roof_read(m->roof);
        since = 0;
    }
    return s;
}

/* The first sequence's prefill, and the decode of all. */
static nb_status once(nb_engine *e, const plan *w, samples *m, timing *prefill, timing *decode, nb_error *err)
{
    nb_step_out out = {.logits = ignore};
    size_t open = 0;
    nb_status s = NB_OK;
    double ignored[NB_BENCH_OPS];
    nb_bench_ops_take(ignored);
    double t0 = nb_now();
    for (; open < w->streams && s == NB_OK; open++) {
        nb_step_part *p = &w->parts[open];
        *p = (nb_step_part){.tokens = w->ids, .n = w->n, .known = w->n + w->k};
        if ((s = nb_seq_open(e, &p->seq, err))) break;
        s = nb_engine_step(e, p, 1, &out, err);
        if (s == NB_OK) nb_seq_commit(e, p->seq, w->n);
        if (!open) {
            prefill->seconds = nb_now() - t0;
            nb_bench_ops_take(prefill->op);
        }
        if (s == NB_OK) s = fill(e, w, p->seq, &out, err);
    }
    nb_bench_ops_take(ignored);
    if (s == NB_OK) s = decode_all(e, w, m, decode, err);
    nb_bench_ops_take(decode->op);
    for (size_t q = 0; q < open; q++) nb_seq_close(e, w->parts[q].seq);
    return s;
}

/* The best of some rounds. */
static nb_status best(nb_engine *e, const plan *w, samples *m, timing *prefill, timing *decode, nb_error *err)
{
    m->tokens = m->passes = 0;
    for (int i = 0; i < ROUNDS; i++) {
        timing p = {0}, d = {0};
        nb_status s = once(e, w, m, &p, &d, err);
        if (s != NB_OK) return s;
        if (!i || p.seconds < prefill->seconds) *prefill = p;
        if (!i || d.seconds < decode->seconds) *decode = d;
    }
    return NB_OK;
}

/* What one line says: `tokens` in t, which is so much of the roof. */
typedef struct result {
    const char *name, *arith;
    size_t rows, context; /* context: tokens before it, of a decode */
    double bytes, flops, tokens, roof_share, cache_bytes;
    double median_gbs, roof_gbs; /* of a decode; else 0 */
    timing t;
} result;

static void print_result(bool json, bool last, const result *r)
{
    double s = r->t.seconds, other = 1;
    if (json)
        printf("{\"name\": \"%s\", \"arith\": \"%s\", \"rows\": %zu, \"seconds\": %.6g, \"gbs\": %.5g, "
               "\"gflops\": %.5g, \"share_of_roof\": %.4g, \"tokens_per_s\": %.5g, \"context\": %zu, "
               "\"cache_bytes\": %.6g, ",
               r->name, r->arith, r->rows, s, r->bytes / s * 1e-9, r->flops / s * 1e-9, r->roof_share,
               r->tokens / s, r->context, r->cache_bytes);
    else
        printf("%-8s %5zu rows  %9.1f tokens/s  %7.2f GB/s  %8.1f GFLOP/s  %5.1f %% of the roof", r->name,
               r->rows, r->tokens / s, r->bytes / s * 1e-9, r->flops / s * 1e-9, 100 * r->roof_share);
    if (r->roof_gbs > 0)
        printf(json ? "\"median_gbs\": %.5g, \"roof_gbs\": %.5g, " : " (medians: %.2f of %.2f GB/s)",
               r->median_gbs, r->roof_gbs);
    printf(json ? "\"operators\": {" : "\n        ");
    for (int i = 0; i < NB_BENCH_OPS; i++) {
        double share = r->t.op[i] / s;
        other -= share;
        if (json)
            printf("\"%s\": %.4f, ", nb_bench_op_names[i], share);
        else if (share >= 0.001)
            printf(" %s %.1f %%,", nb_bench_op_names[i], 100 * share);
    }
    if (json)
        printf("\"other\": %.4f}}%s", other, last ? "" : ", ");
    else
        printf(" other %.1f %%", 100 * other);
    if (!json && r->cache_bytes > 0)
        printf("; %zu tokens of context: attend reads %.2f GB/s of cache", r->context,
               r->cache_bytes / r->t.op[NB_BENCH_ATTEND] * 1e-9);
    if (!json) putchar('\n');
}

/* The unit that the table of kernels multiplies int8 with; 0: none. */
static double int8_roof(const nb_roof *r, const char *isa)
{
    if (strcmp(isa, "generic") == 0) return 0;
    if (strcmp(isa, "avx2") == 0) return r->maddubs_gops;
    return strcmp(isa, "avxvnni") == 0 ? r->avxvnni_gops : r->vnni_gops;
}

/* A roof of a unit that this machine may lack: then null. */
static void print_unit(const char *key, double rate, const char *after)
{
    if (rate > 0)
        printf("\"%s\": %.5g%s", key, rate, after);
    else
        printf("\"%s\": null%s", key, after);
}

static void print_machine(bool json, const nb_roof *r, const char *isa)
{
    nb_cpu cpu;
    nb_cpu_detect(&cpu);
    const double int8 = int8_roof(r, isa);
    if (json) {
        printf("{\"machine\": {\"cores\": %zu, \"isa\": \"%s\", \"read_roof_gbs\": %.5g, \"copy_gbs\": %.5g, "
               "\"fma_gflops\": %.5g, ",
               r->threads, isa, r->read_gbs, r->copy_gbs, r->fma_gflops);
        print_unit("int8_gops", int8, ", ");
        print_unit("amx_gflops", r->amx_gflops, "}, \"results\": [");
        return;
    }
    printf("%s, %zu threads, %s kernels: read %.1f GB/s, copy %.1f GB/s, FMA %.0f GFLOP/s", cpu.model,
           r->threads, isa, r->read_gbs, r->copy_gbs, r->fma_gflops);
    if (int8 > 0) printf(", int8 %.0f GOP/s", int8);
    if (r->amx_gflops > 0) printf(", AMX %.0f GFLOP/s", r->amx_gflops);
    putchar('\n');
}

/* Numbers of streams, ascending or not. */
typedef struct list {
    size_t n[MAX_LIST], count, most;
} list;

static bool read_list(const char *text, list *out)
{
    *out = (list){0};
    for (;;) {
        char number[16];
        size_t len = strcspn(text, ",");
        uint64_t v;
        if (len >= sizeof number || out->count == MAX_LIST) return false;
        memcpy(number, text, len);
        number[len] = '\0';
        if (!nb_cli_number(number, 1, MAX_STREAMS, &v)) return false;
        out->n[out->count++] = (size_t)v;
        if (v > out->most) out->most = (size_t)v;
        if (!text[len]) return true;
        text += len + 1;
    }
}

static result prefill_result(const nb_model *m, const char *arith, const plan *w, const nb_roof *roof,
                             const timing *t)
{
    const work one = count_work(m, w->n);
    const double flops = one.flops * (double)w->n;
    return (result){.name = "prefill",
                    .arith = arith,
                    .rows = w->n,
                    .bytes = one.bytes,
                    .flops = flops,
                    .tokens = (double)w->n,
                    .roof_share = flops / t->seconds * 1e-9 / roof->fma_gflops,
                    .t = *t};
}

/* Sorts what was taken. */
static result decode_result(const nb_model *m, const char *arith, const plan *w, samples *taken,
                            const timing *t)
{
    const work step = count_work(m, w->streams);
    const double tokens = (double)w->k * (double)w->streams;
    const double roof_gbs = median(taken->pass, taken->passes);
    const double median_gbs = step.bytes / median(taken->token, taken->tokens) * 1e-9;
    return (result){.name = "decode",
                    .arith = arith,
                    .rows = w->streams,
                    .context = w->context,
                    .bytes = step.bytes * (double)w->k,
                    .cache_bytes = count_cache(m, w->context + w->k / 2) * tokens,
                    .flops = step.flops * tokens,
                    .tokens = tokens,
                    .roof_share = median_gbs / roof_gbs,
                    .median_gbs = median_gbs,
                    .roof_gbs = roof_gbs,
                    .t = *t};
}

/* All numbers of streams, on an engine that is open. */
static nb_status measure(nb_engine *e, const nb_cli_model *model, const char *arith, plan *w, samples *taken,
                         const list *streams, nb_error *err)
{
    const nb_model *m = nb_engine_model(e);
    const bool json = strcmp(model->format, "json") == 0;
    nb_roof roof;
    nb_status s = nb_roof_measure(m->x->pool, 0, &roof, err);
    if (s == NB_OK) s = nb_roof_reader_new(m->x->pool, 0, &taken->roof, err);
    for (size_t i = 0; s == NB_OK && i < streams->count; i++) {
        timing prefill, decode;
        w->streams = streams->n[i];
        if ((s = best(e, w, taken, &prefill, &decode, err))) break;
        if (!i) {
            const result r = prefill_result(m, arith, w, &roof, &prefill);
            print_machine(json, &roof, nb_cpu_exec_kernels(m->x));
            print_result(json, false, &r);
        }
        const result r = decode_result(m, arith, w, taken, &decode);
        print_result(json, i + 1 == streams->count, &r);
    }
    if (s == NB_OK && json) puts("]}");
    return s;
}

static nb_status bench(const nb_cli_model *model, const nb_llm_options *lo, size_t n, size_t k,
                       size_t context, const list *streams, nb_error *err)
{
    nb_engine *e = NULL;
    nb_policy *policy = NULL;
    if (context < n) context = n;
    uint32_t *ids = calloc(n, sizeof *ids);
    plan w = {.ids = ids, .n = n, .k = k, .context = context, .parts = calloc(MAX_STREAMS, sizeof *w.parts)};
    samples taken = {.token = calloc(ROUNDS * k, sizeof *taken.token),
                     .pass = calloc(ROUNDS * (k + 1), sizeof *taken.pass)};
    const nb_load_options load = {.packed_cache = lo->packed_cache};
    const nb_engine_options o = {.threads = lo->threads,
                                 .load = &load,
                                 .kernels = lo->kernels ? lo->kernels : "auto",
                                 .arith = lo->arith,
                                 .act_bf16 = lo->act_bf16,
                                 .quant_bf16 = lo->quant_bf16,
                                 .max_seqs = streams->most,
                                 .max_context = context + k,
                                 .max_rows = n > streams->most ? n : streams->most};
    nb_status s = ids && w.parts && taken.token && taken.pass
                      ? NB_OK
                      : nb_fail_nomem(err, "token ids", n * sizeof *ids);
    if (s == NB_OK) s = nb_policy_new(lo->scales, lo->dequant, lo->n_dequant, &policy, err);
    if (s == NB_OK) s = nb_policy_engine(model->dir, &o, policy, &lo->sink, &e, err);
    if (s != NB_OK) goto out;
    const nb_model *m = nb_engine_model(e);
    nb_bench_ops_watch(m->x);
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)((i * 7919 + 11) % m->vocab);
    s = measure(e, model, nb_arith_name(lo->arith), &w, &taken, streams, err);
out:
    nb_engine_free(e);
    nb_policy_free(policy);
    nb_roof_reader_free(taken.roof);
    free(taken.token);
    free(taken.pass);
    free(ids);
    free(w.parts);
    return s;
}

int nb_cmd_bench(int argc, char **argv)
{
    nb_cli_model model = {0};
    nb_llm_options lo;
    nb_error err = {.offset = -1};
    uint64_t prompt = 128, tokens = 64, context = 0;
    list streams = {.n = {1}, .count = 1, .most = 1};
    int code, rc;
    optind = 1;
    opterr = 0;
    while ((code = getopt_long(argc, argv, ":qh", options, NULL)) != -1) {
        if (code == OPT_PROMPT || code == OPT_TOKENS || code == OPT_CONTEXT) {
            uint64_t *number = code == OPT_PROMPT ? &prompt : code == OPT_TOKENS ? &tokens : &context;
            if (!nb_cli_number(optarg, 1, 1 << 20, number))
                return nb_cli_bad_value("bench", options, code, "a number of tokens");
        } else if (code == OPT_STREAMS) {
            char takes[64];
            snprintf(takes, sizeof takes, "at most %d numbers from 1 to %d, as 1,4", MAX_LIST, MAX_STREAMS);
            if (!read_list(optarg, &streams)) return nb_cli_bad_value("bench", options, code, takes);
        } else if ((rc = nb_cli_model_option("bench", code, argv, &model))) {
            return rc;
        }
    }
    if (model.help) {
        printf("%s%s%s\nExit status: 0 measured, 1 failed, 64 usage.\n\nexample:\n  nibble bench models/demo "
               "--format json\n",
               usage, nb_cli_model_help, nb_cli_cache_help);
        return NB_EXIT_OK;
    }
    if ((rc = nb_cli_model_finish("bench", argc, argv, "auto", &model, &lo))) return rc;
    if (model.max_context)
        return nb_cli_usage("bench",
                            "--max-model-len has no use here: --prompt and --tokens set the lengths");
    return bench(&model, &lo, prompt, tokens, context, &streams, &err) == NB_OK ? NB_EXIT_OK
                                                                                : nb_cli_fail(&err);
}
