#!/usr/bin/env bash
# Runs the tests that are too long for every submission:
#   all programs of bench/ compile
#   the complete sweeps over layouts and types, and all instruction sets of this machine
#   suites with tensors under both sanitizers, and ten minutes of every fuzzer
#   500 kills, 200 random configurations, and all tests on the CUDA variant
#   scripts/nightly.sh [BUILD_DIR]        default build, which ./test.sh has built
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build}
cmake --build "$build" --target benches
METROPLEX_WHOLE_WALKS=1 OMP_NUM_THREADS=1 "$build/bin/run_test"
METROPLEX_WHOLE_WALKS=1 "$build/bin/plan_test"
METROPLEX_WHOLE_WALKS=1 "$build/bin/kernels_on_host"
"$root/scripts/capabilities.sh" "$build"
"$root/scripts/sanitize_upper.sh"
"$root/scripts/fuzz.sh" 600
METROPLEX=$build/bin/metroplex "$root/scripts/kill_test.sh"
"$root/scripts/random_runs.py" --binary "$build/bin/metroplex" --seed "$(date +%j)" --runs 200
"$root/test.sh" --cuda
