#!/usr/bin/env python3
"""Reads metrics files: metrics.py losses FILE | metrics.py compare A B TOLERANCE [FIRST_ITERATION].

compare takes the iterations of B from FIRST_ITERATION on; A must have each of them, with the same number of consumed
samples and a loss within TOLERANCE. Prints the largest difference."""
import json
import sys


def training_lines(path):
    with open(path, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {r["iteration"]: r for r in records if "split" not in r}


def compare(first_path, second_path, tolerance, first_iteration=1):
    first, second = training_lines(first_path), training_lines(second_path)
    iterations = [i for i in second if i >= int(first_iteration)]
    if not iterations:
        sys.exit(f"{second_path} has no iteration from {first_iteration} on")
    worst = 0.0
    for i in iterations:
        if i not in first:
            sys.exit(f"iteration {i} is not in {first_path}")
        if first[i]["consumed_samples"] != second[i]["consumed_samples"]:
            sys.exit(f"iteration {i}: {first[i]['consumed_samples']} and {second[i]['consumed_samples']} samples")
        worst = max(worst, abs(first[i]["lm loss"] - second[i]["lm loss"]))
    print(f"      {len(iterations)} losses, largest difference {worst:.2e}, allowed {float(tolerance):.0e}")
    if not worst <= float(tolerance):
        sys.exit(1)


def main():
    if sys.argv[1] == "losses":
        for iteration, record in sorted(training_lines(sys.argv[2]).items()):
            print(iteration, record["lm loss"])
    else:
        compare(*sys.argv[2:])


main()
