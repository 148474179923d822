#!/usr/bin/env bash
# Checks the format of every C++ and CUDA file with .clang-format. scripts/check_format.sh --fix rewrites them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t files < <(find metroplex apps tests bench -name vectors -prune -o \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' \) -print)
if [ "${1:-}" = --fix ]; then
  clang-format -i "${files[@]}"
else
  clang-format --dry-run -Werror "${files[@]}"
  echo "format: ${#files[@]} files"
fi
