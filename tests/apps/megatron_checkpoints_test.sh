#!/usr/bin/env bash
# Inspects, converts and loads checkpoints of Megatron-LM.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cases=$repository/tests/vectors/megatron_checkpoints

run 0 inspect "$cases/llama_dist_tp2_pp2" --config --verify
prints 'checkpoint of Megatron-LM, format torch_dist, iteration 7, 28 samples consumed, 10 tensors'
prints 'decoder.layers.self_attention.linear_qkv.weight +weight +F32 +.4,32,16. +[0-9]+ pieces'
prints 'model.num_query_groups=2'
prints 'all checksums match'
run 0 inspect "$cases/moe_legacy_ep2/iter_0000007" --json
python3 -c 'import json; it = json.load(open("out")); assert it["format"] == "torch" and it["not_built"] is None and it["iteration"] == 7'
held
holds "inspect lists the tensors and the settings of both formats"

run 0 convert "$cases/llama_dist_tp2_pp2" --to checkpoint weights --ranks 3
prints 'wrote weights from .*llama_dist_tp2_pp2/iter_0000007'
run 0 inspect weights --diff "$cases/llama_legacy_pp2_vpp2"
prints 'all [0-9]+ tensors are equal'
run 0 convert "$cases/llama_legacy_tp2_pp2" --to hf directory
run 0 inspect directory --diff weights
prints 'all [0-9]+ tensors are equal'
python3 -c 'import json; assert json.load(open("directory/config.json"))["model_type"] == "qwen2"'
held
holds "to a checkpoint and to a Hugging Face directory: the same tensors from every layout"

# A learning rate of 1e-30 changes no fp32 weight above 1e-30 x 2^24; all recorded weights are larger.
run 0 train --model.from "$cases/gpt_legacy_tp2" --tp 2 --nproc 2 --data.mock_data=true --train.train_iters=1 --optim.lr=1e-30 \
  --optim.weight_decay=0 --train.micro_batch_size=1 --train.global_batch_size=1 --checkpoint.save=run
prints 'started from the weights of .*gpt_legacy_tp2'
run 0 inspect run --diff "$cases/gpt_dist"
prints 'all [0-9]+ tensors are equal'
holds "a run starts from a directory, on another layout"

run 0 convert "$cases/trained_dist_dp2" --to checkpoint trained
run 0 inspect trained/iter_0000007 --config
prints 'iteration 7, 28 samples consumed, 36 tensors'
prints '"optimizer_steps": 2'
run 0 train --model.from "$cases/trained_dist_dp2" --checkpoint.load trained --checkpoint.save resumed --run.seed=1234 --train.train_iters=9 --tp 2 --nproc 2 \
  --data.mock_data=true --train.micro_batch_size=1 --train.global_batch_size=4 --optim.lr=1e-30 --optim.weight_decay=0
prints 'loaded checkpoint trained/iter_0000007 at iteration 7'
run 0 inspect resumed/iter_0000009 --json
python3 - << 'PYTHON'
import json
saved = json.load(open("out"))
assert saved["consumed_samples"] == 36 and saved["extra"]["optimizer_steps"] == 4, saved["extra"]
PYTHON
held
holds "a run resumes with the optimizer state of Megatron's distributed optimizer"

run 0 convert trained --to torch_dist written
prints 'wrote written from trained/iter_0000007'
run 0 inspect written --verify
prints 'checkpoint of Megatron-LM, format torch_dist, iteration 7, 28 samples consumed'
prints 'all checksums match'
run 0 convert written --to checkpoint again
run 0 inspect again --diff trained
prints 'all 36 tensors are equal'
run 0 train --model.from "$cases/trained_dist_dp2" --checkpoint.load again --checkpoint.save repeated --run.seed=1234 --train.train_iters=9 --tp 2 --nproc 2 \
  --data.mock_data=true --train.micro_batch_size=1 --train.global_batch_size=4 --optim.lr=1e-30 --optim.weight_decay=0
run 0 inspect repeated/iter_0000009 --diff resumed/iter_0000009
prints 'all [0-9]+ tensors are equal'
run 0 convert resumed --to torch_dist resumed_dist
python3 - << 'PYTHON'
import pickle, types, zipfile
class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return types.SimpleNamespace if name == "Namespace" else f"{module}.{name}"
common = Reader(zipfile.ZipFile("resumed_dist/iter_0000009/common.pt").open("common/data.pkl")).load()
assert common["opt_param_scheduler"]["num_steps"] == common["args"].consumed_train_samples == 36, common
assert common["args"].params_dtype == "torch.bfloat16" and common["args"].num_query_groups == 2, common["args"]
assert [group["step"] for group in common["optimizer"]["optimizer"]["param_groups"]] == [4, 4], common["optimizer"]
PYTHON
run 0 convert resumed --to torch_dist weights_dist --weights-only
run 0 inspect weights_dist --json
python3 -c 'import json; assert {tensor["kind"] for tensor in json.load(open("out"))["tensors"]} == {"weight"}'
held 2
holds "to torch_dist: the same tensors, and a run resumes from them with the same result"

# Ten steps after the checkpoint, as megatron.core computed them (record.py, resume). In fp32 the limit is kLossTolerance of
# tests/parity/tolerances.h. In bf16, both runs have errors of the size of Megatron's, which is its distance from fp32.
resumed_losses() { # DTYPE [OPTION...]: prints ok if the losses equal the recorded ones
  run 0 train --model.from "$cases/trained_dist_dp2" --checkpoint.load again --checkpoint.resume_with_other_data=true --run.seed=1234 --train.train_iters=17 \
    "--data.data_path=$cases/trained/corpus" --data.split=100,0,0 "--data.data_cache_path=$work/cache" --train.micro_batch_size=1 --train.global_batch_size=4 --optim.lr=1e-3 \
    --optim.lr_decay_style=constant --optim.weight_decay=0.1 --optim.clip_grad=0 --train.eval_iters=0 --train.metrics_file=metrics.jsonl \
    --precision.params_dtype="$@"
  python3 - "$cases/trained" "$1" << 'PYTHON'
import json, sys
folder, dtype = sys.argv[1:]
half, full = (json.load(open(f"{folder}/resumed_{name}.json")) for name in ("bf16", "fp32"))
losses = [row["lm loss"] for row in map(json.loads, open("metrics.jsonl")) if "lm loss" in row]
limit = 2e-6 if dtype == "fp32" else 2 * max(abs(a - b) for a, b in zip(half, full))
error = max(abs(a - b) for a, b in zip(losses, full if dtype == "fp32" else half))
print("ok" if len(losses) == 10 and error <= limit else f"{dtype}: the losses differ by {error:.3g}, more than {limit:.3g}")
PYTHON
  rm metrics.jsonl
}
for dtype in fp32 bf16; do
  [ "$(resumed_losses $dtype)" = ok ] || fail "$(resumed_losses $dtype)"
  [[ "$(resumed_losses $dtype --checkpoint.no_load_optim=true)" = *"differ by"* ]] || fail "$dtype: new moments have the same losses"
done
held 4
holds "ten resumed steps have the losses of megatron.core; without the moments they differ"

run 0 train --model.num_layers=1 --model.hidden_size=16 --data.mock_data=true --model.vocab_size=40 --train.train_iters=1 --train.global_batch_size=1 \
  --checkpoint.save=full
run 0 convert full --to torch_dist full_dist
run 0 inspect full_dist
prints 'embedding.word_embeddings.weight +main +F32 +.40,16.'
run 0 inspect full_dist --config
prints 'params_dtype.*fp32'
run 0 convert full_dist --to checkpoint full_again
run 0 inspect full_again --diff full
prints 'all [0-9]+ tensors are equal'
holds "a run in fp32: its weights are also the main parameters"

run 0 train --model.scale_embeddings=true --model.num_layers=1 --model.hidden_size=16 --data.mock_data=true --model.vocab_size=40 --train.train_iters=1 \
  --train.global_batch_size=1 --checkpoint.save=scaled
run 3 convert scaled --to torch_dist other
warns "model.scale_embeddings = true: Megatron-LM's GPTModel cannot represent this value .its args give false.; convert it --to hf instead"
run 2 convert scaled --to torch_dist other --ranks 2
warns 'is for --to checkpoint, not for --to torch_dist'
[ ! -e other ]
holds "a model that Megatron lacks is refused, and nothing is written"
for case in adam_legacy_tp2_pp2 adam_legacy_tp2_dp2 adam_legacy_pp2_dp2 adam_buckets_tp2_pp2 adam_buckets_dp2 adam_space_tp2_dp2 adam_space_pp2; do
  run 0 inspect "$cases/$case" --verify
  prints 'all checksums match'
  run 0 convert "$cases/$case" --to checkpoint "from_$case"
  run 0 inspect "from_$case/iter_0000007" --config
  prints 'iteration 7, 28 samples consumed, 64 tensors'
  prints '"optimizer_steps": 2'
  prints '"scheduled_samples": 24'
done
for case in adam_buckets_dp2 adam_space_tp2_dp2; do
  run 0 inspect from_adam_legacy_tp2_pp2 --diff "from_$case"
  prints 'all 64 tensors are equal'
done
for case in adam_moe_buckets_ep2 adam_moe_space_ep2_dp2; do
  run 0 inspect "$cases/$case" --verify
  prints 'all checksums match'
done
run 0 train --model.from "$cases/adam_buckets_dp2" --checkpoint.load from_adam_buckets_dp2 --checkpoint.save resumed_buckets --run.seed=1234 --train.train_iters=8 \
  --tp 2 --nproc 2 --data.mock_data=true --train.micro_batch_size=1 --train.global_batch_size=4 --optim.lr=1e-30 --optim.weight_decay=0
prints 'loaded checkpoint from_adam_buckets_dp2/iter_0000007 at iteration 7'
holds "optimizer state of each parameter, in distrib_optim.pt, in buckets and in flat shards"

cp -r "$cases/trained_dist" buckets && chmod -R u+w buckets
sed -i 's/optimizer.state.exp_avg.output/optimizer.state.exp_buf.output/g' buckets/iter_0000007/.metadata
run 0 convert buckets --to checkpoint without_state
warns 'the optimizer state is not converted'
run 0 inspect without_state
prints 'iter_0000007 '
train=(--data.mock_data=true --train.micro_batch_size=1 --train.global_batch_size=4 --optim.lr=1e-30 --run.seed=1234 --train.train_iters=8)
run 3 train --model.from "$cases/trained_dist" --checkpoint.load without_state --checkpoint.save none "${train[@]}"
warns 'has no optimizer state of .*checkpoint.no_load_optim'
run 0 train --model.from "$cases/trained_dist" --checkpoint.load without_state --checkpoint.save none "${train[@]}" \
  --checkpoint.no_load_optim=true
prints 'loaded checkpoint without_state/iter_0000007 at iteration 7'
holds "other optimizer state is left out with a warning, and the iteration stays"

run 0 inspect "$cases/llama_dcp_dp2" --verify
prints 'format torch_dcp, iteration 7, 28 samples consumed'
prints 'all checksums match'
run 0 inspect weights --diff "$cases/llama_dcp_dp2"
prints 'all [0-9]+ tensors are equal'
run 0 convert "$cases/adam_fsdp_dp2" --to checkpoint from_fsdp
run 0 inspect from_fsdp/iter_0000007 --config
prints 'iteration 7, 28 samples consumed, 64 tensors'
prints '"optimizer_steps": 2'
prints 'params_dtype: "*bf16"*'
run 0 train --model.from "$cases/adam_fsdp_dp2" --checkpoint.load from_fsdp --checkpoint.save resumed_fsdp --run.seed=1234 --train.train_iters=8 \
  --data.mock_data=true --train.micro_batch_size=1 --train.global_batch_size=4 --optim.lr=1e-30 --optim.weight_decay=0
prints 'loaded checkpoint from_fsdp/iter_0000007 at iteration 7'
without_args=$cases/plain_dcp
run 0 inspect "$without_args" --verify
prints 'all checksums match'
run 3 convert "$without_args" --to checkpoint other
warns 'has no args, and model.num_layers is not given'
plain=(--data.mock_data=true --train.train_iters=1 --optim.lr=1e-30 --optim.weight_decay=0 --train.micro_batch_size=1 --train.global_batch_size=1)
run 3 train --model.from "$without_args" "${plain[@]}"
warns 'start a run with --model.from DIR and the --model.* settings'
run 0 train --model.from "$without_args" --model.num_layers=4 --model.hidden_size=16 --model.num_attention_heads=4 --model.num_query_groups=2 \
  --model.ffn_hidden_size=24 --model.normalization=RMSNorm --model.activation=silu --model.gated_linear_unit=true --model.add_bias_linear=false \
  --model.add_qkv_bias=true --model.untie_embeddings_and_output_weights=true --model.position_embedding_type=rope --train.seq_length=16 \
  --model.max_position_embeddings=16 --checkpoint.save=run_without_args "${plain[@]}"
run 0 inspect run_without_args --diff "$cases/llama_dist"
prints 'all [0-9]+ tensors are equal'
holds "torch.distributed.checkpoint: with args, of FSDP with its optimizer state, and without args"

run 3 convert "$cases/gpt_dist" --to checkpoint other --ckpt-step 5
warns 'has no checkpoint of iteration 5; choose an iteration'
cp -r "$cases/gpt_dist" damaged && chmod -R u+w damaged
python3 - damaged/iter_0000007/__0_0.distcp << 'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[data.index(b"/data/0") + 100] ^= 1  # after the padding of the first tensor
open(sys.argv[1], "wb").write(data)
PYTHON
run 3 inspect damaged --verify
prints 'DAMAGED  .*__0_0.distcp.: the checksum of data/0 is wrong'
holds "a missing iteration and a flipped bit are named"
run 3 convert damaged --to checkpoint other
warns 'the checksum of data/0 is wrong'
[ ! -e other ]
cp "$cases/gpt_dist"/iter_0000007/__0_0.distcp damaged/iter_0000007
python3 - damaged/iter_0000007/common.pt << 'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[data.index(b"norm_epsilonq") + 22] ^= 1  # the last byte of the number
open(sys.argv[1], "wb").write(data)
PYTHON
run 3 convert damaged --to checkpoint other
warns 'the checksum of data.pkl is wrong'
[ ! -e other ]
holds "convert writes nothing from damaged files"
cp -r "$cases/moe_dist_ep2" partial && chmod -R u+w partial
sed -i 's/decoder.final_layernorm.weight/decoder.final_layernorm.weighs/' partial/iter_0000007/.metadata
run 3 inspect partial --verify
prints 'DAMAGED .*does not contain the weights of the model in its args'
holds "verify finds missing tensors"
run 3 generate --model.from "$cases/gpt_dist" --data.tokenizer_type=bytes --model.vocab_size=0 --prompt a --max-new-tokens 1
warns 'model.vocab_size = 25[67]: must be at most the 40 rows of the word embeddings'
holds "more tokens than rows are named"
