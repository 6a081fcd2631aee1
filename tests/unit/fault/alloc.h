/* Allocation failure on demand. The linker sends every malloc, calloc, realloc, aligned_alloc and strdup of the library and
 * the test here (CMakeLists.txt, --wrap); jansson is told to with fault_init. Include in one file of a test only. */
#ifndef NB_TESTS_FAULT_ALLOC_H
#define NB_TESTS_FAULT_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);

/* Atomic: the library's threads allocate too. */
static atomic_bool fault_armed, fault_fired;
static atomic_llong fault_countdown;
static atomic_size_t fault_bytes; /* that calloc was ever asked for */

/* From now on the n-th allocation (0: the next) fails, once. */
static void fault_arm(size_t n)
{
    fault_countdown = (long long)n;
    fault_fired = false;
    fault_armed = true;
}
/* No more failures; true when the one that was armed happened. */
static bool fault_disarm(void)
{
    fault_armed = false;
    return fault_fired;
}
static bool fault_now(void)
{
    if (!fault_armed || atomic_fetch_sub(&fault_countdown, 1) != 0) return false;
    fault_armed = false;
    fault_fired = true;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return fault_now() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t count, size_t n)
{
    fault_bytes += count * n;
    return fault_now() ? NULL : __real_calloc(count, n);
}
void *__wrap_realloc(void *p, size_t n)
{
    return fault_now() ? NULL : __real_realloc(p, n);
}
void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fault_now() ? NULL : __real_aligned_alloc(align, n);
}
char *__wrap_strdup(const char *s)
{
    return fault_now() ? NULL : __real_strdup(s);
}

static void fault_init(void)
{
    json_set_alloc_funcs(__wrap_malloc, free);
}

#endif
