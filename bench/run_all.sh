#!/usr/bin/env bash
# Runs every bench on this machine and writes bench/YYYY-MM-DD-<machine>.md. Keep the machine idle.
#   bench/run_all.sh --peer GPT2_PEER.py --python PYTHON [--build build] [--out bench] [--quick] [--no-build]
#                    [--text PATH...]
# PYTHON imports tokenizers and sentencepiece, and torch 2.11 for the peer (where it has none but is a 3.11, it is shown
# the wheel of the build). A part whose tool is left out is named in the page as not run. --quick tries all parts in a
# few minutes; its figures mean nothing. --no-build takes the programs as they are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build out=bench peer= python= quick=0 make=1 text=()
usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case "$1" in
    --peer) peer=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    --no-build) make=0; shift ;;
    --text) shift; while [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; do text+=("$1"); shift; done ;;
    -h | --help) usage; exit 0 ;;
    *) echo "run_all.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
rounds=(--rounds 5) steps=(--steps 6) iterations=3000 forms=15 repetitions=9 megabytes=(--megabytes 32)
if [ "$quick" = 1 ]; then rounds=(--rounds 1) steps=(--steps 2) iterations=200 forms=3 repetitions=1 megabytes=(--megabytes 2); fi

[ "$make" = 0 ] || ninja -C "$build" metroplex gpt2_step layer_overhead optimizer_step recompute_time zero_traffic grouped_product blocked_attention moe_step virtual_clock graph_experts >&2

model=$(LC_ALL=C lscpu | sed -n 's/^Model name: *//p' | head -n 1)
machine=$(printf '%s' "${model:-machine}" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9' '-' | sed 's/^-//; s/-$//')-$(nproc)-cores
page=$out/$(date +%F)-$machine.md
status=0
part=$(mktemp)
trap 'rm -f "$part"' EXIT

# section TITLE COMMAND...: prints the command and its output. Paths of this machine are removed from the printed
# command.
section() {
  local title=$1 shown
  shift
  shown=$(printf '%s ' "${@//$PWD\//}")
  [ -z "$python" ] || shown=${shown//$python/PYTHON}
  [ -z "$peer" ] || shown=${shown//$peer/PEER}
  echo "$title" >&2
  if ! "$@" > "$part"; then
    echo "$title: failed" >&2
    status=1
    echo "(this part failed)" >> "$part"
  fi
  printf '\n## %s\n`%s`\n\n' "$title" "${shown% }" >> "$page.part"
  cat "$part" >> "$page.part"
}
left_out() { printf '\n## %s\nNot run: %s.\n' "$1" "$2" >> "$page.part"; }

{
  echo "# $(date +%F), ${model:-unknown processor}, $(nproc) cores"
  echo
  echo "$(LC_ALL=C lscpu | sed -n 's/^L3 cache: *//p' | head -n 1 | sed 's/^/L3 /'), $(awk '/MemTotal/ {printf "%.0f GiB memory", $2 / 1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(c++ --version | head -n 1)."
  echo "Commit $(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ' with local changes'). Load when it began: $(cut -d' ' -f1 /proc/loadavg). How each figure is made: README.md."
} > "$page.part"

if [ -n "$peer" ] && [ -n "$python" ]; then
  "$python" -c 'import torch' 2>/dev/null || PYTHONPATH=$(sed -n 's/^TORCH_ROOT:PATH=//p' "$build/CMakeCache.txt")/.. && export PYTHONPATH
  for dtype in f32 bf16; do
    section "GPT-2 124M training step against PyTorch, $dtype" "$python" bench/compare_gpt2.py "$peer" --dtype "$dtype" \
      "${steps[@]}" --binary "$build/bin/gpt2_step"
  done
  section "Training step of a mixture of experts against PyTorch" "$python" bench/compare_moe.py "${rounds[@]}" \
    "${steps[@]}" --binary "$build/bin/moe_step"
else
  left_out "GPT-2 124M training step against PyTorch" "it takes --peer and --python"
  left_out "Training step of a mixture of experts against PyTorch" "it takes --peer and --python"
fi
section "Products of experts in one call" "$build/bin/grouped_product" "$repetitions"
section "Core attention" "$build/bin/blocked_attention" "$repetitions"
section "Optimizer step against copy bandwidth and fused AdamW" "$build/bin/optimizer_step"
section "Recompute and offload" "$build/bin/recompute_time" "$forms"
section "Traffic of the ZeRO stages" "$build/bin/zero_traffic"
section "Layers of experts, eager and replayed" "$build/bin/graph_experts" "$iterations"
section "Ranks as threads by a virtual clock" "$build/bin/virtual_clock" "$forms"
section "Layers above bare torch operators" "$build/bin/layer_overhead" "$iterations"
if [ -n "$python" ]; then
  words=()
  [ ${#text[@]} -eq 0 ] || words=(--text "${text[@]}")
  section "Preprocessing on one core" python3 bench/preprocess.py --python "$python" --binary "$build/bin/metroplex" \
    --work "$build/bench-work" "${rounds[@]}" "${megabytes[@]}" "${words[@]}"
else
  left_out "Preprocessing on one core" "it takes --python"
fi
mv "$page.part" "$page"
echo "$page" >&2
exit "$status"
