"""A small safetensors reader, so that the tests judge nibble's files with other code than nibble's own."""
import json
import struct

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1",
          "F8_E4M3": "u1", "F8_E8M0": "u1", "BOOL": "u1"}


def header(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(size))
    head.pop("__metadata__", None)
    return head, 8 + size


def load(path):
    """{name: array}; BF16 comes as F32, formats that numpy lacks as bytes."""
    head, start = header(path)
    data = np.fromfile(path, np.uint8)
    out = {}
    for name, entry in head.items():
        begin, end = entry["data_offsets"]
        array = data[start + begin:start + end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        out[name] = array
    return out


def save(path, tensors):
    """F32 and I64 arrays alone."""
    head, at = {}, 0
    for name, a in tensors.items():
        head[name] = {"dtype": "I64" if a.dtype == np.int64 else "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values()))


def add_hole(path, name, size):
    """One more tensor, of size zero bytes that take no room on the disk."""
    head, start = header(path)
    data = path.read_bytes()[start:]
    head[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [len(data), len(data) + size]}
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
        f.truncate(f.tell() + size)
