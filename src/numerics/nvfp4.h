/*
 * NVFP4 blocks: what a GPU kernel does to 16 activations, and what the tools do to a weight matrix. Steps and their
 * order are normative (docs/formats.md); vectors in tests/fixtures/numerics and the checkpoints' own bytes.
 */
#ifndef NB_NUMERICS_NVFP4_H
#define NB_NUMERICS_NVFP4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NB_NVFP4_BLOCK 16
#define NB_NVFP4_RANGE 2688.0f /* 448 * 6 */

typedef enum nb_act_kernel {
    NB_ACT_CUTLASS,    /* vLLM scaled_fp4_quant: a zero scale byte gives codes 0 */
    NB_ACT_FLASHINFER, /* the test is amax != 0: under a zero scale byte codes are +-6 */
    /* vLLM's Python reference (nvfp4_emulation_utils.py, ref_nvfp4_quant): a NaN in a block makes the block NaN, reciprocals
     * of 0 are 1e-8. Rows only: a NaN element has no code. */
    NB_ACT_EMULATION,
} nb_act_kernel;

/* Quantises one block of 16 activations with the divisor-like global scale gs (1/input_scale of ModelOpt,
 * input_global_scale of compressed-tensors): *scale is the E4M3 byte, codes the 8 packed bytes, low nibble first.
 * vLLM csrc/quantization/fp4/nvfp4_utils.cuh, cvt_warp_fp16_to_fp4; flashinfer quantization_utils.cuh. */
void nb_nvfp4_quantise_block(const float x[16], float gs, nb_act_kernel kernel, bool saturate, uint8_t *scale,
                             uint8_t codes[8]);

/* Quantises a row of k activations (k % 16 == 0) and writes back code * block scale, WITHOUT the global scale:
 * a product with these and the weights' code * block scale is multiplied by alpha at the end, as the GPU does.
 * Products of two such values are exact in F32. x and out may be the same. */
void nb_nvfp4_quantise_row(const float *x, size_t k, float gs, nb_act_kernel kernel, bool saturate,
                           float *out);

/* The divisor-like global scale of one live row (w4a4-dynamic): 2688 / amax, 1 for a row of zeros. */
float nb_nvfp4_row_scale(const float *x, size_t k);

/* Weight quantisers, plain nearest rounding. codes [n][k/2], scales [n][k/16]; k % 16 == 0. *global is the number
 * that the flavour stores (ModelOpt: multiplier amax/2688; compressed-tensors: divisor 2688/amax); shared_amax > 0
 * replaces the matrix's own amax (fused siblings share one). NVIDIA Model-Optimizer
 * qtensor/nvfp4_tensor.py (F32 throughout); llm-compressor / compressed-tensors quantization/utils/helpers.py with
 * the observer in BF16 when bf16_observer is set. */
void nb_nvfp4_quantise_modelopt(const float *w, size_t n, size_t k, float shared_amax, uint8_t *codes,
                                uint8_t *scales, float *global);
void nb_nvfp4_quantise_ct(const float *w, size_t n, size_t k, float shared_amax, bool bf16_observer,
                          uint8_t *codes, uint8_t *scales, float *global);

/* Dequantises: e2m1 * e4m3 * multiplier, rows of k values into out [n][k]. */
void nb_nvfp4_dequantise(const uint8_t *codes, const uint8_t *scales, float multiplier, size_t n, size_t k,
                         float *out);

/* MXFP4, groups of 32 under E8M0: dequantise, and quantise with compressed-tensors' rule (docs/formats.md). */
void nb_mxfp4_dequantise(const uint8_t *codes, const uint8_t *scales, size_t n, size_t k, float *out);
void nb_mxfp4_quantise(const float *w, size_t n, size_t k, uint8_t *codes, uint8_t *scales);

/* FP8 E4M3 with F32 scale multipliers: scale[(row / rows_per) * scale_cols + col / cols_per]. Per tensor:
 * rows_per = n, cols_per = k; per channel: 1, k; block: 128, 128. The quantiser computes scale = amax/448. */
void nb_fp8_dequantise(const uint8_t *w, const float *scale, size_t n, size_t k, size_t rows_per,
                       size_t cols_per, float *out);
void nb_fp8_quantise(const float *w, size_t n, size_t k, size_t rows_per, size_t cols_per, uint8_t *codes,
                     float *scale);

/* Byte offset of block scale (row m, block column kb) in the 128x4 order of tensor-core layouts, where the matrix
 * has kblocks block columns. vLLM nvfp4_utils.py swizzle_blockscale. */
size_t nb_swizzle_offset(size_t m, size_t kb, size_t kblocks);

#endif
