#!/usr/bin/env bash
# Validates a machine with GPUs: builds for them, runs all GPU tests and benches of the
# project, and writes a dated page and a folder of logs. Every part runs even if others fail; the
# exit code is 1 where one failed. Without a GPU each part is reported as skipped (docs/gpu.md).
#   scripts/gpu_bringup.sh [--ranks N] [--build build-gpu] [--out gpu-report] [--python PYTHON] [--jobs N] [--no-build] [--quick]
# --ranks: how many GPUs the parts of several ranks use, by default all, at most 2. PYTHON imports torch, for what
# is compared with it; without one only ours is measured. --jobs: how many checks share a GPU at a time, by default one
# for every two cores, at most 8; what is timed runs alone. --quick: fewer steps, whose figures mean little, and the
# sanitizers without the longest tests; about three minutes after the build.
. "$(dirname "${BASH_SOURCE[0]}")/gpu_parts.sh"
read_options "ranks build out python jobs" "no-build quick" "$@"
begin_report "GPU validation" ""
define_training

benches="gpu_step kernel_bandwidth attention_operators grouped_product"
part "build for these GPUs" "" 7200 0 env \
  CUDAARCHS="$(printf '%s\n' "$gpus" | cut -d, -f2 | tr -d ' .' | sort -u | awk '{print $1 ($1 >= 90 ? "a" : "") "-real"}' | paste -sd ';')" \
  bash -c 'if [ -z "$1" ]; then scripts/build.sh --cuda --dir "$2" && ninja -C "$2" $3; fi; test -x "$2/bin/metroplex"' \
  build "$no_build" "$build" "$benches" || touch "$logs/build.failed"
part_machine
part_gpu_tests
part_golden
part_golden_graphs
part_untested_paths
part_verify
part_same_text
part_resumed
part_same_bits
over=()
nccl_operations "ranks" ""
nccl_golden "ranks"
nccl_context_parallel "ranks"
nccl_saves "ranks"
nccl_failures "ranks"
part_sanitizer
part_bandwidth
part_step_times
part_exposed_communication
end_report
