#!/usr/bin/env bash
# A directory of Hugging Face's transformers in, trained and written again; and what is refused.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cases=$repository/tests/vectors/hf
small="--data.mock_data=true --train.seq_length=24 --train.micro_batch_size=1 --train.global_batch_size=2"

# A directory is what a run begins with: nothing else names the model.
run 0 train --model.from "$cases/llama_sharded" $small --train.train_iters=1 --optim.lr=1e-30 \
  --optim.weight_decay=0 --checkpoint.save=run --tp 2 --nproc 2
prints 'began with the weights of .*llama_sharded'
run 0 convert run --to hf again
prints 'wrote again from run/iter_0000001'
run 0 convert run --to hf shards --max-shard-size 30KB
[ "$(ls shards/*.safetensors | wc -l)" -ge 3 ] && held || fail "one file in spite of --max-shard-size"
python3 - "$cases/llama_sharded" again shards << 'PYTHON'
import glob, json, struct, sys
def tensors(folder):
    found = {}
    for path in glob.glob(folder + "/*.safetensors"):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, it in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = it["data_offsets"]
                found[name] = (it["dtype"], it["shape"], data[8 + size + begin:8 + size + end])
    return found
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

# A run that began from nothing, with a tokenizer, in tp 2 x pp 2 x dp 2: what it wrote says the same.
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

# A run that began with a directory goes on from its own checkpoint, without the directory.
cp -r "$cases/qwen2" gone && chmod -R u+w gone
run 0 train --model.from gone $small --train.train_iters=2 --optim.lr=0.001 --checkpoint.save=goes --checkpoint.save_interval=2
rm -r gone
run 3 train --model.from gone $small --train.train_iters=3 --optim.lr=0.001
run 0 eval --load goes --train.eval_iters=1
run 0 train goes/run.yaml --train.train_iters=3 --checkpoint.load=goes --optim.override_opt_param_scheduler=true
prints 'loaded checkpoint goes/iter_0000002'
holds "a run that began with a directory goes on without it"

run 0 eval --model.from "$cases/qwen2" $small --train.eval_iters=1
prints 'loss'
run 3 train --model.from "$cases/llama_sharded" $small --train.train_iters=1 --model.num_layers=4
warns 'model.layers.3.input_layernorm.weight is missing'
run 3 train --model.from "$work" $small --train.train_iters=1
warns 'config.json. is missing'
mkdir deepseek && sed 's/"model_type": "qwen2"/"model_type": "mamba2"/' "$cases/qwen2/config.json" > deepseek/config.json
run 2 train --model.from deepseek $small --train.train_iters=1
warns "model_type 'mamba2' is a family that is not built here"
run 3 convert run --to hf again
warns 'is there already'
holds "what cannot be read or written is said"
