#!/usr/bin/env python3
"""Counts what ran: count_tests.py RESULTS EXPECTED [--update]. A suite that ran fewer cases than EXPECTED says, or did
not run, is a failure. EXPECTED has a line "name count" for each ctest entry; --update rewrites it from RESULTS."""
import pathlib
import sys
import xml.etree.ElementTree as ET


def main():
    results, expected_path = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    counts, failed, skipped = {}, 0, 0
    for case in ET.parse(results / "ctest.xml").getroot().iter("testcase"):
        name = case.get("name")
        suite = results / f"{name}.xml"
        if suite.exists():  # a GoogleTest binary: its own cases count
            root = ET.parse(suite).getroot()
            left_out = sum(1 for test in root.iter("testcase") if test.get("result") == "skipped" or test.get("status") == "notrun")
            bad = int(root.get("failures")) + int(root.get("errors"))
            counts[name] = int(root.get("tests")) - left_out
            failed += bad
            skipped += left_out
            if bad == 0 and case.get("status") != "run":
                failed += 1
        else:
            counts[name] = 1
            if case.get("status") != "run":
                failed += 1
    if "--update" in sys.argv:
        expected_path.write_text("".join(f"{name} {count}\n" for name, count in sorted(counts.items())))
    missing = []
    for line in (expected_path.read_text() if expected_path.exists() else "expected_counts 1").splitlines():
        name, count = line.split()
        if counts.get(name, 0) < int(count):
            missing.append(f"{name}: {counts.get(name, 0)} of {count} tests ran")
    for line in missing:
        print(f"MISSING {line}")
    failed += len(missing)
    print(f"{sum(counts.values()) - failed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
