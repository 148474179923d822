#!/usr/bin/env bash
# Sets up, builds, and runs every test that this machine can run without a sanitizer (scripts/sanitize.sh). Ends with a
# count; fails when a test fails or when fewer tests ran than tests/expected_counts.txt asks for.
#   ./test.sh [--cpu | --cuda] [--update]      --update: take what ran now as what is expected
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
update=()
variant=()
for argument in "$@"; do
  if [ "$argument" = --update ]; then update=(--update); else variant+=("$argument"); fi
done
echo "test.sh installs what is missing (Debian packages, the torch wheel), builds, and runs all tests."
scripts/build.sh "${variant[@]}" --dir build
scripts/setup.sh "${variant[@]}" --browser > /dev/null
results=build/test-results
rm -rf "$results" && mkdir -p "$results"
status=0
GTEST_OUTPUT="xml:$PWD/$results/" ctest --test-dir build -j2 --output-on-failure --no-tests=error --test-output-size-passed 1000000 --output-junit "$PWD/$results/ctest.xml" || status=$?
python3 scripts/count_tests.py "$results" tests/expected_counts.txt "${update[@]}" || status=1
exit "$status"
