#!/usr/bin/env bash
# Old checkpoints load: tests/vectors/checkpoints has the second of six steps of two runs in the first version 1 of
# the format, with the losses of all six. Each run is resumed on its own layout and on others.
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
  warns 'does not record its training documents: data.mock_data = true is assumed to be the same'
  same_losses "$vectors/$name.jsonl" other.jsonl "$tolerance" 3
  [ "$(losses other.jsonl | wc -l)" = 4 ] || fail "$name did not run steps 3 to 6 with $*"
  holds "$name goes on with $*"
}

# Losses near 2.7. fp64: a loss is a sum of at most 128 terms (64 tokens, 16 words), each rounded by 2^-53, on four
# steps: 128 * 2.7 * 1.1e-16 * 4 = 1.5e-13. fp32: one rounding of a loss is 1.2e-7, two per step on four steps 1e-6.
# The measured errors are 4e-16 and 6e-8, with AVX2 too.
fp64=2e-13 fp32=1e-6
for name in llama_fp64 gpt_fp32; do
  run 0 inspect "$vectors/$name/iter_0000002" --verify
  prints 'all checksums match'
done
goes_on llama_fp64 $fp64 --nproc 8 "${llama[@]}" "${cut[@]}" $sharded=optim
goes_on llama_fp64 $fp64 --nproc 1 "${llama[@]}"
goes_on llama_fp64 $fp64 --nproc 4 "${llama[@]}" --parallel.tensor_model_parallel_size=2 $sharded=optim_grads_params
goes_on gpt_fp32 $fp32 --nproc 2 $sharded=optim_grads
goes_on gpt_fp32 $fp32 --nproc 4 "${cut[@]}"

rm -rf copy
cp -r "$vectors/llama_fp64" copy
run 3 train "${base[@]}" "${llama[@]}" --nproc 1 --checkpoint.load=copy --checkpoint.ckpt_step=2 --train.seq_length=32
warns 'train.seq_length is 32 here and was 8'
holds "what an old checkpoint's configuration says of its data is compared"

# differs RUN TOLERANCE ARGUMENT...: a planted fault moves the losses by more.
differs() {
  local name=$1 tolerance=$2
  shift 2
  rm -rf copy other.jsonl
  cp -r "$vectors/$name" copy
  run 0 train "${base[@]}" "$@" --checkpoint.load=copy --checkpoint.ckpt_step=2 --train.metrics_file=other.jsonl
  python3 "$apps/metrics.py" compare "$vectors/$name.jsonl" other.jsonl "$tolerance" 3 > compared && fail "$name should differ with $*: $(cat compared)"
  holds "$name differs with $*"
}
# Moments that were not loaded (1e-2), a learning rate with a relative error of 1e-4 (8e-6).
wrong_rate=(--optim.lr=0.010001 --optim.override_opt_param_scheduler=true)
differs llama_fp64 $fp64 --nproc 1 "${llama[@]}" --checkpoint.no_load_optim=true
differs llama_fp64 $fp64 --nproc 1 "${llama[@]}" "${wrong_rate[@]}"
differs gpt_fp32 $fp32 --nproc 2 --checkpoint.no_load_optim=true
differs gpt_fp32 $fp32 --nproc 2 "${wrong_rate[@]}"
