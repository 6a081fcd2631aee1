/*
 * How much memory serving takes and what it buys: weights as the files hold them, work memory, and the rest as KV blocks. Made
 * before anything large is loaded, so that what cannot fit is said in the first second.
 */
#ifndef NB_SERVER_PLAN_H
#define NB_SERVER_PLAN_H

#include "base/buf.h"
#include "base/error.h"

typedef struct nb_plan_options {
    uint64_t memory;    /* bytes for everything; 0: share of what machine and cgroup have to give */
    double share;       /* in (0, 1] */
    uint64_t kv_bytes;  /* for the KV cache alone, instead of what is left of memory; 0: not given */
    size_t blocks;      /* KV blocks, whatever they take; 0: as many as fit */
    size_t max_context; /* tokens of the longest request; 0: the model's own */
    bool fit_context;   /* as long as fits, instead of refusing */
    size_t threads;     /* that compute; 0: as many as may */
    size_t max_seqs, max_rows;
    bool
        fit_seqs; /* fewer sequences than max_seqs where what each takes whatever its length would be most of the cache */
    bool prefix_cache;
    const char *const *dequant; /* [n_dequant] patterns of linears that become BF16 */
    size_t n_dequant;
} nb_plan_options;

typedef struct nb_plan {
    uint64_t available;         /* what machine and cgroup have to give now */
    uint64_t memory;            /* that serving may take */
    uint64_t weights, work, kv; /* bytes */
    size_t blocks, block_tokens;
    size_t max_context, model_context;
    size_t max_seqs; /* sequences that run at once */
    uint64_t
        per_seq; /* bytes of kv for each of them, whatever its length: windows, states, and the prefix cache's of both */
    size_t at_once; /* requests of max_context tokens that KV memory holds */
} nb_plan;

/* NB_ERR_LIMIT: the weights do not fit, or KV memory cannot hold one request of max_context tokens; the error names the longest
 * that fits. path: a folder or a hub id. */
nb_status nb_plan_make(const char *path, const nb_plan_options *opt, nb_plan *out, nb_error *err);
/* The plan as lines for people. */
void nb_plan_print(const nb_plan *p, nb_buf *out);

/* Bytes that may be taken: the kernel's MemAvailable, or what the cgroups named in membership (/proc/self/cgroup) have left under
 * root (/sys/fs/cgroup), whichever is smaller. 0: nobody tells. */
uint64_t nb_plan_available(const char *meminfo, const char *membership, const char *root);

#endif
