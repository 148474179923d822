#!/usr/bin/env python3
"""Plants the mutants of tests/mutants/*.py in a copy of the tree, builds the suites that each row names, runs them and
reports which suite failed. Exits with 1 when a mutant survived.

  scripts/mutants.py --list
  scripts/mutants.py --check                        every mutant of every table applies: its text is there exactly once
  scripts/mutants.py --module config --module plan      mutants of two modules; those with tensors need --torch
  scripts/mutants.py --only bucket_full_late
  scripts/mutants.py --table drawn --one-build --torch DIR   builds once; an environment variable selects the mutant

Without --one-build every mutant is planted and built by itself. With it, every mutant that states a kind is planted
(scripts/mutant_switch.py), and mutants without a kind are left out. The build folder is kept and used again."""
import argparse
import concurrent.futures
import importlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "mutants"))
sys.path.insert(0, str(ROOT / "scripts"))
import mutant_switch  # noqa: E402

TABLES = ("table", "drawn", "price", "megatron_files", "linear_attention", "chunks", "adapters", "latent_experts", "head",
          "low_precision", "stored_weights", "fused_kernels", "gpu_runs")
GROUND = {"bench", "base", "config", "megatron", "files", "text", "topology", "plan", "data", "checkpoint", "replay", "draw", "page", "price", "pickle", "mcore"}


def find_source(file):
    """Returns the path of MODULE/FILE from the root; modules lie in layers."""
    found = [path for layer in ("core/", "lab/", "formats/", "") if (ROOT / (path := f"metroplex/{layer}{file}")).exists()]
    return found[0] if found else f"metroplex/{file}"


class Mutant:
    def __init__(self, name, file, old, new, suites, kind=None):
        self.name, self.file, self.old, self.new, self.suites = name, file, old, new, [s.strip() for s in suites.split(";")]
        self.kind = kind
        self.module = file.split("/")[0]
        self.path = file if self.module in ("bench", "apps", "scripts") else find_source(file)

    def problem(self, root):
        """Returns why it cannot be planted, or None."""
        path = root / self.path
        if not path.exists():
            return f"there is no {path}"
        text = path.read_text()
        count = text.count(self.old)
        if self.old == self.new or count != 1:
            return f"{self.file} holds its text {count} times, not once: {self.old!r}"
        return mutant_switch.switch_problem(self, text) if self.kind else None


def load(table):
    """Returns the rows of tests/mutants/TABLE.py; empty if the file does not exist."""
    if not (ROOT / "tests" / "mutants" / f"{table}.py").exists():
        return []
    return [Mutant(*row) for row in importlib.import_module(table).MUTANTS]


def overlap_problems(mutants, root):
    out = []
    for path in sorted({m.path for m in mutants if m.kind}):
        pairs = mutant_switch.overlaps([m for m in mutants if m.path == path and m.kind], (root / path).read_text())
        out += [f"{a} and {b}: their texts in {path} overlap" for a, b in pairs]
    return out


def check(tables, root):
    mutants = [m for table in tables.values() for m in table]
    problems = [f"{m.name}: {problem}" for m in mutants if (problem := m.problem(root))]
    names = [m.name for m in mutants]
    problems += [f"{name} is there twice" for name in sorted({n for n in names if names.count(n) > 1})]
    numbers = {}
    for name in sorted(set(names)):
        other = numbers.setdefault(mutant_switch.number_of(name), name)
        problems += [f"{name} and {other} have one number; rename one"] if other != name else []
    if not problems:
        problems = [problem for table in tables.values() for problem in overlap_problems(table, root)]
    print("\n".join(problems) or f"{len(mutants)} mutants apply, {sum(m.kind is not None for m in mutants)} of them by a switch")
    return 1 if problems else 0


def run(command, log, limit, mutant=None):
    """Returns the exit status; -1 if the command exceeds the limit. Its child processes end with it."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment.pop(mutant_switch.VARIABLE, None)
    if mutant:
        environment[mutant_switch.VARIABLE] = str(mutant_switch.number_of(mutant.name))
    with open(log, "a") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def target_of(suite):
    name = suite.split()[0]
    return "metroplex" if name.startswith("apps/") else name


def command_of(suite, tree, build):
    """A suite is "X_test [FILTER]", "metroplex" (tests/apps/commands_test.sh), "apps/X_test.sh", "metroplex_vectors [FILE]",
    "metroplex_hf_parity DIRECTORY... [OPTION...]" or "metroplex_parity RUN [OPTION...]"."""
    name, *rest = suite.split()
    program, vectors = str(build / "bin" / target_of(suite)), tree / "tests" / "vectors"
    if name == "metroplex" or name.startswith("apps/"):
        script = "apps/commands_test.sh" if name == "metroplex" else name
        return ["bash", str(tree / "tests" / script), program]
    if name == "metroplex_vectors" and rest:
        return [program, str(one_vector(vectors / f"{rest[0]}.json", build))]
    if name == "metroplex_vectors":
        return [program, str(vectors)]
    if name in ("metroplex_hf_parity", "metroplex_parity"):
        known = {"metroplex_hf_parity": vectors / "hf", "metroplex_parity": vectors / "golden"}[name]
        suffix = ".json" if name == "metroplex_parity" else ""
        return [program, *[str(known / (word + suffix)) if (known / (word + suffix)).exists() else word for word in rest]]
    return [program, *[f"--gtest_filter={text}" for text in rest]]


def one_vector(file, build):
    """Creates a folder with only a link to one file of tests/vectors."""
    folder = build / "vectors" / file.stem
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / file.name
    if not link.is_symlink():
        link.symlink_to(file)
    return folder


def build_suites(suites, build, log, options, limit, *tool_options):
    targets = sorted({target_of(suite) for suite in suites})
    return run(["cmake", "--build", str(build), "-j", str(options.jobs), "--target", *targets, *tool_options], log, limit) == 0


def sound(mutants, tree, build, options):
    """Runs every suite without a mutant and returns the time limit of each with one: SUITE -> seconds. Exits if a suite
    fails or its filter matches no test, because such a suite cannot catch a mutant."""
    suites = sorted({suite for m in mutants for suite in m.suites})
    folder = build / "sound"
    folder.mkdir(exist_ok=True)

    def seconds(suite):
        start = time.monotonic()
        log = folder / (re.sub(r"[^A-Za-z0-9_.]+", "_", suite) + ".log")
        log.write_text("")
        passes = run(command_of(suite, tree, build), log, options.limit) == 0 and "Running 0 tests" not in log.read_text(errors="replace")
        return time.monotonic() - start if passes else None

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        taken = dict(zip(suites, pool.map(seconds, suites)))
    failing = [suite for suite, time_taken in taken.items() if time_taken is None]
    if failing:
        sys.exit(f"these fail or hold no test without a mutant: {', '.join(failing)}; see {folder}")
    return {suite: min(options.limit, 60 + 10 * time_taken) for suite, time_taken in taken.items()}


def first_failing(mutant, limits, tree, build, log, by_switch=False):
    for suite in mutant.suites:
        if run(command_of(suite, tree, build), log, limits[suite], mutant if by_switch else None) != 0:
            return suite
    return "survived"


def catch(mutant, limits, tree, build, options):
    """Returns the suite that failed, or "survived"."""
    path = tree / mutant.path
    before = path.read_text()
    path.write_text(before.replace(mutant.old, mutant.new))
    log = build / f"{mutant.name}.log"
    try:
        if not build_suites(mutant.suites, build, log, options, 3600):
            return "does not build"
        return first_failing(mutant, limits, tree, build, log)
    finally:
        path.write_text(before)


def copy_tree(tree, planted=None):
    """Copies every file that git tracks or would track, with the content of `planted` (path -> text) if it has the
    file. Unchanged files are not written, so that few are rebuilt."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    contents = {pathlib.Path(name): text.encode() for name, text in (planted or {}).items()}
    wanted = {pathlib.Path(name) for name in names.stdout.split("\0") if name and (ROOT / name).is_file()} | set(contents)
    for path in wanted:
        to, content = tree / path, contents[path] if path in contents else (ROOT / path).read_bytes()
        if to.exists() and to.read_bytes() == content:
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)
        if (ROOT / path).exists():
            shutil.copymode(ROOT / path, to)
    for path in [p for p in tree.rglob("*") if p.is_file() and p.relative_to(tree) not in wanted]:
        path.unlink()


def configure(tree, build, options, *settings):
    setting = f"-DTORCH_ROOT={options.torch}" if options.torch else "-DMETROPLEX_TORCH=OFF"
    build.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", setting, *settings], check=True, stdout=subprocess.DEVNULL)


def build_planted(mutants, suites, tree, build, options):
    """Builds the suites with all mutants and returns those that compile. Mutants that do not compile are excluded in
    this run, and in later runs until their rows change."""
    log, skipped = build / "one_build.log", build / "does_not_build.txt"
    build.mkdir(parents=True, exist_ok=True)
    known = set(skipped.read_text().split("\n")) if skipped.exists() else set()
    while True:
        mutants = [m for m in mutants if repr((m.name, m.old, m.new)) not in known]
        files, at = mutant_switch.plant_all(ROOT, mutants)
        copy_tree(tree, files)
        configure(tree, build, options, "-DCMAKE_CXX_FLAGS=-w", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=24")
        log.write_text("")
        if build_suites(suites, build, log, options, None, "--", "-k", "0"):
            return mutants
        broken = mutant_switch.broken(log.read_text(), tree, build, at)
        if not broken:
            sys.exit(f"the planted tree does not build; see {log}")
        known |= {repr((m.name, m.old, m.new)) for m in mutants if m.name in broken}
        skipped.write_text("\n".join(sorted(known)))


def one_build(table, chosen, options):
    """Plants every mutant of the table that has a kind, builds once, and runs the suites of each chosen mutant with its
    switch. The planted files do not depend on the choice, so a second run rebuilds nothing."""
    tree, build = options.tree / "switched", options.tree / ("build-switched" if options.torch else "build-switched-ground")
    if by_itself := [m.name for m in chosen if not m.kind]:
        print(f"left out, because they have no kind: {' '.join(by_itself)}", flush=True)
    table, chosen = [m for m in table if m.kind], [m for m in chosen if m.kind]
    problems = [f"{m.name}: {problem}" for m in table if (problem := m.problem(ROOT))] or overlap_problems(table, ROOT)
    if problems:
        sys.exit("\n".join(problems))
    names = {m.name for m in build_planted(table, [s for m in chosen for s in m.suites], tree, build, options)}
    built = [m for m in chosen if m.name in names]
    for mutant in [m for m in chosen if m.name not in names]:
        print(f"{mutant.name:34} {mutant.module:12} does not build", flush=True)
    if options.build_only:
        return {m.name: "does not build" for m in chosen if m.name not in names}
    limits = sound(built, tree, build, options)

    def result(mutant):
        log = build / f"{mutant.name}.log"
        log.write_text("")
        by = first_failing(mutant, limits, tree, build, log, by_switch=True)
        print(f"{mutant.name:34} {mutant.module:12} {by}\n", end="", flush=True)  # one write: several threads print
        return by

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        caught = dict(zip([m.name for m in built], pool.map(result, built)))
    return {m.name: caught.get(m.name, "does not build") for m in chosen}


def one_at_a_time(chosen, options):
    tree, build = options.tree / "tree", options.tree / ("build" if options.torch else "build-ground")
    copy_tree(tree)
    configure(tree, build, options, "-DCMAKE_CXX_FLAGS=-Wno-error")
    if not build_suites([s for m in chosen for s in m.suites], build, build / "sound.log", options, 7200):
        sys.exit(f"the tree does not build; see {build / 'sound.log'}")
    limits = sound(chosen, tree, build, options)
    caught = {}
    for mutant in chosen:
        caught[mutant.name] = mutant.problem(tree) or catch(mutant, limits, tree, build, options)
        print(f"{mutant.name:34} {mutant.module:12} {caught[mutant.name]}", flush=True)
    return caught


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", choices=TABLES, default="table", help="tests/mutants/TABLE.py; --check reads all")
    parser.add_argument("--one-build", action="store_true", help="plants all behind a switch and builds once")
    parser.add_argument("--build-only", action="store_true", help="with --one-build: runs no suite")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--module", action="append", default=[])
    parser.add_argument("--torch", help="TORCH_ROOT: also modules with tensors")
    parser.add_argument("--tree", type=pathlib.Path, default=pathlib.Path("/tmp/metroplex_mutants"), help="folder of the copy and its build")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once; with --one-build also mutants that run at once")
    parser.add_argument("--limit", type=int, default=900, help="seconds a suite may take")
    options = parser.parse_args()
    if options.check:
        return check({table: load(table) for table in TABLES}, ROOT)
    table = load(options.table)
    chosen = [m for m in table if (not options.only or m.name in options.only) and (not options.module or m.module in options.module)
              and (options.torch or m.module in GROUND or options.list)]
    if options.list:
        for m in chosen:
            print(f"{m.name:34} {m.module:12} {m.kind or '-':4} {'; '.join(m.suites)}")
        return 0
    caught = one_build(table, chosen, options) if options.one_build else one_at_a_time(chosen, options)
    left = [name for name, by in caught.items() if by in ("survived", "does not build")]
    print(f"{len(caught)} planted, {len(left)} survived or did not build: {', '.join(left) or 'none'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
