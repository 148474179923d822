#!/usr/bin/env bash
# Checkpoints through the binary: the same bits on the same layout, the same losses on any other, damage found and passed
# over, retention.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
grid=(--nproc 8 --parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2 --parallel.sequence_parallel=true)
dropout=(--model.hidden_dropout=0.1 --model.attention_dropout=0.1)

echo "Same layout (tp 2 x pp 2 x dp 2, with dropout): resumed is bit-identical to uninterrupted"
whole=("${tiny[@]}" "${dropout[@]}" "${grid[@]}" --checkpoint.save_interval=4)
run 0 train "${whole[@]}" --checkpoint.save=whole --train.metrics_file=whole.jsonl
run 0 train "${whole[@]}" --checkpoint.save=halves --train.exit_interval=4 --train.metrics_file=halves.jsonl
[ "$(losses halves.jsonl | wc -l)" = 4 ] || fail "exit_interval 4 did not end after 4 iterations"
run 0 train "${whole[@]}" --checkpoint.save=halves --checkpoint.load=halves --train.metrics_file=halves.jsonl
prints 'loaded checkpoint halves/iter_0000004 at iteration 4'
[ "$(losses whole.jsonl)" = "$(losses halves.jsonl)" ] || fail "losses differ: $(losses whole.jsonl) / $(losses halves.jsonl)"
for file in whole/iter_0000008/rank_*.safetensors; do
  cmp "$file" "halves/iter_0000008/${file##*/}" || fail "$file differs"
done
run 0 inspect whole --diff halves
prints 'all [0-9]+ tensors are equal'
holds "8 losses equal, $(ls whole/iter_0000008 | grep -c rank_) shards equal byte for byte, inspect --diff finds no difference"
run 1 inspect whole/iter_0000004 --diff whole/iter_0000008
prints '[1-9][0-9]* of [0-9]+ tensors differ'
holds "inspect --diff sees iterations 4 and 8 differ (exit 1)"

# The order of additions changes with the layout: for losses near 5 one rounding of fp32 is 5e-7, and four steps of it stay below
# 5e-6; another sample moves a loss by more than 1e-3. In fp64 the same is below the nine digits of the metrics file.
echo "Saved on tp 2 x pp 2 x dp 2, gone on with on other layouts (dropout on): same losses, same samples"
declare -A layouts=(
  [1 rank]="--nproc 1"
  [dp 4]="--nproc 4"
  [dp 2, gloo]="--nproc 2 --backend gloo"
  [tp 2 x dp 2, microbatches of 2]="--nproc 4 --parallel.tensor_model_parallel_size=2"
  [pp 2]="--nproc 2 --parallel.pipeline_model_parallel_size=2"
)
for dtype in fp32:5e-6 fp64:1e-8; do
  type=${dtype%:*} tolerance=${dtype#*:}
  base=("${tiny[@]}" "${dropout[@]}" --precision.params_dtype=$type --checkpoint.save_interval=4)
  run 0 train "${base[@]}" "${grid[@]}" --checkpoint.save=$type --train.metrics_file=$type.jsonl
  for name in "${!layouts[@]}"; do
    [ $type = fp32 ] || [ "$name" = "1 rank" ] || [ "$name" = "dp 4" ] || continue
    rm -f other.jsonl
    # shellcheck disable=SC2086
    run 0 train "${base[@]}" ${layouts[$name]} --checkpoint.load=$type --checkpoint.ckpt_step=4 --train.metrics_file=other.jsonl
    same_losses $type.jsonl other.jsonl $tolerance 5
    [ "$(losses other.jsonl | wc -l)" = 4 ] || fail "$name did not run iterations 5 to 8"
    holds "$type, $name: iterations 5 to 8 agree to $tolerance"
  done
done
rm -f other.jsonl
run 0 train "${tiny[@]}" "${dropout[@]}" --nproc 1 --checkpoint.load=fp32 --checkpoint.finetune=true --train.metrics_file=other.jsonl
python3 "$apps/metrics.py" compare fp32.jsonl other.jsonl 1e-3 5 > compared && fail "finetune should see other losses: $(cat compared)"
holds "the comparison can fail: finetune (weights only, data anew) has other losses"

echo "A flipped bit in each file is found by inspect --verify and training falls back to the checkpoint before"
run 0 train "${tiny[@]}" --nproc 2 --parallel.tensor_model_parallel_size=2 --checkpoint.save=good --checkpoint.save_interval=4
run 0 inspect good --verify
prints 'all checksums agree'
seed=0
for file in $(cd good && ls -d iter_0000008/* latest); do
  rm -rf bad && cp -r good bad
  seed=$((seed + 1))
  python3 "$apps/flip_bit.py" "bad/$file" $seed
  run 3 inspect bad --verify
  grep -qE "DAMAGED +.*${file##*/}" out || fail "inspect --verify does not name $file"
  run 0 train "${tiny[@]}" --nproc 2 --parallel.tensor_model_parallel_size=2 --checkpoint.load=bad
  warns "${file##*/}"
  if [ "$file" = latest ]; then
    prints 'loaded checkpoint bad/iter_0000008'
  else
    prints 'loaded checkpoint bad/iter_0000004'
  fi
  holds "$file: found (exit 3), named in a warning, $(grep -o 'iter_000000[48] at iteration [48]' out) loaded"
done
for file in bad/iter_0000004/rank_00000.safetensors bad/iter_0000008/rank_00000.safetensors; do
  python3 "$apps/flip_bit.py" $file 5
done
run 3 train "${tiny[@]}" --nproc 1 --checkpoint.load=bad --checkpoint.save=never --checkpoint.save_interval=4
[ ! -e never ] || fail "a run without a sound checkpoint began anew"
holds "all damaged: the run refuses (exit 3) instead of starting anew"

echo "Retention: keep_last 2, every 4th kept for good"
run 0 train "${tiny[@]}" --nproc 1 --train.train_iters=7 --checkpoint.save=kept --checkpoint.save_interval=1 \
  --checkpoint.keep_last=2 --checkpoint.save_retain_interval=4
[ "$(cd kept && echo iter_*)" = "iter_0000004 iter_0000006 iter_0000007" ] || fail "kept: $(ls kept)"
[ -z "$(ls -A kept | grep -E '^\.(tmp|delete)' || true)" ] || fail "rubbish: $(ls -A kept)"
holds "iterations 4, 6 and 7 are left"

echo "What is asked for and what is kept back"
run 0 train "${tiny[@]}" --nproc 1 --train.exit_interval=2 --checkpoint.save=weights --checkpoint.save_interval=2 --checkpoint.no_save_optim=true
run 0 inspect weights/iter_0000002
grep -q exp_avg out && fail "no_save_optim wrote moments"
run 3 train "${tiny[@]}" --nproc 1 --checkpoint.load=weights
run 0 train "${tiny[@]}" --nproc 1 --checkpoint.load=weights --checkpoint.no_load_optim=true
holds "no_save_optim writes weights alone; resuming from them wants no_load_optim"
run 3 train "${tiny[@]}" --nproc 1 --checkpoint.load=weights --model.hidden_size=48
warns 'shape'
holds "a checkpoint of another width is refused"
