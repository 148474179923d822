#!/usr/bin/env bash
# Runs the libFuzzer targets for a given time on the corpus of earlier runs. The corpus grows in FOLDER and is
# minimized. Crashing inputs are stored in FOLDER/faults/FUZZER. After the fix, move such an input to
# tests/fuzz/found/FUZZER, where scripts/sanitize.sh uses it.
#   scripts/fuzz.sh SECONDS [FOLDER] [FUZZER ...]       SECONDS each, two at a time; default build-asan/corpus, all
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seconds=${1:?usage: scripts/fuzz.sh SECONDS [FOLDER] [FUZZER ...]}
build=$root/build-asan
corpus=${2:-$build/corpus}
shift $(($# < 2 ? $# : 2))
cmake -S "$root" -B "$build" -G Ninja -DMETROPLEX_TORCH=OFF -DMETROPLEX_FUZZERS=ON -DCMAKE_CXX_COMPILER=clang++ \
  -DMETROPLEX_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24 > /dev/null
[ $# -gt 0 ] || set -- $(cd "$root/tests/fuzz" && ls ./*_fuzz.cpp | sed 's/^\.\/\(.*\)\.cpp$/\1/')
cmake --build "$build" -j2 --target "$@"
# fuzz FUZZER: prints the number of inputs and of new ones.
fuzz() {
  local name=$1 now=$corpus/$1 status=0 before
  mkdir -p "$now" "$corpus/faults/$name"
  python3 "$root/tests/fuzz/seeds.py" "$name" "$now"
  before=$(ls "$now" | wc -l)
  "$build/bin/$name" "$now" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$corpus/faults/$name/" > "$corpus/$name.log" 2>&1 || status=$?
  # Keeps the shortest of the inputs with equal coverage.
  rm -rf "$now.less" && mkdir "$now.less"
  "$build/bin/$name" -merge=1 -rss_limit_mb=4096 "$now.less" "$now" > /dev/null 2>&1 && rm -rf "$now" && mv "$now.less" "$now"
  echo "$name, $seconds s: $(grep number_of_executed_units "$corpus/$name.log" | grep -o '[0-9]*$' || echo 0) inputs, corpus $before -> $(ls "$now" | wc -l)$([ $status = 0 ] || echo ", FAULT: $corpus/$name.log")"
  return $status
}
export -f fuzz
export root seconds build corpus
printf '%s\0' "$@" | xargs -0 -n 1 -P 2 bash -c 'fuzz "$1"' fuzz
