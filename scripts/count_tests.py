#!/usr/bin/env python3
"""Counts the tests that ran: count_tests.py RESULTS EXPECTED [--update]. RESULTS contains ctest.xml and the XML files
of GoogleTest.

A GoogleTest binary counts its tests. metroplex_vectors counts its cases, each file under metroplex_vectors/FILE. A
script counts its assertions by its lines "assertions: N". Any other entry of ctest counts as one. Skipped tests are
counted as skipped: lines "  skipped: ..." for a missing GPU or program, and cases of a part that is not built.

EXPECTED has lines "name count". A name that ran fewer than that, or not at all, is a failure; --update rewrites it."""
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

FILE_OF_CASES = re.compile(r"^(\S+\.json): (\d+) passed, (\d+) failed, (\d+) waiting$", re.MULTILINE)
ASSERTIONS = re.compile(r"^assertions: (\d+)$", re.MULTILINE)
SKIPPED = re.compile(r"^  skipped: ", re.MULTILINE)


class Counts:
    def __init__(self):
        self.ran, self.failed, self.skipped = {}, 0, 0

    def add(self, name, ran, failed=0, skipped=0):
        name = re.sub(r"\.\d+$", "", name)  # a shard of a suite
        self.ran[name] = self.ran.get(name, 0) + ran
        self.failed += failed
        self.skipped += skipped

    def add_gtest(self, name, root, entry_passed):
        left_out = sum(1 for test in root.iter("testcase") if test.get("result") == "skipped" or test.get("status") == "notrun")
        bad = int(root.get("failures")) + int(root.get("errors"))
        if bad == 0 and not entry_passed:
            bad = 1  # the program failed outside its tests
        self.add(name, int(root.get("tests")) - left_out, bad, left_out)

    def add_output(self, name, text, entry_passed):
        """Reads the counts that a program prints, if any."""
        files = FILE_OF_CASES.findall(text)
        bad = 0
        for file, passed, failed, waiting in files:
            self.add(f"{name}/{file}", int(passed) + int(failed), int(failed), int(waiting))
            bad += int(failed)
        if not files:
            said = [int(count) for count in ASSERTIONS.findall(text)]
            self.add(name, sum(said) if said else 1)
        self.failed += int(bad == 0 and not entry_passed)
        self.skipped += len(SKIPPED.findall(text))


def read(results):
    counts = Counts()
    for case in ET.parse(results / "ctest.xml").getroot().iter("testcase"):
        name, passed = case.get("name"), case.get("status") == "run"
        suite = results / f"{name}.xml"
        if suite.exists():
            counts.add_gtest(name, ET.parse(suite).getroot(), passed)
        else:
            counts.add_output(name, case.findtext("system-out") or "", passed)
    return counts


def main():
    results, expected = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    counts = read(results)
    if "--update" in sys.argv:
        expected.write_text("".join(f"{name} {count}\n" for name, count in sorted(counts.ran.items())))
    missing = 0
    for line in (expected.read_text() if expected.exists() else "expected_counts 1").splitlines():
        name, count = line.split()
        if counts.ran.get(name, 0) < int(count):
            print(f"MISSING {name}: {counts.ran.get(name, 0)} of {count} ran")
            missing += 1
    passed, failed = sum(counts.ran.values()) - counts.failed, counts.failed + missing
    print(f"{passed} passed, {failed} failed, {counts.skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
