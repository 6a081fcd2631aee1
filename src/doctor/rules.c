/* The whole list of rules: `--rules`, `--explain`, the reports and check.c read it. */
#include "doctor/rules.h"

#include <string.h>
#include <strings.h>

/* To add a rule: its function in a rule_*.c (copy a neighbour), a line in rules.h, an entry here in order of code. */
const nb_rule nb_rules[] = {
    {"NB001", NB_SEVERITY_ERROR, false, "a safetensors file breaks its format",
     "A safetensors file is 8 bytes of header length, a JSON header, and data. The header must be UTF-8 JSON "
     "of at most 100 MB, "
     "name each tensor once, with a known dtype, a shape of whole numbers and byte offsets; sorted by offset "
     "the tensors must "
     "cover the data exactly, from its first byte to the file's last, without hole or overlap. Readers "
     "refuse anything else, "
     "because bytes that belong to no tensor or to two are how files are tampered with, and missing ones are "
     "how downloads break.\n"
     "Remedy: download or export that file again; its size and hash are on the model's page.",
     NULL},
    {"NB002", NB_SEVERITY_ERROR, false, "shards and index disagree",
     "model.safetensors.index.json says which shard holds which tensor. Errors: a shard is not in the "
     "folder, a tensor is in two "
     "shards or in another than the index says, the index names a tensor that its shard lacks or a file "
     "outside the folder, the "
     "index is not JSON. Warnings: a shard holds a tensor that the index omits (loaders that follow the "
     "index miss it), "
     "metadata.total_size is not the sum of the tensors, another safetensors file in the folder holds "
     "tensors of the same names (an older upload; some loaders read every file).\n"
     "Remedy: `hf download` fetches what is missing; `nibble repair` writes an index anew from "
     "the shards' headers where "
     "nothing can be lost: the architecture is known and finds all its tensors, each in one shard.",
     nb_rule_strays},
    {"NB003", NB_SEVERITY_ERROR, false, "a quantised linear lacks a member of its set",
     "Codes mean nothing without their scales. NVFP4 needs codes (weight_packed, or weight of U8), block "
     "scales (weight_scale) and "
     "the global scale (weight_global_scale, or weight_scale_2); MXFP4 codes and E8M0 scales; FP8 a weight "
     "and a scale. vLLM makes "
     "its parameters with torch.empty: what the file lacks stays uninitialised memory there, so the model "
     "starts and answers "
     "nonsense or NaN. nibble refuses to load it.\n"
     "Remedy: export the layer again; nothing in the file can replace a lost scale.",
     nb_rule_sets},
    {"NB004", NB_SEVERITY_ERROR, false, "shapes or dtypes of a set disagree",
     "NVFP4 codes [N, K/2] of U8 go with F8_E4M3 block scales [N, K/16], row by row, and one F32 global "
     "scale ([] and [1] are the "
     "same). Met in the wild: block scales in the 128x4 order of tensor cores (1-D, or padded to 128 rows "
     "and 4 columns; in that order at the right shape it shows in rows that are alike only when unswizzled), "
     "transposed, half as many as needed, labelled U8; codes of one tensor-parallel part; a global scale per "
     "fused shard; a global "
     "scale in BF16 (warning: readers that take four bytes for an F32 read another number).\n"
     "Remedy: swizzled, padded and mislabelled scales can be put right without data; the rest must be "
     "exported again.",
     nb_rule_shapes},
    {"NB005", NB_SEVERITY_ERROR, false, "the experts of a layer are not complete",
     "All experts of a layer must have the same projections, each with the same members. An expert that "
     "calibration never reached "
     "may lack its input scale; an interrupted export lacks whole experts. Loaders that fuse the experts "
     "fill the gap with "
     "uninitialised memory, so only prompts routed there show it. The number of experts must be the "
     "config's, and the router must have as many rows.\n"
     "Remedy: export again; a missing input scale can be filled from the layer's other experts.",
     nb_rule_experts},
    {"NB006", NB_SEVERITY_WARNING, false, "tensors that nobody reads, or names that known loaders drop",
     "Names that loaders drop without a word: block scales called .scale, expert numbers behind the "
     "projection "
     "(experts.gate_proj.3), experts fused to stacks with underscore suffixes "
     "(experts.down_proj_weight_scale), one tensor a row "
     "(.weight.weight), double scales, names without the prefix that the other layers have. Tensors of other "
     "schemes beside an "
     "NVFP4 linear (AWQ's pre_quant_scale, SVDQuant's matrices, zero points), which change the result and "
     "which no kernel applies. And, where the architecture is known, "
     "tensors that no part of it reads: leftovers, or layers beyond the config's number. Drafting (MTP) "
     "layers, vision and audio "
     "towers, KV-cache scales and rotary tables are known and never reported.\n"
     "Remedy: rename to the loader's spelling, or remove the tensor.",
     nb_rule_names},
    {"NB007", NB_SEVERITY_ERROR, false, "tensors contradict the architecture",
     "For known architectures every tensor that the forward pass needs must be there, in any of its "
     "spellings, with the shape that "
     "config.json implies (the grouped output projection of DeepSeek-V4 has heads*head_dim/o_groups "
     "columns), and router tables "
     "must name experts that exist, each once for a token (a repeated one is a warning).\n"
     "Remedy: take config.json and tensors from the same revision of the model.",
     nb_rule_arch},
    {"NB008", NB_SEVERITY_ERROR, false, "a file is a Git LFS pointer, empty, or cut",
     "A clone without Git LFS leaves text pointers of 130 bytes in place of the files; a broken download "
     "leaves empty or short "
     "ones.\n"
     "Remedy: `git lfs pull`, or `hf download`.",
     nb_rule_not_data},
    {"NB101", NB_SEVERITY_ERROR, false, "block scales are NaN",
     "An E4M3 block scale of 0x7F or 0xFF is NaN; there is no infinity. Quantisers that cast without "
     "saturating write it for values above 448 (ModelOpt 0.44: Model-Optimizer#1633). One such byte makes "
     "one row of the weight NaN, hence one column of the output, for every token, and through the next "
     "norm the whole row of activations. In an expert only tokens that are routed there are hit.\n"
     "Example: amax of a block 3.1, global scale 0.001: 3.1 / 6 / 0.001 = 517, above 464, so the cast "
     "gives 0x7F where a saturating one gives 0x7E (448).\n"
     "Remedy: `nibble repair` sets the byte to 0x7E; the error is what saturation would have cost.",
     nb_rule_scale_bytes},
    {"NB102", NB_SEVERITY_ERROR, false, "block scales have the sign bit set",
     "Codes carry the sign of a weight, block scales are positive. Emulation reads 0xB8 as -1.0 and the "
     "block changes its sign; Marlin keeps scales without a sign (S0E5M3) and reads another number; FP4 "
     "tensor cores take it as it is.\n"
     "Example: byte 0xB8 over code 2 (1.0) is -1.0; the quantiser meant 0x38 over code 10 (-1.0), or the "
     "byte was damaged.\n"
     "Remedy: `nibble repair` moves the sign into the codes.",
     NULL},
    {"NB103", NB_SEVERITY_ERROR, false, "a weight's global scale is no usable number",
     "Zero, negative, infinite, NaN, or so small that its reciprocal is infinite. A ModelOpt scale is a "
     "multiplier (amax / 2688), a compressed-tensors one a divisor (2688 / amax), so zero gives zeros in "
     "the one and infinity in the other. llm-compressor wrote infinity for weights of zeros before "
     "compressed-tensors PR 595.\n"
     "Example: weight_global_scale 0: 1 / 0 is infinity, and infinity times a zero code is NaN.\n"
     "Scales of FP8 weights that are NaN or infinite are reported here, too.\n"
     "Remedy: an expert can take the largest scale of its layer's others; anything else must be exported "
     "again.",
     nb_rule_globals},
    {"NB104", NB_SEVERITY_ERROR, false, "an input scale is no usable number",
     "What comes of it depends on the kernel. Marlin and other W4A16 kernels read no input scale: the "
     "model is fine on Hopper and broken on Blackwell. On FP4 tensor cores a stored ModelOpt scale of 0 "
     "makes the kernel's factor infinite: blocks with values come out as zero, but a block of sixteen "
     "zeros gives infinity times 0, a NaN scale, and NaN in that row. So NaN appears for some prompts "
     "only.\n"
     "Example: input_scale 0 at an expert's down projection: SwiGLU gives a block of exact zeros once in a "
     "thousand tokens, and that answer ends in '!!!!'.\n"
     "Remedy: `nibble calibrate` measures it; an expert can take the maximum of its layer's others.",
     NULL},
    {"NB105", NB_SEVERITY_ERROR, false, "linears lack the input scale that W4A4 needs",
     "vLLM makes the parameter with torch.empty; what the file lacks keeps whatever was in that memory "
     "(vllm#45212). Experts that calibration never reached are the usual case.\n"
     "Example: experts.17.down_proj has weights and block scales but no input_scale. Its memory holds 0: "
     "see NB104. On Marlin nothing is wrong.\n"
     "Remedy: experts can take the maximum of the layer's others; else `nibble calibrate`.",
     nb_rule_inputs},
    {"NB106", NB_SEVERITY_ERROR, false,
     "a global scale is the wrong way round, or does not belong to its block scales",
     "A weight multiplier above 1, or a divisor below 1, claims weights above 2688: it is the reciprocal "
     "of the right number (modular#6600). Of input scales above 1 alone nothing follows: SmolLM2's layer "
     "11 really sees 3072. They are reported when they claim more than F16 holds, when most of the file's "
     "are above 1, or when the reciprocal fits the other layers far better.\n"
     "The other way to tell: the global scale is made so that the largest block scale is 448 (256 or 384 "
     "in four-over-six files). Where the largest is far smaller, over all linears that share the scale, "
     "the scale is another's. Warnings: a weight's scale is over 100 times from its like in the other "
     "layers; most weights of the file would reach beyond 100 (amax stored as it is, 2688 forgotten).\n"
     "Example: input_scale 3977.566, where 0.00025141 = 1 / 3977.566 was meant. Quantising by 0.00025141 "
     "flushes every block below 6 * 2^-10 / 0.00025141 = 23.31 to exactly zero.\n"
     "Remedy: `nibble repair` stores the reciprocal.",
     NULL},
    {"NB107", NB_SEVERITY_ERROR, false, "linears that loaders fuse do not share their scales",
     "vLLM fuses q, k and v, gate and up, wq_a and wkv, and has one global scale for them: the largest of "
     "the stored numbers, or the gate's for experts. Block scales are not adjusted. So with multipliers "
     "the smaller ones' weights come out too large; with divisors the larger weights come out too small. "
     "Each linear by its own scale (nibble, transformers) is right. Above a ratio of 1.25 it is an error.\n"
     "Example: vllm#54974: gate 3.85e-5, up 4.83e-5: up's rows are wrong by 1.25. llm-compressor PR 1869: "
     "divisors 9600, 12992, 12160 for q, k, v: q comes out at 0.74 of its size.\n"
     "For input scales the largest divisor stands for the smallest maximum: it clips.\n"
     "Remedy: `nibble repair` gives all the largest multiplier and rescales the bytes of the rest by the "
     "ratio.",
     nb_rule_siblings},
    {"NB108", NB_SEVERITY_WARNING, false, "an input scale was never measured",
     "Exactly 1.0: an exporter that did not calibrate. 1.860e-4 (amax 0.5) on all experts of a layer: "
     "ModelOpt's fallback when none saw a token. One value for the down projections of all experts: their "
     "inputs differ, so nobody measured them; nor, where all layers, or all linears, have one value. Over "
     "100 times from its like in the other layers: damage, or "
     "one token of calibration.\n"
     "No finding: gate and up equal over the experts (llm-compressor shows every token to every expert), "
     "and down projections equal to what a clamped SwiGLU can give at most.\n"
     "Example: scale 1.0 stands for 2688; activations of 0.5 become 0.5 / 6 = 0.083 of a block scale, with "
     "three bits left.\n"
     "Remedy: `nibble calibrate`, then `nibble repair --scales`. Nothing in the file says what the value "
     "should be.",
     NULL},
    {"NB109", NB_SEVERITY_WARNING, false, "block scales are zero over codes, or reach too low for Marlin",
     "A zero scale makes its sixteen weights zero whatever the codes are. Scales below 2^-6 are subnormal "
     "in E4M3: they have lost bits, and Marlin's S0E5M3 cannot hold both them and 448: its F16 path "
     "overflows, its BF16 path drops the small ones (vLLM PR 34577).\n"
     "Example: global scale 1.0 with block scales as small as the weights, 0.002 to 0.01: bytes 0x01 to "
     "0x05, with one or two bits.\n"
     "Remedy: export again with a global scale of amax / 2688.",
     nb_rule_blocks},
    {"NB110", NB_SEVERITY_WARNING, false, "codes that no quantiser made",
     "A quantiser divides a block by its largest value over 6, so every block has a code of 6 (or of 4 in "
     "four-over-six files), unless its scale is subnormal or saturated. Random bytes reach 6 in 88 of 100 "
     "blocks only. Also: all codes zero, all the same, or blocks of zeros under scales that no producer "
     "writes there (they write 0x00, 0x20, 0x38 or 0x7E).\n"
     "Also: 4-bit integers (GPTQ, AWQ) under NVFP4's names: the codes c and 16 - c are equally frequent "
     "there, "
     "c and c + 8 in E2M1; a sample of the linears is looked at.\n"
     "Nibbles swapped within a byte leave all of this as it was, but columns change places: in a trained "
     "model "
     "their size follows the weight of the norm before the linear (correlations of 0.3 and more), and where "
     "it "
     "does so in another order only, that is said. Untrained weights show nothing.\n"
     "Example: a shard packed one byte late: block limits shift, and a third of the blocks do not reach 6.\n"
     "Remedy: download or export again.",
     nb_rule_integers},
    {"NB111", NB_SEVERITY_ERROR, false, "an input scale does not fit measured activations",
     "Only with --data or --warmup: texts run through the exact model, and each NVFP4 linear's input is "
     "quantised by its stored scale and by each row's own. An error when the output's mean cosine falls "
     "under "
     "0.993 (0.95 over fewer than four tokens) and the stored scale costs 3 dB more than the row's own (9 dB "
     "where no block saturates or "
     "vanishes): the rule of `nibble trace`. Too small a scale clips, finite; too large a one makes small "
     "blocks exactly zero. Weight-only kernels read no input scale.\n"
     "Example: the scale 0.00025141 stands for activations up to 0.676. One of 8 needs a block scale of "
     "5304, "
     "E4M3 holds 448: it comes out as 0.676, 11.8 times too small.\n"
     "Remedy: `nibble repair --data F` writes measured scales; `--dequant` keeps linears in BF16.",
     nb_rule_activations},
    {"NB112", NB_SEVERITY_ERROR, false, "NaN or infinity in a tensor that is not quantised",
     "Norms, embeddings, biases, sinks, router weights, FP8 weights. A NaN in a norm reaches every token; "
     "in a row of the embedding only prompts with that token; in one expert's bias only tokens routed "
     "there. Norms, embeddings and other matrices that hold nothing but zeros are a warning: never filled, "
     "or "
     "a download that was laid out and broke off. Router biases all beyond 10 are a warning: kernels that "
     "add the bias and take it off again in "
     "BF16 lose the score, and 0 / 0 follows (vllm#47367).\n"
     "Example: embed_tokens.weight, one value of row 128009: the model answers until somebody sends that "
     "token.\n"
     "Remedy: download the shard again, or take the tensor from the original model.",
     nb_rule_floats},
    {"NB113", NB_SEVERITY_ERROR, false, "E8M0 scales are NaN, or zero where they must not be",
     "MXFP4 scales are powers of two, 2^(byte - 127). 0xFF is NaN; 0x00 is 2^-127 and belongs to blocks of "
     "zeros. Converters that map 0xFF to infinity or 0x00 to zero hide it (TransformerEngine PR 3262).\n"
     "Example: 0xFF in one expert: NaN for tokens routed there.\n"
     "Remedy: export the tensor again.",
     NULL},
    {"NB114", NB_SEVERITY_WARNING, false, "a weight was clipped when it was quantised",
     "With a global scale that is too small the largest blocks saturate: their scales pile up at 0x7E, 448, "
     "which else "
     "the few blocks near the weight's maximum have. How many that should be is extrapolated from the scales "
     "just "
     "below, 0x79 to 0x7D; reported is a pile of ten blocks and half a percent at least that less than one "
     "healthy "
     "folder in a thousand would show.\n"
     "Example: the maximum was taken of one shard of a weight, a quarter of the whole's: its large blocks "
     "are cut to 448 * 6 * scale.\n"
     "Remedy: export the linear again with amax / 2688.",
     nb_rule_clipped},
    {"NB200", NB_SEVERITY_ERROR, false, "config.json cannot be read, or names an unknown architecture",
     "Without a config.json nothing can load the model: an error. An architecture that this build has no "
     "table for is a note: "
     "NB007 and parts of NB004 to NB006 need a table and are left out, all other rules run.\n"
     "Remedy: download config.json again. An unknown architecture needs none.",
     nb_rule_config_known},
    {"NB201", NB_SEVERITY_ERROR, false, "quantization_config is missing, unknown, or contradicts the tensors",
     "Loaders choose the layers by the config, not by the tensors. Without quantization_config (or "
     "hf_quant_config.json) codes are taken for weights; with the other flavour's quant_method the names "
     "do not fit; with FP8 over NVFP4 tensors shapes do not. quant_method fp8 over NVFP4 experts is how "
     "DeepSeek-V4 is published: a note.\n"
     "Example: quant_method gptq over weight_packed tensors: vLLM looks for qweight and finds none.\n"
     "Remedy: `nibble repair` writes what the tensors say.",
     nb_rule_quant_method},
    {"NB202", NB_SEVERITY_ERROR, false, "the lists of modules and the tensors disagree",
     "ignore and exclude_modules say what is not quantised, targets what is. Errors: a linear on the list "
     "is quantised (vllm#45102); a float linear is not on the list (vllm#44087); an entry lacks the prefix "
     "of the tensors' names (sglang PR 9712); no target fits a quantised linear; of linears that loaders "
     "fuse some are left out (sglang#36596). A warning: an entry that matches nothing.\n"
     "Matching: compressed-tensors: the exact name, or `re:` and a pattern that must match from the start. "
     "ModelOpt: the exact name, a part of it, or a wildcard.\n"
     "Example: ignore says layers.3.mlp.down_proj, the tensor is model.layers.3.mlp.down_proj.weight: the "
     "layer is made in NVFP4 and loading fails.\n"
     "Remedy: `nibble repair` writes the lists anew.",
     nb_rule_ignore},
    {"NB203", NB_SEVERITY_ERROR, false, "the config describes a scheme that loaders do not accept",
     "vLLM takes NVFP4 of compressed-tensors only with strategy tensor_group, type float, 4 bits, "
     "group_size 16, symmetric; MXFP4 with strategy group and 32. The top-level format must be the "
     "groups', or mixed-precision (vllm PR 55367). ModelOpt: a known quant_algo; hf_quant_config.json with "
     "group_size, kv_cache_quant_algo and exclude_modules. input_activations.dynamic false is a warning: "
     "it asks for block scales of activations, which are not stored (\"local\" is meant).\n"
     "Example: strategy \"group\" with group_size 16 (vllm#19853): no scheme is found.\n"
     "Remedy: `nibble repair` writes what the tensors say.",
     nb_rule_scheme},
    {"NB204", NB_SEVERITY_ERROR, false, "config groups overlap",
     "Two groups claim one linear in two formats. Which one wins depends on the loader: the first, or the "
     "more specific.\n"
     "Example: group_0 targets Linear in NVFP4, group_9 re:.*down_proj$ in FP8, and down_proj is NVFP4 in "
     "the file.\n"
     "Remedy: one group a linear; `nibble repair` writes it so.",
     nb_rule_overlap},
    {"NB205", NB_SEVERITY_ERROR, false, "tie_word_embeddings contradicts the head",
     "True with a head that differs from the embedding: the head is passed over and all logits are wrong. "
     "False without a head: it keeps uninitialised memory (vllm#48238). A head that equals the embedding "
     "may stay.\n"
     "Example: a re-saved config of a model with lm_head gets transformers' default, true.\n"
     "Remedy: set the key to what the file has.",
     nb_rule_tied},
    {"NB206", NB_SEVERITY_WARNING, false, "linears do not divide for this tensor-parallel size",
     "Only with --tp N. A part must hold whole blocks: multiples of 16 at least; kernels want more and pad "
     "or refuse: 32 rows and columns for W4A4, 64 rows for Marlin, 128 in MXFP4 experts.\n"
     "Example: moe_intermediate_size 704 over 8 GPUs: 88 rows each, five and a half blocks.\n"
     "Remedy: a smaller --tp, or expert or pipeline parallelism.",
     nb_rule_parallel},
    {"NB207", NB_SEVERITY_WARNING, false, "drafting layers and config disagree",
     "num_nextn_predict_layers names drafting (MTP) layers that the file lacks, or the config leaves "
     "layers out that are quantised. Without speculative decoding nothing reads them.\n"
     "Example: num_nextn_predict_layers 1 in a file that was exported without mtp.*: vLLM with "
     "--speculative-config fails at loading.\n"
     "Remedy: set the number to 0, or add the layers.",
     nb_rule_draft_config},
    {"NB208", NB_SEVERITY_WARNING, false, "KV-cache scales are missing, no multipliers, or unnamed",
     "k_scale and v_scale are multipliers (amax / 448), stored under k_proj and v_proj (ModelOpt) or "
     "beside them (compressed-tensors). Warnings: an algorithm is named and some layers lack one; one is "
     "zero, negative, not finite or above 100; scales are stored and no algorithm is named (sglang PR "
     "35455). Where none is stored loaders take 1.\n"
     "Example: k_scale 0: every key becomes infinite when it is divided by it.\n"
     "Remedy: name the algorithm, or remove or measure the scales.",
     nb_rule_kv},
    {"NB209", NB_SEVERITY_WARNING, false, "config.json and hf_quant_config.json disagree",
     "Some loaders read one, some the other: algorithm, group size, KV cache and the list of modules left "
     "out must be the same.\n"
     "Example: hf_quant_config.json says W4A16_NVFP4, config.json NVFP4: TensorRT-LLM runs it weight-only, "
     "vLLM quantises activations.\n"
     "Remedy: `nibble repair` writes both.",
     nb_rule_configs_agree},
    {"NB210", NB_SEVERITY_WARNING, false,
     "tokenizer, generation config or chat template are missing or do not fit",
     "No tokenizer file; tokenizer.json cut off; ids beyond vocab_size (the embedding has no row for "
     "them); eos_token_id beyond the vocabulary (answers never end); a chat template whose blocks do not "
     "close.\n"
     "Example: an added token with id 32007 where vocab_size is 32000: the first prompt with it reads "
     "beyond the embedding.\n"
     "Remedy: take the files from the original model.",
     nb_rule_tokenizer},
    {"NB211", NB_SEVERITY_ERROR, false, "a weight-only file is labelled W4A4",
     "The config says that activations are quantised, and no linear has an input scale. vLLM makes the "
     "parameters and never fills them (vllm#54189). Read as W4A16 the file is fine.\n"
     "Example: quant_algo NVFP4 where the exporter ran with W4A16_NVFP4.\n"
     "Remedy: `nibble repair` writes weight-only into the config; or `nibble calibrate` and store the "
     "scales.",
     NULL},
    {"NB212", NB_SEVERITY_ERROR, true, "config.json lacks a key that the architecture needs",
     "Configs that llm-compressor or transformers saved again often lack keys of the release (DeepSeek-V4: "
     "compress_ratios or "
     "layer_types, num_hash_layers or mlp_layer_types), or hold values that cannot be.\n"
     "Remedy: copy the keys from the original model's config.json.",
     nb_rule_config_keys},
};
const size_t nb_rules_count = sizeof nb_rules / sizeof *nb_rules;

const nb_rule *nb_rule_find(const char *code)
{
    for (size_t i = 0; i < nb_rules_count; i++) {
        if (strcasecmp(nb_rules[i].code, code) == 0) return &nb_rules[i];
    }
    return NULL;
}
