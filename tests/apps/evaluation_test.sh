#!/usr/bin/env bash
# Evaluation has its own batch size and length, several validation sets, and runs without training.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
for set in first second; do
  mkdir -p "$set"
  for i in $(seq 1 $([ $set = first ] && echo 6 || echo 11)); do echo "document $i of the $set set, $(seq -s ' ' 1 $((i + 9)))" > "$set/$i.txt"; done
  run 0 preprocess --input "$set" --tokenizer-type bytes --append-eod --output-prefix "$set"
done
run 0 preprocess --input text --tokenizer-type bytes --append-eod --output-prefix train_set
base=("${tiny[@]}" --data.data_path= --data.train_data_path=train_set --data.split="969, 30, 1" --train.train_iters=4)
losses() { grep -oE "^ [a-z0-9-]+ loss at iteration [0-9]+ .*value: [^ ]*" out; }

run 0 train "${base[@]}" --data.valid_data_path=first --train.eval_interval=4 --train.full_validation=true --train.eval_iters=0 --checkpoint.save=ck
whole=$(losses)
run 0 train "${base[@]}" --data.valid_data_path=first --train.full_validation=true --train.skip_train=true --load ck --nproc 2 --tp 2 --checkpoint.save=unused
[ "$(losses)" = "$whole" ] || fail "skip_train: $(losses); the run itself: $whole"
[ ! -e unused ] || fail "skip_train saved"
! grep -q 'iteration .*consumed samples' out || fail "skip_train trained"
holds "full_validation reads the whole set; skip_train evaluates the checkpoint and saves nothing"

run 0 train "${base[@]}" --data.valid_data_path=first --train.full_validation=true --train.skip_train=true --load ck --train.eval_global_batch_size=4
[ "$(losses)" = "$whole" ] || fail "eval_global_batch_size changes the loss of the whole set: $(losses); before: $whole"
run 0 train "${base[@]}" --data.valid_data_path=first --train.full_validation=true --train.skip_train=true --load ck --nproc 2
warns 'validation set: 1 of [0-9]+ samples .* are not evaluated'
holds "the loss of the whole set does not depend on eval_global_batch_size"

run 0 train "${base[@]}" --data.valid_data_path=[first,second] --data.multiple_validation_sets=true --train.full_validation=true --train.skip_train=true --load ck
[ "$(losses | cut -d' ' -f2 | xargs)" = "validation-0 validation-1" ] || fail "sets: $(losses)"
[ "$(losses | sed -n 's/.*validation-0.*value: //p')" = "$(sed 's/.*value: //' <<< "$whole")" ] || fail "the first of two sets has another loss than alone"
run 0 train "${base[@]}" --data.valid_data_path=[first,second] --data.multiple_validation_sets=true --train.skip_train=true --load ck --train.eval_iters=1 --train.eval_global_batch_size=2
[ "$(losses | wc -l)" = 2 ] || fail "sets without full_validation: $(losses)"
run 2 train "${base[@]}" --data.valid_data_path=[0.5,first,0.5,second] --data.multiple_validation_sets=true --train.eval_interval=2 --train.eval_iters=1
warns 'data.valid_data_path: weights have no meaning with data.multiple_validation_sets'
holds "validation sets are evaluated one by one"

# 8 samples per batch: 20 samples are two batches; their index has 20 samples.
run 0 train "${base[@]}" --train.train_iters=0 --train.train_samples=20 --train.global_batch_size=8 --optim.lr_warmup_iters=0
prints '2 iterations, 16 samples'
run 2 train "${base[@]}" --train.train_iters=0 --train.train_samples=7 --train.global_batch_size=8 --optim.lr_warmup_iters=0
warns 'train.train_samples = 7: must be at least one batch of 8 samples'
holds "a run of samples drops the batch that is not full"

run 0 preprocess --input text --tokenizer-type bytes --output-prefix no_ends
run 0 train "${tiny[@]}" --data.data_path=no_ends --train.train_iters=1 --optim.lr_warmup_iters=0 --data.reset_attention_mask=true
warns "no end-of-document token .* in the first documents of 'no_ends'"
for key in reset_attention_mask reset_position_ids eod_mask_loss; do
  run 0 train "${tiny[@]}" --data.data_path=no_ends --data.$key=true --dry-run
  prints "note +no end-of-document token .* in the first documents of 'no_ends'"
done
run 0 train "${tiny[@]}" --data.data_path=train_set --data.reset_attention_mask=true --dry-run --json
! grep -q 'no end-of-document' out && held || fail "a dry run finds no ends: $(cat out)"
run 0 train "${tiny[@]}" --data.data_path=train_set --train.train_iters=1 --optim.lr_warmup_iters=0 --data.reset_attention_mask=true
! grep -q 'no end-of-document' err || fail "ends are not found: $(cat err)"
run 0 train "${tiny[@]}" --data.data_path=train_set --train.train_iters=1 --optim.lr_warmup_iters=0 --data.reset_position_ids=true --model.family=llama
warns 'data.reset_position_ids = true: has no effect with rotary positions'
run 0 train "${tiny[@]}" --data.data_path=train_set --train.train_iters=1 --optim.lr_warmup_iters=0 --data.reset_position_ids=true --model.family=gpt --model.position_embedding_type=none
warns 'data.reset_position_ids = true: has no effect with model.position_embedding_type = none'
holds "a run and its dry run warn about resets without document ends, with rotary positions and without positions"
