#!/usr/bin/env bash
# metroplex_parity can fail: it detects bugs planted into a replay, and unknown keys.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parity=$(dirname "$metroplex")/metroplex_parity
golden=$repository/tests/vectors/golden

# replays EXPECTED_CODE ARGUMENTS...
replays() {
  local expected=$1 code=0
  shift
  timeout -k 5 90 "$parity" "$@" > out 2> err || code=$?
  [ "$code" = "$expected" ] || fail "metroplex_parity $* ended with $code, not $expected"
}

for run in llama_bf16 llama_1; do
  replays 0 "$golden/$run.json"
  holds "$run passes"
  for fault in no_update learning_rate zero_layer_gradient no_clip half_main_params; do
    case "$run $fault" in
      "llama_1 half_main_params") continue ;; # fp32 has no other main parameters
      # Adam divides out a factor of all gradients: clipping moves parameters by a rounding of bf16, more or less,
      # depending on the processor. llama_1 detects it.
      "llama_bf16 no_clip") continue ;;
    esac
    replays 1 "$golden/$run.json" --plant "$fault"
    prints '^FAIL'
    holds "$run with $fault fails: $(grep -cE 'TOO FAR|DIFFERS|[0-9]{2}\.[0-9]+ of its tolerance' out) complaints"
  done
done

replays 0 --yardstick
[ "$(grep -c '^yardstick: .* ok$' out)" = 13 ] || fail "the yardstick was not held against 13 kinds of programs"
holds "the yardstick passes right programs, whatever their errors have in common, and no wrong one"

replay_with() { # KEY VALUE: llama_1 with another option of config.cfg
  python3 - "$golden/llama_1.json" "$1" "$2" << 'PYTHON'
import json, sys
run = json.load(open(sys.argv[1]))
run["config"].setdefault("cfg", {})[sys.argv[2]] = json.loads(sys.argv[3])
json.dump(run, open("changed.json", "w"))
PYTHON
}
for option in 'recompute_granularity "selective"' 'fp32_residual_connection true' \
  'deallocate_pipeline_outputs true' 'overlap_grad_reduce true' 'adam_beta2 0.999' 'hidden_dropout 0.0' 'layernorm_epsilon null'; do
  replay_with "${option%% *}" "${option#* }"
  replays 0 changed.json
done
holds "options that change nothing of the function are taken"
replay_with adam_beta2 0.9
replays 1 changed.json
prints '^FAIL'
for option in 'window_size 4' 'qk_l2_norm true' 'no_such_option 1' 'hidden_dropout 0.1' 'recompute_modules ["moe"]'; do
  replay_with "${option%% *}" "${option#* }"
  replays 1 changed.json
  warns "${option%% *}|dropout"
done
holds "options that are unknown, or that cannot be replayed, are named"

# Runs with experts on layouts that they were not recorded on. A capacity is per rank's tokens, so tp would change the
# dropped tokens.
while read -r run layout; do
  # shellcheck disable=SC2086
  replays 0 "$golden/$run.json" $layout
  holds "$run passes with $layout"
done << 'LAYOUTS'
moe_1 --nproc 4 --ep 4
moe_1 --nproc 8 --tp 2 --pp 2 --vpp 2 --ep 2 --etp 2
moe_1 --nproc 4 --tp 2 --ep 4 --etp 1 --backend gloo
moe_ep2 --nproc 1 --ep 1
moe_allgather_ep2 --nproc 4 --tp 2 --ep 2 --etp 2
moe_noaux --nproc 4 --pp 2 --ep 2 --data-parallel-sharding-strategy optim_grads_params
moe_sigmoid_bias_shared --nproc 8 --tp 2 --pp 2 --ep 4 --etp 1 --data-parallel-sharding-strategy optim
moe_capacity --nproc 4 --pp 2 --ep 2
moe_sinkhorn_top1 --nproc 4 --tp 2 --ep 2 --etp 2
LAYOUTS
buffers="--set model.moe_token_dispatcher_type=static_buffer --set model.moe_expert_rank_capacity_factor"
clones="--set model.moe_enable_echo=true --set model.moe_echo_planner=exact --set model.moe_num_echo_experts"
# The whole step in a graph, with experts: buffers for all rows if the host would read counts, and replicas in buffers
# for the even load.
while read -r run how; do
  # shellcheck disable=SC2086
  replays 0 "$golden/$run.json" --cuda-graph-impl full_iteration $how
  holds "$run passes as a graph${how:+ with $how}"
done << RUNS
moe_1
moe_1 --nproc 8 --tp 2 --pp 2 --vpp 2 --ep 2 --etp 2 $buffers=4
moe_ep2 $buffers=2
moe_ep2 $buffers=2 --set model.moe_paged_stash=true
moe_ep2 --nproc 4 --ep 4 $buffers=1 $clones=4
moe_allgather_ep2
moe_noaux --nproc 4 --pp 2 --ep 2 --data-parallel-sharding-strategy optim_grads_params $buffers=2
moe_noaux --nproc 4 --ep 4 $buffers=1 $clones=4
moe_sigmoid_bias_shared --nproc 4 --ep 4 $buffers=4
moe_sigmoid_bias_shared --nproc 4 --ep 4 $buffers=1 $clones=4
moe_capacity --nproc 4 --pp 2
moe_sinkhorn_top1 --nproc 4 --tp 2 --ep 2 --etp 2 $buffers=2
RUNS
# Attention, router and plan of every layer, for every dispatcher; and whole layers if the host reads nothing.
modules="--cuda-graph-impl transformer_engine --cuda-graph-modules"
while read -r run how; do
  # shellcheck disable=SC2086
  replays 0 "$golden/$run.json" $modules $how
  holds "$run passes with graphs of $how"
done << RUNS
moe_1 attn moe_router moe_preprocess
moe_1 attn moe
moe_ep2 attn moe_router moe_preprocess
moe_ep2 attn moe $buffers=2
moe_allgather_ep2 attn moe_router moe_preprocess
moe_capacity attn moe_router moe_preprocess
moe_noaux attn moe_router moe_preprocess --nproc 4 --pp 2 --ep 2
moe_sigmoid_bias_shared attn moe_router moe_preprocess --nproc 4 --ep 4 $buffers=1 $clones=4
moe_sinkhorn_top1 attn moe_router moe_preprocess
RUNS
# In fp16 the scale changes with the number of a rank's microbatches; the steps that overflow stay the same.
while read -r run layout; do
  # shellcheck disable=SC2086
  replays 0 "$golden/$run.json" $layout
  [ "$(grep -c ' skipped  ok$' out)" = "$(grep -o '"update_ok": false' "$golden/$run.json" | wc -l)" ] ||
    fail "$run with $layout skipped other steps: $(cat out)"
  holds "$run with $layout skips $(grep -c ' skipped  ok$' out) steps, those of the recorded run"
done << 'LAYOUTS'
llama_fp16_pp2_dp2_distopt --nproc 4 --tp 2 --pp 2
llama_fp16_pp2_dp2_distopt --nproc 8 --tp 2 --pp 1
llama_fp16_grads16 --nproc 4 --tp 2
llama_fp16_pertoken_dp2 --nproc 4 --tp 2 --pp 2
llama_tied_fp16_overflow --nproc 2 --tp 2
llama_tied_fp16_overflow --nproc 4
LAYOUTS
replays 1 "$golden/llama_tied_fp16_overflow.json" --nproc 4 --tp 2 --pp 2
warns 'tied = true in fp16 was recorded with pp 1, not with pp 2: .* replay it with --pp 1'
holds "a tied table in fp16 is not replayed where its two gradients meet in fp32"

for fault in no_update learning_rate zero_layer_gradient; do
  replays 1 "$golden/moe_sigmoid_bias_shared.json" --nproc 4 --ep 4 --plant "$fault"
  holds "moe_sigmoid_bias_shared with $fault fails"
done
