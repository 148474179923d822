#!/usr/bin/env python3
"""Every test, script, command and file named in README.md, docs/evidence.md, docs/testing.md and docs/cli.md exists.

The links of all pages in docs/ have a target. README.md has at most 900 words, and a claim in docs/evidence.md has at
most 12. The test plants faults in copies of the pages and requires that the check reports each one."""
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "docs/evidence.md", "docs/testing.md", "docs/cli.md")
README_WORDS = 900
CLAIM_WORDS = 12

# (page, text that is replaced, replacement, words of the report)
FAULTS = [
    ("docs/evidence.md", "`run_test Zero.*`", "`run_test Zerro.*`", "run_test has no test Zerro.*"),
    ("docs/evidence.md", "`ctest app_signals_test`", "`ctest app_signal_test`", "no ctest entry matches app_signal_test"),
    ("docs/evidence.md", "`ctest -L gpu`", "`ctest -L tpu`", "no ctest label matches tpu"),
    ("docs/evidence.md", "`scripts/fuzz.sh`", "`scripts/fuz.sh`", "no file scripts/fuz.sh"),
    ("docs/evidence.md", "`chat_template_fuzz`", "`chat_templates_fuzz`", "no test program chat_templates_fuzz"),
    ("docs/evidence.md", "`metroplex_vectors router.json`", "`metroplex_vectors routers.json`", "no file tests/vectors/routers.json"),
    ("docs/evidence.md", "(memory.md#memory-options)", "(memory.md#options-of-memory)", "docs/memory.md has no section #options-of-memory"),
    ("docs/evidence.md", "| A full disk keeps", "| A disk that is full at any byte always keeps", "a claim has 13 words"),
    ("docs/evidence.md", "| `ctest app_signals_test` |", "| |", "a claim has no test"),
    ("docs/testing.md", "--gtest_filter='Rope.*'", "--gtest_filter='Ropes.*'", "nn_test has no test Ropes.*"),
    ("docs/testing.md", "-R topology", "-R topologies", "no ctest entry matches topologies"),
    ("docs/testing.md", "bash tests/apps/signals_test.sh", "bash tests/apps/signal_test.sh", "no file tests/apps/signal_test.sh"),
    ("docs/cli.md", "| `inspect` |", "| `inspekt` |", "metroplex has no command inspekt"),
    ("README.md", "metroplex verify examples/llama_tiny.yaml", "metroplex prove examples/llama_tiny.yaml", "metroplex has no command prove"),
    ("README.md", "(docs/tour.md)", "(docs/tours.md)", "no file docs/tours.md"),
    ("README.md", "# Metroplex\n", "# Metroplex\n" + "word " * README_WORDS, f"more than {README_WORDS}"),
]


class Tree:
    """Names that exist in the sources: tests of each binary, ctest entries and labels, commands."""

    def __init__(self):
        self.binaries = {}
        for folder in sorted((ROOT / "tests").iterdir()):
            for source in sorted(folder.glob("*_test.cpp")):
                kind = re.search(r"_(procs|cuda|nccl)_test\.cpp$", source.name)
                suffix = {None: "_test", "procs": "_procs_test", "cuda": "_gpu_test", "nccl": "_nccl_test"}[kind and kind[1]]
                binary = folder.name if folder.name == "kernels_on_host" else folder.name + suffix
                self.binaries.setdefault(binary, set()).update(tests_in(source.read_text()))
        self.fuzzers = {source.stem for source in (ROOT / "tests/fuzz").glob("*_fuzz.cpp")}
        cmake = "\n".join(path.read_text() for path in (ROOT / "cmake").glob("*.cmake"))
        cmake += (ROOT / "tests/kernels_on_host/CMakeLists.txt").read_text()
        self.labels = set(re.findall(r"LABELS (\w+)", cmake))
        self.programs = set(re.findall(r"^(?:add_executable|parity_program)\((\w+)", cmake, re.MULTILINE))
        shards = {name: int(count) for name, count in re.findall(r"set\((\w+)_shards (\d+)\)", cmake)}
        self.entries = set(re.findall(r"add_test\(NAME (\w+) ", cmake))
        for binary in self.binaries:
            self.entries.update({f"{binary}.{shard}" for shard in range(shards.get(binary, 0))} or {binary})
        self.entries.update(f"app_{script.stem}" for script in (ROOT / "tests/apps").glob("*_test.sh"))
        self.entries.update(f"hf_parity_{name}" for name in re.findall(r"^hf_parity_test\((\w+) ", cmake, re.MULTILINE))
        gloo = re.search(r'set\(gloo_runs "(.*)"\)', cmake)[1]
        for run in (ROOT / "tests/vectors/golden").glob("*.json"):
            if run.stem != "golden_index":
                self.entries.add(f"parity_{run.stem}_threads")
                if re.search(gloo, run.stem):
                    self.entries.add(f"parity_{run.stem}_gloo")
        self.commands = set(re.findall(r'\{"(\w+)", "', (ROOT / "apps/commands.cpp").read_text()))


def tests_in(source):
    """Full names of the tests in a source file. A parameterized test stands for all its instances."""
    prefixes = {suite: prefix for prefix, suite in re.findall(r"INSTANTIATE_TEST_SUITE_P\((\w+), (\w+)", source)}
    for macro, suite, name in re.findall(r"^(TEST(?:_F|_P)?)\((\w+),\s*(\w+)\)", source, re.MULTILINE):
        yield f"{prefixes[suite]}/{suite}.{name}/0" if macro == "TEST_P" else f"{suite}.{name}"


def anchors_in(page):
    """Anchors of the headings, as GitHub spells them."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def missing_filters(tree, binary, filters):
    for pattern in filters.split(":"):
        if not any(fnmatch.fnmatchcase(name, pattern) for name in tree.binaries[binary]):
            yield f"{binary} has no test {pattern}"


def missing_entries(tree, kind, pattern):
    if kind == "-L":
        if not any(re.search(pattern, label) for label in tree.labels):
            yield f"no ctest label matches {pattern}"
    elif not any(re.search(pattern, entry) for entry in tree.entries):
        yield f"no ctest entry matches {pattern}"


def problems_in_code(tree, code):
    """`code` is one code span or one line of a code block."""
    if match := re.match(r"ctest (?:--test-dir \S+ )?(?:(-[RL]) )?'?([^' ]+)'?$", code):
        yield from missing_entries(tree, match[1], match[2])
    elif match := re.match(r"metroplex_vectors (\w+\.json)$", code):
        if not (ROOT / "tests/vectors" / match[1]).exists():
            yield f"no file tests/vectors/{match[1]}"
    elif (match := re.match(r"(\w+) (\S+)$", code)) and match[1] in tree.binaries:
        yield from missing_filters(tree, match[1], match[2])
    for binary, filters in re.findall(r"(\w+) --gtest_filter='?([^' `]+)", code):
        yield from missing_filters(tree, binary, filters)
    for name in re.findall(r"(?<![\w/<>*.-])(?:build/bin/)?(\w+_(?:test|fuzz)|metroplex_\w+)\b(?![./*])", code):
        if name not in tree.binaries.keys() | tree.fuzzers | tree.programs | tree.entries and not f"{name}.0" in tree.entries:
            yield f"no test program {name}"
    for command in re.findall(r"(?:^|[/ ])metroplex ([a-z]+)\b", code):
        if command not in tree.commands | {"help"}:
            yield f"metroplex has no command {command}"
    for path in re.findall(r"(?<![\w/.<*-])((?:\./)?(?:apps|bench|docs|examples|metroplex|scripts|tests)/[\w./*-]+|\./\w+\.sh|\.ci/run)", code):
        if not any(ROOT.glob(path.rstrip("./").removeprefix("./"))):
            yield f"no file {path}"


def code_in(page):
    """Code spans and the lines of indented blocks."""
    for line in page.splitlines():
        if line.startswith("    "):
            yield line.split("  ")[2].strip()
        else:
            yield from (code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", line))


def problems_in_links(page, texts):
    for target in re.findall(r"\]\(([^)]+)\)", texts.get(page) or (ROOT / page).read_text()):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        name = file.resolve().relative_to(ROOT).as_posix()
        if not file.exists():
            yield f"no file {name}"
        elif anchor and anchor not in anchors_in(texts.get(name) or file.read_text()):
            yield f"{name} has no section #{anchor}"


def problems_in_claims(page):
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 3 or cells[0] in ("claim", "---"):
            continue
        if len(cells[0].split()) > CLAIM_WORDS:
            yield f"a claim has {len(cells[0].split())} words, more than {CLAIM_WORDS}: {cells[0]}"
        if "`" not in cells[1]:
            yield f"a claim has no test: {cells[0]}"
        if "](" not in cells[2]:
            yield f"a claim has no page: {cells[0]}"


def problems(tree, texts):
    for page, text in texts.items():
        for code in code_in(text):
            yield from (f"{page}: {problem}" for problem in problems_in_code(tree, code))
    for page in sorted({*texts, *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))}):
        yield from (f"{page}: {problem}" for problem in problems_in_links(page, texts))
    words = len(texts["README.md"].split())
    if words > README_WORDS:
        yield f"README.md: {words} words, more than {README_WORDS}"
    yield from (f"docs/evidence.md: {problem}" for problem in problems_in_claims(texts["docs/evidence.md"]))
    for command in re.findall(r"^\| `(\w+)` \|", texts["docs/cli.md"], re.MULTILINE):
        if command not in tree.commands:
            yield f"docs/cli.md: metroplex has no command {command}"
    for command in sorted(tree.commands):
        if f"| `{command}` |" not in texts["docs/cli.md"]:
            yield f"docs/cli.md: the command {command} is missing"


def main():
    tree = Tree()
    texts = {page: (ROOT / page).read_text() for page in PAGES}
    wrong = list(problems(tree, texts))
    for page, old, new, words in FAULTS:
        if old not in texts[page]:
            wrong.append(f"{page} has no {old!r} to replace")
            continue
        found = list(problems(tree, texts | {page: texts[page].replace(old, new)}))
        if not any(words in problem for problem in found):
            wrong.append(f"{page} with {new[:60]!r}: expected '{words}', got {found}")
    for line in wrong:
        print(line)
    claims = sum(line.startswith("| ") for line in texts["docs/evidence.md"].splitlines())
    print(f"evidence_test: {claims} table rows, {len(FAULTS)} planted faults, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
