#!/usr/bin/env bash
# The ground floor without torch under ASan and UBSan, and a short run of every libFuzzer target.
#   scripts/sanitize.sh [seconds a fuzzer]       default 20
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seconds=${1:-20}
build=$root/build-asan
cmake -S "$root" -B "$build" -G Ninja -DMETROPLEX_TORCH=OFF -DMETROPLEX_FUZZERS=ON -DCMAKE_CXX_COMPILER=clang++ \
  -DMETROPLEX_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 > /dev/null
cmake --build "$build" -j2
ctest --test-dir "$build" -j2 --output-on-failure --no-tests=error
for fuzzer in "$build"/bin/*_fuzz; do
  echo "fuzzing $(basename "$fuzzer") for $seconds s"
  corpus=$(mktemp -d)
  python3 "$root/tests/fuzz/seeds.py" "$(basename "$fuzzer")" "$corpus"
  log=$(mktemp)
  if ! "$fuzzer" "$corpus" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 > "$log" 2>&1; then
    tail -n 60 "$log"
    echo "$fuzzer found a fault; the input is in the folder it was run from"
    exit 1
  fi
  grep number_of_executed_units "$log"
  rm -rf "$corpus"
done
