#!/usr/bin/env python3
"""A training step of a small mixture of experts, ours (moe_step) against plain PyTorch (moe_torch.py, experts one after the other and by torch._grouped_mm), whole processes in turn: compare_moe.py [--rounds N] [--steps N] [--threads N] [--binary build/bin/moe_step]. Prints Markdown. Needs a torch that python can import."""
import argparse
import pathlib
import re
import subprocess
import sys

PEER = pathlib.Path(__file__).with_name("moe_torch.py")


def ms_of(command):
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return float(re.search(r"median ([\d.]+) ms", output).group(1))


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--binary", default="build/bin/moe_step")
    a = parser.parse_args()
    print("| type | ours ms | PyTorch one by one ms | PyTorch _grouped_mm ms | speed against one by one | against _grouped_mm |\n| --- | --- | --- | --- | --- | --- |")
    for dtype in ("f32", "bf16"):
        ours, peers = [], {"sequential": [], "grouped": []}
        for _ in range(a.rounds):
            ours.append(ms_of([a.binary, dtype, str(a.steps), str(a.threads)]))
            for by, times in peers.items():
                times.append(ms_of([sys.executable, str(PEER), "--dtype", dtype, "--experts-by", by, "--steps", str(a.steps), "--threads", str(a.threads)]))
        ratios = [median([p / o for p, o in zip(times, ours)]) for times in peers.values()]
        print(f"| {dtype} | {median(ours):.0f} | {median(peers['sequential']):.0f} | {median(peers['grouped']):.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
