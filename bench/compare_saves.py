#!/usr/bin/env python3
"""compare_saves.py SAVE_STALL [--rounds 9] [--folder .]: the time that a training step waits for a checkpoint, with our
saves and with torch.distributed.checkpoint. Saves are synchronous and in the background, alternating in one run. Also
measures a plain write of as many bytes with fsync. Needs a torch that python can import."""
import argparse
import os
import subprocess
import sys
import tempfile
import time


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().split()
        if not line:
            sys.exit(f"{self.process.args} ended early")
        return {line[i]: float(line[i + 1]) for i in (0, 2, 4)}


def plain_write(folder, size):
    block = os.urandom(1 << 20)
    start = time.perf_counter()
    with open(os.path.join(folder, "plain"), "wb") as file:
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("save_stall")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        ours = Server([args.save_stall, os.path.join(folder, "ours")])
        size = int(ours.ask("step")["bytes"])
        peer = Server([sys.executable, os.path.join(here, "save_torch.py"), folder, str(size)])
        rows = {name: [] for name in ("ours sync", "torch sync", "ours async", "torch async", "step", "step while writing", "plain")}
        totals = {name: [] for name in rows}
        for number in range(args.rounds + 1):
            for name, server, word in (("ours sync", ours, "sync"), ("torch sync", peer, "sync"), ("ours async", ours, "async"),
                                       ("torch async", peer, "async"), ("step", ours, "step"),
                                       ("step while writing", ours, "step-async")):
                answer = server.ask(word)
                if number > 0:  # the first round warms up
                    rows[name].append(answer["stall"])
                    totals[name].append(answer["total"])
            if number > 0:
                rows["plain"].append(plain_write(folder, size))
                totals["plain"].append(rows["plain"][-1])
    print(f"{size / 1e6:.0f} MB, medians of {args.rounds} rounds, seconds")
    for name, values in rows.items():
        print(f"{name:20} waits {median(values):.3f} (least {min(values):.3f})  until written {median(totals[name]):.3f}")


main()
