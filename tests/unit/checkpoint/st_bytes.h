/* safetensors files for tests, byte by byte: also ones that no writer would make. */
#ifndef NB_TESTS_ST_BYTES_H
#define NB_TESTS_ST_BYTES_H

#include <string.h>

#include "base/buf.h"
#include "checkpoint/safetensors.h"

/* The data of st_file: byte i. */
static inline unsigned char st_byte(size_t i)
{
    return (unsigned char)(i * 37 + 11);
}

/* Header length, header (n bytes), then `data` bytes of st_byte. Free with nb_buf_free. */
static inline nb_buf st_file_n(const char *header, size_t n, size_t data)
{
    nb_buf b = {0};
    for (int i = 0; i < 8; i++) nb_buf_addc(&b, (char)((uint64_t)n >> (8 * i)));
    nb_buf_add(&b, header, n);
    for (size_t i = 0; i < data; i++) nb_buf_addc(&b, (char)st_byte(i));
    return b;
}
static inline nb_buf st_file(const char *header, size_t data)
{
    return st_file_n(header, strlen(header), data);
}

#endif
