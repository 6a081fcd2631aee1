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

#ifdef __cplusplus
}
#endif
#endif
