#!/usr/bin/env bash
# Runs the modules without torch and the host kernels under ASan and UBSan, and every libFuzzer target for a short
# time.
#   scripts/sanitize.sh [seconds a fuzzer]       default 20
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seconds=${1:-20}
build=$root/build-asan
cmake -S "$root" -B "$build" -G Ninja -DMETROPLEX_TORCH=OFF -DMETROPLEX_FUZZERS=ON -DCMAKE_CXX_COMPILER=clang++ \
  -DMETROPLEX_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24 > /dev/null
cmake --build "$build" -j2
ctest --test-dir "$build" -j2 --output-on-failure --no-tests=error
# Only g++ builds these, without a sanitizer for the whole build.
cmake -S "$root" -B "$build/host" -G Ninja -DMETROPLEX_TORCH=OFF > /dev/null
cmake --build "$build/host" -j2 --target kernels_on_host_asan
"$build/host/bin/kernels_on_host_asan" --gtest_brief=1
# fuzz FUZZER: the last line has the number of inputs.
fuzz() {
  local fuzzer=$1 corpus log
  corpus=$(mktemp -d)
  log=$(mktemp)
  python3 "$root/tests/fuzz/seeds.py" "$(basename "$fuzzer")" "$corpus"
  if ! "$fuzzer" "$corpus" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 > "$log" 2>&1; then
    tail -n 60 "$log"
    echo "$fuzzer found a fault; the input is in the folder it was run from"
    return 1
  fi
  echo "$(basename "$fuzzer"), $seconds s: $(grep number_of_executed_units "$log")"
  rm -rf "$corpus" "$log"
}
export -f fuzz
export root seconds
printf '%s\0' "$build"/bin/*_fuzz | xargs -0 -n 1 -P 2 bash -c 'fuzz "$1"' fuzz
