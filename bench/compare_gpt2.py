#!/usr/bin/env python3
"""GPT-2 124M training step, ours against plain PyTorch, eager and compiled, step by step in turn.
PEER takes B T STEPS DTYPE COMPILE(0|1) and calls time.perf_counter() before and after each step (turns.py). Needs a torch that python can import; to
compile, torch wants a C++ compiler."""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

SHAPES = {"f32": ((4, 64), (2, 512)), "bf16": ((4, 64), (2, 512), (8, 1024))}
QUIET_SPREAD = 0.10  # median over minimum - 1; above it one run cannot resolve differences of a tenth
WARM_UP = 2


class Runner:
    """A process that runs one step per request."""

    def __init__(self, name, command):
        self.name, self.command, self.times = name, command, []
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(f"{' '.join(self.command)} ended early:\n{self.errors.read()[-2000:]}")
        return line

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.line()
        while not line.startswith("step "):
            line = self.line()
        self.times.append(float(line.split()[1]))
        time.sleep(0.05)  # until its threads have stopped spinning

    def end(self):
        last = self.process.stdout.read()
        _, status, usage = os.wait4(self.process.pid, 0)
        if status != 0:
            sys.exit(f"{' '.join(self.command)} ended with status {status}")
        self.times = self.times[WARM_UP:]
        self.memory = usage.ru_maxrss / 1024
        return last

    def spread(self):
        return median(self.times) / min(self.times) - 1


def median(values):
    return sorted(values)[len(values) // 2]


def cpu_model():
    with open("/proc/cpuinfo") as file:
        found = dict(line.split("\t", 1) for line in file if "\t" in line)
    value = lambda key: found.get(key, ": unknown").lstrip("\t: ").strip()
    flags = value("flags").split()
    sets = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    return f"{value('model name')} (family {value('cpu family')}, model {value('model')}; {' '.join(sets)}), {len(os.sched_getaffinity(0))} cores"


def cpu_times():
    """Returns jiffies of all cores: total, and stolen by other guests of the host."""
    with open("/proc/stat") as file:
        numbers = [int(x) for x in file.readline().split()[1:9]]
    return sum(numbers), numbers[7]


def settings():
    names = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    return ", ".join(f"{n}={os.environ[n]}" for n in names if n in os.environ) or "none"


def compare(args, b, t):
    numbers = [str(b), str(t), str(args.steps)]
    runners = [Runner("ours", [args.binary, *numbers, "0", args.dtype, "turns"])]
    turns = os.path.join(os.path.dirname(os.path.abspath(__file__)), "turns.py")
    for name, compiled in (("eager", "0"), ("compiled", "1")):
        if name in args.against.split(","):
            runners.append(Runner(name, [sys.executable, turns, args.peer, *numbers, args.dtype, compiled]))
    for runner in runners:
        for _ in range(WARM_UP):
            runner.step()
    all_before, stolen_before = cpu_times()
    for turn in range(args.steps):
        for runner in runners if turn % 2 == 0 else reversed(runners):
            runner.step()
    all_after, stolen_after = cpu_times()
    load = os.getloadavg()[0]
    share = float(re.search(r"share ([\d.]+)", runners[0].end()).group(1))
    for runner in runners[1:]:
        runner.end()
    steal = (stolen_after - stolen_before) / max(1, all_after - all_before)
    show(runners, b * t, f"B {b} T {t} {args.dtype}", share)
    ours, wide = runners[0], [r.name for r in runners if r.spread() > QUIET_SPREAD]
    verdict = f"too wide to conclude ({', '.join(wide)}: median more than {QUIET_SPREAD:.0%} above the minimum)" if wide else "quiet enough"
    print(f"  steal {steal:.1%}, load {load:.1f} on {os.cpu_count()} cores: {verdict}", flush=True)


def show(runners, tokens, title, share):
    ours = runners[0]
    print(f"{title}, {len(ours.times)} steps in turn; share of the matmul limit {share:.2f}")
    for r in runners:
        line = f"  {r.name:9} best {tokens / min(r.times):7.1f} tok/s, median {tokens / median(r.times):7.1f}, peak {r.memory:.0f} MB"
        if r is not ours:
            pairs = [theirs / mine for mine, theirs in zip(ours.times, r.times)]
            line += f"; ours / {r.name}: {min(r.times) / min(ours.times):.2f} by the best, {median(r.times) / median(ours.times):.2f} by medians, {median(pairs):.2f} by turns"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", metavar="PEER.py")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--binary", default="build/bin/gpt2_step")
    parser.add_argument("--dtype", choices=tuple(SHAPES), default="f32")
    parser.add_argument("--shape", help="one instead of all: B,T", type=lambda text: tuple(int(x) for x in text.split(",")))
    parser.add_argument("--against", default="eager,compiled", help="eager, compiled or both")
    args = parser.parse_args()
    print(f"{cpu_model()}; environment: {settings()}", flush=True)
    for b, t in [args.shape] if args.shape else SHAPES[args.dtype]:
        compare(args, b, t)


if __name__ == "__main__":
    main()
