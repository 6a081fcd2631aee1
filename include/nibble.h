/*
 * nibble: serves NVFP4 checkpoints on the hardware people have, and never returns a NaN.
 *
 * This is the whole public C API. Rules that hold for every function:
 *   - It returns an nb_status and, on failure, fills *err (which may be NULL) with the file, the tensor, the
 *     byte offset, the cause and the remedy. On failure output parameters are left NULL or untouched.
 *   - It never exits, never prints, and keeps no global state. Long work reports through callbacks.
 *   - Strings are UTF-8 and NUL-terminated unless a length is given. Sizes are in bytes unless stated.
 *   - "Owned by X" means X frees it; everything made by nb_*_open or nb_*_new is freed by its _close/_free.
 *
 * Copyright 2026 the nibble authors. Apache-2.0.
 */
#ifndef NIBBLE_H
#define NIBBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NB_API __attribute__((visibility("default")))

typedef enum nb_status {
    NB_OK = 0,
    NB_ERR_NOMEM,       /* an allocation failed, or a size does not fit the machine */
    NB_ERR_IO,          /* the operating system refused or cut short a read or write */
    NB_ERR_FORMAT,      /* bytes that break their format's rules */
    NB_ERR_MISSING,     /* a file, tensor, scale or config key that is needed and absent */
    NB_ERR_UNSUPPORTED, /* well formed, but something this build does not do */
    NB_ERR_ARGUMENT,    /* the caller asked for something meaningless */
    NB_ERR_LIMIT,       /* a configured limit (context length, KV memory) would be passed */
    NB_ERR_CANCELLED,   /* a callback asked to stop */
    NB_ERR_BUSY,        /* a queue is full or the service is stopping: try again later */
} nb_status;

/* What went wrong. A plain value of fixed size, so that it can be filled when memory is out. */
typedef struct nb_error {
    nb_status status;
    int64_t offset;   /* byte offset in file, -1 when there is none */
    char file[256];   /* the file at fault, "" when there is none; long paths keep their end */
    char tensor[256]; /* the tensor or module at fault, "" when there is none */
    char cause[512];  /* what was found and what was expected */
    char remedy[320]; /* what to do about it, "" when nothing sensible can be said */
} nb_error;

/* A short English name of a status ("out of memory"). Static storage, never NULL. */
NB_API const char *nb_status_name(nb_status s);

/* Writes err as one line "file: tensor at byte N: cause; remedy" into buf (cap bytes, always terminated).
 * Returns the length that the whole line has, like snprintf. */
NB_API size_t nb_error_format(const nb_error *err, char *buf, size_t cap);

/* ---- Models ---- */

typedef enum nb_log_level { NB_LOG_DEBUG, NB_LOG_INFO, NB_LOG_WARN, NB_LOG_ERROR } nb_log_level;

/* How the library talks while it works. Every member may be NULL. Borrowed for as long as the object made with it lives. */
typedef struct nb_sink {
    /* One finished line without a newline, from any thread. */
    void (*log)(void *ctx, nb_log_level level, const char *line);
    /* Progress of one named piece of work in bytes (or items), from one thread at a time; done == total ends it. */
    void (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *ctx;
} nb_sink;

/* How the inputs of quantised linears are treated. Within one arithmetic each output depends on its own row and the weights
 * alone: batch, chunking and threads never change a bit. */
typedef enum nb_arith {
    NB_ARITH_EXACT,        /* F32 as they are */
    NB_ARITH_BF16,         /* rounded to BF16 */
    NB_ARITH_INT8,         /* int8, one scale per 16, for FP4 weights; the rest as BF16 */
    NB_ARITH_W4A4,         /* NVFP4 with the checkpoint's static scale, step by step as the GPU kernel */
    NB_ARITH_W4A4_DYNAMIC, /* NVFP4 with each row's own scale */
    NB_ARITH_COUNT
} nb_arith;

/* "exact", "bf16", "int8", "w4a4", "w4a4-dynamic". Static storage. */
NB_API const char *nb_arith_name(nb_arith a);

typedef struct nb_llm_options {
    /* 0: one a physical core, as far as affinity and cgroup allow. The caller is one of them, and needs 2 MiB of stack. */
    size_t threads;
    /* NULL or "auto": the best this machine has; else the table of that name: "generic" (the plain references), "avx2", "avxvnni",
     * "avx512", "avx512bf16", "amx". */
    const char *kernels;
    nb_arith arith;
    bool act_bf16;      /* round what passes between operators to BF16 */
    bool quant_bf16;    /* round what the NVFP4 quantiser receives to BF16, as the GPU kernels' input is */
    size_t max_context; /* tokens of prompt and answer; 0: what the model allows, at most 8192 */
    size_t max_rows;    /* tokens computed at once; 0: 512 */
    /* Where w4a4 takes the inputs' scales from: NULL or "checkpoint", "warmup" (measured on built-in prompts while opening),
     * "dynamic" (each live row), or a file that nibble calibrate wrote. */
    const char *scales;
    const char *const *dequant; /* [n_dequant] globs on module names: these linears are loaded as BF16 */
    size_t n_dequant;
    /* A file that keeps the packed weights for the next start: read where it fits the model and the options above, else written. "auto":
     * nibble-packed.cache in the model's folder. NULL: none. */
    const char *packed_cache;
    nb_sink sink;
} nb_llm_options;

/* A loaded model with its tokenizer and chat format. One call at a time. */
typedef struct nb_llm nb_llm;

/* path: a model folder, or a hub id "org/name[@revision]" in the local cache. Owned by the caller; nb_llm_close frees. */
NB_API nb_status nb_llm_open(const char *path, const nb_llm_options *options, nb_llm **out, nb_error *err);
/* Frees everything that nb_llm_open took. m may be NULL. */
NB_API void nb_llm_close(nb_llm *m);

typedef struct nb_llm_facts {
    const char *architecture; /* valid while the model is open */
    const char *kernels;
    int64_t layers;
    size_t vocab, max_context, threads;
    uint64_t weight_bytes, kv_bytes;
    uint64_t format_bytes[6]; /* packed bytes in NVFP4, MXFP4, FP8, BF16, F16, F32 */
} nb_llm_facts;
/* What was loaded, and the memory that it took in bytes. Cannot fail. */
NB_API void nb_llm_describe(const nb_llm *m, nb_llm_facts *out);

/* Renders a chat request, JSON {"messages": [...], "tools"?, "add_generation_prompt"?, "chat_template_kwargs"?}, to the prompt text
 * of the model's format: the chat template of its folder, or DeepSeek-V4's own encoding. NB_ERR_MISSING when it has none. The caller
 * frees *prompt with free(). */
NB_API nb_status nb_llm_render_chat(const nb_llm *m, const char *request, char **prompt, nb_error *err);

/* Text (n bytes; special tokens in it are recognised) to ids; the caller frees *ids with free(). */
NB_API nb_status nb_llm_tokenize(nb_llm *m, const char *text, size_t n, bool add_special, uint32_t **ids,
                                 size_t *n_ids, nb_error *err);

typedef struct nb_sampling {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* in (0, 1]; 1: off */
    float min_p;       /* in [0, 1]; 0: off */
    uint64_t seed;
} nb_sampling;

typedef struct nb_generation {
    size_t prompt_tokens, output_tokens; /* the end token is not counted */
    bool stopped;                        /* by an end token; else by max_tokens or the context's end */
    double prefill_seconds, decode_seconds;
} nb_generation;

/* Answers a prompt of n ids, at least one. text gets each piece as soon as its characters are whole (n bytes of UTF-8, never an
 * incomplete character); returning false stops with NB_ERR_CANCELLED. max_tokens 0: up to the context's end. Non-finite logits
 * are NB_ERR_FORMAT, never text. *result is filled even then. */
NB_API nb_status nb_llm_generate(nb_llm *m, const uint32_t *ids, size_t n, const nb_sampling *sampling,
                                 size_t max_tokens, bool (*text)(void *ctx, const char *piece, size_t n),
                                 void *ctx, nb_generation *result, nb_error *err);

#ifdef __cplusplus
}
#endif
#endif
