#!/usr/bin/env bash
# Graphs of steps and of layer modules change no bit. Runs with and without them end with the same checkpoint, byte
# for byte, through warm-up, evaluation, a change of batch size, overflows, a save, and resumes with graphs on and
# off.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
steps=(--train.train_iters=20 --train.eval_interval=7 --train.eval_iters=2 --data.split=80,10,10 --checkpoint.save_interval=9
  --train.log_interval=5 --model.hidden_dropout=0.1 --model.attention_dropout=0.1 --train.cuda_graph_warmup_steps=2)

graphs() { # IMPL MODULES(comma)
  echo "--train.cuda_graph_impl=$1 --train.cuda_graph_modules=[$2]"
}

while read -r name ranks layout; do
  # shellcheck disable=SC2206
  layout=($layout)
  layout=("${layout[@]//%/ }")
  run 0 train "${tiny[@]}" "${steps[@]}" "${layout[@]}" --nproc "$ranks" --checkpoint.save="$name.plain"
  cp err "$name.warnings"
  while read -r impl modules; do
    # Partial graphs need fixed addresses.
    case "$impl ${layout[*]}" in full_iteration*) ;; *optim_grads*) continue ;; esac
    # shellcheck disable=SC2046
    run 0 train "${tiny[@]}" "${steps[@]}" "${layout[@]}" --nproc "$ranks" $(graphs "$impl" "$modules") --checkpoint.save="$name.$impl$modules"
    prints '^ rank 0 has captured [0-9]+ graphs of [0-9]+ operations'
    case $modules in
      attn) prints '^ captured in chunk 0: .*\(?\[self_attention\] > mlp' ;;
      mlp) prints '^ captured in chunk 0: .*self_attention > \[mlp\]' ;;
      *) [ "$impl" = full_iteration ] || prints '^ captured in chunk 0: .*\[self_attention > mlp\]' ;;
    esac
    same_end "$name.plain" "$name.$impl$modules"
    rm -r "$name.$impl$modules"
    holds "$name with $impl ${modules:-}"
  done << 'IMPLS'
full_iteration
transformer_engine attn
transformer_engine attn,mlp
local mlp
local
IMPLS
done << LAYOUTS
one 1
sp 2 --parallel.tensor_model_parallel_size=2 --parallel.sequence_parallel=true --train.global_batch_size=4
pipeline 4 --parallel.pipeline_model_parallel_size=2 --parallel.virtual_pipeline_model_parallel_size=1 --parallel.tensor_model_parallel_size=2 --train.global_batch_size=8
zero1 2 --parallel.data_parallel_sharding_strategy=optim --train.global_batch_size=8
zero3 2 --parallel.data_parallel_sharding_strategy=optim_grads_params --train.global_batch_size=8
growing 2 --train.global_batch_size=0 --train.step_batch_size_schedule=0:4%512:8%2K:16 --train.train_iters=0 --train.train_samples=200 --optim.lr_warmup_iters=0
fp16 2 --precision.params_dtype=fp16 --precision.initial_loss_scale=4194304 --precision.hysteresis=1 --precision.loss_scale_window=5 --train.global_batch_size=8
LAYOUTS
grep -q "was skipped: gradients overflowed" fp16.warnings && held || fail "no step of the fp16 run overflowed"
holds "the fp16 run skips steps"

# On and off across a resume from the save at iteration 9.
for first in none full_iteration; do
  second=$([ $first = none ] && echo full_iteration || echo none)
  run 0 train "${tiny[@]}" "${steps[@]}" --train.exit_interval=9 --train.cuda_graph_impl=$first --checkpoint.save=resumed
  run 0 train "${tiny[@]}" "${steps[@]}" --train.cuda_graph_impl=$second --checkpoint.save=resumed --checkpoint.load=resumed
  same_end one.plain resumed
  rm -r resumed
  holds "graphs $first until iteration 9, then $second"
done

# With process ranks.
run 0 train "${tiny[@]}" "${steps[@]}" --nproc 2 --backend gloo --parallel.pipeline_model_parallel_size=2 --checkpoint.save=gloo.plain
run 0 train "${tiny[@]}" "${steps[@]}" --nproc 2 --backend gloo --parallel.pipeline_model_parallel_size=2 \
  --train.cuda_graph_impl=full_iteration --checkpoint.save=gloo.graph
same_end gloo.plain gloo.graph
holds "gloo"

# A dry run counts the memory of rank 0's graphs: pools and static buffers.
held_by_graphs=("${tiny[@]}" "${mock[@]}" --nproc 2 --model.num_layers=8 --model.hidden_size=128 --train.seq_length=128
  --train.micro_batch_size=2 --train.global_batch_size=16 --train.train_iters=3 --train.cuda_graph_warmup_steps=1
  --train.cuda_graph_impl=transformer_engine --parallel.pipeline_model_parallel_size=2)
for vpp in 1 4; do
  run 0 train "${held_by_graphs[@]}" --parallel.virtual_pipeline_model_parallel_size=$vpp
  mv out trained
  run 0 train "${held_by_graphs[@]}" --parallel.virtual_pipeline_model_parallel_size=$vpp --dry-run --json
  python3 - << 'PYTHON' || fail "the dry run of vpp $vpp does not count what graphs hold"
import json, re
line = re.search(r"static inputs ([\d.]+) \| pool ([\d.]+), of it tensors at most ([\d.]+) \(([\d.]+)\)", open("trained").read())
static, pool, peak, predicted = map(float, line.groups())
graphs = json.load(open("out"))["memory"]["ranks"][0]["bytes"]["graphs"] / 2**20
assert peak == predicted and pool < 1.1 * peak and peak > 1, line.group(0)
assert abs(static + peak - graphs) < 0.02, (line.group(0), graphs)
PYTHON
  holds "graphs hold what a dry run of vpp $vpp counts"
done
