#!/usr/bin/env bash
# metroplex inspect: its report on token datasets, safetensors files and checkpoints, in words and with --json.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
python3 "$apps/inspect_inputs.py"

# json EXPRESSION: holds for the output, which is `it`.
json() {
  python3 -c 'import json, sys; it = json.load(open("out")); sys.exit(not eval(sys.argv[1]))' "$1" ||
    fail "not true of the JSON: $1"
  held
}

echo "Token datasets (.idx and .bin)"
for type in uint8 int8 int16 int32 int64 float64 float32 uint16; do
  run 0 inspect data_$type --json
  json "list(it) == ['kind', 'path', 'token_type', 'tokens', 'sequences', 'documents', 'idx_checksum', 'bin_checksum']"
  json "(it['kind'], it['path'], it['token_type']) == ('dataset', 'data_$type', '$type')"
  json "(it['tokens'], it['sequences'], it['documents']) == (8, 4, 2)"
  json "all(len(it[k]) == 32 and int(it[k], 16) for k in ('idx_checksum', 'bin_checksum'))"
done
holds "8 token types: type, 8 tokens, 4 sequences, 2 documents, two checksums"
cp out prefix.json
for name in data_uint16.idx data_uint16.bin; do
  run 0 inspect $name --json
  cmp out prefix.json || fail "$name is not described as data_uint16"
done
run 0 inspect data_uint16
prints '^data_uint16: 8 tokens of uint16, 4 sequences, 2 documents$'
prints "^  \.idx 106 B  $(python3 -c 'import json; print(json.load(open("prefix.json"))["idx_checksum"])')$"
prints "^  \.bin 16 B  $(python3 -c 'import json; print(json.load(open("prefix.json"))["bin_checksum"])')$"
holds "PREFIX, PREFIX.idx and PREFIX.bin are one; in words the same numbers, 106 and 16 bytes"
run 0 inspect data_changed --json
json "it['idx_checksum'] == json.load(open('prefix.json'))['idx_checksum']"
json "it['bin_checksum'] != json.load(open('prefix.json'))['bin_checksum']"
holds "one other token: another checksum of .bin, the same of .idx"
damage() { # damage NAME WORDS: data_NAME has been damaged
  run 3 inspect "data_$1" --json
  warns "$2"
  [ ! -s out ] || fail "a damaged dataset was described: $(cat out)"
}
for file in short_idx short_bin long_bin magic lengths alone; do
  cp data_int32.idx data_$file.idx
  cp data_int32.bin data_$file.bin
done
truncate -s -1 data_short_idx.idx && damage short_idx 'data_short_idx\.idx'
truncate -s -1 data_short_bin.bin && damage short_bin 'data_short_bin\.(bin|idx)'
printf x >> data_long_bin.bin && damage long_bin 'data_long_bin\.bin'
printf x | dd of=data_magic.idx conv=notrunc status=none && damage magic 'data_magic\.idx'
printf '\377\377\377\377' | dd of=data_lengths.idx bs=1 seek=34 conv=notrunc status=none && damage lengths 'data_lengths\.idx'
rm data_alone.bin && damage alone 'data_alone\.bin'
run 3 inspect no_such_data
warns "no_such_data'"
holds "cut short, too long, wrong magic, a negative length, no .bin, nothing at all: exit 3 with the file's name, nothing on stdout"

echo "A tensor's name is printed without what a terminal would obey"
run 0 inspect control.safetensors
prints 'owned.*name +I8'
! LC_ALL=C grep -q "$(printf '[\033\007]')" out || fail "control characters came through: $(cat -v out)"
holds "escape, bell and newline of a name are escaped; --json escapes them as JSON does"

echo "A safetensors file"
run 0 inspect by_hand.safetensors --json
json "(it['kind'], it['metadata']) == ('safetensors', {'made by': 'hand'})"
json "{t['name']: (t['dtype'], t['shape']) for t in it['tensors']} == {'wide': ('F32', [2, 3]), 'scalar': ('I16', [])}"
json "all(len(t['checksum']) == 32 for t in it['tensors'])"
run 0 inspect by_hand.safetensors
prints '^by_hand.safetensors: 2 tensors, metadata {"made by":"hand"}$'
prints '^  wide .*F32 +\[2,3\]'
run 0 inspect by_hand.safetensors --verify
prints '^the file is complete; its format has no checksums'
truncate -s -1 by_hand.safetensors
run 3 inspect by_hand.safetensors --json
warns 'by_hand.safetensors'
holds "metadata, names, dtypes, shapes, checksums; cut short: exit 3"

echo "Checkpoints"
run 0 train "${tiny[@]}" "${mock[@]}" --nproc 2 --parallel.tensor_model_parallel_size=2 --train.train_iters=2 --optim.lr_warmup_iters=0 --checkpoint.save=ck \
  --checkpoint.save_interval=1
run 0 inspect ck --json
json "(it['kind'], it['path'], it['latest']) == ('checkpoints', 'ck', 'iter_0000002')"
json "[(c['name'], c['iteration'], c['consumed_samples']) for c in it['checkpoints']] == [('iter_0000001', 1, 4), ('iter_0000002', 2, 8)]"
json "all(c['tensors'] > 10 and c['bytes'] > 1000 for c in it['checkpoints'])"
run 0 inspect ck/iter_0000002 --json
cp out two.json
json "(it['kind'], it['iteration'], it['consumed_samples'], len(it['files'])) == ('checkpoint', 2, 8, 2)"
json "it['bytes'] == sum(f['bytes'] for f in it['files']) and all(__import__('os').path.getsize('ck/iter_0000002/' + f['name']) == f['bytes'] for f in it['files'])"
json "{t['kind'] for t in it['tensors']} == {'weight', 'exp_avg', 'exp_avg_sq'}"
json "[t['shape'] for t in it['tensors'] if t['name'].endswith('layers.1.mlp.linear_fc1.weight') and t['kind'] == 'weight'] == [[128, 32]]"
json "it['extra']['seed'] == 7 and 'num_layers: 2' in it['config'] and 'problems' not in it"
run 0 inspect ck --iteration 2 --json
cmp out two.json || fail "--iteration 2 is not iter_0000002"
run 3 inspect ck --iteration 5
warns 'iteration 5'
holds "a folder, one of it by path and by --iteration: files, tensors with kind, dtype and shape, extra, config"
run 0 inspect ck/iter_0000002 --config
prints 'num_layers: 2'
prints '"optimizer_steps": 2'
run 0 inspect ck/iter_0000002
grep -q 'num_layers' out && fail "the configuration is printed without --config"
run 0 inspect ck --config
prints '^\* iter_0000002'
prints 'num_layers: 2'
prints '"optimizer_steps": 2'
run 0 inspect ck --config --json
json "'num_layers: 2' in it['config'] and it['extra']['optimizer_steps'] == 2 and len(it['checkpoints']) == 2"
run 0 inspect ck --json
json "'config' not in it"
holds "--config adds the configuration and the state of the run, of a folder those of the newest"
run 0 inspect ck --verify --json
json "it['problems'] == []"
run 0 inspect ck --diff ck/iter_0000002 --json
json "it['different'] == 0 and len(it['tensors']) == len(json.load(open('two.json'))['tensors'])"
run 1 inspect ck/iter_0000001 --diff ck --json
json "0 < it['different'] <= len(it['tensors']) and it['second'] == 'ck/iter_0000002'"
json "it['different'] == sum(t['different_elements'] > 0 for t in it['tensors']) and max(t['max_absolute'] for t in it['tensors']) > 0"
json "all(t['first'] == t['second'] and t['first']['dtype'] == 'F32' for t in it['tensors'])"
json "all(t['max_absolute'] <= t['norm'] * 1.000001 and t['norm'] <= 1.000001 * t['max_absolute'] * t['different_elements'] ** 0.5 for t in it['tensors'])"
run 1 inspect ck/iter_0000001 --diff ck
prints '^  decoder.final_layernorm.weight .weight.: .32. F32, [0-9]+ of 32 elements differ, at most by [0-9.e-]+; norm of the difference '
python3 "$apps/flip_bit.py" ck/iter_0000001/rank_00001.safetensors 3
for path in ck ck/iter_0000001; do
  run 3 inspect $path --verify --json
  json "len(it['problems']) == 1 and 'iter_0000001/rank_00001.safetensors' in it['problems'][0]"
  json "it['problems'][0].endswith('; damaged tensors: exp_avg/output_layer.weight')"
done
run 0 inspect ck/iter_0000002 --verify --json
json "it['problems'] == [] and it['iteration'] == 2"
cp ck/run.yaml run.yaml.kept
for broken in '[' 'no configuration' 'model: {num_layers: two}'; do
  echo "$broken" > ck/run.yaml
  run 3 inspect ck --verify --json
  json "len(it['problems']) == 2 and it['problems'][0].startswith('ck/run.yaml: ')"
done
mv run.yaml.kept ck/run.yaml
cp ck/iter_0000002/manifest.json manifest.kept
printf '\377\033' >> ck/iter_0000002/manifest.json
run 3 inspect ck --json
json "any('iter_0000002/manifest.json' in problem for problem in it['problems'])"
mv manifest.kept ck/iter_0000002/manifest.json
holds "--verify lists problems, --diff counts what differs; exit codes 0, 1 and 3 are the same as without --json"

echo "Hugging Face directories"
cases=$repository/tests/vectors/hf
run 0 inspect "$cases/llama_sharded" --verify --json
json "(it['kind'], it['model_type'], len(it['files']), len(it['tensors'])) == ('hugging_face', 'llama', 5, 30)"
json "it['problems'] == [] and it['not_built'] is None and it['parameters'] == sum(__import__('math').prod(t['shape']) for t in it['tensors'])"
run 0 inspect "$cases/qwen3" --config --verify
prints 'qwen3: Hugging Face directory, qwen3, [0-9]+ parameters, 35 tensors, 1 files'
prints '  model.num_layers=3'
prints '^every tensor that config.json requires is present'
cp -rL "$cases/llama_sharded" torn && chmod -R u+w torn
python3 - << 'PYTHON'
import json
index = json.load(open("torn/model.safetensors.index.json"))
index["weight_map"]["lm_head.weight"], index["metadata"]["total_size"] = "model-00009-of-00005.safetensors", 5
json.dump(index, open("torn/model.safetensors.index.json", "w"))
config = json.load(open("torn/config.json"))
json.dump({**config, "num_hidden_layers": 4}, open("torn/more.json", "w"))
json.dump({**config, "model_type": "unheard_of"}, open("torn/other.json", "w"))
PYTHON
run 3 inspect torn --verify
prints '^DAMAGED .*lm_head.weight in "model-00009-of-00005.safetensors", but it is in model-0000'
prints '^DAMAGED .*total_size = 5'
cp "$cases/llama_sharded/model.safetensors.index.json" torn
mv torn/more.json torn/config.json
run 3 inspect torn --verify
prints 'DAMAGED .*does not contain the weights of the model'
mv torn/other.json torn/config.json
run 0 inspect torn --verify --config
prints "not a .*supported model: .*model_type 'unheard_of'"
grep -q '^settings:' out && fail "settings without entries are printed"
cp "$cases/llama_sharded/config.json" torn
truncate -s -1 torn/model-00003-of-00005.safetensors
run 3 inspect torn --verify --json
json "any('model-00003-of-00005.safetensors' in p for p in it['problems'])"
printf '{"model_type": "\377"}' > torn/config.json
run 3 inspect torn --json
json "it['model_type'] is None and any('UTF-8' in problem for problem in it['problems'])"
holds "a directory: files, tensors, settings; what its files, its index and its config.json say of each other"
run 0 inspect "$cases/qwen2" --diff "$cases/qwen2" --json
json "it['different'] == 0 and {t['kind'] for t in it['tensors']} == {'weight'}"
run 0 train --model.from "$cases/qwen2" "${mock[@]}" --run.device=cpu --train.train_iters=1 --train.seq_length=16 --train.micro_batch_size=1 \
  --train.global_batch_size=2 --train.eval_iters=0 --optim.lr=0.01 --checkpoint.save=tuned --tp 2 --nproc 2 --model.vocab_size=224
run 1 inspect tuned --diff "$cases/qwen2" --json
json "it['different'] == len(it['tensors']) and all(0 < t['norm'] < 10 for t in it['tensors'])"
run 0 convert tuned --to hf tuned_hf
run 0 inspect tuned --diff tuned_hf
prints 'all [0-9]+ tensors are equal; [0-9]+ tensors other than weights were left out'
run 0 convert tuned --to hf tuned_bf16 --dtype bf16
run 1 inspect tuned_hf --diff tuned_bf16
prints 'self_attention.linear_qkv.weight .weight.: .80, 48. F32 and BF16, [0-9]+ of 3840 elements differ'
run 3 inspect "$cases/qwen2" --diff "$cases/qwen2" --iteration 3
warns 'which has no iteration 3'
holds "--diff between checkpoints and directories: dtype, shape, norm of the difference"

echo "Checkpoints of other programs"
mkdir -p megatron/iter_0000010 legacy/iter_0000010/mp_rank_00 hf mixed
touch megatron/iter_0000010/{common.pt,metadata.json,.metadata,__0_0.distcp} legacy/iter_0000010/mp_rank_00/model_optim_rng.pt \
  hf/{config.json,pytorch_model.bin}
echo 10 | tee megatron/latest_checkpointed_iteration.txt > legacy/latest_checkpointed_iteration.txt
while read -r path words; do
  run 3 inspect $path
  warns "contains a checkpoint in $words.*in safetensors files .docs/huggingface.md. and of Megatron-LM"
  run 3 convert $path --to hf converted
  warns "contains a checkpoint in $words"
  grep -qi damaged err out && fail "$path is called damaged"
done << 'PATHS'
hf the format of Hugging Face transformers
PATHS
for path in megatron megatron/iter_0000010 legacy; do
  run 3 inspect $path
  warns "iter_0000010/(metadata.json': sharded_backend = '': must be torch_dist|mp_rank_00/model_optim_rng.pt': too small for a zip)"
done
run 3 train --checkpoint.load megatron --data.mock_data=true --model.vocab_size=100 --train.train_iters=1
warns "contains a checkpoint in Megatron-LM's torch_dist format.*start from its weights with --model.from DIR"
cp -r ck/iter_0000002 ck/latest mixed && cp -r megatron/iter_0000010 mixed
run 0 inspect mixed
prints 'iter_0000010  not a Metroplex checkpoint: Megatron-LM.s torch_dist'
prints '^\* iter_0000002 '
holds "Megatron-LM's and Hugging Face's are named and not called damaged, alone or among ours"
