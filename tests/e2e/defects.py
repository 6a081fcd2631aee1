"""Every defect of break.py over many bases: what `nibble check` says against expected.json. By hand:

    python3 tests/e2e/defects.py [--bases DIR …] [--match 'nan_*'] [--seed N] [--verbose]

test_check.py runs a part of it. NB_BIN names the program."""
import argparse
import collections
import fnmatch
import importlib.util
import json
import pathlib
import sys
import tempfile

import nb

TOOLS = next(t for t in [d / "tools" for d in nb.DATA] if (t / "break.py").exists())
sys.path.insert(0, str(TOOLS))
spec = importlib.util.spec_from_file_location("break_py", TOOLS / "break.py")
break_py = importlib.util.module_from_spec(spec)
spec.loader.exec_module(break_py)

CODES = {"error": 2, "warning": 1, "note": 0}
CLASSES = {"fine", "clipped", "zero", "wrong", "nan", "prompt", "undefined", "refused"}
FAMILIES = ("w4a4", "w4a16", "marlin")
BASES = ("demo/modelopt", "demo/compressed-tensors", "models/llama_modelopt", "models/llama_ct", "models/llama_mixed",
         "models/deepseek_v4_modelopt", "models/deepseek_v4_ct_nvfp4_attn", "models/qwen3_moe_ct", "models/qwen3_moe_modelopt")
# Rules that need the architecture's table.
TABLE = ("NB007", "NB212")
# What a run alone can prove; nothing is said of it here.
ELSEWHERE = ("trace",)


def data_args(base):
    """For findings that measured activations alone can prove: the base's own texts, or the built-in ones; none where it cannot be run."""
    if not nb.runs(base):
        return None
    return ["--data", base / "calibration.jsonl"] if (base / "calibration.jsonl").exists() else ["--warmup"]


def check(folder, *args):
    """(exit status, findings); the report is well formed and the status follows from it."""
    done = nb.ok("check", folder, *args, "--format", "json", status=(0, 1, 2))
    report = json.loads(done.stdout)
    findings = report["findings"]
    assert isinstance(report["summary"], dict)
    for f in findings:
        assert {"rule", "severity", "tensors", "file", "bytes", "measured", "expected", "consequences", "remedy", "repairable",
                "message"} <= f.keys()
        assert isinstance(f["tensors"], list) and isinstance(f["repairable"], bool) and f["message"] and f["remedy"]
        assert f["bytes"] is None or len(f["bytes"]) == 2 and f["bytes"][0] <= f["bytes"][1]
        assert all(c["class"] in CLASSES and c["text"] for c in f["consequences"].values())
    assert done.returncode == max([CODES[f["severity"]] for f in findings], default=0)
    return done.returncode, findings


def about(want, findings):
    """The findings that report what is wanted: of its rule, and of its tensors where it names any."""
    return [f for f in findings if f["rule"] == want["rule"] and (not want["tensors"] or set(f["tensors"]) & set(want["tensors"]))]


def arithmetic(expected, findings):
    """Families whose consequence, as expected.json has it, no finding tells."""
    told = [f for want in expected["findings"] if want["by"] not in ELSEWHERE for f in about(want, findings)]
    for family, cls in expected["arithmetic"].items():
        have = {f["consequences"][family]["class"] for f in told if family in f["consequences"]}
        # Where a base has no dense linear, break.py takes an expert and still says nan.
        same = {cls, "prompt"} if cls == "nan" and all(".experts." in t for f in told for t in f["tensors"]) else {cls}
        if told and not have & same:
            yield f"{family} is {'/'.join(sorted(have)) or 'not told'}, not {cls}"


def complaints(expected, findings, rules=None):
    """What is wrong with the findings, as sentences. rules: the ones to look at (None: all)."""
    for want in expected["findings"]:
        if want["by"] in ELSEWHERE or rules and want["rule"] not in rules:
            continue
        same = [f for f in findings if f["rule"] == want["rule"]]
        if not same:
            yield f"{want['rule']} is not reported"
            continue
        named = {t for f in same for t in f["tensors"]}
        lost = [t for t in want["tensors"] if t not in named]
        if lost:
            yield f"{want['rule']} does not name {lost[0]} (of {len(lost)})"
        if "names_like" in want and not fnmatch.filter(named, "*" + want["names_like"]):
            yield f"{want['rule']} names nothing like {want['names_like']}"
        files = {pathlib.PurePath(f["file"]).name for f in same if f["file"]}
        for name in want.get("files", []):
            if pathlib.PurePath(name).name not in files:
                yield f"{want['rule']} does not say that {name} is at fault"
        if want["severity"] not in {f["severity"] for f in about(want, findings)}:
            yield f"{want['rule']} is no {want['severity']}"
    for f in findings:
        if f["rule"] in expected["must_not"] and f["severity"] != "note":
            yield f"false alarm: {f['rule']} {f['tensors'][:2]} {f['message']}"


def broken(base, out, defect, seed=0):
    """expected.json of the folder OUT, made of the folder base; None: base has nothing to apply the defect to."""
    try:
        break_py.write(str(base), str(out), defect, seed)
    except break_py.NotApplicable:
        return None
    expected = json.loads((out / "expected.json").read_text())
    (out / "expected.json").unlink()
    return expected


def judge(base, out, defect, seed=0):
    """Complaints about one defect on one base, or None where it does not apply."""
    expected = broken(base, out, defect, seed)
    if expected is None:
        return None
    if not nb.runs(base):
        expected["findings"] = [f for f in expected["findings"] if f["rule"] not in TABLE]
    args = list(expected["args"])
    if any(f["by"] == "data" for f in expected["findings"]):
        run = data_args(base)
        args += run or []
        if run is None:
            expected["findings"] = [f for f in expected["findings"] if f["by"] != "data"]
    findings = check(out, *args)[1]
    wrong = list(complaints(expected, findings))
    if any(f["by"] not in ELSEWHERE for f in expected["findings"]):
        wrong += arithmetic(expected, findings)
    return wrong


def path_of(name):
    return next((d / name for d in nb.DATA if (d / name).is_dir()), pathlib.Path(name))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bases", nargs="*", default=BASES)
    ap.add_argument("--match", default="*")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--verbose", action="store_true")
    a = ap.parse_args()
    total = collections.Counter()
    for name in a.bases:
        counts = collections.Counter()
        for defect in fnmatch.filter(break_py.DEFECTS, a.match):
            with tempfile.TemporaryDirectory() as out:
                wrong = judge(path_of(name), pathlib.Path(out), defect, a.seed)
            if wrong is None:
                continue
            counts["shown"] += 1
            counts["right"] += not wrong
            counts["false alarms"] += any(w.startswith("false alarm") for w in wrong)
            counts["missed"] += any("false alarm" not in w for w in wrong)
            for w in wrong:
                print(f"  {name} {defect}: {w}")
        print(f"{name}: {dict(counts)}", flush=True)
        total += counts
    print(f"all: {dict(total)}")
    return total["shown"] != total["right"]


if __name__ == "__main__":
    sys.exit(main())
