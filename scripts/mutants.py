#!/usr/bin/env python3
"""Plants the mistakes of tests/mutants/table.py one at a time in a copy of the tree, builds the suites named beside each,
runs them and says what caught it. Exit 1 when one survived.

  scripts/mutants.py --list
  scripts/mutants.py --check                        each one still applies (its text is there exactly once)
  scripts/mutants.py --room config --room plan      those of some rooms; of the ground floor unless --torch is given
  scripts/mutants.py --only bucket_full_late"""
import argparse
import filecmp
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "mutants"))
from table import MUTANTS  # noqa: E402

GROUND = {"bench", "base", "config", "megatron", "files", "text", "topology", "plan", "data", "checkpoint"}


class Mutant:
    def __init__(self, name, file, old, new, suites):
        self.name, self.file, self.old, self.new, self.suites = name, file, old, new, [s.strip() for s in suites.split(";")]
        self.room = file.split("/")[0]
        self.path = file if self.room == "bench" else f"metroplex/{file}"

    def problem(self, root):
        """Why it cannot be planted; None where it can."""
        path = root / self.path
        if not path.exists():
            return f"there is no {path}"
        count = path.read_text().count(self.old)
        if self.old == self.new or count != 1:
            return f"{self.file} holds its text {count} times, not once: {self.old!r}"
        return None


def check(mutants, root):
    problems = [f"{m.name}: {problem}" for m in mutants if (problem := m.problem(root))]
    names = [m.name for m in mutants]
    problems += [f"{name} is there twice" for name in sorted({n for n in names if names.count(n) > 1})]
    print("\n".join(problems) or f"{len(mutants)} mutants apply")
    return 1 if problems else 0


def run(command, log, limit):
    with open(log, "a") as out:
        try:
            return subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            return -1


def command_of(suite, tree, build):
    name, *filters = suite.split()
    if name == "metroplex":
        return ["bash", str(tree / "tests/apps/commands_test.sh"), str(build / "bin" / name)]
    return [str(build / "bin" / name), *[f"--gtest_filter={text}" for text in filters],
            *([str(tree / "tests" / "vectors")] if name == "metroplex_vectors" else [])]


def sound(mutants, tree, build, options):
    """A suite that fails as it is catches nothing: those that pass."""
    log = build / "sound.log"
    suites = sorted({suite for m in mutants for suite in m.suites})
    if run(["cmake", "--build", str(build), "-j", str(options.jobs), "--target", *{s.split()[0] for s in suites}], log, 7200) != 0:
        sys.exit(f"the tree does not build; see {log}")
    failing = [suite for suite in suites if run(command_of(suite, tree, build), log, options.limit) != 0]
    if failing:
        sys.exit(f"these fail without a mistake: {', '.join(failing)}; see {log}")


def catch(mutant, tree, build, options):
    """Which suite noticed, or "survived"."""
    path = tree / mutant.path
    before = path.read_text()
    path.write_text(before.replace(mutant.old, mutant.new))
    log = build / f"{mutant.name}.log"
    try:
        targets = [suite.split()[0] for suite in mutant.suites]
        if run(["cmake", "--build", str(build), "-j", str(options.jobs), "--target", *targets], log, 3600) != 0:
            return "does not build"
        for suite in mutant.suites:
            if run(command_of(suite, tree, build), log, options.limit) != 0:
                return suite.split()[0]
        return "survived"
    finally:
        path.write_text(before)


def copy_tree(tree):
    """What git knows or would take; files that are the same stay as they are, so that little is built again."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    wanted = {pathlib.Path(name) for name in names.stdout.split("\0") if name and (ROOT / name).is_file()}
    for path in wanted:
        to = tree / path
        if to.exists() and filecmp.cmp(ROOT / path, to, shallow=False):
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, to)
    for path in [p for p in tree.rglob("*") if p.is_file() and p.relative_to(tree) not in wanted]:
        path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--room", action="append", default=[])
    parser.add_argument("--torch", help="TORCH_ROOT: with the upper floor")
    parser.add_argument("--tree", type=pathlib.Path, default=pathlib.Path("/tmp/metroplex_mutants"), help="where the copy and its build lie")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=900, help="seconds a suite may take")
    options = parser.parse_args()
    mutants = [Mutant(*row) for row in MUTANTS]
    if options.check:
        return check(mutants, ROOT)
    chosen = [m for m in mutants if (not options.only or m.name in options.only) and (not options.room or m.room in options.room)
              and (options.torch or m.room in GROUND or options.list)]
    if options.list:
        for m in chosen:
            print(f"{m.name:34} {m.room:12} {'; '.join(m.suites)}")
        return 0
    tree, build = options.tree / "tree", options.tree / ("build" if options.torch else "build-ground")
    copy_tree(tree)
    setting = f"-DTORCH_ROOT={options.torch}" if options.torch else "-DMETROPLEX_TORCH=OFF"
    build.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", setting, "-DCMAKE_CXX_FLAGS=-Wno-error"], check=True, stdout=subprocess.DEVNULL)
    sound(chosen, tree, build, options)
    caught = {}
    for mutant in chosen:
        caught[mutant.name] = mutant.problem(tree) or catch(mutant, tree, build, options)
        print(f"{mutant.name:34} {mutant.room:12} {caught[mutant.name]}", flush=True)
    left = [name for name, by in caught.items() if by in ("survived", "does not build")]
    print(f"{len(caught)} planted, {len(left)} survived or did not build: {', '.join(left) or 'none'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
