#!/usr/bin/env python3
"""same_bits.py NAME OLD NEW CONTINUED: compares three runs of six steps, each a folder of checkpoints with a metrics
file next to it.

NEW must equal OLD in the metrics of every step and the tensors of both checkpoints. CONTINUED resumes from OLD's third
step; it must equal OLD from the fourth step on and in the last checkpoint. Exits with 1 and prints differences in
hex."""
import hashlib
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "support"))
import read_safetensors  # noqa: E402

NUMBERS = ("consumed_samples", "lm loss", "learning-rate", "grad-norm", "batch-size", "loss-scale")


def as_hex(value):
    return value.hex() if isinstance(value, float) else repr(value)


def steps(folder):
    """{iteration: {name: number in hex}}"""
    lines = [json.loads(line) for line in pathlib.Path(folder + ".jsonl").read_text().splitlines()]
    return {r["iteration"]: {k: as_hex(r[k]) for k in NUMBERS if k in r} for r in lines if "split" not in r}


def tensors(folder, iteration):
    """{file and key: (dtype, shape, bytes)} of all shards."""
    found = {}
    for path in sorted(pathlib.Path(folder, f"iter_{iteration:07}").glob("*.safetensors")):
        found.update((f"{path.name} {key}", tensor) for key, tensor in read_safetensors.tensors(path).items())
    return found


def first_difference(a, b):
    if a[:2] != b[:2] or len(a[2]) != len(b[2]):
        return f"{a[0]} {a[1]} and {b[0]} {b[1]}"
    width = len(a[2]) // max(1, product(a[1]))
    at = next(i for i in range(len(a[2])) if a[2][i] != b[2][i]) // width
    return f"element {at}: 0x{a[2][at * width : (at + 1) * width][::-1].hex()} and 0x{b[2][at * width : (at + 1) * width][::-1].hex()}"


def product(shape):
    result = 1
    for size in shape:
        result *= size
    return result


def compare(what, old, new, show, differences):
    for key in sorted(set(old) | set(new)):
        if key not in old or key not in new:
            differences.append(f"{what} {key}: only in {'the new' if key in new else 'the old'} one")
        elif old[key] != new[key]:
            differences.append(f"{what} {key}: {show(old[key], new[key])}")


def main():
    name, old, new, continued = sys.argv[1:]
    differences = []
    show_step = lambda a, b: ", ".join(f"{k} {a.get(k)} and {b.get(k)}" for k in NUMBERS if a.get(k) != b.get(k))
    whole = steps(old)
    if len(whole) != 6:
        sys.exit(f"{name}: {len(whole)} steps in {old}.jsonl, not 6")
    compare("step", whole, steps(new), show_step, differences)
    compare("continued step", {i: s for i, s in whole.items() if i > 3}, steps(continued), show_step, differences)
    last = tensors(old, 6)
    if not last:
        sys.exit(f"{name}: no tensors in {old}/iter_0000006")
    compare("iteration 3,", tensors(old, 3), tensors(new, 3), first_difference, differences)
    compare("iteration 6,", last, tensors(new, 6), first_difference, differences)
    compare("continued,", last, tensors(continued, 6), first_difference, differences)
    if differences:
        print(f"DIFFERS {name}: {len(differences)} differences")
        for line in differences[:8]:
            print("   ", line)
        sys.exit(1)
    digest = hashlib.sha256(b"".join(last[key][2] for key in sorted(last))).hexdigest()[:16]
    print(f"same    {name:26} loss {whole[6]['lm loss']} norm {whole[6]['grad-norm']} {len(last)} tensors {digest}")


if __name__ == "__main__":
    main()
