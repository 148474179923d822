#!/usr/bin/env bash
# Loads a Hugging Face directory, trains it and writes it again; rejected directories.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cases=$repository/tests/vectors/hf
small="--data.mock_data=true --train.seq_length=24 --train.micro_batch_size=1 --train.global_batch_size=2"

# A run starts from a directory: nothing else specifies the model.
run 0 train --model.from "$cases/llama_sharded" $small --train.train_iters=1 --optim.lr=1e-30 \
  --optim.weight_decay=0 --checkpoint.save=run --tp 2 --nproc 2
prints 'started from the weights of .*llama_sharded'
run 0 convert run --to hf again
prints 'wrote again from run/iter_0000001'
run 0 convert run --to hf shards --max-shard-size 30KB
[ "$(ls shards/*.safetensors | wc -l)" -ge 3 ] && held || fail "one file in spite of --max-shard-size"
python3 - "$cases/llama_sharded" again shards << 'PYTHON'
import json, sys
from read_safetensors import tensors
first, *others = map(tensors, sys.argv[1:])
assert len(first) == 30
for other in others:
    assert other == first
assert json.load(open("shards/model.safetensors.index.json"))["metadata"]["total_size"] == sum(len(t[2]) for t in first.values())
config = [json.load(open(folder + "/config.json")) for folder in sys.argv[1:3]]
for key, value in config[1].items():
    assert config[0].get(key, value) == value, key
PYTHON
held
holds "in, a step of no length in tp 2, out: the same tensors, byte for byte, and no other config.json"

# A directory in another type than the run's is rounded from the main parameters, or from the weights of an fp32 run.
run 0 convert run --to hf brain --dtype bf16
run 0 inspect brain/model.safetensors --json
python3 - << 'PYTHON'
import json
assert {t["dtype"] for t in json.load(open("out"))["tensors"]} == {"BF16"}
assert json.load(open("brain/config.json"))["dtype"] == "bfloat16"
PYTHON
held
run 0 train --model.from brain $small --train.train_iters=2 --optim.lr=0.003 --checkpoint.save=half --tp 2 --nproc 2 \
  --checkpoint.async_save=true --checkpoint.export_hf=ended
prints 'wrote ended for Hugging Face'
again="--load half --checkpoint.save=half --checkpoint.export_hf=ended --optim.lr=0.003 --optim.override_opt_param_scheduler=true"
# shellcheck disable=SC2086
run 0 train --model.from brain $small $again --train.train_iters=2 # as after a kill between the export and the exit
prints 'checkpoint.export_hf = ended exists and is kept'
# shellcheck disable=SC2086
run 3 train --model.from brain $small $again --train.train_iters=3
warns "'ended' already exists"
run 3 train --model.from brain $small --train.train_iters=1 --checkpoint.save=other --checkpoint.export_hf=ended
warns "'ended' already exists"
run 3 train --model.from brain $small --train.train_iters=1 --checkpoint.save=other --checkpoint.export_hf=/proc/ended/hf
warns "checkpoint.export_hf: '/proc/ended/hf' cannot be created: cannot write in /proc"
[ ! -e other ] && held || fail "a run that cannot be exported began"
for to in hf checkpoint; do
  run 3 convert nothing --to $to /proc/ended
  warns "'/proc/ended' cannot be created"
done
run 2 train $small --train.train_iters=1 --model.family=codegeex --model.num_layers=2 --model.hidden_size=16 \
  --model.num_attention_heads=2 --model.vocab_size=64 --checkpoint.save=other --checkpoint.export_hf=none
[ ! -e other ] && held || fail "a run that cannot be exported began"
run 0 convert half --to hf whole --dtype fp32
run 0 convert half --to hf rounded
diff -r ended rounded && held || fail "checkpoint.export_hf writes something else than convert"
python3 - << 'PYTHON'
import struct
from read_safetensors import tensors
def brain(bits):
    return bits + 0x7fff + (bits >> 16 & 1) >> 16
whole, rounded = tensors("whole/model.safetensors"), tensors("rounded/model.safetensors")
assert whole.keys() == rounded.keys() and len(whole) == 30
finer = 0
for name, (dtype, _, data) in whole.items():
    bits = struct.unpack(f"<{len(data) // 4}I", data)
    assert (dtype, rounded[name][0]) == ("F32", "BF16")
    assert tuple(map(brain, bits)) == struct.unpack(f"<{len(bits)}H", rounded[name][2]), name
    finer += sum(b & 0xffff != 0 for b in bits)
assert finer > 1000  # not representable as bf16 weights
PYTHON
held
run 2 convert run --to hf no --dtype float32
warns 'not in .fp32,bf16,fp16.'
holds "--dtype: main parameters in fp32, rounded once in bf16"

# Greedy, as transformers continued it.
read -r prompt wanted < <(python3 -c 'import json, sys
generation = json.load(open(sys.argv[1]))["generation"]
print(",".join(map(str, generation["prompt"])), ",".join(map(str, generation["prompt"] + generation["new_tokens"])))' \
  "$cases/llama_sharded/expected.json")
for layout in "" "--nproc 2 --tp 2"; do
  run 0 generate --model.from "$cases/llama_sharded" --prompt "${prompt//,/ }" --max-new-tokens 12 --temperature 0 \
    --data.tokenizer_type=none --data.tokenizer_model=256 $layout
  prints "^${wanted//,/ }\$"
done
holds "generate continues from a directory as transformers does"

# A run from scratch with a tokenizer, on tp 2 x pp 2 x dp 2: its directory continues a text like its checkpoint.
run 0 train --model.family=qwen3_moe --model.num_moe_experts=4 --model.moe_router_topk=2 --model.num_layers=2 \
  --model.hidden_size=32 --model.num_attention_heads=4 --model.moe_ffn_hidden_size=16 --parallel.sequence_parallel=true \
  --data.tokenizer_type=bpe --data.tokenizer_model="$repository/tests/vectors/tokenizers/qwen2" $small \
  --train.train_iters=2 --checkpoint.save=mixture --nproc 8 --tp 2 --pp 2
run 0 convert mixture --to hf mixture_hf
held "$(ls mixture_hf | grep -cE '^(config|generation_config|tokenizer|tokenizer_config).json$|^model.safetensors$')"
for from in "--load mixture" "--model.from mixture_hf" "--model.from mixture_hf --nproc 2 --ep 2"; do
  run 0 generate $from --prompt "#include <vector>" --max-new-tokens 8 --temperature 0
  [ -s said ] || cp out said
  cmp -s said out && held || fail "generate $from continues otherwise"
done
holds "a run from nothing becomes a directory with its tokenizer, which continues a text alike"

# A run that started from a directory resumes from its own checkpoint, without the directory.
cp -r "$cases/qwen2" gone && chmod -R u+w gone
run 0 train --model.from gone $small --train.train_iters=2 --optim.lr=0.001 --checkpoint.save=goes --checkpoint.save_interval=2
rm -r gone
run 3 train --model.from gone $small --train.train_iters=3 --optim.lr=0.001
run 0 eval --load goes --train.eval_iters=1
run 0 train goes/run.yaml --train.train_iters=3 --checkpoint.load=goes --optim.override_opt_param_scheduler=true
prints 'loaded checkpoint goes/iter_0000002'
holds "a run that began with a directory goes on without it"

# Without tensors: a directory as a checkpoint, with its tokenizer, in any number of files, and as a directory again.
run 0 convert mixture_hf --to checkpoint loose --ranks 3
prints 'wrote loose from mixture_hf'
[ "$(ls loose/iter_0000000/rank_*.safetensors | wc -l)" = 3 ] && held || fail "--ranks 3 did not write three files"
run 0 generate --load loose --prompt "#include <vector>" --max-new-tokens 8 --temperature 0
cmp -s said out && held || fail "a directory as a checkpoint continues otherwise"
run 0 convert loose --to checkpoint whole_again --weights-only
run 0 convert whole_again --to hf mixture_again
for file in mixture_hf/*; do cmp "$file" "mixture_again/$(basename "$file")" && held || fail "$file came back otherwise"; done
run 0 convert mixture --to checkpoint other_files --ranks 5
run 0 inspect mixture --diff other_files
prints 'all [0-9]+ tensors are equal'
run 0 train mixture/run.yaml --checkpoint.load=other_files --train.train_iters=3 --checkpoint.save=on_from_other --nproc 4 \
  --optim.override_opt_param_scheduler=true --data.tokenizer_model="$repository/tests/vectors/tokenizers/qwen2"
prints 'loaded checkpoint other_files/iter_0000002'
run 0 train loose/run.yaml --checkpoint.load=loose --checkpoint.finetune=true $small --train.train_iters=1 --checkpoint.save=tuned
prints 'loaded checkpoint loose/iter_0000000'
run 2 convert mixture_hf --to hf no
warns 'is already a Hugging Face directory'

# Quantized weights are dequantized, by convert and by any layout.
run 0 inspect "$cases/gpt_oss_mxfp4"
prints 'quantized: mxfp4, a scale for each block of 1 x 32'
prints 'gate_up_proj_blocks +U8 +.4,64,2,16'
for name in deepseek_v3_fp8 gpt_oss_mxfp4; do
  run 0 convert "$cases/$name" --to hf "plain_$name"
  run 0 convert "$cases/$name" --to checkpoint "loose_$name"
  run 0 inspect "loose_$name/iter_0000000"
  prints "output_layer.weight  *weight"
  grep -q " main " out && fail "loose_$name has main parameters" || held
  run 0 convert "loose_$name" --to hf "from_$name"
  cmp "plain_$name/model.safetensors" "from_$name/model.safetensors" && held || fail "from_$name has other weights"
  mkdir "other_$name" && cp "$cases/$name"/*.safetensors "other_$name"
  sed 's/"quant_method": "[a-z0-9]*"/"quant_method": "gptq"/' "$cases/$name/config.json" > "other_$name/config.json"
  run 2 train --model.from "other_$name" $small --train.train_iters=1
  warns 'quantization_config.quant_method = "gptq": must be fp8, mxfp4 or compressed-tensors'
done
# A learning rate of 1e-30 changes no bf16 or fp32 weight above 1e-30 x 2^24.
run 0 train --model.from "$cases/deepseek_v3_fp8" $small --train.train_iters=1 --optim.lr=1e-30 --optim.weight_decay=0 \
  --model.moe_router_bias_update_rate=0 --checkpoint.save=run_fp8 --pp 2 --nproc 2
run 0 convert run_fp8 --to hf again_fp8
cmp plain_deepseek_v3_fp8/model.safetensors again_fp8/model.safetensors && held || fail "a run has other weights"
# Weights that no step changed get their former codes.
run 0 convert "$cases/gpt_oss_mxfp4" --to hf same_mxfp4 --quantization mxfp4
cmp "$cases/gpt_oss_mxfp4/model.safetensors" same_mxfp4/model.safetensors && held || fail "mxfp4 is written otherwise"
run 0 convert run_fp8 --to hf codes_of_run --quantization fp8
run 0 convert "$cases/deepseek_v3_fp8" --to hf codes --quantization fp8
cmp codes/model.safetensors codes_of_run/model.safetensors && held || fail "a run has other codes"
run 0 inspect codes_of_run
prints 'quantized: fp8, a scale for each block of 128 x 128'
run 2 convert run_fp8 --to hf no --quantization mxfp4
warns '--quantization = mxfp4: transformers reads it only for gpt_oss, not for deepseek_v3; use fp8'
[ ! -e no ] && held || fail "a rejected export left files"
run 2 convert run_fp8 --to checkpoint no --quantization fp8
warns '--quantization is for --to hf, not for --to checkpoint'
run 2 convert mixture --to checkpoint no --dtype bf16
warns '--dtype is for --to hf, not for --to checkpoint'
run 2 convert mixture --to hf no --base base
warns '--base is for --to peft, not for --to hf'
run 3 convert mixture --to checkpoint mixture/iter_0000009/
warns "'mixture/iter_0000009/' .*choose another name"
for from in mixture mixture/iter_0000002; do
  run 3 convert $from --to checkpoint mixture/iter_0000002/again
  warns "'mixture/iter_0000002/again' is inside '$from'.*outside of it"
done
[ ! -e mixture/iter_0000009 ] && [ ! -e mixture/iter_0000002/again ] && held || fail "a conversion that was refused wrote"
run 3 convert mixture --to checkpoint loose
warns 'already exists'
holds "a directory becomes a checkpoint of three files and a directory again, byte for byte; a checkpoint other files, to go on from"

# One tensor at a time: a model of 96 MiB with two tensors of 16 MiB, in processes with a small memory limit.
run 0 train --model.family=llama --model.num_layers=16 --model.hidden_size=256 --model.ffn_hidden_size=1024 \
  --model.num_attention_heads=4 --model.vocab_size=16384 $small --train.train_iters=1 --checkpoint.save=large --checkpoint.no_save_optim=true
[ "$(stat -c %s large/iter_0000001/rank_00000.safetensors)" -ge $((96 << 20)) ] && held || fail "the model is small"
little() { (ulimit -d $(($1 << 10)) && shift && run "$@"); } # MIB CODE ARGUMENTS...
little 32 0 convert large --to hf large_hf
little 24 0 convert large_hf --to checkpoint large_again
little 24 0 convert large_again --to checkpoint large_weights --weights-only
little 24 2 convert large_again --to checkpoint large_eight --ranks 64
warns 'of 64 threads can be started .*use fewer ranks'
[ ! -e large_eight ] && held || fail "a conversion that failed left its folder"
run 0 inspect large --diff large_weights
(ulimit -d $((1 << 10)) && ! "$metroplex" convert large --to hf large_not > out 2>&1) && held || fail "ulimit -d limits nothing here"
rm -r large*
holds "conversions need the memory of a tensor, not that of the model"

# Multi-token prediction layers: part of the model if the directory contains them.
python3 "$apps/add_multi_token.py" "$cases/deepseek_v3" ahead 2
run 0 convert ahead --to checkpoint ahead_ours
run 0 convert ahead_ours --to hf ahead_again
python3 - << 'PYTHON'
import json
from read_safetensors import tensors
first, again = tensors("ahead/model.safetensors"), tensors("ahead_again/model.safetensors")
assert first == again and sum(name.endswith("eh_proj.weight") for name in first) == 2
assert json.load(open("ahead_again/config.json"))["num_nextn_predict_layers"] == 2
PYTHON
held
run 0 train --model.from ahead $small --train.train_iters=1 --train.log_interval=1 --nproc 2 --pp 2 \
  --parallel.pipeline_model_parallel_layout='Et*2|tmmL'
prints 'mtp_1 loss: .*mtp_2 loss: '
run 0 train --model.from ahead $small --train.train_iters=1 --train.log_interval=1 --model.mtp_num_layers=0
! grep -q mtp_1 "$work/out" && held || fail "layers that were left out trained"
sed -i 's/"num_nextn_predict_layers": 2/"num_nextn_predict_layers": 3/' ahead/config.json
run 3 train --model.from ahead $small --train.train_iters=1
warns 'model.layers.5.eh_proj.weight is missing'
warns 'set it to 0, or initialize them with checkpoint.load_except = mtp.\*'
run 0 train --model.from "$cases/ernie4_5" $small --train.train_iters=1 --model.mtp_num_layers=1 --checkpoint.load_except='mtp.*' \
  --checkpoint.save=ahead_new
run 2 convert ahead_new --to hf no
warns "model.mtp_num_layers = 1: the transformers family of this model has no layers for multi-token prediction"
run 0 train ahead_new/run.yaml --checkpoint.load=ahead_new --checkpoint.finetune=true --model.mtp_num_layers=0 \
  --checkpoint.allow model.mtp_num_layers --checkpoint.save=ahead_none --checkpoint.export_hf ahead_none_hf
holds "layers that a directory lacks begin anew; what a family has no place for is said, with the way out"
sed 's/"num_nextn_predict_layers": 0/"num_nextn_predict_layers": 1/' "$cases/deepseek_v3/config.json" > ahead_again/config.json
cp "$cases/deepseek_v3/model.safetensors" ahead_again/
run 0 train --model.from ahead_again $small --train.train_iters=1 --train.log_interval=1
! grep -q mtp_1 "$work/out" && held || fail "layers that are not there trained"
holds "layers of multi-token prediction in, trained over a pipeline, and out, byte for byte"

cp -r "$cases/qwen2" torn && chmod -R u+w torn && truncate -s 5000 torn/model.safetensors
run 3 train --model.from torn $small --train.train_iters=1 --dry-run
warns "'torn/model.safetensors'"
rm torn/model.safetensors
run 0 train --model.from torn $small --train.train_iters=1 --dry-run
holds "a dry run looks at the weights of a directory, where there are any"

run 0 eval --model.from "$cases/qwen2" $small --train.eval_iters=1
prints 'loss'
run 3 train --model.from "$cases/llama_sharded" $small --train.train_iters=1 --model.num_layers=4
warns 'model.layers.3.input_layernorm.weight is missing'
run 3 train --model.from "$work" $small --train.train_iters=1
warns 'config.json. is missing'
mkdir deepseek && sed 's/"model_type": "qwen2"/"model_type": "rwkv"/' "$cases/qwen2/config.json" > deepseek/config.json
run 2 train --model.from deepseek $small --train.train_iters=1
warns "model_type 'rwkv' is not supported"
run 3 convert run --to hf again
warns 'already exists'
holds "what cannot be read or written is said"
