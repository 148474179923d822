#!/usr/bin/env bash
# Runs the numeric suites, all replays and the layout sweeps again, with libtorch, oneDNN and MKL limited to older
# instruction sets. Their results differ in the last bits, and no test may depend on the machine.
#   scripts/capabilities.sh [BUILD_DIR [avx2]]       default build, which ./test.sh has built
# With avx2, only this set runs, and only two of the eight parts of run_test.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build}
parts='[0-9]+'
[ "${2:-}" = avx2 ] && parts='[01]'
has() { grep -qw "$1" /proc/cpuinfo; }
suites="^(device_test|kernels_test|graph_test|tape_check_test|nn_test|moe_test|models_test|distributed_test|optim_test|run_test\.$parts|metroplex_vectors|parity_.*_threads|app_commands_test)\$"
failed=0
ran=()
skipped=()

# under NAME ATEN ONEDNN MKL: the names of one instruction set in torch, oneDNN and MKL
under() {
  local name=$1 start=$SECONDS status=0
  echo "--- $name: ATEN_CPU_CAPABILITY=$2 ONEDNN_MAX_CPU_ISA=$3 MKL_ENABLE_INSTRUCTIONS=$4"
  ATEN_CPU_CAPABILITY=$2 ONEDNN_MAX_CPU_ISA=$3 MKL_ENABLE_INSTRUCTIONS=$4 \
    ctest --test-dir "$build" -R "$suites" -j2 --output-on-failure --no-tests=error > "$build/capabilities.log" 2>&1 || status=$?
  if [ "$status" != 0 ]; then
    tail -n 150 "$build/capabilities.log"
    failed=1
  fi
  tail -n 4 "$build/capabilities.log"
  ran+=("$(printf '%s %.1f min %s' "$name" "$(awk "BEGIN {print ($SECONDS - $start) / 60}")" "$([ "$status" = 0 ] && echo ok || echo FAILED)")")
}

has avx2 || { echo "this machine has no AVX2, which metroplex needs"; exit 1; }
if has avx512f; then
  under AVX2 avx2 AVX2 AVX2
else
  skipped+=("AVX2: it is this machine's own set")
fi
if ! has avx512f || ! has avx512bw; then
  skipped+=("AVX512: this machine has none")
elif [ "${2:-}" = avx2 ]; then
  skipped+=("AVX512 without bf16: scripts/nightly.sh runs it")
else
  under "AVX512 without bf16" avx512 AVX512_CORE AVX512
fi
# The preceding tests covered the machine's own instruction set.
for line in "${ran[@]}"; do echo "capabilities: $line"; done
for line in "${skipped[@]}"; do echo "capabilities: skipped $line"; done
exit "$failed"
