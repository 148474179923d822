#!/usr/bin/env python3
"""Runs the table bad_inputs.txt: bad_inputs.py BINARY PORT TINY... (the tiny model's arguments), two cases at a time.

Of each case: the exit code is the one given; stderr names what the table says and holds one error, the last thing
that is said; nothing is said twice; nothing like a crash or a stack trace; it ends within 20 seconds (a loaded machine;
usually below one); no file named out, out.*, and no .tmp-* or *.part, is left."""
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from walk.said import said_twice  # noqa: E402

CRASH = re.compile(r"terminate called|Segmentation|Aborted|AddressSanitizer|Exception raised from|frame #\d|std::|Traceback|core dumped")
LIMIT = 20


def read_table(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            code, words, arguments = line.split(" | ", 2)
            yield number, int(code), [word.strip() for word in words.split(";")], arguments


def run_case(case, binary, port, tiny):
    number, code, words, arguments = case
    words = [word.replace("PORT", port) for word in words]
    command = []
    for word in shlex.split(arguments.replace("PORT", port).replace("OUT", f"out{number}")):
        command += {"TRAIN": ["train", *tiny], "TRAIN_EVAL": ["eval", *tiny]}.get(word, [word])
    start = time.monotonic()
    try:
        done = subprocess.run([binary, *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"line {number}: {arguments}\n  still runs after {LIMIT} s"
    text = done.stderr.decode(errors="replace")
    problems = []
    if done.returncode != code:
        problems.append(f"exit code {done.returncode}, not {code}")
    problems += [f"the message lacks '{word}'" for word in words if word not in text]
    if CRASH.search(text) or CRASH.search(done.stdout.decode(errors="replace")):
        problems.append("looks like a crash")
    errors = len(re.findall(r"^metroplex: (?!trains large)", text, re.MULTILINE))  # an unknown command shows the usage too
    if errors != 1:
        problems.append(f"{errors} errors, not 1")
    twice = said_twice(text)
    if twice:
        problems.append(twice)
    if len(text) > 4000:
        problems.append(f"{len(text)} characters are too many to read")
    if problems:
        return f"line {number}: {arguments}\n  " + "\n  ".join(problems) + "\n  stderr: " + text[:1500].rstrip().replace("\n", "\n          ")
    return time.monotonic() - start


def main():
    binary, port, tiny = sys.argv[1], sys.argv[2], sys.argv[3:]
    before = set(os.listdir("."))
    cases = list(read_table(pathlib.Path(__file__).with_name("bad_inputs.txt")))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda case: run_case(case, binary, port, tiny), cases))
    failures = [result for result in results if isinstance(result, str)]
    rubbish = [str(path) for path in pathlib.Path(".").rglob("*")
               if path.name.startswith((".tmp-", "out")) or path.name.endswith((".part", ".partial"))]
    rubbish += sorted(set(os.listdir(".")) - before - {"cache"} - set(rubbish))
    for failure in failures:
        print("FAILED: " + failure, file=sys.stderr)
    if rubbish:
        print(f"FAILED: left behind: {rubbish}", file=sys.stderr)
    if failures or rubbish or len(cases) < 60:
        print(f"{len(failures)} of {len(cases)} cases failed", file=sys.stderr)
        return 1
    print(f"  ok: {len(cases)} bad inputs, each one clear error with its exit code, nothing half written; the slowest took {max(results):.1f} s")
    return 0


sys.exit(main())
