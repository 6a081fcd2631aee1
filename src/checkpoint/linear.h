/*
 * "A weight decides for itself": how one linear's weight is stored is read from its sibling tensors, their dtypes and shapes,
 * never from quant_method. (docs/formats.md has the table.)
 *
 *     weight_packed U8 + weight_scale F8_E4M3 + weight_global_scale   compressed-tensors NVFP4 (global is a divisor)
 *     weight U8 + weight_scale F8_E4M3 + weight_scale_2               ModelOpt NVFP4 (multiplier)
 *     weight_packed/weight U8 or I8 + (weight_)scale E8M0 (F8_E8M0/U8) MXFP4
 *     weight F8_E4M3 + weight_scale/weight_scale_inv/scale            FP8: scalar, [N] or [N,1], or blocks; F32, BF16, E8M0
 *     weight BF16, F16, F32                                           as it is
 *
 * A linear may also be a part of a stack, one tensor with the matrices of all experts. Its module's name then says which part, as one
 * would write it in Python (half: half the output rows, those of the gate or of up):
 *
 *     STACK[3]        expert 3        STACK[3][:half]  STACK[3][half:]     the first, the second half of its rows
 *     STACK[3].T      transposed      STACK[3][0::2]   STACK[3][1::2]      the even, the odd ones; both also after .T
 *
 * where STACK is a float tensor [experts, rows, columns], or STACK_blocks U8 [experts, rows, columns / 32, 16] beside STACK_scales U8
 * [experts, rows, columns / 32]: MXFP4, never transposed.
 */
#ifndef NB_CHECKPOINT_LINEAR_H
#define NB_CHECKPOINT_LINEAR_H

#include "checkpoint/checkpoint.h"
#include "kernels/packed.h"

typedef enum nb_scheme {
    NB_SCHEME_NVFP4_CT,
    NB_SCHEME_NVFP4_MODELOPT,
    NB_SCHEME_MXFP4,
    NB_SCHEME_FP8_TENSOR,
    NB_SCHEME_FP8_CHANNEL,
    NB_SCHEME_FP8_BLOCK,
    NB_SCHEME_FLOAT,
} nb_scheme;

typedef struct nb_linear_src {
    char module[256]; /* stored module name: "model.layers.0.self_attn.q_a_proj" */
    nb_scheme scheme;
    nb_format format;
    size_t n, k;                                           /* output rows, input columns */
    const nb_tensor_info *weight, *scale, *global, *input; /* NULL when the scheme has none / it is absent */
    float
        multiplier; /* global scale as a multiplier (CT: 1/weight_global_scale; FP8 tensor: its scale); 1 otherwise */
    size_t rows_per, cols_per; /* FP8: what one scale covers */
    /* Where the rows are: row r is row first + r (gap + 1) of the tensor, all matrices of a stack under each other. With ld the
     * matrix is stored as its transpose [k, ld]: value [r, c] is element first + c ld + r (gap + 1). */
    size_t first, gap, ld;
    bool has_input; /* a static activation scale is stored */
    float
        input_gs; /* NVFP4: as the kernel's divisor-like gs (CT: as stored; ModelOpt: 1/input_scale). Values unchecked */
    float input_multiplier; /* the same scale as a multiplier: the one that is stored is kept bit for bit */
    bool to_bf16; /* false as described; a load policy sets it: use the dequantised rows, rounded to BF16 */
    /* The rest is nothing as described, and set by who follows a serving stack (doctor/trace_stack.h). */
    bool fp4_input;           /* with to_bf16: w4a4 still quantises the inputs, as an emulation does */
    const uint8_t *scale_map; /* [256]: the byte that the stack makes of each NVFP4 block scale; borrowed */
} nb_linear_src;

/* Describes the linear stored under `module`. n and k (0: not known) are what the architecture expects. A missing member is
 * NB_ERR_MISSING naming tensor, file, what was expected and the remedy; a shape or dtype that disagrees NB_ERR_FORMAT. */
nb_status nb_linear_describe(const nb_ckpt *c, const char *module, size_t n, size_t k, nb_linear_src *out,
                             nb_error *err);
/* True when any tensor that could be this module's weight exists (weight, weight_packed, or the stack that it is a part of). */
bool nb_linear_exists(const nb_ckpt *c, const char *module);
/* The length of the stack's name in the name of a part of one; 0: no such name. */
size_t nb_linear_stack(const char *module);

/* True for the last part of a tensor's name that can be a member of a linear: "weight", "weight_scale", "input_scale", … */
bool nb_linear_member(const char *last);

/* Bytes of codes and scales for `rows` rows in the form nb_pack_rows takes. */
size_t nb_linear_code_bytes(const nb_linear_src *s, size_t rows);
size_t nb_linear_scale_bytes(const nb_linear_src *s, size_t rows); /* 0: no scale stream */
/* Reads rows [row, row + rows) into codes and scales (FP8 scales expanded to F32 [rows][ceil(k/cols_per)]; a per-tensor scale
 * goes into multiplier instead, with a stream of ones). Thread-safe. */
nb_status nb_linear_read(const nb_ckpt *c, const nb_linear_src *s, size_t row, size_t rows, uint8_t *codes,
                         void *scales, nb_error *err);
/* The byte of the weight, or of the block scales, that value [row, col] is read from, from its tensor's begin on. */
uint64_t nb_linear_offset(const nb_linear_src *s, bool scale, size_t row, size_t col);
/* The scale_k that nb_packed_alloc wants for this source. */
size_t nb_linear_scale_k(const nb_linear_src *s);
/* Dequantised rows as F32 straight from the checkpoint's bytes (the doctor's view). out [rows][k]. */
nb_status nb_linear_dequantise(const nb_ckpt *c, const nb_linear_src *s, size_t row, size_t rows, float *out,
                               nb_error *err);

#endif
