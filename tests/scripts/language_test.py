"""scripts/check_language.py finds each kind of breach in a file that has one of each, and nothing in a plain one."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import check_language  # noqa: E402

CODE = """// Of each rank the rows that it sends.
int rows_of(const Batch& b) {
  // Returns rows. Given by the caller, they are not checked.
  const char* text = "the rank was told of it";
  const int n = b.rows;
  const int c = n + 1;
  const int d = c + 1;
  use(text, d);
  return d;
}
"""
PLAIN = """// Returns the rows of `batch` [rows, hidden]. Kept rows come first (see `told_rows`).
int count_rows(const Batch& batch) { return batch.rows; }
"""
PAGE = "## What is refused\n\n" + " ".join(["word"] * 26) + ".\n\n    " + " ".join(["code"] * 40) + "\n"


def kinds(name, text):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_text(text)
        return sorted((kind, number) for kind, number, _ in check_language.findings(path))


expected = {
    ("x.cpp", CODE): [("letter", 2), ("letter", 2), ("letter", 2), ("of", 2), ("opening", 1), ("opening", 3), ("retired", 4)],
    ("x.cpp", PLAIN): [],
    ("x.md", PAGE): [("long", 3), ("opening", 1)],
}
problems = [f"{name}: {found}, expected {wanted}" for (name, text), wanted in expected.items() if (found := kinds(name, text)) != wanted]
print("\n".join(problems) or f"language_test: {len(expected)} files, 0 problems")
sys.exit(1 if problems else 0)
