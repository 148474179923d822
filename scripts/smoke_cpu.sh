#!/usr/bin/env bash
# Builds the CPU-only variant in a folder of its own and proves that it trains: one golden run on threads and on gloo.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/build.sh" --cpu --dir "$root/build-cpu" --target metroplex --target metroplex_parity
for backend in threads gloo; do
  "$root/build-cpu/bin/metroplex_parity" "$root/tests/vectors/golden/llama_tp2_pp2_vpp2.json" --backend "$backend"
done
"$root/build-cpu/bin/metroplex" ranks --nproc 8 --tp 2 --pp 2 --no-color > /dev/null
libraries=$(ldd "$root/build-cpu/bin/metroplex-torch")
case "$libraries" in *libtorch_cuda*) echo "the CPU variant links libtorch_cuda"; exit 1 ;; esac
