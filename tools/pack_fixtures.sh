#!/usr/bin/env bash
# Packs the project's test data into tests/fixtures/archives, one archive a group, each below 3 MiB. Run by hand when the
# data changes; tools/unpack_fixtures.sh is its reverse. Checkpoints that were made from the same weights stand in the same
# archive, one after another, because xz then stores what they share once.
#
#     tools/pack_fixtures.sh FOLDER       FOLDER holds models/ demo/ numerics/ tokenizers/ templates/
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 64; }
from=$(realpath "$1")
cd "$(dirname "$0")/.."
to=$PWD/tests/fixtures/archives
mkdir -p "$to"

# pack NAME PATH...: the same bytes for the same data, whoever packs them and when.
pack() {
    local name=$1
    shift
    (cd "$from" && tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime='2026-01-01 00:00Z' \
        --mode='u+rwX,go+rX,go-w' "$@") | xz -9e >"$to/$name.tar.xz"
    local bytes
    bytes=$(stat -c %s "$to/$name.tar.xz")
    printf '%-18s %8d bytes\n' "$name" "$bytes"
    [ "$bytes" -le $((3 << 20)) ] || { echo "$name is over 3 MiB: split the group" >&2; exit 1; }
}

pack numerics numerics
pack tokenizers tokenizers/demo $(cd "$from" && echo tokenizers/syn-*)
pack templates templates/deepseek_v4/cases.json
# The compressed-tensors flavour of the demo model is models/demo; here is only what lies beside it.
pack demo-1 demo/samples.jsonl demo/compressed-tensors/{activations.json,calibration.jsonl,verdicts.json} \
    $(cd "$from" && echo demo/modelopt/*.json* demo/modelopt/model-00002*)
pack demo-2 demo/modelopt/model-00001-of-00002.safetensors
pack llama-1 models/llama_{bf16,fp8_block,fp8_channel,mixed,tied_ct}
pack llama-2 models/llama_{ct,llmcompressor,lm_head,modelopt,modelopt_export,nvfp4a16}
pack deepseek_v3 models/deepseek_v3_{ct,modelopt} models/deepseek_v32_ct
pack deepseek_v2 models/deepseek_v2_lite_modelopt
pack glm-latent models/{glm4_moe_lite,glm_moe_dsa}_modelopt
pack deepseek_v4-1 models/deepseek_v4_{bf16,modelopt,mxfp4}
pack deepseek_v4-2 models/deepseek_v4_{ct,ct_nvfp4_attn,llmcompressor,nvfp4a16}
pack qwen3 models/qwen3_{bf16,ct,modelopt,nvfp4a16}
pack qwen3_moe models/qwen3_moe_{bf16,ct,llmcompressor,modelopt,modelopt_export,nvfp4a16}
pack qwen2-mistral models/{qwen2_ct,mistral_modelopt,mixtral_ct,phi3_ct}
pack minimax-glm4 models/{minimax_m2_modelopt,glm4_moe_ct}
pack qwen3_next models/{qwen3_next_ct,qwen3_5_ct,qwen3_5_moe_modelopt}
pack nemotron_h models/nemotron_h_{modelopt,latent_ct}
pack gemma models/{gemma3_modelopt,gemma4_modelopt,gemma4_moe_ct,gemma4_ple_modelopt}
pack gpt_oss models/gpt_oss_{bf16,mxfp4}
