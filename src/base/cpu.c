/* CPU features by cpuid, and how many CPUs we may really use. In a container nproc tells of the host's cores; a pool that
 * large under a quota of two spends its time being throttled, so the quota counts as much as the affinity mask. */
#include "base/cpu.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* XCR0: which register files the operating system saves. */
static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool bit(uint32_t word, unsigned n)
{
    return word >> n & 1;
}

static void detect(nb_cpu *out)
{
    uint32_t a, b, c, d;
    if (__get_cpuid(0x80000004, &a, &b, &c, &d)) {
        uint32_t brand[12];
        for (unsigned i = 0; i < 3; i++)
            __cpuid(0x80000002 + i, brand[4 * i], brand[4 * i + 1], brand[4 * i + 2], brand[4 * i + 3]);
        memcpy(out->model, brand, sizeof brand);
    }
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return; /* OSXSAVE */
    bool fma = bit(c, 12), f16c = bit(c, 29), avx = bit(c, 28);
    uint64_t saved = xcr0();
    bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xE6) == 0xE6, tiles = (saved & 0x60000) == 0x60000;
    if (!avx || !ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    uint32_t subleaves = a;
    out->avx2 = bit(b, 5) && fma && f16c;
    out->avx512 = out->avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
    out->avx512_vnni = out->avx512 && bit(c, 11);
    out->amx_bf16 = tiles && bit(d, 22) && bit(d, 24);
    out->amx_int8 = tiles && bit(d, 25) && bit(d, 24);
    if (subleaves < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return;
    out->avx_vnni = out->avx2 && bit(a, 4);
    out->avx512_bf16 = out->avx512 && bit(a, 5);
}
#else
static void detect(nb_cpu *out)
{
}
#endif

void nb_cpu_detect(nb_cpu *out)
{
    memset(out, 0, sizeof *out);
    detect(out);
}

/* The first line of root/group/name; false when there is no such file. */
static bool first_line(const char *root, const char *group, const char *name, char *line, size_t cap)
{
    char path[1400];
    if (snprintf(path, sizeof path, "%s%s/%s", root, group, name) >= (int)sizeof path) return false;
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool ok = fgets(line, (int)cap, f) != NULL;
    fclose(f);
    return ok;
}

/* The number at *p, moving *p behind it; -1 for anything else ("max"). */
static long long number(char **p)
{
    char *end;
    long long v = strtoll(*p, &end, 10);
    if (end == *p) return -1;
    *p = end;
    return v;
}

/* Whole CPUs of one group's directory, 0 without a limit. */
static size_t quota_of(const char *root, const char *group, bool v2)
{
    char text[64], *p = text;
    if (!first_line(root, group, v2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text)) return 0;
    long long quota = number(&p);
    if (!v2) {
        p = text;
        if (!first_line(root, group, "cpu.cfs_period_us", text, sizeof text)) return 0;
    }
    long long period = number(&p);
    if (quota <= 0 || period <= 0) return 0;
    return (size_t)(quota / period + (quota % period != 0));
}

static size_t smaller_limit(size_t a, size_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* True when the comma-separated list of controllers holds "cpu". */
static bool has_cpu(const char *list, size_t n)
{
    for (const char *p = list, *end = list + n; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        size_t len = (size_t)((comma ? comma : end) - p);
        if (len == 3 && memcmp(p, "cpu", 3) == 0) return true;
        p += len + 1;
    }
    return false;
}

size_t nb_cgroup_cpus(const char *membership, const char *root)
{
    FILE *f = fopen(membership, "r");
    if (!f) return 0;
    char line[1024];
    size_t limit = 0;
    while (fgets(line, sizeof line, f)) { /* hierarchy:controllers:path */
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        bool v2 = path == list + 1;
        if (!v2 && !has_cpu(list + 1, (size_t)(path - list - 1))) continue;
        char group[1100];
        snprintf(group, sizeof group, "%s%s", v2 ? "" : "/cpu", path + 1);
        size_t base = v2 ? 0 : strlen("/cpu"); /* the mount point itself */
        for (;;) {
            limit = smaller_limit(limit, quota_of(root, group, v2));
            char *slash = strrchr(group + base, '/');
            if (!slash) break;
            *slash = '\0';
        }
    }
    fclose(f);
    return limit;
}

/* What t has of something, cut to the quota. A kernel that does not tell its CPUs has one for us. */
static size_t within_quota(size_t n)
{
    return smaller_limit(n ? n : 1, nb_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup"));
}

size_t nb_cpu_allowed(const nb_topology *t)
{
    return within_quota(t->n);
}

size_t nb_cpu_threads(const nb_topology *t)
{
    return within_quota(t->cores);
}
