#!/usr/bin/env bash
# Suites with tensors under the sanitizers: memory and undefined behaviour (address), races between rank threads (thread).
#   scripts/sanitize_upper.sh                          both, all suites of each
#   scripts/sanitize_upper.sh thread comm_test         one of them, these suites
# libtorch itself is not instrumented: what it does alone is not seen, what we do to its memory is.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
torch_root=$("$root/scripts/setup.sh" | tail -n 1)
export OMP_NUM_THREADS=1 # OpenMP's own locks are not instrumented: races that are none

under() {
  local sanitizer=$1 build=$root/build-$1 suite
  shift
  cmake -S "$root" -B "$build" -G Ninja -DTORCH_ROOT="$torch_root" -DMETROPLEX_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DMETROPLEX_SANITIZE="$([ "$sanitizer" = thread ] && echo thread || echo address,undefined)" \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 > /dev/null
  cmake --build "$build" -j2 --target "$@"
  for suite in "$@"; do
    echo "--- $suite under the $sanitizer sanitizer"
    (cd "$root" && TSAN_OPTIONS="suppressions=$root/scripts/tsan.supp halt_on_error=1" "$build/bin/$suite" --gtest_brief=1)
  done
}

case "${1:-both}" in
  both)
    under address comm_test nn_test optim_test
    under thread comm_test
    ;;
  address | thread) under "$@" ;;
  *) echo "sanitize_upper.sh: address or thread, and suites, not '$1'" >&2; exit 2 ;;
esac
