#!/usr/bin/env python3
"""Two builds side by side: compare_builds.py OLD NEW [--rounds N] [--gpt2 B T STEPS] [--iterations N] [--moe STEPS]
[--only BENCH...]

OLD and NEW are folders with gpt2_step, layer_overhead, moe_step, optimizer_step and recompute_time (build/bin). Every
round runs each program of both, the first of the two in turn; a figure's ratio is the median over the rounds of new / old
within a round. Prints a Markdown table; exit code 1 when a median ratio is above 1.02."""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys

LIMIT = 1.02


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def gpt2_step(text):
    return {"GPT-2 124M step, ms": float(re.search(r"median ([\d.]+) ms", text).group(1))}


def layer_overhead(text):
    """Compares with plain libtorch, which alternates with ours inside the program, so that both have the same machine
    load."""
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
    return {f"{row[0]}, ours / bare torch": float(row[1]) / float(row[2]) for row in rows}


def moe_step(text):
    return {"mixture of experts, step, ms": float(re.search(r"median ([\d.]+) ms", text).group(1))}


def optimizer_step(text):
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
    # Computes bytes per element over GB/s, because the printed milliseconds are rounded to integers.
    return {f"optimizer, {row[0]}, ns an element": float(row[1]) / float(row[3]) for row in rows}


def recompute_time(text):
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
    return {f"recompute {row[0]}, ms": float(row[1]) for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpt2", nargs=3, default=["4", "64", "6"], metavar=("B", "T", "STEPS"))
    parser.add_argument("--iterations", default="1500", help="of layer_overhead")
    parser.add_argument("--moe", default="12", metavar="STEPS")
    parser.add_argument("--recompute", default="7", help="steps a form")
    parser.add_argument("--only", nargs="+", default=[])
    a = parser.parse_args()
    benches = {
        "layer_overhead": (layer_overhead, [a.iterations]),
        "gpt2_step": (gpt2_step, a.gpt2),
        "moe_step": (moe_step, ["f32", a.moe]),
        "optimizer_step": (optimizer_step, ["60", "7"]),
        "recompute_time": (recompute_time, [a.recompute]),
    }
    figures = {}  # name -> [(old, new) per round]
    for round_number in range(a.rounds):
        for name, (read, arguments) in benches.items():
            if a.only and name not in a.only:
                continue
            found = {}
            for build in [a.old, a.new] if round_number % 2 == 0 else [a.new, a.old]:
                done = subprocess.run([build / name, *arguments], check=True, capture_output=True, text=True)
                found[build] = read(done.stdout)
            for figure in found[a.old]:
                figures.setdefault(figure, []).append((found[a.old][figure], found[a.new][figure]))
        print(f"round {round_number + 1} of {a.rounds}", file=sys.stderr)
    slower = False
    print("| figure | old | new | new / old | of the rounds |\n| --- | --- | --- | --- | --- |")
    for figure, pairs in figures.items():
        ratios = [new / old for old, new in pairs]
        old, new = (statistics.median(side) for side in zip(*pairs))
        ratio = statistics.median(ratios)
        slower |= ratio > LIMIT
        print(f"| {figure} | {old:.4g} | {new:.4g} | {ratio:.3f} | {' '.join(f'{r:.2f}' for r in ratios)} |")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
