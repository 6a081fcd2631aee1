/* Which architectures have a forward pass. */
#include "models/model.h"

static const nb_forward *const forwards[] = {
    &nb_forward_deepseek_v3, &nb_forward_deepseek_v4, &nb_forward_gemma3,     &nb_forward_gemma4,
    &nb_forward_glm4_moe,    &nb_forward_gpt_oss,     &nb_forward_llama,      &nb_forward_minimax_m2,
    &nb_forward_mistral,     &nb_forward_mixtral,     &nb_forward_nemotron_h, &nb_forward_phi3,
    &nb_forward_qwen2,       &nb_forward_qwen2_moe,   &nb_forward_qwen3,      &nb_forward_qwen3_moe,
    &nb_forward_qwen3_next,
};

const nb_forward *nb_forward_find(const nb_arch *names)
{
    for (size_t i = 0; i < sizeof forwards / sizeof *forwards; i++)
        if (forwards[i]->names == names) return forwards[i];
    return NULL;
}
