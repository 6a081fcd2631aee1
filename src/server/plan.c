/* Sizing: see plan.h. */
#include "server/plan.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "engine/pages.h"
#include "models/model.h"

/* "Key:   123 kB" of /proc/meminfo, in bytes. */
static uint64_t meminfo_bytes(const char *path, const char *key)
{
    char line[256];
    uint64_t kb = 0;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kb = strtoull(line + strlen(key), NULL, 10);
    if (f) fclose(f);
    return kb * 1024;
}

/* The number that a file holds. False: no file, or no number ("max"). */
static bool file_number(const char *folder, const char *name, uint64_t *out)
{
    char path[1400], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(text, sizeof text, f) && text[0] >= '0' && text[0] <= '9';
    if (f) fclose(f);
    if (ok) *out = strtoull(text, NULL, 10);
    return ok;
}

/* Page cache that the kernel would give up first: "inactive_file 123" of memory.stat. */
static uint64_t reclaimable(const char *folder, const char *key)
{
    char path[1400], line[256];
    uint64_t n = 0;
    size_t len = strlen(key);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, len) == 0 && line[len] == ' ') n = strtoull(line + len, NULL, 10);
    if (f) fclose(f);
    return n;
}

/* What one group has left; UINT64_MAX: it has no limit. */
static uint64_t group_room(const char *folder, bool v2)
{
    uint64_t limit, used = 0;
    if (!file_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes", &limit)) return UINT64_MAX;
    file_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes", &used);
    uint64_t cache = reclaimable(folder, v2 ? "inactive_file" : "total_inactive_file");
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* Whether a comma-separated list of controllers holds "memory". */
static bool has_memory(const char *list, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len = strcspn(list + i, ",:");
        if (len == 6 && memcmp(list + i, "memory", 6) == 0) return true;
        i += len + 1;
    }
    return false;
}

static uint64_t cgroup_room(const char *membership, const char *root)
{
    char line[1024], folder[1300];
    uint64_t room = UINT64_MAX;
    FILE *f = fopen(membership, "re");
    while (f && fgets(line, sizeof line, f)) { /* hierarchy:controllers:path */
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        bool v2 = path == list + 1;
        if (!v2 && !has_memory(list + 1, (size_t)(path - list - 1))) continue;
        snprintf(folder, sizeof folder, "%s%s%s", root, v2 ? "" : "/memory", path + 1);
        size_t base = strlen(root) + (v2 ? 0 : strlen("/memory"));
        for (;;) { /* from the group up to the mount point */
            uint64_t r = group_room(folder, v2);
            if (r < room) room = r;
            char *slash = strrchr(folder + base, '/');
            if (!slash) break;
            *slash = '\0';
        }
    }
    if (f) fclose(f);
    return room;
}

uint64_t nb_plan_available(const char *meminfo, const char *membership, const char *root)
{
    uint64_t machine = meminfo_bytes(meminfo, "MemAvailable:"), room = cgroup_room(membership, root);
    if (!machine) return room == UINT64_MAX ? 0 : room;
    return room < machine ? room : machine;
}

/* Bytes that dequantising what matches to BF16 adds: four bits become sixteen, eight become sixteen. Modules are matched by
 * stored name. */
static uint64_t dequant_bytes(const nb_ckpt *c, const nb_plan_options *opt)
{
    static const char *const suffixes[] = {".weight", ".weight_packed"};
    uint64_t more = 0;
    char module[1024];
    for (size_t i = 0; opt->n_dequant && i < nb_ckpt_count(c); i++) {
        const nb_tensor_info *t = nb_ckpt_at(c, i);
        bool codes = false;
        snprintf(module, sizeof module, "%s", t->name);
        for (size_t k = 0; k < 2; k++) {
            size_t n = strlen(module), tail = strlen(suffixes[k]);
            if (codes || n <= tail || strcmp(module + n - tail, suffixes[k]) != 0) continue;
            module[n - tail] = '\0';
            codes = t->dtype == NB_DT_U8 || t->dtype == NB_DT_F8_E4M3;
        }
        bool matches = false;
        for (size_t k = 0; codes && k < opt->n_dequant; k++)
            matches = matches || fnmatch(opt->dequant[k], module, FNM_NOESCAPE) == 0;
        if (matches) more += (t->end - t->begin) * (t->dtype == NB_DT_U8 ? 3 : 1);
    }
    return more;
}

/* Run tensors, inputs of linears (for each expert of a row its own), and tiles of logits. */
static uint64_t work_bytes(const nb_model *m, size_t max_rows)
{
    const uint64_t slots = m->experts_per_row ? m->experts_per_row : 1;
    return ((uint64_t)64 << 20) + m->run_bytes + (uint64_t)max_rows * slots * m->max_k * 4 +
           (uint64_t)m->vocab * 4 * 32 * 3;
}

typedef struct sizing {
    const nb_model *m;
    nb_pages_options pages;
    size_t threads; /* 0: memory that is given is for the cache alone */
} sizing;

/* What the threads keep for attention to a context: it and compressed rows of it. */
static uint64_t scratch_bytes(const sizing *z, size_t context)
{
    return (uint64_t)z->threads * (2 * (uint64_t)context + 1) * NB_CPU_ROW_BYTES;
}

static uint64_t kv_bytes(sizing *z, size_t blocks, size_t context)
{
    z->pages.blocks = blocks;
    z->pages.max_context = context;
    return nb_pages_bytes_for(z->m->streams, z->m->n_streams, &z->pages);
}

/* The largest n in [0, high] for which the cache takes at most `bytes`; fits(n) is monotone. */
static size_t largest(sizing *z, size_t high, uint64_t bytes, size_t context, bool of_context)
{
    size_t low = 0;
    while (low < high) {
        size_t mid = low + (high - low + 1) / 2;
        uint64_t need = of_context ? kv_bytes(z, nb_ceil_div(mid, NB_BLOCK), mid) : kv_bytes(z, mid, context);
        uint64_t scratch = scratch_bytes(z, of_context ? mid : context);
        if (scratch <= bytes && need <= bytes - scratch)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

#define SIZE_TEXT 32

/* "1.23 GiB", "45.6 MiB". Returns buf. */
static const char *size_text(uint64_t bytes, char buf[SIZE_TEXT])
{
    double mib = (double)bytes / (1 << 20);
    snprintf(buf, SIZE_TEXT, mib < 1000 ? "%.1f MiB" : "%.2f GiB", mib < 1000 ? mib : mib / 1024);
    return buf;
}

static nb_status cannot_hold(const nb_plan *p, bool given, uint64_t budget, size_t longest, nb_error *err)
{
    char a[SIZE_TEXT], b[SIZE_TEXT], c[SIZE_TEXT], d[SIZE_TEXT];
    if (given)
        nb_fail(err, NB_ERR_LIMIT,
                "a KV cache of %s (--kv-cache-memory-bytes) cannot hold one request of %zu tokens",
                size_text(budget, a), p->max_context);
    else
        nb_fail(err, NB_ERR_LIMIT,
                "%s of memory less %s for weights and %s for work leave %s for the KV cache, which cannot "
                "hold one "
                "request of %zu tokens",
                size_text(p->memory, a), size_text(p->weights, b), size_text(p->work, c),
                size_text(budget, d), p->max_context);
    if (longest)
        nb_error_remedy(err,
                        "the longest that fits is %zu tokens: --max-model-len %zu (or auto), or more memory",
                        longest, longest);
    else
        nb_error_remedy(
            err, "no length fits: fewer --max-num-seqs, fewer --max-num-batched-tokens, or more memory");
    return NB_ERR_LIMIT;
}

/* As many sequences, up to max_seqs, as take half of the cache whatever their length, since the other half is for their tokens, and
 * as leave room for one request of the longest. */
static void fit_seqs(sizing *z, uint64_t bytes, size_t context)
{
    const uint64_t scratch = scratch_bytes(z, context);
    size_t low = 1, high = z->pages.max_seqs;
    bytes = bytes > scratch ? bytes - scratch : 0;
    while (low < high) {
        z->pages.max_seqs = low + (high - low + 1) / 2;
        if (kv_bytes(z, 1, context) <= bytes / 2 &&
            kv_bytes(z, nb_ceil_div(context, NB_BLOCK), context) <= bytes)
            low = z->pages.max_seqs;
        else
            high = z->pages.max_seqs - 1;
    }
    z->pages.max_seqs = low;
}

/* What one sequence more takes before it has a token. */
static uint64_t per_seq(const sizing *z, size_t context)
{
    sizing one = *z, two = *z;
    one.pages.max_seqs = 1;
    two.pages.max_seqs = 2;
    return kv_bytes(&two, 1, context) - kv_bytes(&one, 1, context);
}

static nb_status size_cache(sizing *z, const nb_plan_options *opt, nb_plan *p, nb_error *err)
{
    uint64_t taken = p->weights + p->work, budget = p->memory > taken ? p->memory - taken : 0;
    if (opt->kv_bytes) budget = opt->kv_bytes;
    z->threads = opt->kv_bytes ? 0 : opt->threads;
    if (!opt->kv_bytes && !opt->threads) {
        const nb_status s = nb_pool_default(&z->threads, err);
        if (s != NB_OK) return s;
    }
    if (opt->fit_seqs) fit_seqs(z, budget, p->max_context);
    p->max_seqs = z->pages.max_seqs;
    if (opt->blocks) {
        p->blocks = opt->blocks;
    } else {
        size_t longest = largest(z, p->model_context, budget, 0, true);
        if (opt->fit_context && longest < p->max_context) p->max_context = longest;
        if (!p->max_context || longest < p->max_context)
            return cannot_hold(p, opt->kv_bytes > 0, budget, longest, err);
        size_t worst;
        if (!nb_mul(nb_ceil_div(p->max_context, NB_BLOCK), p->max_seqs, &worst)) worst = SIZE_MAX / 2;
        p->blocks = largest(z, worst, budget, p->max_context, false);
    }
    size_t one = nb_ceil_div(p->max_context, NB_BLOCK);
    if (!one || p->blocks < one) {
        nb_fail(err, NB_ERR_LIMIT, "%zu KV blocks of %d tokens cannot hold one request of %zu tokens",
                p->blocks, NB_BLOCK, p->max_context);
        nb_error_remedy(err, "the longest that fits is %zu tokens: --max-model-len %zu", p->blocks * NB_BLOCK,
                        p->blocks * NB_BLOCK);
        return NB_ERR_LIMIT;
    }
    p->kv = kv_bytes(z, p->blocks, p->max_context);
    p->work += scratch_bytes(z, p->max_context);
    p->at_once = p->blocks / one < p->max_seqs ? p->blocks / one : p->max_seqs;
    p->per_seq = per_seq(z, p->max_context);
    return NB_OK;
}

nb_status nb_plan_make(const char *path, const nb_plan_options *opt, nb_plan *out, nb_error *err)
{
    nb_model *m = NULL;
    int64_t longest;
    nb_plan p = {.block_tokens = NB_BLOCK};
    nb_status s = nb_model_outline(path, opt->max_rows, &m, err);
    if (s != NB_OK) return s;
    if ((s = nb_config_int(&m->cfg, "max_position_embeddings", -1, 1, INT32_MAX, &longest, err))) goto out;
    p.model_context = (size_t)longest;
    p.max_context = opt->max_context ? opt->max_context : p.model_context;
    if (p.max_context > p.model_context) {
        s = nb_fail(err, NB_ERR_LIMIT,
                    "a context of %zu tokens is more than the model's max_position_embeddings %zu",
                    p.max_context, p.model_context);
        nb_error_at(err, m->cfg.file, NULL, -1);
        nb_error_remedy(err, "--max-model-len %zu at most", p.model_context);
        goto out;
    }
    p.available = nb_plan_available("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
    p.memory = opt->memory ? opt->memory : (uint64_t)((double)p.available * opt->share);
    p.weights = nb_ckpt_bytes(m->ckpt) + m->derived_bytes + dequant_bytes(m->ckpt, opt);
    p.work = work_bytes(m, opt->max_rows);
    if (p.memory < p.weights + p.work) {
        char a[SIZE_TEXT], b[SIZE_TEXT], c[SIZE_TEXT];
        s = nb_fail(err, NB_ERR_LIMIT, "the model needs %s for weights and %s for work, and may use %s%s",
                    size_text(p.weights, a), size_text(p.work, b), size_text(p.memory, c),
                    opt->memory ? " (--memory)" : " (of what machine and cgroup have free)");
        nb_error_at(err, nb_ckpt_dir(m->ckpt), NULL, -1);
        nb_error_remedy(err, "free memory, or raise --memory if you know better");
        goto out;
    }
    sizing z = {m, {.max_seqs = opt->max_seqs, .max_rows = opt->max_rows, .prefix_cache = opt->prefix_cache}};
    s = size_cache(&z, opt, &p, err);
    if (s == NB_OK) *out = p;
out:
    nb_model_free(m);
    return s;
}

void nb_plan_print(const nb_plan *p, nb_buf *out)
{
    char a[SIZE_TEXT], b[SIZE_TEXT];
    nb_buf_addf(out, "memory: %s of the %s that are free here\n", size_text(p->memory, a),
                size_text(p->available, b));
    nb_buf_addf(out, "  weights  %s\n", size_text(p->weights, a));
    nb_buf_addf(out, "  work     %s\n", size_text(p->work, a));
    nb_buf_addf(out, "  KV cache %s: %zu blocks of %zu tokens\n", size_text(p->kv, a), p->blocks,
                p->block_tokens);
    if (p->per_seq >= 1 << 20)
        nb_buf_addf(out, "           of it %s for each of at most %zu sequences, whatever its length\n",
                    size_text(p->per_seq, a), p->max_seqs);
    nb_buf_addf(out, "longest request: %zu tokens (the model's own limit: %zu); %zu of them at once\n",
                p->max_context, p->model_context, p->at_once);
}
