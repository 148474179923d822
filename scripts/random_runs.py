#!/usr/bin/env python3
"""Walks over configurations at random: draws small valid ones from the key tables (scripts/walk/draw.py), runs each a few
steps, and again in other ways that must agree: resumed, captured, on one rank, dry (scripts/walk/checks.py). What fails is
shrunk to one line. Exit 1 if something was found.

  scripts/random_runs.py --seed 1 --runs 40
  scripts/random_runs.py --check resume --line '--nproc 2 --model.family=gpt ...'     what a find prints, once more"""
import argparse
import collections
import concurrent.futures
import random
import resource
import shlex
import sys
import time

sys.dont_write_bytecode = True
from walk import case as cases  # noqa: E402
from walk import checks, draw, keys, shrink  # noqa: E402


class Result:
    def __init__(self, number):
        self.number, self.refused, self.done, self.problem, self.case, self.check = number, [], [], None, None, None


def attempt(options, number):
    """Run `number` of the sweep: a case that the program accepts, and its checks."""
    result = Result(number)
    for again in range(8):
        rng = random.Random(f"{options.seed}:{number}:{again}")
        case, ways = draw.draw(rng)
        with checks.Scratch() as folder:
            bench = checks.Bench(options.binary, folder, options.limit)
            base = checks.Base(bench, case)
            if base.refused:
                result.refused.append(base.outcome.err.strip())
                continue
            result.case, result.check, result.problem = case, "run", checks.finite(base)
            result.done.append("run")
            if result.problem:
                return result
            pool = checks.checks_of(case, ways)
            for _ in range(min(options.checks, len(pool))):
                name, check, _ = chosen = rng.choices(pool, [weight for _, _, weight in pool])[0]
                pool.remove(chosen)
                result.done.append(name.split("=")[0])
                result.problem = check(base, random.Random(f"{options.seed}:{number}:{name}"))
                if result.problem:
                    result.check = name
                    return result
            return result
    result.problem, result.check = "refused: eight draws, none of them taken", "draw"
    return result


def tell(options, result):
    print(f"FAILED run {result.number} of seed {options.seed}, check {result.check}: {result.problem}", flush=True)
    if result.case is None:
        print("  " + "\n  ".join(result.refused))
        return
    case, problem = result.case, result.problem
    if not options.no_shrink:
        case, problem, tries = shrink.shrink(options, result)
        print(f"  shrunk in {tries} tries to: {problem}")
    print(f"  scripts/random_runs.py --check {result.check} --line {shlex.quote(case.line())}")
    print("  " + shlex.join(["metroplex", "verify" if result.check in ("layout",) else "train", *case.words()]), flush=True)


def replay(options):
    problem = shrink.ask(options, cases.read_line(options.line), options.check, f"{options.seed}:{options.check}", verbose=True)
    print(problem or f"ok: {options.check}")
    return 1 if problem else 0


def forgotten_keys():
    """Returns keys of the tables that none of 3,000 samples sets and that are not listed as excluded, and listed keys
    that do not exist."""
    table, listed = set(keys.read_keys()), {key for names in draw.NOT_DRAWN.values() for key in names}
    drawn = {key for number in range(3000) for key in draw.draw(random.Random(number))[0].keys}
    return sorted((table - drawn - listed) | ((drawn | listed) - table) | (drawn & listed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--binary", default="build/bin/metroplex")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--checks", type=int, default=2, help="checks of each run besides running it")
    parser.add_argument("--limit", type=int, default=120, help="seconds a process may take")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--check", default="run", help="with --line: the check to ask")
    parser.add_argument("--keys", action="store_true", help="only hold the draws to the key tables")
    parser.add_argument("--line", help="a case as a find prints it")
    options = parser.parse_args()
    if options.line is not None:
        return replay(options)
    forgotten = forgotten_keys() if options.keys else []
    if options.keys:
        print("\n".join(f"FAILED: {key} is neither drawn nor listed in NOT_DRAWN of scripts/walk/draw.py" for key in forgotten) or "every key is drawn, or listed with the reason why not")
        return 1 if forgotten else 0
    start, done, refused, failed, slowest = time.monotonic(), collections.Counter(), [], 0, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda number: attempt(options, number), range(options.first, options.first + options.runs)):
            done.update(result.done)
            refused += result.refused
            if result.problem:
                failed += 1
                tell(options, result)
    seconds, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    share = len(refused) / (len(refused) + options.runs)
    print(f"{options.runs} runs in {seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} CPU seconds: " + ", ".join(f"{count} {name}" for name, count in sorted(done.items())) +
          f"; {len(refused)} draws refused ({share:.0%}); {failed} failed")
    reasons = collections.Counter(line.strip().split(" = ")[0] for text in refused for line in text.splitlines() if " = " in line)
    print("  refused for: " + ", ".join(f"{key} {count}" for key, count in reasons.most_common(8)))
    return 1 if failed or share > 0.5 else 0


if __name__ == "__main__":
    sys.exit(main())
