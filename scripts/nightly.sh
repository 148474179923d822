#!/usr/bin/env bash
# What is too long for every submission: all instruction sets that this machine has, suites with tensors under both
# sanitizers, 500 kills, 200 runs of random configurations.
#   scripts/nightly.sh [BUILD_DIR]        default build, which ./test.sh has built
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build}
"$root/scripts/capabilities.sh" "$build"
"$root/scripts/sanitize_upper.sh"
METROPLEX=$build/bin/metroplex "$root/scripts/kill_test.sh"
"$root/scripts/random_runs.py" --binary "$build/bin/metroplex" --seed "$(date +%j)" --runs 200
