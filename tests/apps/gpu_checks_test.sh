#!/usr/bin/env bash
# scripts/gpu_checks.sh and scripts/gpu_ranks.sh with a fake GPU and fake programs: order, budget, time limits, failures,
# a killed script, and packed programs. The check that ends a rank runs with real ranks over gloo.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# script EXPECTED_CODE NAME ARGUMENTS...
script() {
  local expected=$1 name=$2 code=0
  shift 2
  PATH=$work/tools:$PATH timeout 120 "$repository/scripts/$name.sh" "$@" > out 2> err || code=$?
  [ "$code" = "$expected" ] || fail "$name.sh $* ended with $code, not $expected"
  held
}
row() { grep -nF -- "| $1 |" "$work"/report/*.md | head -n 1 | cut -d: -f1; }

echo "Without a GPU"
tool tools/nvidia-smi 'exit 9'
for name in gpu_ranks gpu_checks; do
  rm -rf report
  script 0 $name --out "$work/report"
  parts=$(count '\.log |$')
  [ "$parts" -ge 10 ] && [ "$(count '| skipped: no device | ')" = "$parts" ] || fail "$name: a part was not skipped"
  holds "$name: all $parts parts are skipped"
done

echo "With a fake GPU"
tool tools/nvidia-smi 'case "$*" in *query-gpu*) echo "NVIDIA H200, 9.0, 143771 MiB, 580.1" ;; esac'
tool tools/compute-sanitizer 'exit 0'
tool tools/python 'echo "python $*"'
tool tools/nvidia-cuda-mps-control 'if [ "$1" = -d ]; then exit 0; fi; read -r line; echo "$line" >> '"$work"'/mps'
for program in metroplex kernels_gpu_test graph_gpu_test gpu_step kernel_bandwidth attention_operators grouped_product; do
  tool "build/bin/$program" 'echo "ran $*"'
done
cp /bin/true build/bin/metroplex-torch  # ldd reads it
tool build/bin/metroplex_parity 'echo "parity $*"; echo "$METROPLEX_SHARE_GPUS $NCCL_SOCKET_IFNAME $NCCL_IB_DISABLE $NCCL_P2P_DISABLE $NCCL_SHM_DISABLE $CUDA_VISIBLE_DEVICES ${CUDA_MPS_PIPE_DIRECTORY:+mps}"'
tool build/bin/comm_nccl_test 'echo "nccl $* ${CUDA_MPS_PIPE_DIRECTORY:+mps}"
if [ "$1" = "--gtest_filter=NcclFailure*" ]; then echo "host:1:1 [0] NCCL WARN Duplicate GPU detected : rank 1 and rank 0"; for i in $(seq 9); do echo "line $i"; done; exit 1; fi'
checks=(--out "$work/report" --build "$work/build" --python "$work/tools/python")
rm -rf report copy && mkdir copy
script 1 gpu_checks "${checks[@]}" --copy "$work/copy"
last=0
for name in "programs find their libraries" "tests on a GPU" "golden runs, ranks as threads on one GPU" "training step of gpt2" \
  "NCCL: every operation, eager and captured, without MPS" "NCCL: golden runs" "NCCL: failures of a rank" \
  "host activations, and products of fp8 codes" "compute-sanitizer over the kernels" "kernels' bandwidth against the copy's"; do
  line=$(row "$name")
  [ -n "$line" ] && [ "$line" -gt "$last" ] || fail "'$name' is missing or too early"
  last=$line
done
holds "the parts run in the order of their value"
page_says '| NCCL: failures of a rank | FAILED (1) |'
page_says 'NCCL WARN Duplicate GPU detected : rank 1 and rank 0'
page_says '| NCCL: golden runs | ok |'
grep -qx '1 lo 1 1 1 0 mps' report/*.logs/nccl/01.log || fail "the ranks do not share a GPU over the loopback"
grep -q 'nccl .*Nccl\* $' report/*.logs/*without-MPS.log || fail "MPS runs too early"
grep -q 'nccl .*Nccl\* mps$' report/*.logs/*with-MPS.log || fail "no run with MPS"
grep -q 'NcclFailure\* $' report/*.logs/*failures-of-a-rank.log || fail "failures use MPS"
[ "$(cat mps)" = quit ] || fail "MPS was not stopped once"
held 4
tar -tzf copy/logs.tar.gz > out && cmp report/*.md copy/*.md || fail "--copy"
prints 'machine.log$'

echo "With programs that MPS or NCCL refuse"
tool build/bin/comm_nccl_test '[ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ]'
rm -rf report
script 1 gpu_ranks --out "$work/report" --build "$work/build"
page_says '| NCCL: every operation, eager and captured, with MPS | FAILED (1) |'
grep -qx '1 lo 1 1 1 0 ' report/*.logs/nccl/01.log && held || fail "golden runs use MPS after it failed"

echo "A budget"
rm -rf report
script 1 gpu_checks "${checks[@]}" --minutes 2
page_says '| compute-sanitizer over the kernels | skipped: it takes about 180 s, and '
page_says ' s of 2 min are left |'
page_says '| tests on a GPU | ok |'
script 2 gpu_checks --minutes soon
warns "--minutes is 'soon'"

echo "A killed script"
tool build/bin/metroplex_parity 'sleep 60'
rm -rf report
PATH=$work/tools:$PATH "$repository/scripts/gpu_checks.sh" "${checks[@]}" > out 2> err &
running=$!
until grep -q '^\$ ' report/*.logs/golden/01.log 2> /dev/null; do sleep 0.1; done
kill -KILL "$running"
page_says '| tests on a GPU | ok |'
page_says '| golden runs, ranks as threads on one GPU | running |'
page_says 'with an issue of this repository'
for file in $(grep -lzF "$work" /proc/[0-9]*/cmdline 2> /dev/null); do
  child=$(basename "$(dirname "$file")")
  [ "$child" = $$ ] || kill -KILL "$child" 2> /dev/null || true  # it may have ended with its parent
done
holds "the page lists the finished parts and the running one"

echo "A part that does not end"
parts() { PATH=$work/tools:$PATH bash -c '. "$0/scripts/gpu_parts.sh"; '"$1" "$repository" > out 2> err; }
rm -rf report
start=$SECONDS
! parts "out=$work/report; begin_report limits ''; part endless '' 1 3 each 'echo begun' 'sleep 90'; end_report" || fail "the exit code is 0"
[ $((SECONDS - start)) -lt 30 ] || fail "the limit was not applied"
page_says '| endless | FAILED (ended after 3 s) |'
page_says 'begun'

! parts "out=$work/report; begin_report limits ''; part piped '' 5 3 each 'false | tail -n 1'; end_report" || fail "the exit code is 0"
page_says '| piped | FAILED (1) |'
script 2 gpu_checks pack "$work/programs.tar.xz" --limit big
warns "limit is 'big'"

echo "Packed programs"
for program in build/bin/*; do cp /bin/true "$program"; done
script 0 gpu_checks pack "$work/programs.tar.xz" --build "$work/build" --limit 4096
prints 'programs.tar.xz: [0-9]+ bytes; tracked files: [0-9]+ bytes; allowed together: 4294967296 bytes'
script 1 gpu_checks pack "$work/programs.tar.xz" --build "$work/build" --limit 1
warns 'is too large by [0-9]+ bytes'
rm -rf report
script 1 gpu_checks --out "$work/report" --build "$work/programs.tar.xz" --torch "$work/torch"
page_says '| tests on a GPU | ok |'
page_says '| NCCL: golden runs | ok |'
page_says '| host activations, and products of fp8 codes | ok |'
rm build/bin/gpu_step
script 2 gpu_checks pack "$work/programs.tar.xz" --build "$work/build"
warns 'gpu_step is missing'

echo "A rank that is killed or stopped"
make_corpus
endless="$metroplex train ${tiny[*]} --train.train_iters=1000000 --optim.lr_decay_iters=8 --nproc 2 --backend gloo --parallel.tensor_model_parallel_size=2"
parts "export scratch=$work; failing_rank KILL 'rank 1 .*(failed|died)' '$endless'" && held || fail "a killed rank is not named"
prints 'after SIGKILL to rank 1, the run ended with'
! parts "export scratch=$work; failing_rank KILL 'rank 7' '$endless'" && held || fail "another rank is accepted"
! parts "export scratch=$work; failing_rank KILL 'rank 1' '$metroplex train --no-such-option'" && held || fail "a run that does not start is accepted"
