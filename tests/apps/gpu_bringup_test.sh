#!/usr/bin/env bash
# scripts/gpu_bringup.sh: without a GPU every part is skipped and a page reports it. With fake GPUs, programs and
# tools every part runs its command; a failing part is named and does not stop the others.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

bringup() {
  local expected=$1 code=0
  shift
  PATH=$work/tools:$PATH timeout 120 "$repository/scripts/gpu_bringup.sh" --out "$work/report" "$@" > out 2> err || code=$?
  [ "$code" = "$expected" ] || fail "gpu_bringup.sh $* ended with $code, not $expected"
  held
}

echo "Without a GPU"
tool tools/nvidia-smi 'exit 9'
bringup 0
parts=$(count '^| .* | skipped: no device | ')
[ "$parts" -ge 15 ] || fail "$parts parts"
[ "$(count '\.log |$')" = "$parts" ] || fail "a part was not skipped"
[ "$(grep -l '^skipped: no device$' report/*.logs/*.log | wc -l)" = "$parts" ] || fail "a log lacks its reason"
page_says 'no device'
page_says 'with an issue of this repository'
holds "all $parts parts are skipped, each with a log"

echo "With two GPUs that stand in"
rm -rf report
tool tools/nvidia-smi 'case "$*" in *query-gpu*) for i in 1 2; do echo "NVIDIA H100, 9.0, 81559 MiB, 580.1"; done ;; *) echo "asked $*" ;; esac'
tool tools/compute-sanitizer 'echo "sanitizer $*"; [ "$2" != racecheck ]'
tool tools/python 'echo "python $*"'
# Losses of a run of 40 iterations or of its second half, and a text.
tool build/bin/metroplex 'from=1 loss=2
case "$*" in *ckpt_step=20*) from=21 loss=${RESUMED_LOSS:-2} ;; esac
case "$*" in
  *train_iters=20\ *)
    for i in $(seq 20); do echo " [2026-11-26 04:00:00] iteration  $i/  20 | lm loss: 2.$i |"; done ;;
  *train_iters=100000*)
    METROPLEX_RANK=1 sleep 60 &
    echo "iteration  3/100000"
    while grep -q "^State:.[SR]" /proc/$!/status 2> /dev/null; do sleep 0.1; done
    kill -KILL $!
    echo "rank 1 (tp 0) failed"
    echo "rank 1 (tp 0) has not answered"
    exit 4 ;;
  *full_iteration*)
    for i in $(seq $from 40); do
      echo " [2026-11-26 04:00:00] iteration  $i/  40 | elapsed time per iteration (ms): 1.0 | lm loss: $loss.$i | loss scale: 1.0 |"
    done ;;
  generate*=cuda) echo "The ${GPU_TEXT:-end}" ;;
  generate*) echo "The end" ;;
  *) echo "ran $*" ;;
esac'
cp /bin/true build/bin/metroplex-torch  # ldd reads it
for program in kernels_gpu_test graph_gpu_test gpu_step comm_nccl_test; do tool "build/bin/$program" 'echo "ran $*"'; done
tool build/bin/metroplex_parity 'echo + >> '"$work"'/running; sleep 0.1; echo - >> '"$work"'/running
echo "parity $* with $OMP_NUM_THREADS threads"; case "$*" in *llama_fp16_small.json*) echo "DIFFERS"; exit 1 ;; *absent_rank*) echo "rank 0 (tp 0): captured step of iteration 4: all_reduce of group dp"; exit 1 ;; esac'
tool build/bin/kernel_bandwidth 'echo "| copy | 1.0 |"'
tool build/bin/attention_operators 'echo "| GPT-2 | flash (chosen) | $* |"'
tool build/bin/grouped_product 'echo "| bf16 | own tiles | $* |"'
bringup 1 --build "$work/build" --no-build --python "$work/tools/python" --jobs 3
[ "$(count '| skipped')" = 0 ] || fail "a part was skipped"
page_says '2 of '
page_says '| golden runs, ranks as threads on one GPU | FAILED (1) |'
page_says '| compute-sanitizer over the kernels | FAILED (1) |'
page_says '| the same text from GPU and CPU | ok |'
page_says '20 losses, to iteration 40, differ by at most 0.0e+00'
page_says '| copy | 1.0 |'
page_says '| GPT-2 | flash (chosen) | cuda 50 |'
page_says 'NVIDIA H100'
logs=$(echo "$work"/report/*.logs)
runs=$(ls "$repository"/tests/vectors/golden/*.json | grep -vc golden_index)
[ "$(grep -l '^parity .*--device cuda with 2 threads$' "$logs"/golden/*.log | wc -l)" = "$runs" ] || fail "not all $runs golden runs"
[ "$(grep -c -- '--- ok, .* s: .*/metroplex_parity' "$logs"/*threads-on-one-GPU.log)" = $((runs - 1)) ] || fail "not a line for each golden run"
grep -q -- '--- failed (1), golden/.*: .*llama_fp16_small.json' "$logs"/*threads-on-one-GPU.log || fail "the run that failed is not named"
most=$(awk '{ n += $0 == "+" ? 1 : -1; if (n > most) most = n } END { print most }' running)
[ "$most" -gt 1 ] && [ "$most" -le 3 ] || fail "$most golden runs at a time, not two or three"
grep -q 'sanitizer --tool memcheck --report-api-errors no .*graph_gpu_test$' "$logs"/sanitizer/*.log || fail "no memcheck that leaves out refused calls"
grep -q -- '--- failed (1), sanitizer/.*--tool racecheck' "$logs"/*-compute-sanitizer*.log || fail "the sanitizer that failed is not named"
for run in mixtral_tiny echo_tiny context_parallel_tiny; do
  grep -q "ran verify examples/$run.yaml --run.device=cuda --vocab-size 300" "$logs"/verify/*.log || fail "$run is not verified"
done
grep -q 'parity .*gpt_dp2_distopt.json --backend nccl --cuda-graph-impl full_iteration --set train.cuda_graph_warmup_steps=1' "$logs"/nccl-graphs/*.log || fail "no capture behind one eager step"
grep -q 'train .*--nproc 2 --backend nccl' "$logs"/*exposed*.log || fail "no run of two ranks"
grep -q 'CUDAARCHS=90a-real' "$logs"/01-*.log || fail "not built for what is there"
grep -q '^ran --gtest_brief=1$' "$logs"/gpu-tests/02.log || fail "no tests"
grep -q 'python bench/compare_gpu.py --models mixtral' "$logs"/*mixtral.log || fail "no comparison"
holds "every part ran, two failed and are named"

echo "Where a GPU writes another text, and losses do not continue"
rm -rf report
tool tools/compute-sanitizer 'exit 0'
tool build/bin/metroplex_parity 'case "$*" in *absent_rank*) echo "rank 0 (tp 0): captured step of iteration 4: all_reduce of group dp"; exit 1 ;; esac'
GPU_TEXT=beginning RESUMED_LOSS=3 bringup 1 --build "$work/build" --no-build --python "$work/tools/python" --quick
page_says '3 of '
page_says '| the same text from GPU and CPU | FAILED (1) |'
page_says '| saved and resumed, from a graph | FAILED (1) |'
grep -q -- '--gtest_filter=-OptimizerCuda' report/*.logs/sanitizer/*.log || fail "--quick does not leave out the longest tests"
holds "both are found"

echo "With one GPU"
rm -rf report
tool tools/nvidia-smi 'case "$*" in *query-gpu*) echo "NVIDIA A100-SXM4-80GB, 8.0, 81920 MiB, 580.1" ;; esac'
bringup 0 --build "$work/build" --no-build --python "$work/tools/python"
[ "$(count 'skipped: it takes 2 GPUs')" = 10 ] || fail "parts of two ranks"
grep -q 'CUDAARCHS=80-real' report/*.logs/01-*.log || fail "not built for an A100"
holds "parts of several ranks are skipped"

echo "Where the build fails"
rm -rf report
bringup 1 --build "$work/nothing" --no-build
page_says '| build for these GPUs | FAILED (1) |'
page_says '1 of '
[ "$(count 'skipped: the build failed')" -ge 15 ] || fail "parts ran without a build"

echo "Wrong options"
bringup 2 --ranks none
warns "--ranks is 'none'"
bringup 2 --gpus 2
warns "unknown option '--gpus'"
bringup 2 --jobs 0
warns "--jobs is '0'"
bringup 2 --ranks
warns "takes a value"
