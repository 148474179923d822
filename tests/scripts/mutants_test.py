#!/usr/bin/env python3
"""Every planted mistake of tests/mutants/table.py still applies, and scripts/mutants.py says so of one that does not."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "mutants.py"


def check(root):
    script = pathlib.Path(root) / "scripts" / "mutants.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    return done.returncode, done.stdout


code, text = check(ROOT)
if code != 0:
    sys.exit(text)
with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder)
    for name in ("scripts/mutants.py", "tests/mutants/table.py"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text((ROOT / name).read_text())
    if check(copy)[0] != 1:
        sys.exit("a tree without the sources passes")
print(text.strip())
