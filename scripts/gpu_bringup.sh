#!/usr/bin/env bash
# Validates a machine with GPUs: builds for them, runs all GPU tests and benches of the
# project, and writes a dated page and a folder of logs. Every part runs even if others fail; the
# exit code is 1 where one failed. Without a GPU each part is reported as skipped (docs/gpu.md).
#   scripts/gpu_bringup.sh [--ranks N] [--build build-gpu] [--out gpu-report] [--python PYTHON] [--jobs N] [--no-build] [--quick]
# --ranks: how many GPUs the parts of several ranks use, by default all, at most 2. PYTHON imports torch, for what
# is compared with it; without one only ours is measured. --jobs: how many checks share a GPU at a time, by default one
# for every two cores, at most 8; what is timed runs alone. --quick: fewer steps, whose figures mean little, and the
# sanitizers without the longest tests; about three minutes after the build.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 2
ranks='' build=build-gpu out=gpu-report python=python3 jobs='' make=1 steps=30 repetitions=50 sanitized='*'
usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case "$1" in
    --ranks | --build | --out | --python | --jobs)
      [ $# -gt 1 ] || { echo "gpu_bringup.sh: $1 takes a value" >&2; exit 2; }
      declare "${1#--}=$2"; shift 2 ;;
    --no-build) make=0; shift ;;
    --quick) steps=3 repetitions=3 sanitized='-OptimizerCuda*:DropoutCuda*'; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "gpu_bringup.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
case "$jobs" in *[!0-9]* | 0) echo "gpu_bringup.sh: --jobs is '$jobs'; it takes a number of checks from 1 on" >&2; exit 2 ;; esac
case "$ranks" in *[!0-9]* | 0) echo "gpu_bringup.sh: --ranks is '$ranks'; it takes a number of GPUs from 1 on" >&2; exit 2 ;; esac

PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if [ -z "$jobs" ]; then
  jobs=$(($(env -u OMP_NUM_THREADS nproc) / 2))  # nproc respects the variable
  jobs=$((jobs < 1 ? 1 : jobs > 8 ? 8 : jobs))
fi
# Datasets and checkpoints of the following runs, which are not part of the report.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/gpu_bringup.XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT

gpus=$(nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version --format=csv,noheader 2> /dev/null) || gpus=
devices=$(printf '%s' "$gpus" | grep -c .)
[ -n "$ranks" ] || ranks=$((devices < 2 ? devices : 2))
first=$(printf '%s\n' "$gpus" | head -n 1 | cut -d, -f1)
machine=$(printf '%s' "${first:-no device}" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9' '-' | sed 's/^-//; s/-$//')
page=$out/$(date +%F)-$machine.md logs=$out/$(date +%F)-$machine.logs
rm -rf "$logs" && mkdir -p "$logs" || exit 2
failed=0 number=0 table=() sections=()

# Prints the reason why a part cannot run; nothing if it can. NEEDS: words.
reason() {
  local need
  [ "$devices" -gt 0 ] || { echo "no device"; return; }
  [ ! -e "$logs/build.failed" ] || { echo "the build failed"; return; }
  for need in $1; do
    case "$need" in
      ranks) [ "$ranks" -ge 2 ] && [ "$devices" -ge "$ranks" ] || { echo "it takes 2 GPUs or more, and --ranks N of them; here are $devices, N is $ranks"; return; } ;;
      sanitizer) command -v compute-sanitizer > /dev/null || { echo "no compute-sanitizer on PATH; the CUDA toolkit has it"; return; } ;;
    esac
  done
}

# part NAME NEEDS SHOWN COMMAND...: the page contains the last SHOWN lines of the log; 0: none unless it fails.
part() {
  local name=$1 needs=$2 shown=$3 log why start=$SECONDS status=0 result
  shift 3
  number=$((number + 1))
  log=$(printf '%s/%02d-%s.log' "$logs" "$number" "$(printf '%s' "$name" | tr -cs 'A-Za-z0-9' '-' | sed 's/-$//')")
  why=$(reason "$needs")
  if [ -n "$why" ]; then
    echo "skipped: $why" | tee "$log" > /dev/null
    result="skipped: $why"
  else
    printf '%s ...\n' "$name" >&2
    printf '$ %s\n' "$*" > "$log"
    "$@" >> "$log" 2>&1 < /dev/null || status=$?
    if [ "$status" = 0 ]; then
      result=ok
    else
      result="FAILED ($status)"
      failed=$((failed + 1))
      [ "$shown" -gt 0 ] || shown=15
    fi
    [ "$shown" = 0 ] || sections+=("## $name"$'\n'"$(tail -n +2 "$log" | tail -n "$shown")")
  fi
  table+=("| $name | $result | $((SECONDS - start)) | $(basename "$log") |")
  printf '%s: %s\n' "$name" "$result" >&2
  return "$status"
}

# Runs all commands of one part; the part fails if one of them does.
each() {
  local status=0
  while [ $# -gt 0 ]; do
    echo "--- $1"
    bash -c "$1" || { echo "--- failed ($?): $1"; status=1; }
    shift
  done
  return "$status"
}

# The same, but stops at the first failure.
in_turn() {
  local command
  for command in "$@"; do
    echo "--- $command"
    bash -c "$command" || { echo "--- failed ($?): $command"; return 1; }
  done
}

# losses WHOLE RESUMED: compares two logs. The losses of the second must equal those of the first in the same
# iterations. The tolerance covers another summation order of a mean over 1,000 tokens.
losses() {
  awk '!/] iteration .*lm loss: /{ next } { sub(/^.*] iteration +/, "") } { step = $0 + 0; sub(/.*lm loss: /, ""); loss = $0 + 0 }
    NR == FNR { whole[step] = loss; next }
    { n++; off = loss / whole[step] - 1; off = off < 0 ? -off : off; if (off > most) most = off; last = step }
    END { printf "%d losses, to iteration %d, differ by at most %.1e (allowed 1e-3)\n", n, last, most; exit !(n == 20 && most <= 1e-3) }' "$1" "$2"
}
export -f losses

# together FOLDER COMMAND...: the same, several at a time, each with its own log in FOLDER of the logs. One line
# reports the result of each.
together() {
  local folder=$logs/$1 number=0 command
  shift
  mkdir -p "$folder"
  for command in "$@"; do
    number=$((number + 1))
    printf '%02d\0%s\0' "$number" "$command"
  done | OMP_NUM_THREADS=2 xargs -0 -n 2 -P "$jobs" bash -c '
    log=$0/$1.log
    printf "\$ %s\n" "$2" > "$log"
    code=0
    bash -c "$2" >> "$log" 2>&1 < /dev/null || code=$?
    [ "$code" != 0 ] || exec echo "--- ok, $SECONDS s: $2"
    printf "%s\n--- failed (%d), %s/%s: %s\n" "$(tail -n 5 "$log")" "$code" "${0##*/}" "$1.log" "$2"
    exit 1' "$folder" || return 1
}

bin=$build/bin
golden=tests/vectors/golden
part "build for these GPUs" "" 0 env \
  CUDAARCHS="$(printf '%s\n' "$gpus" | cut -d, -f2 | tr -d ' .' | sort -u | awk '{print $1 ($1 >= 90 ? "a" : "") "-real"}' | paste -sd ';')" \
  bash -c 'if [ "$1" = 1 ]; then scripts/build.sh --cuda --dir "$2" && ninja -C "$2" gpu_step kernel_bandwidth attention_operators grouped_product; fi; test -x "$2/bin/metroplex"' \
  build "$make" "$build" || touch "$logs/build.failed"
part "machine" "" 12 each "nvidia-smi -L" "nvidia-smi topo -m" "git log -1 --format=%h || true" "ldd $bin/metroplex-torch | sed -n /cuda/p"

part "tests on a GPU" "" 3 env GTEST_OUTPUT="xml:$logs/" ctest --test-dir "$build" -L gpu -j "$jobs" --output-on-failure --no-tests=error
replays=()
for run in "$golden"/*.json; do
  case "$run" in *golden_index.json) ;; *) replays+=("$bin/metroplex_parity $run --device cuda") ;; esac
done
part "golden runs, ranks as threads on one GPU" "" 0 together golden "${replays[@]}"
captured=()
for run in gpt_1 llama_1 llama_bf16 moe_allgather_ep2; do
  case "$run" in *ep2) one="--nproc 1 --ep 1" ;; *) one='' ;; esac
  for how in "local" "transformer_engine --cuda-graph-modules attn" "full_iteration"; do
    captured+=("$bin/metroplex_parity $golden/$run.json --device cuda $one --cuda-graph-impl $how")
  done
done
part "golden runs from graphs" "" 0 together captured "${captured[@]}"

examined=()
for run in mixtral_tiny echo_tiny context_parallel_tiny; do
  examined+=("$bin/metroplex verify examples/$run.yaml --run.device=cuda --vocab-size 300")
done
part "layouts are one rank, in float64" "" 0 together verify "${examined[@]}"

# A tiny model learns a documentation page in fp32.
train="$bin/metroplex train examples/llama_tiny.yaml --nproc 1 --parallel.tensor_model_parallel_size=1 --parallel.pipeline_model_parallel_size=1"
train+=" --parallel.virtual_pipeline_model_parallel_size=1 --parallel.sequence_parallel=false --run.device=cuda --model.vocab_size=0"
train+=" --data.tokenizer_type=bytes --data.tokenizer_model= --data.data_path=$scratch/bytes --data.split=1,0,0"
train+=" --train.eval_interval=0 --train.log_interval=1 --train.progress=false --train.tensorboard_dir="
learn="$bin/metroplex preprocess --input docs/tour.md --tokenizer-type bytes --append-eod --output-prefix $scratch/bytes"
write="$bin/metroplex generate $scratch/eager --prompt 'The ' --temperature 0 --max-new-tokens 32 --run.device"
part "the same text from GPU and CPU" "" 4 in_turn "$learn" "$train --train.train_iters=160 --checkpoint.save=$scratch/eager --checkpoint.save_interval=160" \
  "$write=cuda > $scratch/gpu.txt" "$write=cpu > $scratch/cpu.txt" "cat $scratch/gpu.txt && cmp $scratch/gpu.txt $scratch/cpu.txt"
graph="$train --train.train_iters=40 --train.cuda_graph_impl=full_iteration"
part "saved and resumed, from a graph" "" 4 in_turn "$learn" \
  "$graph --checkpoint.save=$scratch/graph --checkpoint.save_interval=20 > $scratch/whole.log" \
  "$graph --checkpoint.save= --checkpoint.save_interval=0 --checkpoint.load=$scratch/graph --checkpoint.ckpt_step=20 > $scratch/resumed.log" \
  "losses $scratch/whole.log $scratch/resumed.log"
bits="$train --train.train_iters=20 --precision.params_dtype=bf16 --run.deterministic_mode=true --checkpoint.save_interval=20"
part "the same bits twice, in bf16 and a fixed order" "" 1 in_turn "$learn" "$bits --checkpoint.save=$scratch/first" \
  "$bits --checkpoint.save=$scratch/second" "$bin/metroplex inspect $scratch/first --diff $scratch/second"

two="--backend nccl"
part "two ranks: p2p" "ranks" 0 each "$bin/metroplex_parity $golden/gpt_pp2.json $two" "$bin/metroplex_parity $golden/gpt_pp2.json $two --cuda-graph-impl full_iteration"
part "two ranks: tensor parallel" "ranks" 0 each "$bin/metroplex_parity $golden/gpt_tp2.json $two" "$bin/metroplex_parity $golden/llama_tp2.json $two --cuda-graph-impl full_iteration"
part "two ranks: ZeRO-1 and a capture behind one eager step" "ranks" 0 each "$bin/metroplex_parity $golden/gpt_dp2_distopt.json $two" \
  "$bin/metroplex_parity $golden/gpt_dp2_distopt.json $two --cuda-graph-impl full_iteration --set train.cuda_graph_warmup_steps=1"
buffers="--set model.moe_token_dispatcher_type=static_buffer --set model.moe_expert_rank_capacity_factor=2"
part "two ranks: static buffers" "ranks" 0 each "$bin/metroplex_parity $golden/moe_ep2.json $two $buffers" \
  "$bin/metroplex_parity $golden/moe_ep2.json $two $buffers --cuda-graph-impl full_iteration"
part "two ranks: ECHO" "ranks" 0 each "$bin/metroplex_parity $golden/moe_ep2.json $two --set model.moe_enable_echo=true --set model.moe_num_echo_experts=2"

kernels="--error-exitcode 9 $bin/kernels_gpu_test '--gtest_filter=$sanitized'"
# One test of the graphs provokes a failed capture, which memcheck would report as an API error.
graphs="--report-api-errors no --error-exitcode 9 $bin/graph_gpu_test"
part "compute-sanitizer over the kernels" "sanitizer" 3 together sanitizer "compute-sanitizer --tool memcheck $kernels" \
  "compute-sanitizer --tool memcheck $graphs" "compute-sanitizer --tool racecheck $kernels" "compute-sanitizer --tool initcheck $kernels"

part "kernels' bandwidth against the copy's" "" 20 "$bin/kernel_bandwidth" cuda 65536 4096 "$repetitions"
part "attention by flash, cuDNN and own kernels" "" 15 "$bin/attention_operators" cuda "$repetitions"
part "products of experts by own tiles and libtorch" "" 8 "$bin/grouped_product" cuda
for model in gpt2 llama mixtral; do
  part "training step of $model" "" 8 "$python" bench/compare_gpu.py --models "$model" --steps "$steps" --binary "$bin/gpu_step"
done
# Runs the same work on each rank alone and on all ranks. The additional time of a step is exposed communication.
run="train examples/gpt2_124m.yaml --data.mock_data=true --data.data_path= --data.tokenizer_type=none --train.tensorboard_dir="
run+=" --run.device=cuda --train.train_iters=$steps --train.log_interval=$(((steps + 1) / 2)) --train.eval_interval=0 --checkpoint.save= --checkpoint.save_interval=0"
run+=" --train.progress=false --precision.params_dtype=bf16 --parallel.data_parallel_sharding_strategy=optim"
all="--nproc $ranks --backend nccl --train.global_batch_size=$((16 * ranks))"
part "exposed communication: one rank, then several" "ranks" 30 each "$bin/metroplex $run --nproc 1 --train.global_batch_size=16" \
  "$bin/metroplex $run $all" "$bin/metroplex $run $all --parallel.overlap_grad_reduce=false --parallel.overlap_param_gather=false"

{
  echo "# GPU bring-up, $(date +%F): ${first:-no device}"
  echo
  echo "Commit $(git rev-parse --short HEAD 2> /dev/null || echo unknown)$(git diff --quiet HEAD 2> /dev/null || echo ', with local changes'). GPUs:"
  echo
  printf '    %s\n' "${gpus:-none was found: nvidia-smi is not there or names none}" | sed '2,$s/^/    /'
  echo
  echo "$failed of $number parts failed. What each is for, and what to expect: docs/gpu.md."
  echo
  printf '| part | result | seconds | log |\n| --- | --- | --- | --- |\n'
  printf '%s\n' "${table[@]}"
  [ "${#sections[@]}" = 0 ] || printf '\n%s\n' "${sections[@]}"
  printf '\nPlease send this page and the folder of logs (`tar czf report.tar.gz %s`) with an issue of this repository, titled\n"GPU bring-up: %s". It is wanted whether or not a part failed.\n' "$page $logs" "${first:-no device}"
} > "$page"
rm -f "$logs/build.failed"
echo "$page" >&2
echo "$failed of $number parts failed; please send $page and $logs/ with an issue of this repository" >&2
[ "$failed" = 0 ]
