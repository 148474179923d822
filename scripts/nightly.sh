#!/usr/bin/env bash
# What is too long for every submission: the whole walks over layouts and types, all instruction sets that this machine has, suites
# with tensors under both sanitizers, ten minutes of every fuzzer, 500 kills, 200 runs of random configurations, all tests on the CUDA variant.
#   scripts/nightly.sh [BUILD_DIR]        default build, which ./test.sh has built
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build}
METROPLEX_WHOLE_WALKS=1 OMP_NUM_THREADS=1 "$build/bin/train_test"
METROPLEX_WHOLE_WALKS=1 "$build/bin/plan_test"
METROPLEX_WHOLE_WALKS=1 "$build/bin/kernels_on_host"
"$root/scripts/capabilities.sh" "$build"
"$root/scripts/sanitize_upper.sh"
"$root/scripts/fuzz.sh" 600
METROPLEX=$build/bin/metroplex "$root/scripts/kill_test.sh"
"$root/scripts/random_runs.py" --binary "$build/bin/metroplex" --seed "$(date +%j)" --runs 200
"$root/test.sh" --cuda
