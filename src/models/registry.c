/* Which architectures have a forward pass. */
#include "models/model.h"

static const nb_forward *const forwards[] = {&nb_forward_llama, &nb_forward_deepseek_v4,
                                             &nb_forward_deepseek_v3};

const nb_forward *nb_forward_find(const nb_arch *names)
{
    for (size_t i = 0; i < sizeof forwards / sizeof *forwards; i++)
        if (forwards[i]->names == names) return forwards[i];
    return NULL;
}
