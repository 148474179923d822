#!/usr/bin/env python3
"""Every mutant of tests/mutants applies, scripts/mutants.py reports those that do not, and --one-build runs several mutants
of a small project from one build."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import mutant_switch  # noqa: E402

TRACKED = ("scripts/mutants.py", "scripts/mutant_switch.py", "tests/mutants/table.py", "tests/mutants/drawn.py", "tests/mutants/price.py")

CMAKE = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
option(METROPLEX_TORCH "there is no upper floor" OFF)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
add_executable(base_test tests/base_test.cpp metroplex/base/sums.cpp metroplex/base/tables.cpp)
"""
SUMS = """#include <vector>
// A sum.
int add(int a, int b) {
  // The sum of both.
  return a + b;
}
int start() { return 7; }
constexpr int twice(int a) { return 2 * a; }
static_assert(twice(2) == 4);
int total(const std::vector<int>& values) {
  int sum = 0;
  (void)values.size();
  for (int value : values) sum += value;
  if (sum > 1000) sum = 1000;
  return twice(sum);
}
"""
TABLES = """#include <string>
extern const std::string first;
const std::string first = std::string("ab").substr(0, 1);
"""
TEST = """#include <string>
#include <vector>
int add(int, int);
int total(const std::vector<int>&);
int start();
extern const std::string first;
const int at_start = start();  // before the static objects of the planted files
int main(int argc, char**) {
  return argc > 1 && at_start == 7 && add(1, 2) == 3 && total({1, 2}) == 6 && first == "a" ? 0 : 1;
}
"""
ROWS = """MUTANTS = [
    ("of_sum", "base/sums.cpp", "  return a + b;\\n", "  return a - b;\\n", "base_test *", "stmt"),
    ("of_twice", "base/sums.cpp", "2 * a", "3 * a", "base_test *", "expr"),
    ("of_loop", "base/sums.cpp", "sum += value;", "", "base_test *", "stmt"),
    ("of_start", "base/sums.cpp", "return 7;", "return 8;", "base_test *", "stmt"),
    ("of_time", "base/sums.cpp", "(void)values.size();", "for (volatile int wait = 1; wait != 0;) {}", "base_test *", "stmt"),
    ("of_limit", "base/sums.cpp", "if (sum > 1000) sum = 1000;", "", "base_test *", "stmt"),
    ("of_name", "base/sums.cpp", "twice(sum)", "thrice(sum)", "base_test *", "expr"),
    ("of_static", "base/tables.cpp", 'std::string("ab").substr(0, 1)', 'std::string("b")', "base_test *", "expr"),
    ("by_itself", "base/sums.cpp", "int sum = 0;", "int sum = 1;", "base_test *"),
]
"""
CAUGHT = ["left out, because they have no kind: by_itself", "of_sum base base_test *", "of_twice base base_test *", "of_loop base base_test *",
          "of_start base base_test *", "of_time base base_test *", "of_limit base survived", "of_name base does not build", "of_static base base_test *"]

UNSWITCHABLE = {
    "overlap": ('("a", "base/sums.cpp", "a + b", "a - b", "base_test", "expr"), ("b", "base/sums.cpp", "return a + b;", "return a;", "base_test", "stmt")'),
    "not one expression": '("a", "base/sums.cpp", "return a + b", "return a", "base_test", "expr")',
    "do not pair": '("a", "base/sums.cpp", "twice(sum", "twice(1", "base_test", "expr")',
    "no statement begins": '("a", "base/sums.cpp", "+ b;", "- b;", "base_test", "stmt")',
    "does not end": '("a", "base/sums.cpp", "return a + b", "return a", "base_test", "stmt")',
    "a constant": '("a", "base/sums.cpp", "twice(2)", "twice(1)", "base_test", "expr")',
    "is not one of": '("a", "base/sums.cpp", "a + b", "a - b", "base_test", "expression")',
}


def mutants(root, *options):
    done = subprocess.run([sys.executable, str(root / "scripts" / "mutants.py"), *options], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def small_project(root, rows):
    write(root, {name: (ROOT / name).read_text() for name in TRACKED[:2]})
    write(root, {"tests/mutants/table.py": rows, "CMakeLists.txt": CMAKE, "metroplex/base/sums.cpp": SUMS, "metroplex/base/tables.cpp": TABLES,
                 "tests/base_test.cpp": TEST})


def require(condition, message):
    if not condition:
        sys.exit(message)


code, said = mutants(ROOT, "--check")
require(code == 0, said)
with tempfile.TemporaryDirectory() as folder:
    write(pathlib.Path(folder), {name: (ROOT / name).read_text() for name in TRACKED})
    require(mutants(pathlib.Path(folder), "--check")[0] == 1, "a tree without the sources passes")

with tempfile.TemporaryDirectory() as folder:
    for why, rows in UNSWITCHABLE.items():
        small_project(pathlib.Path(folder), f"MUTANTS = [{rows}]\n")
        code, text = mutants(pathlib.Path(folder), "--check")
        require(code == 1 and why in text, f"--check passes rows that cannot be switched ({why}): {text}")

with tempfile.TemporaryDirectory() as folder:
    root, copy = pathlib.Path(folder) / "root", pathlib.Path(folder) / "copy"
    small_project(root, ROWS)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    code, text = mutants(root, "--check")
    require(code == 0, text)
    command = ["--one-build", "--tree", str(copy), "--limit", "5"]
    for turn in ("first", "second"):
        code, text = mutants(root, *command)
        lines = [" ".join(line.split()) for line in text.splitlines()]
        require(code == 1 and sorted(lines[:-1]) == sorted(CAUGHT), f"{turn} run of --one-build:\n{text}")
        require(lines[-1] == "8 planted, 2 survived or did not build: of_limit, of_name", f"{turn} run of --one-build:\n{text}")
    program = copy / "build-switched-ground" / "bin" / "base_test"
    built = program.stat().st_mtime_ns
    code, text = mutants(root, *command, "--only", "of_sum", "--only", "of_loop")
    require(code == 0 and "2 planted, 0 survived" in text, text)
    require(program.stat().st_mtime_ns == built, "--one-build builds again where nothing changed")
    require((root / "metroplex/base/sums.cpp").read_text() == SUMS, "--one-build changes the project itself")
    require(not (root / mutant_switch.HEADER).exists(), "--one-build writes its header into the project")
print(said.strip())
