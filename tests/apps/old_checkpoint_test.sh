#!/usr/bin/env bash
# Checkpoints at rest load: tests/vectors/checkpoints holds the second of six steps of two runs as version 1 of the format
# was first written, with the losses of all six. Each is gone on with on its own layout and on others.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
vectors=$repository/tests/vectors/checkpoints
base=(--run.seed=7 --run.device=cpu --model.num_layers=2 --model.hidden_size=8 --model.num_attention_heads=2 --model.vocab_size=16
  --model.make_vocab_size_divisible_by=8 --model.hidden_dropout=0.1 --model.attention_dropout=0.1 --data.mock_data=true
  --optim.lr=0.01 --train.seq_length=8 --train.micro_batch_size=1 --train.global_batch_size=8 --train.train_iters=6
  --train.log_interval=1 --train.progress=false --train.eval_iters=0)
llama=(--model.family=llama --model.num_query_groups=2 --model.ffn_hidden_size=16 --model.qk_layernorm=true
  --precision.params_dtype=fp64)
cut=(--parallel.tensor_model_parallel_size=2 --parallel.sequence_parallel=true --parallel.pipeline_model_parallel_size=2)
sharded=--parallel.data_parallel_sharding_strategy

# goes_on RUN TOLERANCE ARGUMENT...: steps 3 to 6 from the second have the recorded losses.
goes_on() {
  local name=$1 tolerance=$2
  shift 2
  rm -rf copy other.jsonl
  cp -r "$vectors/$name" copy
  run 0 train "${base[@]}" "$@" --checkpoint.load=copy --checkpoint.ckpt_step=2 --train.metrics_file=other.jsonl
  same_losses "$vectors/$name.jsonl" other.jsonl "$tolerance" 3
  [ "$(losses other.jsonl | wc -l)" = 4 ] || fail "$name did not run steps 3 to 6 with $*"
  holds "$name goes on with $*"
}

# fp64: sums of at most a few thousand terms, far below the metrics file's own digits. fp32: one rounding of a loss near 3 is
# 2e-7, and four steps of it stay below 5e-6 (checkpoint_test.sh).
for name in llama_fp64 gpt_fp32; do
  run 0 inspect "$vectors/$name/iter_0000002" --verify
  prints 'all checksums agree'
done
goes_on llama_fp64 1e-11 --nproc 8 "${llama[@]}" "${cut[@]}" $sharded=optim
goes_on llama_fp64 1e-11 --nproc 1 "${llama[@]}"
goes_on llama_fp64 1e-11 --nproc 4 "${llama[@]}" --parallel.tensor_model_parallel_size=2 $sharded=optim_grads_params
goes_on gpt_fp32 5e-6 --nproc 2 $sharded=optim_grads
goes_on gpt_fp32 5e-6 --nproc 4 "${cut[@]}"

# The comparison sees a state that was not loaded: without the moments the fourth step is another one.
rm -rf copy other.jsonl && cp -r "$vectors/gpt_fp32" copy
run 0 train "${base[@]}" --nproc 2 --checkpoint.load=copy --checkpoint.ckpt_step=2 --checkpoint.no_load_optim=true --train.metrics_file=other.jsonl
python3 "$apps/metrics.py" compare "$vectors/gpt_fp32.jsonl" other.jsonl 5e-6 3 > compared && fail "without moments the losses should differ: $(cat compared)"
holds "without the moments the losses differ"
