#!/usr/bin/env python3
"""Rows of `nibble trace --format json` from a running torch model (transformers, vLLM), for `nibble diff OURS THEIRS`.

A stack that answers NaN or nonsense can be compared operator by operator with nibble's reference: run the same prompt here and
in `nibble trace`, and `nibble diff` names the first row that differs. In a program that holds the model:

    from torch_taps import Taps
    with Taps(model) as taps:
        model(ids)
    taps.write("theirs.json")

From the shell, for a folder that transformers can load:

    python3 tools/torch_taps.py FOLDER --ids '[0, 17, 42]' -o theirs.json

Only what a hook can see is filled: in_amax, out_amax, nonfinite (a share of the output). The rest is null. Modules of one layer
come in the order in which they ran. Several calls (decoding) are merged: the largest amax, the largest share.
"""
import argparse
import json
import re


def _amax(tensor):
    finite = tensor.detach().float()
    finite = finite[finite.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def _nonfinite(tensor):
    return (~tensor.detach().isfinite()).float().mean().item() if tensor.numel() else 0.0


def _first(value):
    """The first floating-point tensor of a module's inputs or outputs; None when there is none."""
    import torch
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, (tuple, list)):
        return next((t for t in map(_first, value) if t is not None), None)
    return None


def _operator(module):
    name = type(module).__name__.lower()
    if "norm" in name:
        return "rmsnorm"
    if "embedding" in name and "rotary" not in name:
        return "embed"
    if "linear" in name or "head" in name:
        return "linear"
    return None


class Taps:
    """Hooks on every linear, norm and embedding of a torch model, from __enter__ to __exit__."""

    def __init__(self, model):
        self._model, self._handles, self._rows = model, [], {}

    def __enter__(self):
        for name, module in self._model.named_modules():
            operator = _operator(module)
            if operator:
                self._handles.append(module.register_forward_hook(self._hook(name, operator)))
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, name, operator):
        layer = re.search(r"(?:^|\.)layers\.(\d+)\.", name)

        def hook(_module, inputs, output):
            x, y = _first(inputs), _first(output)
            if y is None:
                return
            row = self._rows.setdefault(name, {
                "layer": int(layer.group(1)) if layer else None, "module": name, "operator": operator, "in_amax": None, "out_amax": 0.0,
                "nonfinite": 0.0, "clipped": None, "flushed": None, "saturated": None, "cos_local": None, "snr_local_db": None,
                "cos_total": None, "snr_total_db": None})
            if x is not None:
                row["in_amax"] = max(row["in_amax"] or 0.0, _amax(x))
            row["out_amax"] = max(row["out_amax"], _amax(y))
            row["nonfinite"] = max(row["nonfinite"], _nonfinite(y))

        return hook

    def report(self):
        """The object that `write` writes; first_bad is the first row with a non-finite output."""
        rows = list(self._rows.values())
        bad = next((r for r in rows if r["nonfinite"] > 0), None)
        first = bad and {"layer": bad["layer"], "module": bad["module"], "operator": bad["operator"], "cause": None, "tensor": None,
                         "file": None, "offset": None}
        verdict = f"{bad['module']} gives non-finite values" if bad else "every output seen is finite"
        return {"arith": "torch", "act_dtype": str(getattr(self._model, "dtype", "")), "as": None, "first_bad": first, "verdict": verdict,
                "rows": rows, "findings": []}

    def write(self, path):
        """One JSON object. Every number in it is finite: amax looks at finite values only."""
        with open(path, "w", encoding="utf-8") as f:
            json.dump(self.report(), f, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--ids", required=True, help="JSON array of token ids")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, ... (default: the folder's own)")
    parser.add_argument("-o", "--out", required=True)
    args = parser.parse_args()
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=getattr(torch, args.dtype, args.dtype)).eval()
    with torch.no_grad(), Taps(model) as taps:
        model(torch.tensor([json.loads(args.ids)]))
    taps.write(args.out)


if __name__ == "__main__":
    main()
