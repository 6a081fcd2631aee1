#!/usr/bin/env python3
"""Makes the fault that nibble began with: attention input scales 11.84 times too small. For ./dev demo; standard library alone.

    python3 tools/break_attention.py IN OUT      IN: a compressed-tensors folder with one model.safetensors

input_global_scale is a divisor, so a scale that claims too small a range is too large a number. break.py (tests/fixtures/tools)
makes this fault and some 150 others, in both flavours."""
import json
import pathlib
import re
import shutil
import struct
import sys

FACTOR = 11.84


def main(source, target):
    if not (pathlib.Path(source) / "model.safetensors").is_file():
        return f"{source} has no model.safetensors: give a compressed-tensors folder with one file"
    if pathlib.Path(target).exists():
        return f"{target} exists: remove it, or name another folder"
    shutil.copytree(source, target)
    path = pathlib.Path(target) / "model.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    changed = 0
    for name, entry in header.items():
        if not re.search(r"\.self_attn\.\w+\.input_global_scale$", name):
            continue
        at = 8 + length + entry["data_offsets"][0]
        struct.pack_into("<f", data, at, struct.unpack_from("<f", data, at)[0] * FACTOR)
        changed += 1
    path.write_bytes(data)
    return 0 if changed else f"{source} has no self_attn input_global_scale"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 3 else __doc__)
