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


def replay_all(contents):
    """File name -> (passed, lines of failures), of one run: starting the binary takes longer than the cases."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            (pathlib.Path(folder) / name).write_text(json.dumps(content))
        run = subprocess.run([binary, folder], capture_output=True, text=True)
    check(run.returncode in (0, 1), f"ended with {run.returncode}: {run.stdout[-300:]}{run.stderr[-300:]}")
    results = {}
    for line in run.stdout.splitlines():
        if counts := re.match(r"(\S+\.json): (\d+) passed, ", line):
            failures = []
            results[counts[1]] = int(counts[2]), failures
        elif line.startswith("  FAILED "):
            failures.append(line)
    # A binary without tensors reports that no runner exists for some files.
    unknown = {name for name in contents if f"{name}: needs the build with torch" in run.stdout}
    check(set(results) | unknown == set(contents), f"results of {sorted(results)} for {sorted(contents)}")
    return results


def replay(name, content):
    return replay_all({name: content})[name]


def lists_of(content):
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield key, value
    for outer, inner in (("num_samples", "cases"), ("rng", "randomstate_u32"), ("rng", "default_rng_integers"),
                         ("primitives", "one_shot_greedy"), ("primitives", "approx_bin_packing")):
        if isinstance(content.get(outer), dict) and inner in content[outer]:
            yield f"{outer}.{inner}", content[outer][inner]


def keys_in_all(cases):
    keys = set(cases[0])
    for case in cases:
        keys &= set(case)
    return {key for key in keys - OPTIONAL if not re.match("(ranges_for|shuffle_index)_", key)}


def break_cases(stem, content, required):
    """Appends the broken copies to the lists of `content`; the failures that they must give."""
    expected = []
    for where, cases in lists_of(content):
        for key in required[where]:
            expected.append((f"{stem}.{where}[{len(cases)}]", f"the key {key} is missing"))
            cases.append({k: v for k, v in cases[0].items() if k != key})
        expected.append((f"{stem}.{where}[{len(cases)}]", "the key unheard_of is unknown"))
        cases.append({**cases[0], "unheard_of": 1})
    content["unheard_of"] = []
    expected.append((stem, "the key unheard_of is unknown"))
    return expected


def mutations():
    contents, required = {}, {}
    for path in sorted(vectors.glob("*.json")):
        if path.name in ("seeds.json", "config_validation.json"):
            continue
        content = contents[path.name] = json.loads(path.read_text())
        required[path.name] = {where: sorted(keys_in_all(cases)) for where, cases in lists_of(content)}
        for _, cases in lists_of(content):
            del cases[4:]
    before = replay_all(contents)
    contents = {name: content for name, content in contents.items() if name in before}
    expected = {name: break_cases(name.removesuffix(".json"), content, required[name]) for name, content in contents.items()}
    after = replay_all(contents)
    for name in contents:
        check(not before[name][1], f"the first cases of {name} as recorded: {before[name][1]}")
        passed, failed = after[name]
        check(passed == before[name][0], f"{name}: {passed} passed beside broken cases, {before[name][0]} without")
        check(len(failed) == len(expected[name]), f"{name}: {len(failed)} failures, {len(expected[name])} expected")
        for place, problem in expected[name]:
            check(any(place in line and problem in line for line in failed), f"{name}: nothing says '{place}: {problem}'")


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


mutations()
inside()
prefix()
refusals()
print(f"assertions: {assertions}")
