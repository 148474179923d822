#!/usr/bin/env python3
"""metroplex_vectors against vector files that are not as they were recorded: mutations_test.py BINARY VECTORS.

Each case is copied once for every key it has, without that key, and once with a key that nobody knows: each copy must
fail by its place and key, and everything else must pass as before. A list cut short must pass where its length is
stated and fail where it is not; values replaced by an error must fail as something that was not refused."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

binary, vectors = sys.argv[1], pathlib.Path(sys.argv[2])
# Keys that some cases of the form do without.
OPTIONAL = {"note", "counts"}
assertions = 0


def check(condition, what):
    global assertions
    assertions += 1
    if not condition:
        sys.exit(f"FAILED: {what}")


def replay(name, content):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / name).write_text(json.dumps(content))
        run = subprocess.run([binary, folder], capture_output=True, text=True)
    counts = re.search(r"^" + re.escape(name) + r": (\d+) passed, (\d+) failed", run.stdout, re.M)
    check(counts and run.returncode in (0, 1), f"{name}: ended with {run.returncode}: {run.stdout[-300:]}{run.stderr[-300:]}")
    failures = [line for line in run.stdout.splitlines() if line.startswith("  FAILED ")]
    return int(counts[1]), failures


def lists_of(content):
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield key, value
    for outer, inner in (("num_samples", "cases"), ("rng", "randomstate_u32"), ("rng", "default_rng_integers")):
        if isinstance(content.get(outer), dict) and inner in content[outer]:
            yield f"{outer}.{inner}", content[outer][inner]


def keys_in_all(cases):
    keys = set(cases[0])
    for case in cases:
        keys &= set(case)
    return {key for key in keys - OPTIONAL if not re.match("(ranges_for|shuffle_index)_", key)}


def mutate(path):
    content = json.loads(path.read_text())
    for _, cases in lists_of(content):
        del cases[4:]
    before, failed = replay(path.name, content)
    check(not failed, f"the first cases of {path.name} as recorded: {failed}")
    expected = []
    for where, cases in lists_of(content):
        for key in sorted(keys_in_all(cases)):
            expected.append((f"{path.stem}.{where}[{len(cases)}]", f"the key {key} is missing"))
            cases.append({k: v for k, v in cases[0].items() if k != key})
        expected.append((f"{path.stem}.{where}[{len(cases)}]", "the key unheard_of is unknown"))
        cases.append({**cases[0], "unheard_of": 1})
    content["unheard_of"] = []
    expected.append((path.stem, "the key unheard_of is unknown"))
    passed, failed = replay(path.name, content)
    check(passed == before, f"{path.name}: {passed} passed beside broken cases, {before} without")
    check(len(failed) == len(expected), f"{path.name}: {len(failed)} failures, {len(expected)} expected")
    for place, problem in expected:
        check(any(place in line and problem in line for line in failed), f"{path.name}: nothing says '{place}: {problem}'")


def inside():
    content = json.loads((vectors / "schedules.json").read_text())
    case = content["configs"][0]
    del case["ranks"][0]["order"]
    failed = replay("schedules.json", {"configs": [case]})[1]
    check(len(failed) == 1 and "schedules.configs[0]: the key order is missing in schedules.configs.ranks" in failed[0], failed)


def prefix():
    content = json.loads((vectors / "gpt_dataset_index.json").read_text())
    case = next(c for c in content["cases"] if c["length"] > 3)
    case["shuffle_index"] = case["shuffle_index"][:3]
    passed, failed = replay("gpt_dataset_index.json", {"cases": [case]})
    check(passed == 1 and not failed, f"a list cut to 3 of {case['length']}: {failed}")
    case["shuffle_index"][2] += 1
    check(len(replay("gpt_dataset_index.json", {"cases": [case]})[1]) == 1, "a wrong number in a list cut short")
    content = json.loads((vectors / "data_parallel_misc.json").read_text())
    case = content["torch_randperm"][0]
    case["randperm"] = case["randperm"][:4]
    check(len(replay("data_parallel_misc.json", {"torch_randperm": [case]})[1]) == 1, "a list cut short without a length")
    check(replay("data_parallel_misc.json", {"torch_randperm": [{**case, "length": case["n"]}]})[0] == 1, "and with one")


def refusals():
    for name, where, given in (("data_parallel_misc.json", "torch_randperm", ("n", "seed")),
                               ("schedules.json", "overlap_examples", ("order", "num_layers_per_chunk", "capture_wgrad_graph")),
                               ("blending.json", "splits", ("split",)),
                               ("microbatches.json", "constant", ("global_batch_size", "micro_batch_size", "data_parallel_size",
                                                                  "decrease_batch_size_if_needed"))):
        case = json.loads((vectors / name).read_text())[where][0]
        refused = {**{key: case[key] for key in given}, "error": "AssertionError"}
        passed, failed = replay(name, {where: [refused]})
        check(passed == 0 and len(failed) == 1 and "accepted" in failed[0], f"{name} {where}: {failed}")
    refused = {"split": "-1,2,3", "vector": {"error": "AssertionError"}, "matrix": None}
    check(replay("blending.json", {"splits": [refused]})[0] == 1, "a refusal where values would stand")


for file in sorted(vectors.glob("*.json")):
    if file.name not in ("seeds.json", "config_validation.json"):
        mutate(file)
inside()
prefix()
refusals()
print(f"assertions: {assertions}")
