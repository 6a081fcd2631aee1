/* Any bytes as a safetensors file: no crash, no over-read, no hang; and what is accepted keeps the format's promises. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nb_safetensors *s = NULL;
    nb_error e;
    if (nb_safetensors_parse("fuzz", (const char *)data, size, size, &s, &e) != NB_OK) {
        require(!s && e.status != NB_OK && e.cause[0]);
        return 0;
    }
    uint64_t at = 0;
    for (size_t i = 0; i < nb_safetensors_count(s); i++) {
        const nb_tensor_info *t = nb_safetensors_at(s, i);
        char shape[64];
        require(i == 0 || t->begin == at); /* tensors tile the data */
        require(t->begin >= 10 && t->begin <= t->end && t->end <= size);
        require(nb_tensor_elements(t) * nb_dtype_bits(t->dtype) == (t->end - t->begin) * 8);
        require(nb_safetensors_find(s, t->name) == t);
        require(strlen(nb_tensor_shape_text(t, shape, sizeof shape)) < sizeof shape);
        at = t->end;
    }
    require(!at || at == size);
    nb_safetensors_close(s);
    return 0;
}
