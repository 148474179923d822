#!/usr/bin/env bash
# Graphs of expert layers change no bit either: 20 steps through warm-up and decay, gradients that overflow, rows that
# exceed the buffers, evaluation, a save. Runs resumed with graphs on and off end with the checkpoint of eager steps.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
steps=(--model.family=mixtral --model.num_layers=4 "--model.moe_layer_freq=[1,0,1,1]" --model.num_moe_experts=4
  --model.moe_router_load_balancing_type=aux_loss,seq_aux_loss,global_aux_loss --model.moe_aux_loss_coeff=0.02,0.01,0.01
  --model.moe_z_loss_coeff=0.001 --model.moe_input_jitter_eps=0.1 --model.moe_shared_expert_intermediate_size=16
  --model.moe_router_score_function=sigmoid --model.moe_router_enable_expert_bias=true --model.moe_router_force_skew=1
  --model.hidden_dropout=0.1 --model.attention_dropout=0.1
  --train.train_iters=20 --train.eval_interval=7 --train.eval_iters=2 --data.split=80,10,10 --checkpoint.save_interval=9
  --train.cuda_graph_warmup_steps=2 --optim.lr_warmup_iters=5 --train.global_batch_size=8
  --precision.params_dtype=fp16 --precision.initial_loss_scale=4194304 --precision.hysteresis=1 --precision.loss_scale_window=5)
buffers="--model.moe_token_dispatcher_type=static_buffer%--model.moe_expert_rank_capacity_factor"
grid() { # EP ETP TP PP VPP
  echo "--parallel.expert_model_parallel_size=$1 --parallel.expert_tensor_parallel_size=$2 --parallel.tensor_model_parallel_size=$3
    --parallel.sequence_parallel=$([ "$3" = 1 ] && echo false || echo true) --parallel.pipeline_model_parallel_size=$4
    --parallel.virtual_pipeline_model_parallel_size=$5"
}
graphs() { # IMPL MODULES(comma)
  echo "--train.cuda_graph_impl=$1 --train.cuda_graph_modules=[$2]"
}

# count_of TEXT: lines of the last run's warnings that contain it.
count_of() { awk -v text="$1" 'index($0, text) {n++} END {print n + 0}' err; }

while read -r name ranks grid dispatcher repeats; do
  dispatcher=${dispatcher//%/ }
  # shellcheck disable=SC2046,SC2086
  layout=($(grid ${grid//,/ }) $dispatcher --nproc "$ranks")
  run 0 train "${tiny[@]}" "${steps[@]}" "${layout[@]}" --checkpoint.save="$name.plain"
  cp err "$name.warnings"
  [ "$(count_of 'was skipped: gradients overflowed')" -ge 1 ] || fail "$name: no step overflowed"
  case "$(count_of 'ran twice')" in 0) [ "$repeats" = none ] ;; 20) false ;; *) [ "$repeats" = some ] ;; esac || fail "$name: not $repeats of the steps ran twice"
  held 2
  while read -r impl modules; do
    case "$impl $modules $dispatcher" in
      full*alltoall | *moe\ *alltoall | local\ \ *alltoall) continue ;; # the host reads counts there
    esac
    # shellcheck disable=SC2046
    run 0 train "${tiny[@]}" "${steps[@]}" "${layout[@]}" $(graphs "$impl" "$modules") --checkpoint.save="$name.graph"
    prints '^ rank 0 has captured [0-9]+ graphs of [0-9]+ operations'
    cmp -s <(grep -E 'skipped|ran twice' "$name.warnings") <(grep -E 'skipped|ran twice' err) || fail "$name $impl $modules: other steps were skipped or ran again"
    held
    same_end "$name.plain" "$name.graph"
    rm -r "$name.graph"
    holds "$name with $impl ${modules:-}"
  done << 'IMPLS'
full_iteration
transformer_engine attn,moe_router,moe_preprocess
transformer_engine moe
local moe_router
local
IMPLS
done << LAYOUTS
one 1 1,1,1,1,1 $buffers=1 none
plain 2 2,1,1,1,1 --model.moe_token_dispatcher_type=alltoall none
room 2 2,1,1,1,1 $buffers=1.4 some
pipeline 4 2,1,1,2,2 $buffers=1.4 some
clones 2 2,1,1,1,1 $buffers=1%--model.moe_enable_echo=true%--model.moe_echo_planner=exact%--model.moe_num_echo_experts=4 none
LAYOUTS

# On and off across a resume from the save at iteration 9.
# shellcheck disable=SC2046,SC2086
layout=($(grid 2 1 1 1 1) ${buffers//%/ }=1.4 --nproc 2)
while read -r impl modules; do
  for first in on off; do
    on=$(graphs "$impl" "$modules") off=--train.cuda_graph_impl=none
    # shellcheck disable=SC2086
    run 0 train "${tiny[@]}" "${steps[@]}" "${layout[@]}" ${!first} --train.exit_interval=9 --checkpoint.save=resumed
    [ $first = on ] && second=off || second=on
    # shellcheck disable=SC2086
    run 0 train "${tiny[@]}" "${steps[@]}" "${layout[@]}" ${!second} --checkpoint.save=resumed --checkpoint.load=resumed
    same_end room.plain resumed
    rm -r resumed
    holds "$impl ${modules:-} $first until iteration 9, then $second"
  done
done << 'IMPLS'
full_iteration
transformer_engine attn,moe_router,moe_preprocess
local
IMPLS
