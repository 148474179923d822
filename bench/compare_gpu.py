#!/usr/bin/env python3
"""compare_gpu.py [--models gpt2,llama,mixtral] [--steps N] [--device cuda|cpu] [--small] [--against eager,compiled]
[--binary build/bin/gpu_step]: training steps in bf16, ours (eager, and replayed from the graph of the whole step) against
plain PyTorch (gpu_peer.py), step by step in turn. Prints Markdown. A peer that ends early is named and left out. Needs a
torch that python can import; without one ours are measured alone."""
import argparse
import importlib.util
import os
import sys

from compare_gpt2 import WARM_UP, Runner, median

HERE = os.path.dirname(os.path.abspath(__file__))


def runners_of(model, a):
    size = "small" if a.small else "whole"
    implementations = ("none", "full_iteration")
    wanted = [(f"ours, {'eager' if i == 'none' else 'replayed'}", [a.binary, model, str(a.steps), a.device, i, size, "turns"]) for i in implementations]
    if importlib.util.find_spec("torch") is None:
        return wanted
    for name in filter(None, a.against.split(",")):
        compiled = "1" if name == "compiled" else "0"
        wanted.append((f"PyTorch {name}", [sys.executable, f"{HERE}/turns.py", f"{HERE}/gpu_peer.py", model, str(a.steps), a.device, compiled, size]))
    return wanted


def started(wanted):
    """Those that make their first steps, warmed up; of the others what they said."""
    running, failed = [], []
    for name, command in wanted:
        runner = Runner(name, command)
        try:
            for _ in range(WARM_UP):
                runner.step()
            running.append(runner)
        except SystemExit as error:
            failed.append((name, str(error).strip().splitlines()[-1][:200]))
    return running, failed


def compare(model, a):
    running, failed = started(runners_of(model, a))
    for turn in range(a.steps):
        for runner in running if turn % 2 == 0 else reversed(running):
            runner.step()
    for runner in running:
        said = runner.end()
        print(f"| {model} | {runner.name} | {median(runner.times) * 1e3:.2f} | {min(runner.times) * 1e3:.2f} | {median(runner.times) / median(running[0].times):.2f} | {said.strip()} |", flush=True)
    for name, why in failed:
        print(f"| {model} | {name} | failed | | | {why} |", flush=True)
    return any(name.startswith("ours") for name, _ in failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2,llama,mixtral")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models: whether all of it runs")
    parser.add_argument("--against", default="eager,compiled")
    parser.add_argument("--binary", default="build/bin/gpu_step")
    a = parser.parse_args()
    print("| model | who | median ms | best ms | against the first | what it says |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    bad = [compare(model, a) for model in a.models.split(",")]
    return 1 if any(bad) else 0


if __name__ == "__main__":
    sys.exit(main())
