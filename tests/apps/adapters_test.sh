#!/usr/bin/env bash
# docs/finetuning.md: trains some parameters, loads some weights, and trains, merges and writes adapters.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
base=$repository/tests/vectors/hf/llama_sharded
small=(--data.mock_data=true --train.seq_length=24 --train.micro_batch_size=1 --train.global_batch_size=2 --train.log_interval=1
  --train.progress=false --train.eval_iters=0 --optim.lr=0.01 --optim.lr_decay_iters=8 --run.device=cpu)
from=(--model.from "$base" "${small[@]}")
still=(--train.train_iters=1 --optim.lr=1e-30 --optim.weight_decay=0) # a step of length zero

# differ A B NAME...: exactly these weights differ between A and B.
differ() {
  local code=0
  "$metroplex" inspect "$1" --diff "$2" --json > out || code=$?
  [ "$code" -le 1 ] || fail "inspect $1 --diff $2 ended with $code"
  python3 - "$@" << 'PYTHON'
import json, sys
got = sorted(t["name"] for t in json.load(open("out"))["tensors"] if t["kind"] == "weight" and t["different_elements"])
assert got == sorted(sys.argv[3:]), f"{sys.argv[1:3]} differ in {got}"
PYTHON
  held
}
# state_of CHECKPOINT: the parameters with optimizer state.
state_of() {
  "$metroplex" inspect "$1"/iter_* --json > out
  python3 -c 'import json; print(*sorted({t["name"] for t in json.load(open("out"))["tensors"] if t["kind"] == "exp_avg"}))'
}
layer() { for i in 0 1 2; do echo "decoder.layers.$i.$1"; done; }

# Frozen parameters keep their bits and have no optimizer state.
run 0 train "${from[@]}" --train.train_iters=2 --train.trainable='*.self_attention.*' --train.freeze='*.linear_proj.*' \
  --checkpoint.save=part --tp 2 --nproc 2
differ "$base" part $(layer self_attention.linear_qkv.weight)
[ "$(state_of part)" = "$(echo $(layer self_attention.linear_qkv.weight))" ] && held || fail "state of $(state_of part)"
run 2 train "${from[@]}" --train.train_iters=2 --train.freeze='embeding.*'
warns "train.freeze: no parameter has a name that 'embeding\.\*' matches as a whole"
run 2 train "${from[@]}" --train.train_iters=2 --train.freeze='*'
warns 'leave no parameter to train'
holds "frozen parameters stay as they are and have no optimizer state"

# With another choice, state of newly frozen parameters stays in the checkpoint; newly trained ones without state are
# an error.
on=(part/run.yaml --checkpoint.load=part --train.train_iters=4 --nproc 4 --optim.override_opt_param_scheduler=true)
run 0 train "${on[@]}" --checkpoint.save=on --train.freeze='*.linear_proj.*,decoder.layers.0.*'
warns 'not loaded from the checkpoint: optimizer state of frozen parameters, 2 tensors'
differ part on $(layer self_attention.linear_qkv.weight | tail -2)
run 3 train "${on[@]}" --checkpoint.save=none --train.freeze='*.layers.0.*'
warns 'has no optimizer state of decoder.layers.1.self_attention.linear_proj.weight and [0-9]+ more'
run 0 train "${on[@]}" --checkpoint.save=anew --train.freeze='*.layers.0.*' --checkpoint.no_load_optim=true

# Loading some of the weights.
run 0 train "${from[@]}" "${still[@]}" --checkpoint.save=whole
run 0 train whole/run.yaml --model.from= --checkpoint.save=fresh
left="output_layer.weight $(layer mlp.linear_fc2.weight)"
run 0 train "${from[@]}" "${still[@]}" --checkpoint.save=some --checkpoint.load_except='output_layer.*,*.linear_fc2.weight' \
  --tp 2 --nproc 2
prints '4 tensors are initialized as in a new run: decoder.layers.0.mlp.linear_fc2.weight, '
differ "$base" some $left
differ fresh some embedding.word_embeddings.weight $(layer self_attention.linear_qkv.weight) \
  $(layer self_attention.linear_proj.weight) $(layer mlp.linear_fc1.weight) $(layer input_layernorm.weight) \
  $(layer pre_mlp_layernorm.weight) decoder.final_layernorm.weight
run 0 train whole/run.yaml --checkpoint.save=again --checkpoint.load=whole --checkpoint.finetune=true \
  --checkpoint.load_only='*.self_attention.*,*norm*,embedding.*,*fc1*'
differ some again
run 2 train whole/run.yaml --checkpoint.save=none --checkpoint.load=whole --checkpoint.finetune=true \
  --checkpoint.load_only='decoder.layer.*'
warns "checkpoint.load_only: no parameter has a name that 'decoder\.layer\.\*' matches"
run 2 train whole/run.yaml --model.from= --checkpoint.save=none --checkpoint.load_only='decoder.*'
warns 'is for a run that starts from weights'
run 3 train whole/run.yaml --checkpoint.save=none --checkpoint.load=whole --checkpoint.finetune=true --model.num_layers=4 \
  --checkpoint.allow model.num_layers
warns 'has no weights for:'
warns 'decoder.layers.3.mlp.linear_fc2.weight'
run 0 train whole/run.yaml --checkpoint.save=longer --checkpoint.load=whole --checkpoint.finetune=true --model.num_layers=4 \
  --checkpoint.allow model.num_layers --checkpoint.load_except='decoder.layers.3.*'
holds "what is not loaded begins as in a new run, from a directory and from a checkpoint"

# Adapters: trained on tp 2, resumed on another layout, merged, and alone.
adapters=(--peft.lora_rank=4 --peft.lora_alpha=8 --peft.lora_dropout=0.1)
run 0 train "${from[@]}" "${adapters[@]}" --train.train_iters=2 --checkpoint.save=lora --tp 2 --nproc 2 \
  --parallel.sequence_parallel=true
prints '42 tensors of new adapters'
run 0 train lora/run.yaml --checkpoint.load=lora --checkpoint.save=lora --train.train_iters=4 --nproc 4 --optim.override_opt_param_scheduler=true \
  --parallel.data_parallel_sharding_strategy=optim
prints 'at iteration 2'
run 3 train lora/run.yaml --checkpoint.load=lora --checkpoint.save=none --peft.lora_alpha=9 --train.train_iters=5
warns 'peft.lora_alpha is 9.0 here and was 8.0'
run 3 train whole/run.yaml "${adapters[@]}" --checkpoint.load=whole --checkpoint.save=none --train.train_iters=5
warns 'peft.lora_rank is 4 here and was 0 .*or start from its weights: checkpoint.finetune'
run 0 train whole/run.yaml "${adapters[@]}" --checkpoint.load=whole --checkpoint.finetune=true --checkpoint.save=begun
prints '42 tensors of new adapters'
run 0 convert lora --to hf merged --dtype fp32
run 0 convert lora --to peft adapters --base "$base"
run 2 convert whole --to peft none
warns 'has no adapters'
run 2 convert lora --to peft none --base $'b\xff'
warns '--base = b.xff: must be UTF-8'
python3 - "$base" << 'PYTHON'
import json, math, struct, sys
from read_safetensors import tensors
def floats(folder):
    found = tensors(folder)
    assert {dtype for dtype, _, _ in found.values()} == {"F32"}, folder
    return {name: (shape, struct.unpack(f"<{len(data) // 4}f", data)) for name, (_, shape, data) in found.items()}
base, merged, adapters = floats(sys.argv[1]), floats("merged"), floats("adapters")
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
    for row in range(0, rows, 3):
        for column in range(0, columns, 5):
            want = values[row * columns + column] + 2.0 * math.fsum(b[row * 4 + k] * a[1][k * columns + column] for k in range(4))
            got = merged[name][1][row * columns + column]
            # One rounding to fp32; before it, sums in double of five terms below 2 are off by less than 5 x 2 x
            # 2^-53.
            assert abs(got - want) <= 2.0 ** -24 * abs(want) + 10 * 2.0 ** -53, (name, row, column, got, want)
    adapted += 1
assert adapted == 21 and len(adapters) == 42, (adapted, len(adapters))
PYTHON
held
holds "merged weights are W + s B A, rounded once; what has no adapter is the base"
for refused in 'gpt2:no separate module' 'deepseek_v3:as an adapter of routed experts'; do
  run 0 train --model.from "$repository/tests/vectors/hf/${refused%%:*}" "${small[@]}" --train.train_iters=1 --peft.lora_rank=2 \
    --checkpoint.save="${refused%%:*}"
  run 2 convert "${refused%%:*}" --to peft none
  warns "${refused#*:}"
done

# A base that is stored as codes: it begins from a directory, resumes exactly, and its adapters are exported.
codes=("${from[@]}" "${adapters[@]}" --peft.base_format=fp8)
run 0 train "${codes[@]}" --train.train_iters=4 --checkpoint.save=codes_straight
run 0 train "${codes[@]}" --train.train_iters=2 --checkpoint.save=codes
run 0 train codes/run.yaml --checkpoint.load=codes --checkpoint.save=codes --train.train_iters=4 --optim.override_opt_param_scheduler=true
prints 'at iteration 2'
run 0 inspect codes --diff codes_straight
differ codes "$base" $(layer self_attention.linear_qkv.weight) $(layer self_attention.linear_proj.weight) \
  $(layer mlp.linear_fc1.weight) $(layer mlp.linear_fc2.weight)
run 0 convert codes --to peft codes_adapters --base "$base"
run 0 train "${from[@]}" --peft.from=codes_adapters --peft.base_format=nvfp4 --train.train_iters=1 --dry-run
run 0 eval codes/run.yaml --checkpoint.load=codes --data.split=80,20,0 --train.eval_iters=1
holds "a base of codes begins from a directory and resumes exactly"

# New tokens: their rows change together with the adapters on any layout; without the modules they stay the mean row.
grown=(--model.vocab_size=259 --peft.lora_rank=2 --train.train_iters=2)
run 0 train "${from[@]}" "${grown[@]}" --peft.modules_to_save=embed_tokens,lm_head --checkpoint.save=more --tp 2 --nproc 2
! grep -q 'adds 3 rows' err && held || fail "warns about trained rows: $(cat err)"
run 0 convert more --to peft more_adapters
run 0 train "${from[@]}" "${grown[@]}" --checkpoint.save=mean
untrained='model.vocab_size = 259: adds 3 rows .*, and no step trains them in embed_tokens and lm_head; set peft.modules_to_save = \[embed_tokens, lm_head\]'
warns "$untrained"
run 0 train "${from[@]}" "${grown[@]}" --dry-run --json
prints "$untrained"
run 0 train "${from[@]}" "${grown[@]}" --peft.modules_to_save=embed_tokens --dry-run --json
prints 'in lm_head; set peft.modules_to_save = \[lm_head\]'
run 0 train "${from[@]}" --model.vocab_size=259 --train.train_iters=2 --train.freeze=output_layer.weight --dry-run --json
prints 'in lm_head; set train.trainable and train.freeze so that these modules are trained'
run 0 convert mean --to hf mean_hf --dtype fp32
run 0 convert more --to hf more_hf --dtype fp32
python3 - << 'PYTHON'
import json
from read_safetensors import tensors
adapters, more, mean = (tensors(folder) for folder in ("more_adapters", "more_hf", "mean_hf"))
config = json.load(open("more_adapters/adapter_config.json"))
assert config["modules_to_save"] == ["embed_tokens", "lm_head"] and not config["ensure_weight_tying"], config
for name in ("model.embed_tokens.weight", "lm_head.weight"):
    assert adapters["base_model.model." + name] == more[name], name
    assert more[name][1] == mean[name][1] == [259, 48], (more[name][1], mean[name][1])
    rows = [mean[name][2][row * 192:(row + 1) * 192] for row in range(259)]
    assert rows[-1] == rows[-2] == rows[-3] != rows[0] and more[name][2] != mean[name][2], name
PYTHON
held
run 2 train "${from[@]}" "${grown[@]}" --peft.modules_to_save=embed_tokens,norm
warns 'peft.modules_to_save = norm: must be one of embed_tokens, lm_head'
holds "embedding and head of new tokens are trained next to adapters"

# test_loss ARGUMENTS...: of `metroplex eval`.
test_loss() {
  run 0 eval "$@" "${small[@]}" --train.eval_iters=2 --data.split=80,20
  sed -nE 's/.*lm loss value: ([^ ]+).*/\1/p' out | tail -n 1
}
# fp32 rounds a loss near 7 by 5e-7, a sum of 50 products in the model by a few of these; training moved it by more.
python3 - "$(test_loss --load lora)" "$(test_loss --model.from merged)" "$(test_loss --model.from "$base")" << 'PYTHON'
import sys
adapted, merged, base = map(float, sys.argv[1:])
assert abs(adapted - merged) < 1e-5 and abs(adapted - base) > 0.01, sys.argv
PYTHON
held
holds "the run with adapters and the merged directory have one loss, the directory that it began with another"

# Adapters of PEFT: evaluated and merged without a run, and trained further on another layout.
run 0 convert "$base" --adapter adapters --to hf merged_again
run 0 inspect merged --diff merged_again
prints 'all [0-9]+ tensors are equal'
run 0 convert "$base" --adapter adapters --to checkpoint converted
differ lora converted
run 0 train "${from[@]}" --peft.from adapters "${still[@]}" --checkpoint.save=further --tp 2 --nproc 2
prints 'started from the weights of .*llama_sharded and the adapters of adapters'
differ lora further
run 0 train further/run.yaml --checkpoint.load=further --checkpoint.save=further --train.train_iters=2 --optim.override_opt_param_scheduler=true
prints 'at iteration 1'
[ "$(test_loss --load lora)" = "$(test_loss --model.from "$base" --peft.from adapters)" ] && held || fail "losses of adapters and their run"
run 0 generate "$base" --peft.from adapters --data.tokenizer_type=bytes --model.vocab_size=257 --prompt a --max-new-tokens 2 --temperature 0
run 2 eval --load lora --peft.from adapters "${small[@]}"
warns 'peft.from = adapters: needs the model that the adapters belong to'
run 2 convert lora --adapter adapters --to hf none
warns '--adapter = adapters: is for a Hugging Face directory'
run 3 train "${from[@]}" --peft.from adapters --peft.lora_target_modules=q_proj --train.train_iters=1 --checkpoint.save=none
warns 'contains tensors that this run does not use'
mkdir several && cp -r adapters several/one && cp -r adapters several/two
run 2 train "${from[@]}" --peft.from several --train.train_iters=1 --checkpoint.save=none
warns 'peft.from = several: contains several adapters: one, two; name one, such as several/one'
run 2 train "${from[@]}" --peft.lora_rank=2 --peft.rank_pattern=oproj=1 --train.train_iters=1 --checkpoint.save=none
warns 'peft.rank_pattern = oproj=1: must select a module with an adapter'
holds "adapters of PEFT are read, merged, trained further, and named if they do not fit"

# DoRA begins with the model's function, on any layout, and passes through PEFT's files. Lengths and magnitudes add
# roundings of one product each: the bounds of losses are those of LoRA above.
run 0 train "${from[@]}" "${still[@]}" --peft.lora_rank=2 --peft.use_dora=true --checkpoint.save=dora_begun --tp 2 --nproc 2
run 0 train "${from[@]}" --peft.lora_rank=2 --peft.use_dora=true --peft.rank_pattern=o_proj=1 --train.train_iters=3 --checkpoint.save=dora
run 0 convert dora --to peft dora_adapters
run 0 convert dora --to hf dora_merged --dtype fp32
python3 - "$(test_loss --load dora_begun)" "$(test_loss --model.from "$base")" "$(test_loss --load dora)" \
  "$(test_loss --model.from dora_merged)" "$(test_loss --model.from "$base" --peft.from dora_adapters)" << 'PYTHON'
import sys
begun, base, trained, merged, read = map(float, sys.argv[1:])
assert abs(begun - base) < 1e-5 and abs(trained - merged) < 1e-5 and abs(trained - base) > 0.01 and trained == read, sys.argv
PYTHON
held
holds "DoRA begins as the model, and merged and exported DoRA adapters have the loss of their run"

# Each routed expert has its own adapters; so have the projections around experts. Bounds as for LoRA above.
for case in mixtral:experts.gate_proj,experts.up_proj,experts.down_proj nemotron_h_latent:fc1_latent_proj,fc2_latent_proj; do
  name=${case%%:*} experts=$repository/tests/vectors/hf/${case%%:*}
  run 0 train --model.from "$experts" "${small[@]}" --peft.lora_rank=2 --train.train_iters=3 --checkpoint.save="$name" \
    --peft.lora_target_modules="${case#*:}" --nproc 2 --ep 2
  run 0 convert "$name" --to peft "${name}_adapters"
  run 0 convert "$name" --to hf "${name}_merged" --dtype fp32
  python3 - "$(test_loss --load "$name")" "$(test_loss --model.from "${name}_merged")" \
    "$(test_loss --model.from "$experts" --peft.from "${name}_adapters")" "$(test_loss --model.from "$experts")" << 'PYTHON'
import sys
trained, merged, read, base = map(float, sys.argv[1:])
assert abs(trained - merged) < 1e-5 and trained == read and abs(trained - base) > 0.01, sys.argv
PYTHON
  held
done
holds "adapters of routed experts and of their projections, merged or read, have the loss of their run"
