#!/usr/bin/env python3
"""GPT-2 124M training step, ours against plain PyTorch, interleaved: compare_gpt2.py PEER.py [--dtype bf16] [--rounds N] [--binary build/bin/gpt2_step]
PEER takes B T STEPS DTYPE and prints a line with "<x> tok/s"; its peak memory is read from the child's resource usage. Needs a torch that python can import."""
import argparse
import os
import re
import subprocess
import sys


def run(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{command} ended with status {status}")
    return float(re.search(r"([\d.]+) tok/s", output).group(1)), usage.ru_maxrss / 1024, output.strip()


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--binary", default="build/bin/gpt2_step")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    args = parser.parse_args()
    for b, t in ((4, 64), (2, 512)):
        ours, theirs, our_memory, their_memory, shares = [], [], 0, 0, []
        for _ in range(args.rounds):
            speed, memory, line = run([args.binary, str(b), str(t), str(args.steps), "0", args.dtype])
            ours.append(speed)
            our_memory = max(our_memory, memory)
            shares.append(float(re.search(r"share ([\d.]+)", line).group(1)))
            speed, memory, _ = run([sys.executable, args.peer, str(b), str(t), str(args.steps), args.dtype])
            theirs.append(speed)
            their_memory = max(their_memory, memory)
        ratios = [a / b for a, b in zip(ours, theirs)]
        print(f"B {b} T {t} {args.dtype}: ours {median(ours):.1f} tok/s, PyTorch {median(theirs):.1f}, ratio {median(ratios):.2f} "
              f"(rounds {', '.join(f'{r:.2f}' for r in ratios)}); peak MB {our_memory:.0f} against {their_memory:.0f}; "
              f"share of the matmul limit {median(shares):.2f}", flush=True)


if __name__ == "__main__":
    main()
