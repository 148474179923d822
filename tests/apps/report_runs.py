"""Writes metrics files with every kind of line: report_runs.py all|other|million FILE."""
import json
import math
import sys


def start(iteration, rate, name):
    config = {"run": {"name": name}, "model": {"num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 128},
              "parallel": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "pipeline_schedule": "1f1b"},
              "optim": {"lr": rate}, "train": {"micro_batch_size": 1, "global_batch_size": 8}}
    return {"run": {"version": 1, "started": "2026-11-29T01:02:03Z", "iteration": iteration, "world_size": 8, "launch": "threads",
                    "device": "cpu", "config": config, "memory": {"rank": 0, "bytes": {"parameters": 5, "moments": 9}, "peak": 14},
                    "time": {"seconds": {"step": 1.0, "forward": 0.3}, "error": 0.05}}}


def step(i, shift):
    line = {"iteration": i, "consumed_samples": 8 * i, "lm loss": 2 + 8 * math.exp(-i / 80) + shift, "learning-rate": 1e-3 * min(1, i / 20),
            "grad-norm": 1 + math.sin(i) / 4, "batch-size": 8, "loss-scale": 65536 if i < 50 else 32768, "iteration-time": 0.1,
            "throughput": 1.5, "tokens-per-second": 2500 + i % 7}
    if i in (50, 51):
        line["skipped"] = True
    if i == 60:
        line["lm loss"] = None
    if i % 10 == 0:
        line["experts"] = [{"layer": layer, "experts max over mean of a step": 1 + layer * i / 300} for layer in (0, 2, 4)]
        line["rounding"] = {f"decoder.layers.{layer}.mlp.linear_fc1": {operand: {
            "amax": 3.5, "saturated": 0, "flushed": 0.25, "nonfinite": 0, "error": 0.02 + 0.001 * layer, "scale": 128}
            for operand in ("input", "weight", "gradient")} for layer in range(4)}
    return line


def steps(first, last, shift):
    for i in range(first, last + 1):
        yield step(i, shift)
        if i % 50 == 0:
            for split in ("validation", "test"):
                yield {"iteration": i, "consumed_samples": 8 * i, "split": split, "lm loss": 2.1 + 8 * math.exp(-i / 80)}
        if i % 10 == 0:
            yield {"time": {"iteration": i, "predicted": {"step": 0.1, "forward": 0.03}, "measured": {"step": 0.11, "forward": 0.031}, "error": 0.05}}
            yield {"slowest": {"from": i - 9, "to": i, "rank": i % 8, "why": ("own work", "waits for rank 3", "link", "host")[i // 10 % 4],
                               "seconds": 0.001 * i, "text": f"rank {i % 8} </script> <b>takes longest</b>"}}


def memory():
    for rank in range(8):
        kinds = {"parameters": 10, "moments": 20, "peak": 30}
        yield {"memory": {"iteration": 2, "rank": rank, "predicted": kinds, "measured": {kind: value + rank for kind, value in kinds.items()}}}


def lines(kind):
    if kind == "all":
        yield from [start(0, 0.001, "first"), *steps(1, 180, 0.5), *memory(), start(150, 0.001, "first"), *steps(151, 300, 0)]
    if kind == "other":
        yield from [start(0, 0.002, "</script><b>second</b>"), *steps(1, 200, 0.2), *memory()]


kind, path = sys.argv[1:]
with open(path, "w") as file:
    for line in lines(kind):
        file.write(json.dumps(line) + "\n")
    if kind == "million":
        for i in range(1, 1000001):
            loss = 20 if i == 345678 else 2 + i % 13 / 100
            file.write('{"iteration": %d, "consumed_samples": %d, "lm loss": %.15g, "learning-rate": 1e-4, "grad-norm": %.15g}\n' % (i, i, loss, 1 / (1 + i % 17)))
