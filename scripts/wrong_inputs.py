#!/usr/bin/env python3
"""Gives `metroplex train --dry-run` what no run may take: every key of the tables with values of another type and outside
its limits, and settings that contradict each other. Each must end with exit code 2 and the key's name. All that is wrong
with a configuration is said at once, so a kind of mistake is one run, over all keys that it can be made with.

  scripts/wrong_inputs.py [--binary build/bin/metroplex]"""
import argparse
import sys
import tempfile

sys.dont_write_bytecode = True
from walk import checks, keys  # noqa: E402
from walk.contradictions import CONTRADICTIONS  # noqa: E402

VALID = {"data.mock_data": "true", "model.vocab_size": "32", "train.train_iters": "4", "run.device": "cpu"}
INTEGER, REAL = ("int64_t",), ("int64_t", "double")


def wrong_types(key):
    """Returns words that are no value of this key, by the kind of error."""
    found = {}
    if key.type in REAL:
        found.update(word="two", unit="3k", trailing="1.5.2", empty="", boolean="true", nan="nan")
    if key.type in INTEGER:
        found.update(fraction="2.5", huge="99999999999999999999", exponent="1e400", infinite="inf")
    elif key.type == "double":
        found.update(huge="1e999", infinite=None if key.limits.startswith("or_infinite") else "inf")
    elif key.type == "bool":
        found.update(word="maybe", number="2", empty="")
    elif key.is_choice:
        found.update(word="nosuchword", number="7")
        if key.name != "memory.recompute_method":  # for which any word is invalid
            found["empty"] = ""
    return {name: value for name, value in found.items() if value is not None}


def outside(key):
    """Returns numbers of the right type just outside the limits."""
    function, numbers = key.bounds
    step = 1 if key.type in INTEGER else 1e-3
    found = {}
    if key.type in REAL and numbers:
        found["below"] = numbers[0] - (0 if function.startswith("above") else step)
        if function == "above" or function == "above_up_to":
            found["far below"] = numbers[0] - 1
    if len(numbers) > 1:
        found["above"] = numbers[1] + (0 if function == "from_to_below" else max(step, abs(numbers[1]) * 1e-6))
    if function == "one_of":
        found["word"] = "nosuchword"
    if key.type in INTEGER:
        found = {name: int(value) for name, value in found.items()}
    return {name: str(value) for name, value in found.items()}


def by_mistake(table, values_of):
    mistakes = {}
    for key in table.values():
        for mistake, value in values_of(key).items():
            mistakes.setdefault(mistake, {})[key.name] = value
    return mistakes


class Trial:
    def __init__(self, binary, folder):
        self.bench, self.tried, self.problems = checks.Bench(binary, folder), 0, []

    def expect(self, what, given, names, ranks=1):
        """A dry run of VALID with `given` must be refused with exit code 2, and name each of `names`."""
        settings = [f"--{key}={value}" for key, value in {**VALID, **given}.items() if value is not None]
        outcome = self.bench.run("train", ["--nproc", str(ranks), *settings, "--dry-run"])
        self.tried += len(names)
        problem = outcome.broken() or (None if outcome.code == 2 else f"exit {outcome.code}")
        if problem:
            self.problems.append(f"{what}: {problem}\n    " + " ".join(settings)[:2000])
            return
        for name in names:
            named = any(line.split(" = ")[0].strip().endswith(name) for line in outcome.err.splitlines())
            if not named and not (len(names) == 1 and name in outcome.err):
                self.problems.append(f"{what}: {name}={given.get(name)} is not named" +
                                     (": " + outcome.err.strip()[:400] if len(names) == 1 else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/bin/metroplex")
    options = parser.parse_args()
    table = keys.read_keys()
    with tempfile.TemporaryDirectory(prefix="metroplex_wrong.") as folder:
        trial = Trial(options.binary, folder)
        for kind, values_of in (("another type", wrong_types), ("outside", outside)):
            for mistake, given in by_mistake(table, values_of).items():
                trial.expect(f"{kind}, {mistake}", given, list(given))
        for ranks, given, name in CONTRADICTIONS:
            trial.expect("contradiction", given, [name], ranks)
    for problem in trial.problems:
        print(f"FAILED: {problem}")
    print(f"{trial.tried} wrong values of {len(table)} keys, {len(trial.problems)} not refused as they should be")
    return 1 if trial.problems else 0


if __name__ == "__main__":
    sys.exit(main())
