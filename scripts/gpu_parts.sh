# The parts of gpu_bringup.sh, gpu_ranks.sh and gpu_checks.sh, and the page that they write. These scripts source this
# file. A part is one command with a log, a time limit and a line of the page. The page is complete after each part, so
# a script may be ended at any time.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=$(realpath "$0")
cd "$root" || exit 2
build=build-gpu out=gpu-report python=python3 ranks='' jobs='' minutes='' torch='' copy='' no_build='' quick='' steps=30 repetitions=50 sanitized='*'

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"; }
refuse() { echo "$(basename "$0"): $1" >&2; exit 2; }

# read_options VALUES FLAGS ARGUMENT...: sets the variable of each option. VALUES and FLAGS are the names of options.
read_options() {
  local values=" $1 " flags=" $2 " name
  shift 2
  while [ $# -gt 0 ]; do
    name=${1#--}
    if [ "$1" = -h ] || [ "$name" = help ]; then usage; exit 0; fi
    case "$1$values$flags" in --*" $name "*) ;; *) usage >&2; refuse "unknown option '$1'" ;; esac
    if [[ $flags == *" $name "* ]]; then declare -g "${name//-/_}=1"; shift; continue; fi
    [ $# -gt 1 ] || refuse "$1 takes a value"
    declare -g "$name=$2"
    shift 2
  done
  for name in jobs ranks minutes limit; do
    case "${!name-}" in *[!0-9]* | 0) refuse "--$name is '${!name}'; it takes a number from 1 on" ;; esac
  done
  [ -z "$minutes" ] || minutes=$((10#$minutes))
  [ -z "$copy" ] || [ -d "$copy" ] || refuse "--copy is '$copy'; it takes an existing folder"
  if [ -n "$quick" ]; then steps=3 repetitions=3 sanitized='-OptimizerCuda*:DropoutCuda*'; fi
}

# begin_report TITLE SUFFIX: detects the GPUs and writes an empty page, DATE-GPU SUFFIX.md.
begin_report() {
  title=$1 failed=0 skipped=0 number=0 table=() sections=() mps='' deadline=''
  PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  [ -z "$minutes" ] || deadline=$((SECONDS + 60 * minutes))
  if [ -z "$jobs" ]; then
    jobs=$(($(env -u OMP_NUM_THREADS nproc) / 2))  # nproc respects the variable
    jobs=$((jobs < 1 ? 1 : jobs > 8 ? 8 : jobs))
  fi
  # Datasets and checkpoints of the following runs, which are not part of the report.
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/gpu_parts.XXXXXX") || exit 2
  trap 'stop_mps; rm -rf "$scratch"' EXIT
  gpus=$(nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version --format=csv,noheader 2> /dev/null) || gpus=
  devices=$(printf '%s' "$gpus" | grep -c .)
  [ -n "$ranks" ] || ranks=$((devices < 2 ? devices : 2))
  first=$(printf '%s\n' "$gpus" | head -n 1 | cut -d, -f1)
  local machine
  machine=$(printf '%s' "${first:-no device}" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9' '-' | sed 's/^-//; s/-$//')
  page=$out/$(date +%F)-$machine$2.md logs=$out/$(date +%F)-$machine$2.logs
  rm -rf "$logs" && mkdir -p "$logs" || exit 2
  bin=$build/bin golden=tests/vectors/golden
  export logs jobs bin scratch golden
  write_page
}

# Replaces the page by a complete one. ROW: the line of a running part.
write_page() {
  {
    echo "# $title, $(date +%F): ${first:-no device}"
    echo
    echo "Commit $(git rev-parse --short HEAD 2> /dev/null || echo unknown)$(git diff --quiet HEAD 2> /dev/null || echo ', with local changes'). GPUs:"
    echo
    printf '    %s\n' "${gpus:-none was found: nvidia-smi is not there or names none}" | sed '2,$s/^/    /'
    echo
    echo "$failed of $number parts failed, and $skipped were skipped. What each is for, and what to expect: docs/gpu.md."
    echo
    printf '| part | result | seconds | log |\n| --- | --- | --- | --- |\n'
    printf '%s\n' "${table[@]}" "$@"
    [ "${#sections[@]}" = 0 ] || printf '\n%s\n' "${sections[@]}"
    printf '\nPlease send this page and the folder of logs (`tar czf report.tar.gz %s`) with an issue of this repository, titled\n"%s: %s". It is useful whether or not a part failed.\n' "$page $logs" "$title" "${first:-no device}"
  } > "$page.new" && mv "$page.new" "$page"
  [ -z "$copy" ] || { cp "$page" "$copy/" && tar -czf "$copy/logs.new" "$logs" 2> /dev/null && mv "$copy/logs.new" "$copy/logs.tar.gz"; }
}

# The last line of a script. The exit code is 1 if a part failed.
end_report() {
  rm -f "$logs/build.failed"
  write_page
  echo "$page" >&2
  echo "$failed of $number parts failed, and $skipped were skipped; please send $page and $logs/ with an issue of this repository" >&2
  [ "$failed" = 0 ]
}

# Prints the reason why a part cannot run; nothing if it can. NEEDS: words.
reason() {
  local need
  [ "$devices" -gt 0 ] || { echo "no device"; return; }
  [ ! -e "$logs/build.failed" ] || { echo "the build failed"; return; }
  for need in $1; do
    case "$need" in
      ranks) [ "$ranks" -ge 2 ] && [ "$devices" -ge "$ranks" ] || { echo "it takes 2 GPUs or more, and --ranks N of them; here are $devices, N is $ranks"; return; } ;;
      sanitizer) command -v compute-sanitizer > /dev/null || { echo "no compute-sanitizer on PATH; the CUDA toolkit has it"; return; } ;;
      mps) command -v nvidia-cuda-mps-control > /dev/null || { echo "no nvidia-cuda-mps-control on PATH"; return; } ;;
    esac
  done
  [ -z "$deadline" ] || [ $((SECONDS + $2)) -le "$deadline" ] ||
    echo "it takes about $2 s, and $((deadline > SECONDS ? deadline - SECONDS : 0)) s of $minutes min are left"
}

# part NAME NEEDS SECONDS SHOWN COMMAND...: SECONDS is the usual time; the part is ended after three times as long. The
# page contains the last SHOWN lines of the log; 0: none unless it fails.
part() {
  local name=$1 needs=$2 usual=$3 shown=$4 log why start=$SECONDS status=0 result limit
  shift 4
  number=$((number + 1))
  log=$(printf '%s/%02d-%s.log' "$logs" "$number" "$(printf '%s' "$name" | tr -cs 'A-Za-z0-9' '-' | sed 's/-$//')")
  why=$(reason "$needs" "$usual")
  if [ -n "$why" ]; then
    echo "skipped: $why" > "$log"
    result="skipped: $why"
    skipped=$((skipped + 1))
  else
    printf '%s ...\n' "$name" >&2
    printf '$ %s\n' "$*" > "$log"
    write_page "| $name | running | | $(basename "$log") |"
    limit=$((3 * usual))
    [ -z "$deadline" ] || limit=$((deadline - SECONDS < limit ? deadline - SECONDS : limit))
    timeout -k 5 "$limit" bash -c '"$@"' part "$@" >> "$log" 2>&1 < /dev/null || status=$?
    case "$status" in
      0) result=ok ;;
      124 | 137) result="FAILED (ended after $limit s)" ;;
      *) result="FAILED ($status)" ;;
    esac
    if [ "$status" != 0 ]; then
      failed=$((failed + 1))
      [ "$shown" -gt 0 ] || shown=15
    fi
    [ "$shown" = 0 ] || sections+=("## $name"$'\n'"$(tail -n +2 "$log" | tail -n "$shown")")
    [ "$status" = 0 ] || sections+=("$(nccl_words "$log")")
  fi
  table+=("| $name | $result | $((SECONDS - start)) | $(basename "$log") |")
  write_page
  printf '%s: %s\n' "$name" "$result" >&2
  return "$status"
}

# Prints NCCL's own messages in a log.
nccl_words() { grep -ahE 'NCCL WARN|NCCL error|nccl[A-Z][A-Za-z]*Error|ncclInvalid' "$1" | sort -u | head -n 8; }

# Runs all commands of one part; the part fails if one of them does.
each() {
  local status=0
  while [ $# -gt 0 ]; do
    echo "--- $1"
    bash -o pipefail -c "$1" || { echo "--- failed ($?): $1"; status=1; }
    shift
  done
  return "$status"
}

# The same, but stops at the first failure.
in_turn() {
  local command
  for command in "$@"; do
    echo "--- $command"
    bash -o pipefail -c "$command" || { echo "--- failed ($?): $command"; return 1; }
  done
}

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
    bash -o pipefail -c "$2" >> "$log" 2>&1 < /dev/null || code=$?
    [ "$code" != 0 ] || exec echo "--- ok, $SECONDS s: $2"
    printf "%s\n%s\n--- failed (%d), %s/%s: %s\n" "$(nccl_words "$log")" "$(tail -n 5 "$log")" "$code" "${0##*/}" "$1.log" "$2"
    exit 1' "$folder" || return 1
}

# losses WHOLE RESUMED: compares two logs. The losses of the second must equal those of the first in the same
# iterations. The tolerance covers another summation order of a mean over 1,000 tokens.
losses() {
  awk '!/] iteration .*lm loss: /{ next } { sub(/^.*] iteration +/, "") } { step = $0 + 0; sub(/.*lm loss: /, ""); loss = $0 + 0 }
    NR == FNR { whole[step] = loss; next }
    { n++; off = loss / whole[step] - 1; off = off < 0 ? -off : off; if (off > most) most = off; last = step }
    END { printf "%d losses, to iteration %d, differ by at most %.1e (allowed 1e-3)\n", n, last, most; exit !(n == 20 && most <= 1e-3) }' "$1" "$2"
}

# sharing_gpu COMMAND...: all ranks use one GPU. NCCL rejects two ranks with one host id on one GPU, so each rank has
# its own (comm/launch.cpp). NCCL then uses sockets; it chooses the loopback only if it is named.
sharing_gpu() {
  local visible=${CUDA_VISIBLE_DEVICES:-0}
  CUDA_VISIBLE_DEVICES=${visible%%,*} METROPLEX_SHARE_GPUS=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 \
    NCCL_SHM_DISABLE=1 NCCL_DEBUG=WARN jobs=$((jobs < 2 ? jobs : 2)) "$@"
}

# failing_rank SIGNAL TEXT COMMAND: sends SIGNAL to rank 1 of a run after its third iteration. The run must fail, and a
# line of its output must contain TEXT, a regular expression.
failing_rank() {
  local run=$scratch/failing_rank.log launcher file sent='' code=0
  : > "$run"
  FAILING_RUN=$$ bash -c "exec $3" > "$run" 2>&1 &
  launcher=$!
  until grep -qE 'iteration +3/' "$run"; do
    kill -0 "$launcher" 2> /dev/null || { cat "$run"; echo "--- the run ended before its third iteration"; return 1; }
    sleep 0.2
  done
  for file in $(grep -lxzF METROPLEX_RANK=1 /proc/[0-9]*/environ 2> /dev/null); do
    grep -qxzF "FAILING_RUN=$$" "$file" 2> /dev/null || continue
    kill -"$1" "$(basename "$(dirname "$file")")" && sent=1
  done
  [ -n "$sent" ] || { kill -KILL "$launcher"; echo "--- there is no rank 1"; return 1; }
  wait "$launcher" || code=$?
  tail -n 8 "$run"
  echo "--- after SIG$1 to rank 1, the run ended with $code"
  [ "$code" != 0 ] && grep -qE -- "$2" "$run"
}
start_mps() {
  mkdir -p "$scratch/mps" && touch "$scratch/mps/on"  # first, so that a daemon of an ended part is stopped as well
  CUDA_MPS_PIPE_DIRECTORY=$scratch/mps CUDA_MPS_LOG_DIRECTORY=$scratch/mps nvidia-cuda-mps-control -d
}
export -f start_mps nccl_words each in_turn together losses sharing_gpu failing_rank

# Makes the following parts clients of MPS.
use_mps() {
  export CUDA_MPS_PIPE_DIRECTORY=$scratch/mps CUDA_MPS_LOG_DIRECTORY=$scratch/mps
  mps=1
}
stop_mps() {
  [ -z "$mps" ] || echo quit | nvidia-cuda-mps-control
  mps=''
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

# Programs of `pack` use the libraries next to them and those of the torch package. Call it after begin_report.
find_libraries() {
  if [ -f "$build" ]; then
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$build" "$scratch/build" ||
      refuse "--build $build is not a file of gpu_checks.sh pack"
    build=$scratch/build bin=$scratch/build/bin
    [ -n "$torch" ] || torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])') ||
      echo "gpu_parts.sh: $python has no torch; --torch names its folder" >&2
  fi
  [ -z "$torch" ] || export LD_LIBRARY_PATH="$(printf '%s:' "$torch"/lib "$torch"/../nvidia/*/lib)$build/lib"
}

# pack FILE MIB: writes an archive of bin/, the programs without symbols, and lib/, the libraries that neither libtorch
# nor glibc provides. FILE and the tracked files may have MIB together, because both are sent to the GPU's machine.
pack() {
  local limit=$(($2 << 20)) program library packed tree
  stage=$(mktemp -d "${TMPDIR:-/tmp}/gpu_parts.XXXXXX") || exit 2
  trap 'rm -rf "$stage"' EXIT
  mkdir "$stage/bin" "$stage/lib"
  for program in metroplex metroplex-torch metroplex_parity comm_nccl_test gpu_step kernel_bandwidth attention_operators grouped_product \
    $(cd "$build/bin" 2> /dev/null && ls -d -- *_gpu_test 2> /dev/null); do
    [ -x "$build/bin/$program" ] || refuse "$build/bin/$program is missing; build it, or name the folder with --build"
    strip -o "$stage/bin/$program" "$build/bin/$program" || exit 1
  done
  for library in $(ldd "$build"/bin/* | awk '$3 ~ "^/(usr/)?lib" { print $3 }' | sort -u); do
    case "${library##*/}" in
      libc.* | libm.* | libdl.* | librt.* | libpthread.* | libstdc++.* | libgcc_s.* | libcuda.* | libnvidia*) ;;
      *) cp -L "$library" "$stage/lib/" || exit 1 ;;
    esac
  done
  # The dictionary covers the code that all programs contain.
  tar -c -C "$stage" bin lib | xz --x86 --lzma2=preset=6,dict=128MiB > "$1" || exit 1
  packed=$(stat -c %s "$1")
  tree=$(git ls-files -z | xargs -0 du -cb | awk '$2 == "total" { sum += $1 } END { print sum + 0 }')
  (cd "$stage" && du -b bin/* lib/* | sort -rn)
  echo "$1: $packed bytes; tracked files: $tree bytes; allowed together: $limit bytes"
  [ $((packed + tree)) -le "$limit" ] || { echo "gpu_checks.sh: $1 is too large by $((packed + tree - limit)) bytes" >&2; exit 1; }
}

# The parts. Each function is called by one or more scripts.

part_machine() {
  part "machine" "" 20 12 each "nvidia-smi -L" "nvidia-smi topo -m" "git log -1 --format=%h || echo no commit" "ldd $bin/metroplex-torch | sed -n /cuda/p"
}

part_programs() {
  part "programs find their libraries" "" 20 0 bash -c '! ldd "$0"/* | grep "not found" && "$0/metroplex-torch" --version' "$bin" || touch "$logs/build.failed"
}

part_gpu_tests() {
  local program commands=()
  for program in "$bin"/*_gpu_test; do commands+=("GTEST_OUTPUT=xml:$logs/ OMP_NUM_THREADS=1 $program --gtest_brief=1"); done
  part "tests on a GPU" "" 60 3 together gpu-tests "${commands[@]}"
}

part_golden() {
  local run commands=()
  for run in "$golden"/*.json; do
    case "$run" in *golden_index.json) ;; *) commands+=("$bin/metroplex_parity $run --device cuda") ;; esac
  done
  part "golden runs, ranks as threads on one GPU" "" 60 0 together golden "${commands[@]}"
}

part_golden_graphs() {
  local run how one commands=()
  for run in gpt_1 llama_1 llama_bf16 moe_allgather_ep2; do
    case "$run" in *ep2) one="--nproc 1 --ep 1" ;; *) one='' ;; esac
    for how in "local" "transformer_engine --cuda-graph-modules attn" "full_iteration"; do
      commands+=("$bin/metroplex_parity $golden/$run.json --device cuda $one --cuda-graph-impl $how")
    done
  done
  part "golden runs from graphs" "" 40 0 together captured "${commands[@]}"
}

# Paths that have not run on a GPU: activations on the host, and products of codes by libtorch, also of experts.
part_untested_paths() {
  local recipe commands=("$bin/metroplex_parity $golden/gpt_1.json --device cuda --set memory.offload_activations=host")
  local short="$train --train.train_iters=20 --checkpoint.save= --checkpoint.save_interval=0 --precision.params_dtype=bf16 --precision.fp8_format=hybrid"
  local recipes=(delayed tensorwise) experts=tensorwise fp4="--precision.fp8_format=none --precision.fp4_format=e2m1"
  case "${gpus:-}" in
    *', 9.0,'*) recipes+=(blockwise) ;;
    *', 10.'*) recipes+=(mxfp8) experts=mxfp8 commands+=("$short $fp4 | tail -n 1" "$short $fp4 --precision.fp8_products=library | tail -n 1") ;;
  esac
  for recipe in "${recipes[@]}"; do
    commands+=("$short --precision.fp8_recipe=$recipe | tail -n 1" "$short --precision.fp8_recipe=$recipe --precision.fp8_products=library | tail -n 1")
  done
  commands+=("$short --precision.fp8_format=e4m3 --precision.fp8_recipe=$experts --precision.fp8_products=library --model.num_moe_experts=4 --model.moe_grouped_gemm=true | tail -n 1")
  part "host activations, and products of fp8 codes" "" 90 12 each "$learn" "${commands[@]}"
}

part_verify() {
  local run commands=()
  for run in mixtral_tiny echo_tiny context_parallel_tiny; do
    commands+=("$bin/metroplex verify examples/$run.yaml --run.device=cuda --vocab-size 300")
  done
  part "layouts are one rank, in float64" "" 90 0 together verify "${commands[@]}"
}

# A tiny model learns a documentation page in fp32. Call it after begin_report and find_libraries.
define_training() {
  train="$bin/metroplex train examples/llama_tiny.yaml --nproc 1 --parallel.tensor_model_parallel_size=1 --parallel.pipeline_model_parallel_size=1"
  train+=" --parallel.virtual_pipeline_model_parallel_size=1 --parallel.sequence_parallel=false --run.device=cuda --model.vocab_size=0"
  train+=" --data.tokenizer_type=bytes --data.tokenizer_model= --data.data_path=$scratch/bytes --data.split=1,0,0"
  train+=" --train.eval_interval=0 --train.log_interval=1 --train.progress=false --train.tensorboard_dir= --optim.lr_warmup_iters=5"
  learn="$bin/metroplex preprocess --input docs/tour.md --tokenizer-type bytes --append-eod --output-prefix $scratch/bytes"
  graph="$train --train.train_iters=40 --train.cuda_graph_impl=full_iteration"
}

part_same_text() {
  local write="$bin/metroplex generate $scratch/eager --prompt 'The ' --temperature 0 --max-new-tokens 32 --run.device"
  part "the same text from GPU and CPU" "" 60 4 in_turn "$learn" "$train --train.train_iters=160 --checkpoint.save=$scratch/eager --checkpoint.save_interval=160" \
    "$write=cuda > $scratch/gpu.txt" "$write=cpu > $scratch/cpu.txt" "cat $scratch/gpu.txt && cmp $scratch/gpu.txt $scratch/cpu.txt"
}

part_resumed() {
  part "saved and resumed, from a graph" "" 60 4 in_turn "$learn" \
    "$graph --checkpoint.save=$scratch/graph --checkpoint.save_interval=20 > $scratch/whole.log" \
    "$graph --checkpoint.save= --checkpoint.save_interval=0 --checkpoint.load=$scratch/graph --checkpoint.ckpt_step=20 > $scratch/resumed.log" \
    "losses $scratch/whole.log $scratch/resumed.log"
}

part_same_bits() {
  local bits="$train --train.train_iters=20 --precision.params_dtype=bf16 --run.deterministic_mode=true --checkpoint.save_interval=20"
  part "the same bits twice, in bf16 and a fixed order" "" 60 1 in_turn "$learn" "$bits --checkpoint.save=$scratch/first" \
    "$bits --checkpoint.save=$scratch/second" "$bin/metroplex inspect $scratch/first --diff $scratch/second"
}

# Ranks as processes over NCCL. NEEDS: "ranks" for one GPU each; `over` is then empty, otherwise sharing_gpu.
nccl_operations() { part "NCCL: every operation, eager and captured$2" "$1" 60 3 "${over[@]}" "$bin/comm_nccl_test" '--gtest_filter=*/Nccl*'; }

nccl_golden() {
  local parity="$bin/metroplex_parity $golden" nccl="--backend nccl" graph="--backend nccl --cuda-graph-impl full_iteration"
  local buffers="--set model.moe_token_dispatcher_type=static_buffer --set model.moe_expert_rank_capacity_factor=2"
  local echo_experts="--set model.moe_enable_echo=true --set model.moe_num_echo_experts=2" zero="--data-parallel-sharding-strategy"
  part "NCCL: golden runs" "$1" 120 0 "${over[@]}" together nccl "$parity/gpt_dp2.json $nccl" "$parity/gpt_tp2.json $nccl" \
    "$parity/gpt_pp2.json $nccl" "$parity/moe_ep2.json $nccl" "$parity/gpt_dp2_distopt.json $nccl" \
    "$parity/gpt_dp2_distopt.json $nccl $zero optim_grads" "$parity/gpt_dp2_distopt.json $nccl $zero optim_grads_params" \
    "$parity/llama_bf16_qknorm_tp2_sp.json $nccl" "$parity/gpt_pp2_vpp2.json $nccl" \
    "$parity/moe_allgather_ep2.json $nccl" "$parity/moe_ep2.json $nccl $buffers" "$parity/moe_ep2.json $nccl $echo_experts"
  part "NCCL: golden runs from graphs" "$1" 90 0 "${over[@]}" together nccl-graphs "$parity/gpt_dp2_distopt.json $graph" \
    "$parity/llama_tp2.json $graph" "$parity/gpt_pp2.json $graph" "$parity/moe_ep2.json $graph $buffers" \
    "$parity/gpt_dp2_distopt.json $graph --set train.cuda_graph_warmup_steps=1" "$parity/moe_ep2.json $graph $buffers $echo_experts"
}

# Golden runs have no context parallelism.
nccl_context_parallel() {
  local short="$train --train.train_iters=20 --checkpoint.save= --checkpoint.save_interval=0"
  part "NCCL: context parallelism is one rank" "$1" 45 2 "${over[@]}" in_turn "$learn" "$short > $scratch/one.log" \
    "$short --nproc 2 --backend nccl --parallel.context_parallel_size=2 > $scratch/context.log" "losses $scratch/one.log $scratch/context.log"
}

# Four ranks only where they share a GPU.
nccl_golden_of_four() {
  part "NCCL: golden runs of four ranks" "" 60 0 "${over[@]}" together nccl-four "$bin/metroplex_parity $golden/llama_tp2_pp2_vpp2.json --backend nccl" \
    "$bin/metroplex_parity $golden/llama_fp16_pp2_dp2_distopt.json --backend nccl"
}

nccl_saves() {
  local two="--nproc 2 --backend nccl"
  part "NCCL: asynchronous saves next to a graph" "$1" 60 4 "${over[@]}" in_turn "$learn" \
    "$graph $two --checkpoint.async_save=true --checkpoint.save=$scratch/async --checkpoint.save_interval=20 > $scratch/async.log" \
    "$graph $two --checkpoint.save= --checkpoint.save_interval=0 --checkpoint.load=$scratch/async --checkpoint.ckpt_step=20 > $scratch/async_resumed.log" \
    "losses $scratch/async.log $scratch/async_resumed.log"
}

nccl_failures() {
  local endless="$train --train.train_iters=100000 --checkpoint.save= --checkpoint.save_interval=0 --nproc 2 --backend nccl --run.distributed_timeout_minutes=1"
  part "NCCL: failures of a rank" "$1" 45 3 "${over[@]}" "$bin/comm_nccl_test" '--gtest_filter=NcclFailure*'
  part "NCCL: a killed rank of a run" "$1" 40 4 "${over[@]}" in_turn "$learn" "failing_rank KILL 'rank 1 .*(failed|died)' '$endless'"
  part "NCCL: a stopped rank of a run" "$1" 50 4 "${over[@]}" in_turn "$learn" "failing_rank STOP 'rank 1 .*has not answered' '$endless'"
  part "NCCL: a captured run without a rank" "$1" 90 4 "${over[@]}" in_turn \
    "! $bin/metroplex_parity $golden/gpt_dp2.json --backend nccl --cuda-graph-impl full_iteration --set run.distributed_timeout_minutes=1 --plant absent_rank > $scratch/absent.log 2>&1" \
    "tail -n 8 $scratch/absent.log" "grep -E 'rank 0 .*captured step of iteration .* of group' $scratch/absent.log"
}

part_sanitizer() {
  local kernels="--error-exitcode 9 $bin/kernels_gpu_test '--gtest_filter=$sanitized'"
  # One test of the graphs provokes a failed capture, which memcheck would report as an API error.
  local graphs="--report-api-errors no --error-exitcode 9 $bin/graph_gpu_test"
  part "compute-sanitizer over the kernels" "sanitizer" 180 3 together sanitizer "compute-sanitizer --tool memcheck $kernels" \
    "compute-sanitizer --tool memcheck $graphs" "compute-sanitizer --tool racecheck $kernels" "compute-sanitizer --tool initcheck $kernels"
}

part_bandwidth() {
  part "kernels' bandwidth against the copy's" "" 30 20 "$bin/kernel_bandwidth" cuda 65536 4096 "$repetitions"
  part "attention by flash, cuDNN and own kernels" "" 30 15 "$bin/attention_operators" cuda "$repetitions"
  part "products of experts by own tiles and libtorch" "" 30 8 "$bin/grouped_product" cuda
}

part_step_times() {
  local model
  for model in gpt2 llama mixtral; do
    part "training step of $model" "" 45 8 "$python" bench/compare_gpu.py --models "$model" --steps "$steps" --binary "$bin/gpu_step"
  done
}

# Runs the same work on each rank alone and on all ranks. The additional time of a step is exposed communication.
part_exposed_communication() {
  local run="train examples/gpt2_124m.yaml --data.mock_data=true --data.data_path= --data.tokenizer_type=none --train.tensorboard_dir="
  run+=" --run.device=cuda --train.train_iters=$steps --train.log_interval=$(((steps + 1) / 2)) --train.eval_interval=0 --checkpoint.save= --checkpoint.save_interval=0"
  run+=" --train.progress=false --precision.params_dtype=bf16 --parallel.data_parallel_sharding_strategy=optim"
  local all="--nproc $ranks --backend nccl --train.global_batch_size=$((16 * ranks))"
  part "exposed communication: one rank, then several" "ranks" 90 30 each "$bin/metroplex $run --nproc 1 --train.global_batch_size=16" \
    "$bin/metroplex $run $all" "$bin/metroplex $run $all --parallel.overlap_grad_reduce=false --parallel.overlap_param_gather=false"
}

# Two and four ranks on one GPU. CUDA MPS lets their kernels run at the same time; without it they take turns. A failed
# client may end the other clients of MPS, so failures are tested without it.
parts_of_shared_gpu() {
  over=(sharing_gpu)
  nccl_operations "" ", without MPS"
  part "NCCL: CUDA MPS starts" "mps" 10 3 start_mps
  if [ -e "$scratch/mps/on" ]; then
    use_mps
    nccl_operations "" ", with MPS" || stop_mps
  fi
  nccl_golden ""
  nccl_context_parallel ""
  nccl_golden_of_four
  nccl_saves ""
  stop_mps
  nccl_failures ""
}
