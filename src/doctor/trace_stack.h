/*
 * What a serving stack makes of a linear when it loads and runs it: which scales it reduces over fused shards and experts, what an
 * absent input scale becomes, what its kernels can hold. The rules are those of docs/formats.md (vLLM's loaders, its Marlin and
 * emulation paths; llama.cpp's reader); a forward pass with them is trace.h's business.
 */
#ifndef NB_DOCTOR_TRACE_STACK_H
#define NB_DOCTOR_TRACE_STACK_H

#include "checkpoint/arch.h"
#include "nibble.h"
#include "numerics/nvfp4.h"

typedef enum nb_stack {
    NB_STACK_NONE,            /* nibble itself: each linear by its own scales */
    NB_STACK_VLLM_CUTLASS,    /* W4A4 on FP4 tensor cores, one input scale an expert */
    NB_STACK_VLLM_FLASHINFER, /* the same, one input scale for all experts of a layer */
    NB_STACK_VLLM_MARLIN,     /* W4A16: input scales are not read */
    NB_STACK_VLLM_EMULATION,  /* W4A4 in Python: weights dequantised to BF16 */
    NB_STACK_LLAMA_CPP,       /* W4A16, each linear by its own scales */
    NB_STACK_COUNT
} nb_stack;

const char *nb_stack_name(nb_stack s);               /* "vllm-cutlass"; NULL for NB_STACK_NONE */
bool nb_stack_find(const char *name, nb_stack *out); /* false: no such stack */

/* How a scale came to be what the stack uses. */
typedef struct nb_stack_scale {
    float value; /* as a multiplier; for an input also below as gs */
    float gs;
    const nb_tensor_info *from; /* the tensor whose value won; NULL: none is stored */
    char missing[288]; /* the tensor that is not there, and whose place nobody fills; "" when all are */
    bool reduced;      /* another shard's or expert's than its own */
} nb_stack_scale;

typedef struct nb_stack_view {
    nb_stack_scale weight, input;
    bool has_input;           /* the stack quantises this linear's input with a static scale */
    const uint8_t *scale_map; /* NULL: block scales are read as they are */
} nb_stack_view;

/* One load. Zero-initialise, set `stack`, call nb_stack_begin. Used by one thread. */
typedef struct nb_stack_load {
    nb_stack stack;
    bool w4a4; /* the stack quantises activations, and the checkpoint is not weight-only */
    bool weight_only;
    uint8_t llama_map[256], marlin_map[4][256];
    /* The last reduction over a layer's experts: they come one after the other. */
    const nb_arch_tensor *memo_row;
    int64_t memo_layer;
    nb_stack_scale memo_input;
    unsigned memo_shift;
} nb_stack_load;

void nb_stack_begin(nb_stack_load *s, const nb_ckpt *c);

/* What becomes of the linear src (as nb_linear_describe gave it), row of the architecture's table at a layer and expert (-1:
 * none). row NULL: an unknown architecture, siblings are not known. Only NVFP4 linears are changed. */
nb_status nb_stack_look(nb_stack_load *s, const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *row,
                        int64_t layer, int64_t expert, const nb_linear_src *src, nb_stack_view *out,
                        nb_error *err);
/* The same written into src, for nb_load_options.adjust. */
nb_status nb_stack_adjust(nb_stack_load *s, const nb_ckpt *c, const nb_config *cfg, const nb_arch_tensor *row,
                          int64_t layer, int64_t expert, nb_linear_src *src, nb_error *err);

/* The arithmetic and the quantiser that the stack runs with. */
nb_arith nb_stack_arith(const nb_stack_load *s);
nb_act_kernel nb_stack_kernel(const nb_stack_load *s);

#endif
