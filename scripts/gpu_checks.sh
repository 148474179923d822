#!/usr/bin/env bash
# Runs the checks of one GPU in the order of their value, with programs that were built on another machine. It writes a
# page and logs like gpu_bringup.sh (docs/gpu.md), and may be ended at any time.
#   scripts/gpu_checks.sh [--minutes N] [--build build-gpu] [--torch FOLDER] [--out gpu-report] [--copy FOLDER] [--python PYTHON] [--jobs N] [--quick]
#   scripts/gpu_checks.sh pack FILE.tar.xz [--build build-gpu] [--limit MIB]
# --minutes: a part starts only if its usual time fits into the rest. --build: a build, or a file of `pack`. --torch: the
# folder of the torch package, by default that of PYTHON. --copy: each part also writes the page and logs.tar.gz to this
# existing folder. pack: fails if the file and the tracked files have more than the limit, by default 64 MiB.
. "$(dirname "${BASH_SOURCE[0]}")/gpu_parts.sh"
if [ "${1:-}" = pack ]; then
  [ $# -ge 2 ] || refuse "pack takes a file"
  file=$2 limit=64
  shift 2
  read_options "build limit" "" "$@"
  pack "$file" "$limit"
  exit
fi
read_options "minutes build torch out copy python jobs" "quick" "$@"
begin_report "GPU checks" -checks
find_libraries
define_training
part_machine
part_programs
part_gpu_tests
part_golden
part_golden_graphs
part_step_times
parts_of_shared_gpu
part_untested_paths
part_verify
part_same_text
part_resumed
part_same_bits
part_sanitizer
part_bandwidth
end_report
