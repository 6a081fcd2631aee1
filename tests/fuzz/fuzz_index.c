/* Any text as model.safetensors.index.json, and its names against the tables: no crash, no over-read, no hang. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/arch.h"
#include "checkpoint/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nb_index x = {0};
    nb_error e;
    if (nb_index_parse("fuzz", (const char *)data, size, &x, &e) != NB_OK) {
        require(!x.entries && e.status != NB_OK && e.cause[0]);
        return 0;
    }
    for (size_t i = 0; i < x.count; i++) {
        const nb_index_entry *t = &x.entries[i];
        uint32_t found;
        require(t->file < x.n_files);
        require(nb_map_get(&x.by_name, t->name, strlen(t->name), &found) && found == i);
        nb_index_plain_name(x.files[t->file]);
        for (const nb_arch *const *a = nb_archs; *a; a++) {
            const nb_config cfg = {.arch = *a};
            int64_t l, expert;
            bool skipped;
            const nb_arch_tensor *row = nb_arch_identify(&cfg, t->name, &l, &expert, &skipped);
            require(l >= -1 && expert >= -1 && !(row && skipped));
        }
    }
    for (size_t i = 1; i < x.n_files; i++) require(strcmp(x.files[i - 1], x.files[i]) < 0);
    nb_index_free(&x);
    return 0;
}
