#!/usr/bin/env bash
# Runs suites with tensors under the sanitizers: memory and undefined behavior (address), races between rank threads
# (thread).
#   scripts/sanitize_upper.sh                          both, the suites below
#   scripts/sanitize_upper.sh thread comm_test         one of them, these suites
# libtorch is not instrumented: its own accesses are not checked, our accesses to its memory are. There are no
# suppressions. A suppression of libtorch_cpu.so would hide every race in a backward, because the engine is in its
# call stack.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suites=(comm_test nn_test distributed_test optim_test)
export OMP_NUM_THREADS=1 # OpenMP's own locks are not instrumented and would be reported as races

under() {
  local sanitizer=$1 flags=$1 build=$root/build-$1 torch_root suite
  shift
  [ "$sanitizer" = thread ] || flags=address,undefined
  torch_root=$("$root/scripts/setup.sh" | tail -n 1)
  cmake -S "$root" -B "$build" -G Ninja -DTORCH_ROOT="$torch_root" -DMETROPLEX_CUDA=OFF -DMETROPLEX_SANITIZE="$flags" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24 > /dev/null
  cmake --build "$build" -j2 --target "$@"
  for suite in "$@"; do
    echo "--- $suite under -fsanitize=$flags"
    (cd "$root" && TSAN_OPTIONS=halt_on_error=1 "$build/bin/$suite" --gtest_brief=1)
  done
}

what=${1:-both}
[ $# -eq 0 ] || shift
case "$what" in
  both)
    under address "${suites[@]}"
    under thread "${suites[@]}"
    ;;
  address | thread) under "$what" "${@:-${suites[@]}}" ;;
  *) echo "sanitize_upper.sh: address or thread, and suites, not '$what'" >&2; exit 2 ;;
esac
