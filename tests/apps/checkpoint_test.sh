#!/usr/bin/env bash
# Checkpoints through the binary: the same bits on the same layout, the same losses on any other. Damage is detected
# and an older checkpoint loaded; retention.
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
run 0 train "${whole[@]}" --checkpoint.save=halves --checkpoint.load=halves
prints 'nothing is left to do: 8 of 8 iterations are done'
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

# The order of additions changes with the layout. For losses near 5 one rounding of fp32 is 5e-7, and four steps of it
# stay below 5e-6; another sample moves a loss by more than 1e-3. In fp64 the difference is below the nine digits of
# the metrics file.
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
  base=("${tiny[@]}" "${dropout[@]}" --precision.params_dtype=$type)
  run 0 train "${base[@]}" "${grid[@]}" --checkpoint.save=$type --checkpoint.save_interval=4 --train.metrics_file=$type.jsonl
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

echo "A run that ends at its exit interval evaluates there, and the next one goes on behind that"
evaluated=("${tiny[@]}" --nproc 1 --data.split=80,10,10 --train.eval_iters=1 --train.eval_interval=2)
run 0 train "${evaluated[@]}" --train.metrics_file=once.jsonl
run 0 train "${evaluated[@]}" --checkpoint.save=twice --train.exit_interval=4 --train.metrics_file=twice.jsonl
run 0 train "${evaluated[@]}" --checkpoint.save=twice --checkpoint.load=twice --train.metrics_file=twice.jsonl
grep '"split"' once.jsonl > once.evaluations
[ "$(wc -l < once.evaluations)" -ge 4 ] || fail "evaluations: $(cat once.evaluations)"
grep '"split"' twice.jsonl | diff once.evaluations - || fail "other evaluations than without a stop"
holds "the same evaluations in the metrics file"

echo "A run that goes on reads on where it stopped: another order of samples is refused"
data=("${tiny[@]}" --nproc 1 --data.split=90,10)
run 0 train "${data[@]}" --checkpoint.save=data --checkpoint.save_interval=4 --train.exit_interval=4 --train.metrics_file=data.jsonl
run 0 train "${data[@]}" --checkpoint.save=data --checkpoint.save_interval=4 --checkpoint.load=data --train.metrics_file=data.jsonl
mkdir moved
cp corpus.bin corpus.idx moved
run 0 train "${data[@]}" --checkpoint.load=data --checkpoint.ckpt_step=4 --data.data_path=moved/corpus --train.metrics_file=moved.jsonl
same_losses data.jsonl moved.jsonl 0 5
[ "$(losses data.jsonl | wc -l)" = 8 ] || fail "the resumed run did not go on in its metrics file"
run 0 train "${data[@]}" --checkpoint.load=data --checkpoint.ckpt_step=4 --data.split=9,1,0 --train.metrics_file=moved.jsonl
prints 'train.metrics_file = moved.jsonl belongs to another run; moved to moved.jsonl.1'
holds "the same documents under another path, and the same shares, go on: same losses"
"$metroplex" preprocess --input text/001.txt --input text/002.txt --tokenizer-type bytes --append-eod --output-prefix "$work/few" > /dev/null
# other WORDS OPTIONS...: rejected without explicit consent; with it the warning contains WORDS.
other() {
  local said=$1
  shift
  run 3 train "${data[@]}" --checkpoint.load=data --checkpoint.ckpt_step=4 "$@"
  warns "is at sample 16 of other training data"
  warns "$said"
  warns 'read twice and some never.*checkpoint.finetune.*checkpoint.resume_with_other_data=true'
  run 0 train "${data[@]}" --checkpoint.load=data --checkpoint.ckpt_step=4 --checkpoint.resume_with_other_data=true "$@"
  warns 'warning: resuming at sample 16 of other training data'
  warns "$said"
  run 0 train "${data[@]}" --checkpoint.load=data --checkpoint.finetune=true "$@"
  ! grep -q 'other training data' err || fail "finetune $*: $(cat err)"
}
other 'data.data_path is ".*few" here and was ".*corpus"' --data.data_path=few
other 'data.data_path is "3 .*corpus 1 .*few" here and was ".*corpus"' "--data.data_path=3,$work/corpus,1,few"
other 'data.split is "80,20" here and was "90,10"' --data.split=80,20
other 'train.seq_length is 32 here and was 16' --train.seq_length=32
other 'data.mock_data is true here, and it was data.data_path = ".*corpus"' --data.data_path= --data.mock_data=true
other 'data.dataloader_type is cyclic here and was single' --data.dataloader_type=cyclic --data.data_sharding=false
cp few.bin moved/corpus.bin
cp few.idx moved/corpus.idx
run 0 train "${data[@]}" --checkpoint.save=here --checkpoint.save_interval=4 --train.exit_interval=4
cp corpus.bin corpus.bin.kept; cp corpus.idx corpus.idx.kept
cp few.bin corpus.bin; cp few.idx corpus.idx
run 3 train "${data[@]}" --checkpoint.load=here
warns 'data.data_path is ".*corpus" as before, but contains other documents'
mv corpus.bin.kept corpus.bin; mv corpus.idx.kept corpus.idx
holds "other documents, weights, split, length or loader: refused with key and values; consent goes on and says so; finetune is free"

echo "A flipped bit in each file is found by inspect --verify and training falls back to the checkpoint before"
run 0 train "${tiny[@]}" --nproc 2 --parallel.tensor_model_parallel_size=2 --checkpoint.save=good --checkpoint.save_interval=4
run 0 inspect good --verify
prints 'all checksums match'
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

echo "A run that goes back leaves a branch: what is newest follows the chain from \`latest\`"
back=("${tiny[@]}" --nproc 1 --optim.override_opt_param_scheduler=true --checkpoint.save_interval=1 --checkpoint.save=branch)
run 0 train "${back[@]}" --train.train_iters=10
run 0 train "${back[@]}" --train.train_iters=6 --checkpoint.load=branch --checkpoint.ckpt_step=5 --checkpoint.keep_last=2
prints 'branch: iter_0000006, iter_0000007'
prints 'removed iter_0000010, iter_0000009.*from a branch that'
[ "$(cd branch && echo iter_*)" = "iter_0000005 iter_0000006.2" ] || fail "keep_last 2 after going back to 5: $(ls branch)"
python3 "$apps/flip_bit.py" branch/iter_0000006.2/rank_00000.safetensors 5
run 0 train "${back[@]}" --train.train_iters=6 --checkpoint.load=branch
prints 'loaded checkpoint branch/iter_0000005 at iteration 5'
holds "back to 5 and on to 6 with keep_last 2: 5 and 6 stay, the damaged 6 falls back to 5, the branch is named"
run 0 train "${back[@]}" --train.train_iters=10 --checkpoint.save=forks
run 0 train "${back[@]}" --train.train_iters=7 --checkpoint.save=forks --checkpoint.load=forks --checkpoint.ckpt_step=3 \
  --checkpoint.save_interval=7
python3 "$apps/flip_bit.py" forks/iter_0000007.2/rank_00000.safetensors 5
run 0 train "${back[@]}" --train.train_iters=4 --checkpoint.save= --checkpoint.save_interval=0 --checkpoint.load=forks
prints 'loaded checkpoint forks/iter_0000003 at iteration 3'
holds "a damaged 7 that came from 3 falls back to 3, past 4, 5 and 6 of the other branch"

echo "What a checkpoint was made with is compared with what loads it"
run 0 train "${tiny[@]}" --nproc 1 --checkpoint.save=made --checkpoint.save_interval=4
resume=("${tiny[@]}" --nproc 2 --checkpoint.load=made --checkpoint.ckpt_step=4)
for key in model.rotary_base=500 model.activation=gelu model.num_layers=1 model.layernorm_epsilon=0.1 \
  "model.num_attention_heads=4 --model.kv_channels=8 --model.num_query_groups=4" model.rotary_percent=0.5; do
  for command in train eval; do
    # shellcheck disable=SC2086
    run 3 $command "${resume[@]}" --data.split=80,10,10 --train.eval_iters=1 --$key
    warns "${key%%=*} is .* here and was "
    warns "checkpoint.allow.* ${key%%=*}"
  done
done
run 3 train "${resume[@]}" --model.rotary_base=500 --model.activation=gelu --checkpoint.allow model.rotary_base
warns 'model.activation is gelu here and was silu'
run 0 train "${resume[@]}" --model.rotary_base=500 --model.activation=gelu --checkpoint.allow model.rotary_base model.activation
run 0 train "${resume[@]}" --model.rotary_base=500 --model.activation=gelu --checkpoint.allow=model.rotary_base,model.activation
warns 'model.rotary_base is 500'
run 0 eval "${resume[@]}" --data.split=80,10,10 --train.eval_iters=1 --model.rotary_base=500 --checkpoint.allow model.rotary_base
run 2 train "${resume[@]}" --checkpoint.allow model.rotary_bse
warns 'did you mean model.rotary_base'
run 0 train "${resume[@]}" --model.num_layers=1 --checkpoint.allow model.num_layers
warns 'not loaded from the checkpoint: .*layers.1'
run 3 train "${resume[@]}" --optim.optimizer=lion
warns 'optim.optimizer is lion here and was adam'
run 0 train "${resume[@]}" --model.hidden_dropout=0.1 --model.make_vocab_size_divisible_by=8
holds "6 differences refused by train and eval, with --checkpoint.allow they pass; dropout and padding may differ"

echo "Load and save folders"
mkdir -p foreign/mp_rank_00
for load in foreign made/latest; do
  run 3 train "${tiny[@]}" --nproc 2 --checkpoint.load=$load
  warns "${load##*/}|mp_rank_00"
done
run 3 train "${tiny[@]}" --nproc 1 --finetune --load made_typo
warns made_typo
run 3 train "${tiny[@]}" --nproc 2 --checkpoint.save=made --checkpoint.save_interval=4
warns 'checkpoint.save = made is not empty .*checkpoint.load'
run 3 train "${tiny[@]}" --nproc 1 --checkpoint.save=foreign --checkpoint.save_interval=4
run 3 train "${tiny[@]}" --nproc 1 --checkpoint.save=made --checkpoint.save_interval=4 --finetune --load fp32
run 3 train "${tiny[@]}" --nproc 1 --load made_typo
warns 'no checkpoint in checkpoint.load = made_typo'
run 2 train "${tiny[@]}" --nproc 1 --save made --load made --save-interval 4 --finetune
warns 'checkpoint.finetune .*checkpoint.save = made .*checkpoint.load = made'
run 0 train "${tiny[@]}" --nproc 1 --save fresh --load fresh --save-interval 8
prints 'no checkpoint in fresh: starting from scratch'
run 0 train "${tiny[@]}" --nproc 1 --save fresh --load fresh --save-interval 8 --train.train_iters=9 --optim.override_opt_param_scheduler=true
prints 'loaded checkpoint fresh/iter_0000008 at iteration 8'
! grep -q 'epochs of the training documents' err || fail "one epoch is one epoch: $(cat err)"
run 0 train "${tiny[@]}" --nproc 1 --save fresh --load fresh --train.train_iters=2000 --train.exit_interval=10 --optim.override_opt_param_scheduler=true
warns 'epochs of the training documents: [0-9]+( .the last apart.)? here, 1 before.*order'
holds "a foreign folder, a file, a typo with --finetune and a foreign save folder are refused; --save X --load X begins and goes on"

echo "A folder belongs to one run at a time"
long=("${tiny[@]}" --nproc 1 --save shared --load shared --save-interval 1 --checkpoint.keep_last=1 --train.train_iters=100000)
"$metroplex" train "${long[@]}" > long.out 2>&1 &
first=$!
for _ in $(seq 600); do grep -q 'saved checkpoint shared/iter_0000002' long.out && break || sleep 0.1; done
run 3 train "${long[@]}" --train.metrics_file=second.jsonl
warns "shared is in use by another run .*process $first"
[ ! -e second.jsonl ] || fail "the refused run made a file"
kill -KILL $first
code=0
wait $first || code=$?
[ $code = 137 ] || fail "the run that held the folder had ended with $code before it was killed"
run 0 train "${long[@]}" --train.exit_interval=1
prints 'loaded checkpoint shared/iter_'
holds "the second run is refused (exit 3) and told which process holds the folder; a killed run holds nothing"

echo "The iteration that is asked for, and a tokenizer that comes along"
mkdir -p away
run 0 tokenizer train --input text/*.txt --output away/words --vocab-size 300 --model-type bpe
run 0 preprocess --input text --tokenizer-model away/words.model --append-eod --output-prefix words
spm=("${tiny[@]}" "--data.data_path=$work/words" --data.tokenizer_type=sentencepiece --data.tokenizer_model=away/words.model)
run 0 train "${spm[@]}" --nproc 1 --checkpoint.save=spm --checkpoint.save_interval=4
write=(--prompt Document --max-new-tokens 8 --temperature 0)
for step in 4 8; do
  run 0 generate --load spm --checkpoint.ckpt_step=$step "${write[@]}" && cp out by_key
  run 0 generate --load spm --ckpt-step $step "${write[@]}" && cmp out by_key || fail "--ckpt-step $step"
  run 0 generate --load spm/iter_000000$step "${write[@]}" && cmp out by_key || fail "ckpt_step $step wrote '$(cat by_key)', iter_000000$step '$(cat out)'"
  cp by_key text$step
done
cmp -s text4 text8 && fail "both checkpoints write '$(cat text4)': the comparison says nothing"
run 3 generate --load spm --checkpoint.ckpt_step=999 "${write[@]}"
warns 'no checkpoint of iteration 999; it has 4, 8'
run 3 eval "${spm[@]}" --data.split=80,10,10 --train.eval_iters=1 --checkpoint.load=spm --checkpoint.ckpt_step=999
for step in 4 8; do
  run 0 eval "${spm[@]}" --data.split=80,10,10 --train.eval_iters=1 --checkpoint.load=spm --checkpoint.ckpt_step=$step
  prints "validation loss at iteration $step"
done
holds "generate and eval read the iteration that is asked for; 999 is refused"
cmp spm/iter_0000008/tokenizer.model away/words.model || fail "the tokenizer is not in the checkpoint"
mv away gone
(cd / && run 0 generate --load "$work/spm" "${write[@]}")
cmp out text8 || fail "without the tokenizer's first place: $(cat out)"
run 0 tokenizer train --input text/00*.txt --output other --vocab-size 300 --model-type bpe
for command in "generate --prompt x" "train ${spm[*]}"; do
  # shellcheck disable=SC2086
  run 3 $command --checkpoint.load=spm --data.tokenizer_type=sentencepiece --data.tokenizer_model=other.model
  warns 'data.tokenizer_model'
done
run 3 train "${spm[@]}" --nproc 1 --data.tokenizer_type=bytes --model.vocab_size=300 --checkpoint.load=spm --data.allow_other_tokenizer=true
warns 'data.tokenizer_type is bytes here and was sentencepiece'
python3 "$apps/flip_bit.py" spm/iter_0000008/tokenizer.model 5
run 3 inspect spm --verify
prints 'DAMAGED.*tokenizer.model'
holds "generate finds the tokenizer in the checkpoint when its first place is gone; another one, and a damaged one, are found out"
