#!/usr/bin/env bash
# Set-up, configure and build, quietly when there is nothing to do.
#   scripts/build.sh [--cpu | --cuda] [--dir build] [--target NAME ...]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
variant=()
dir=$root/build
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --cpu | --cuda) variant=("$1"); shift ;;
    --dir) dir=$2; shift 2 ;;
    --target) targets+=(--target "$2"); shift 2 ;;
    *) echo "build.sh: unknown option '$1'" >&2; exit 2 ;;
  esac
done
torch_root=$("$root/scripts/setup.sh" "${variant[@]}" | tail -n 1)
configured=$(sed -n 's/^TORCH_ROOT:PATH=//p' "$dir/CMakeCache.txt" 2>/dev/null || true)
if [ ! -e "$dir/build.ninja" ] || [ "$configured" != "$torch_root" ]; then
  echo "build: configuring $dir" >&2
  cmake -S "$root" -B "$dir" -G Ninja -DTORCH_ROOT="$torch_root" >&2
fi
jobs=$(nproc)
[ "$jobs" -gt 2 ] && memory_jobs=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo) && [ "$memory_jobs" -lt "$jobs" ] && jobs=$((memory_jobs > 0 ? memory_jobs : 1))
cmake --build "$dir" -j"$jobs" "${targets[@]}" >&2
