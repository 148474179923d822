#!/usr/bin/env bash
# Runs two and four processes over NCCL on one GPU: every operation, golden runs, asynchronous saves and failures. It
# writes a page and logs like gpu_bringup.sh (docs/gpu.md). The programs must have been built.
#   scripts/gpu_ranks.sh [--build build-gpu] [--torch FOLDER] [--out gpu-report] [--jobs N] [--minutes N]
# --build, --torch: see gpu_checks.sh. --minutes: a part starts only
# if its usual time fits into the rest.
. "$(dirname "${BASH_SOURCE[0]}")/gpu_parts.sh"
read_options "build torch out jobs minutes" "" "$@"
begin_report "NCCL ranks on one GPU" -ranks
find_libraries
define_training
part_machine
parts_of_shared_gpu
end_report
