#!/usr/bin/env bash
# docs/finetuning.md: a part of the model trained, a part of the weights loaded, adapters trained, merged and written.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
base=$repository/tests/vectors/hf/llama_sharded
small=(--data.mock_data=true --train.seq_length=24 --train.micro_batch_size=1 --train.global_batch_size=2 --train.log_interval=1
  --train.progress=false --train.eval_iters=0 --optim.lr=0.01 --run.device=cpu)
from=(--model.from "$base" "${small[@]}" --train.train_iters=2)

# different A B: the tensors that differ, as metroplex inspect says it.
different() {
  "$metroplex" inspect "$1" --diff "$2" --json > diff || true
  python3 - "$@" << 'PYTHON'
import json
print(" ".join(sorted(t["name"] for t in json.load(open("diff"))["tensors"] if t.get("differing", 1))))
PYTHON
}

# What is frozen keeps its bits and has no optimizer state.
run 0 train "${from[@]}" --train.trainable='*.self_attention.*' --train.freeze='*.linear_proj.*' --checkpoint.save=part \
  --tp 2 --nproc 2
run 0 inspect part --json
python3 - << 'PYTHON'
import json
tensors = json.load(open("out"))["tensors"]
state = {t["name"] for t in tensors if t["kind"] == "exp_avg"}
assert state and all("self_attention.linear_qkv" in name for name in state), state
PYTHON
held
run 2 train "${from[@]}" --train.freeze='embeding.*'
warns "train.freeze: no parameter has a name that 'embeding.\*' fits as a whole; the nearest is embedding.word_embeddings.weight"
run 2 train "${from[@]}" --train.freeze='*'
warns 'leave no parameter to train'

# Another choice: state of what is frozen now stays behind, what has none is refused.
resumed=("${small[@]}" --train.train_iters=3 --checkpoint.load=part)
resumed=(part/run.yaml "${resumed[@]}" --checkpoint.save=on)
run 0 train "${resumed[@]}" --train.freeze='*.linear_proj.*,decoder.layers.0.*'
warns 'left in the checkpoint: optimizer state of frozen parameters, 2 tensors'
run 3 train "${resumed[@]}" --checkpoint.save=other --train.freeze='decoder.layers.0.self_attention.linear_qkv.weight'
warns 'has no optimizer state of decoder.layers.[0-9].self_attention.linear_proj.weight'
run 0 train "${resumed[@]}" --checkpoint.save=other --train.freeze=embedding.word_embeddings.weight --train.trainable= \
  --checkpoint.no_load_optim=true

# A part of the weights.
run 0 train "${from[@]}" --train.train_iters=1 --optim.lr=1e-30 --optim.weight_decay=0 --checkpoint.save=whole
run 0 train "${from[@]}" --train.train_iters=1 --optim.lr=1e-30 --optim.weight_decay=0 --checkpoint.save=some --tp 2 --nproc 2 \
  --checkpoint.load_except='output_layer.*,*.linear_fc2.weight'
prints '[0-9]+ tensors begin as in a new run: decoder.layers.0.mlp.linear_fc2.weight, '
run 0 train whole/run.yaml --checkpoint.save=again --checkpoint.load=some --checkpoint.finetune=true \
  --checkpoint.load_only='decoder.layers.*' --run.seed=99
prints 'tensors begin as in a new run: decoder.final_layernorm.weight, embedding.word_embeddings.weight, output_layer.weight'
for pair in 'whole some' 'some again'; do
  set -- $pair
  run 0 inspect "$1" --diff "$2" --json || true
done
run 2 train "${from[@]}" --checkpoint.load_only='decoder.layer.*'
warns "checkpoint.load_only: no parameter has a name that 'decoder.layer.\*' fits"
run 2 train "${small[@]}" --model.num_layers=1 --model.hidden_size=8 --model.num_attention_heads=1 --model.vocab_size=9 \
  --train.train_iters=1 --checkpoint.load_only='decoder.*'
warns 'is for a run that begins with weights'

# Adapters: trained on tp 2, merged, and alone.
adapters=(--peft.lora_rank=4 --peft.lora_alpha=8 --peft.lora_dropout=0.1)
run 0 train "${from[@]}" "${adapters[@]}" --checkpoint.save=lora --tp 2 --nproc 2 --parallel.sequence_parallel=true
prints 'tensors of new adapters'
run 0 train lora/run.yaml --checkpoint.load=lora --checkpoint.save=lora --train.train_iters=4 --tp 1 --nproc 1 \
  --parallel.sequence_parallel=false
prints 'at iteration 2'
run 3 train lora/run.yaml --checkpoint.load=lora --checkpoint.save=other2 --peft.lora_alpha=9 --train.train_iters=5
warns 'peft.lora_alpha is 9.0 here and was 8.0'
run 3 train "${from[@]}" "${adapters[@]}" --checkpoint.load=whole --checkpoint.save=other2 --train.train_iters=5
warns 'peft.lora_rank is 4 here and was 0 .*or begin with its weights: checkpoint.finetune'
run 0 convert lora --to hf merged --dtype fp32
run 0 convert lora --to peft adapters --base "$base"
run 3 convert whole --to peft none
warns 'has no adapters'
python3 - "$base" << 'PYTHON'
import glob, json, math, struct, sys
def tensors(paths):
    found = {}
    for path in paths:
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, it in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                assert it["dtype"] == "F32", (name, it["dtype"])
                begin, end = it["data_offsets"]
                found[name] = (it["shape"], struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end]))
    return found
base, merged = tensors(glob.glob(sys.argv[1] + "/*.safetensors")), tensors(["merged/model.safetensors"])
adapters = tensors(["adapters/adapter_model.safetensors"])
config = json.load(open("adapters/adapter_config.json"))
assert (config["r"], config["lora_alpha"], config["peft_type"], config["base_model_name_or_path"]) == (4, 8, "LORA", sys.argv[1])
assert len(config["target_modules"]) == 7, config["target_modules"]
adapted = 0
for name, (shape, values) in base.items():
    a = adapters.get("base_model.model." + name.replace(".weight", ".lora_A.weight"))
    if a is None:
        assert merged[name][1] == values, name
        continue
    b = adapters["base_model.model." + name.replace(".weight", ".lora_B.weight")][1]
    rows, columns = shape
    assert a[0] == [4, columns] and max(map(abs, b)) > 0
    for row in range(rows):
        for column in range(0, columns, 5):
            want = values[row * columns + column] + 2.0 * math.fsum(b[row * 4 + k] * a[1][k * columns + column] for k in range(4))
            got = merged[name][1][row * columns + column]
            assert abs(got - want) <= 2.0 ** -24 * abs(want) + 1e-14, (name, row, column, got, want)
    adapted += 1
assert adapted == 21 and len(adapters) == 42, (adapted, len(adapters))
PYTHON
held
holds "merged weights are W + s B A, rounded once; what has no adapter is the base, byte for byte"
run 0 generate --load lora --prompt-ids 1,2,3 --max-new-tokens 4 --temperature 0 || true
