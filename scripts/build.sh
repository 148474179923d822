#!/usr/bin/env bash
# Runs setup, configure and build; prints little if nothing changed. Tool output goes to build.log in the build
# folder, and a failed step prints its last lines. Many files are compiled as one unit. A configured folder is
# reconfigured only if the torch folder changes.
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
mkdir -p "$dir"
log=$dir/build.log
: > "$log"
# part NAME COMMAND...
part() {
  local name=$1 start=$SECONDS
  shift
  echo "$name ..." >&2
  if ! "$@" >> "$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "build.sh: $name failed; all of it is in $log" >&2
    exit 1
  fi
  [ $((SECONDS - start)) -lt 5 ] || echo "$name: $((SECONDS - start)) s" >&2
}
torch_root=$("$root/scripts/setup.sh" "${variant[@]}" | tail -n 1)
configured=$(sed -n 's/^TORCH_ROOT:PATH=//p' "$dir/CMakeCache.txt" 2>/dev/null || true)
if [ ! -e "$dir/build.ninja" ] || [ "$configured" != "$torch_root" ]; then
  part "configuring $dir" cmake -S "$root" -B "$dir" -G Ninja -DTORCH_ROOT="$torch_root" -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_UNITY_BUILD_BATCH_SIZE=24
fi
jobs=$(nproc)
[ "$jobs" -gt 2 ] && memory_jobs=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo) && [ "$memory_jobs" -lt "$jobs" ] && jobs=$((memory_jobs > 0 ? memory_jobs : 1))
part "building $dir" cmake --build "$dir" -j"$jobs" "${targets[@]}"
