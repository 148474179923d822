#!/usr/bin/env bash
# Training with products in 8 and 4 bits: resuming, histories of delayed scales in checkpoints, flags of launch scripts.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
bits=(--precision.params_dtype=bf16 --precision.fp8_format=hybrid)
short=(--train.train_iters=6 --checkpoint.save_interval=3)

# resumes NAME OPTION...: steps 4 to 6 after a resume have the bits of an uninterrupted run.
resumes() {
  local name=$1
  shift
  run 0 train "${tiny[@]}" "${bits[@]}" "${short[@]}" "$@" --checkpoint.save="$name" --train.metrics_file="$name.jsonl"
  run 0 train "${tiny[@]}" "${bits[@]}" "${short[@]}" "$@" --checkpoint.load="$name" --checkpoint.ckpt_step=3 \
    --checkpoint.save="$name.resumed" --train.metrics_file="$name.resumed.jsonl"
  same_end "$name" "$name.resumed"
  holds "a resumed run with $name has the same bits"
}
resumes delayed --precision.fp8_amax_history_len=4 --precision.fp8_amax_compute_algo=max
gathers=(--run.nproc=2 --precision.fp8_param_gather=true)
resumes gathered "${gathers[@]}" --precision.fp8_recipe=tensorwise --parallel.data_parallel_sharding_strategy=optim
resumes gathered3 "${gathers[@]}" --parallel.data_parallel_sharding_strategy=optim_grads_params
run 0 train "${tiny[@]}" "${bits[@]}" "${short[@]}" --checkpoint.save=one --checkpoint.load=gathered3 --checkpoint.ckpt_step=3
holds "a run on one rank loads a checkpoint of gathered codes"
run 0 train "${tiny[@]}" --bf16 --fp8-format hybrid --use-distributed-optimizer --fp8-param-gather --run.nproc=2 --train.train_iters=4
holds "Megatron's flag gathers codes"
resumes mxfp8 --precision.fp8_recipe=mxfp8
bits=(--precision.params_dtype=bf16 --precision.fp4_format=e2m1)
resumes nvfp4 --precision.recipe_pattern=layers.1.mlp.linear_fc2=delayed
bits=(--precision.params_dtype=bf16 --precision.fp8_format=hybrid)

run 0 train "${tiny[@]}" --precision.params_dtype=bf16 "${short[@]}" --checkpoint.save=other1 --checkpoint.load=delayed --checkpoint.ckpt_step=3
prints 'loaded checkpoint'
holds "a run without low precision ignores the histories"
run 0 train "${tiny[@]}" "${bits[@]}" "${short[@]}" --checkpoint.save=other2 --checkpoint.load=delayed --checkpoint.ckpt_step=3
warns 'scales of 8 layers begin at 1'
holds "a history of another length starts anew"
run 0 train "${tiny[@]}" "${bits[@]}" "${short[@]}" --checkpoint.save=other3 --checkpoint.load=mxfp8 --checkpoint.ckpt_step=3
warns 'scales of 8 layers begin at 1'
holds "a checkpoint without histories starts them"

run 0 train "${tiny[@]}" "${bits[@]}" "${short[@]}" --checkpoint.save=ends --precision.first_last_layers_bf16=true \
  --model.num_layers=4
run 0 inspect ends/iter_0000003
[ "$(grep -c operand_magnitudes "$work/out")" = 8 ] || fail "not all layers but the first and last have histories"
holds "only layers in low precision have histories"

run 0 convert delayed --to torch_dist megatron
holds "Megatron checkpoints have no histories"
run 0 generate --load mxfp8 --prompt a --max-new-tokens 2 --precision.fp8_format=none
holds "a run of a checkpoint can turn low precision off"
run 0 generate --load mxfp8 --prompt a --max-new-tokens 2 --precision.fp8_products=library
holds "generation widens products of codes, which need multiples of 16 tokens"

printf 'model: {family: gpt, num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64}\ntrain: {seq_length: 16, micro_batch_size: 1, global_batch_size: 4, train_iters: 3}\ndata: {mock_data: true}\noptim: {lr: 0.01}\n' > plan.yaml
run 0 plan plan.yaml "${bits[@]}" --gpus 2 --cluster h100
holds "a step with delayed scales runs without values"

run 0 train "${tiny[@]}" "${bits[@]}" --train.train_iters=4 --train.log_rounding_interval=2 --train.metrics_file=seen.jsonl \
  --train.tensorboard_dir=seen
[ "$(grep -c '"rounding": {' seen.jsonl)" = 2 ] || fail "not two of four steps have rounding errors"
[ "$(tail -1 seen.jsonl | grep -o '"error": 0.0' | wc -l)" = 24 ] || fail "not three operands of eight layers have errors"
grep -qa 'rounding/decoder.layers.0.mlp.linear_fc1/weight/saturated' seen/* || fail "TensorBoard has no rounding errors"
run 0 report seen.jsonl
grep -q '"rounding":\[{"iteration":4,"count":24,' report.html || fail "the report has no rounding errors"
! grep -q rounding delayed.jsonl || fail "rounding errors were written without an interval"
holds "rounding errors are in the metrics, TensorBoard and the report"

run 0 train "${tiny[@]}" --bf16 --fp8-format hybrid --fp8-recipe tensorwise --train.train_iters=4
holds "flags of launch scripts"
run 2 train "${tiny[@]}" --bf16 --fp8-format hybrid --fp8-recipe mxfp9
warns 'mxfp8'
run 0 train "${tiny[@]}" --bf16 --fp4-format e2m1 --fp4-recipe nvfp4 --train.train_iters=4
run 2 train "${tiny[@]}" --bf16 --fp4-format e2m1 --fp8-format hybrid
warns 'precision.fp4_format = e2m1: excludes precision.fp8_format'
run 2 train "${tiny[@]}" "${bits[@]}" --precision.recipe_pattern=linear_fc3=none
warns 'precision.recipe_pattern = linear_fc3=none: must select a linear layer'
run 2 train "${tiny[@]}" "${bits[@]}" --precision.fp8_recipe=blockwise --run.nproc=2 \
  --parallel.tensor_model_parallel_size=2
warns 'decoder.layers.0.*: a rank.s shard has .* features, but blocks of precision.fp8_recipe = blockwise have 128'
holds "errors name the flag or the layer"
