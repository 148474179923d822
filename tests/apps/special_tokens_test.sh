#!/usr/bin/env bash
# Special tokens between transformers and metroplex: begin tokens of texts, ids of exports, new rows of a vocabulary;
# and runs whose length is a number of epochs.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cases=$repository/tests/vectors/hf
tokenizers=$repository/tests/vectors/tokenizers
small="--data.mock_data=true --train.seq_length=24 --train.micro_batch_size=1 --train.global_batch_size=2 --train.eval_iters=0"
net="--model.family=llama --model.num_layers=2 --model.hidden_size=32 --model.num_attention_heads=4 --model.ffn_hidden_size=64"
# ids PREFIX: the tokens of a dataset of 16-bit ids.
ids() { od -An -v -w1000000 -tu2 "$1.bin" | sed 's/^ *//; s/  */ /g'; }
# json FILE EXPRESSION EXPECTED: of the value d.
json() {
  local value
  value=$(python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2")
  [ "$value" = "$3" ] && held || fail "$1: $2 is $value, not $3"
}

# Texts begin and end as transformers encodes them.
mkdir llama && cp "$tokenizers"/llama3/tokenizer*.json llama
printf '{"text": "third"}\n{"text": ""}\n{"text": "third"}\n' > third.jsonl
run 0 tokenizer encode --model llama --special --text third
special=$(tr '\n' ' ' < out | sed 's/ *$//')
run 0 tokenizer encode --model llama --text third
plain=$(tr '\n' ' ' < out | sed 's/ *$//')
[ "$special" = "1200 $plain" ] && held || fail "the ids are $special and $plain"
data="preprocess --input third.jsonl --tokenizer-model llama --overwrite --output-prefix third"
run 0 $data
[ "$(ids third)" = "$special $special" ] && held || fail "the dataset holds $(ids third)"
prints '2 documents'
json third.preprocess.json 'd["special_tokens"]["before"]' '[1200]'
run 0 $data --append-eod
[ "$(ids third)" = "$special 1201 $special 1201" ] && held || fail "the dataset holds $(ids third)"
run 0 $data --no-special-tokens
[ "$(ids third)" = "$plain $plain" ] && held || fail "the dataset holds $(ids third)"
json third.preprocess.json '"special_tokens" in d, "without special tokens" in d["encoder"]' '(False, True)'
run 0 preprocess --input third.jsonl --tokenizer-model "$tokenizers/gpt2_prefix_space" --append-eod --overwrite --output-prefix both
python3 - "$(ids both)" << 'PYTHON'
import sys
ids = sys.argv[1].split()
assert ids[0] == "0" and ids[-1] == "2" and ids.count("2") == 2, ids  # the post-processor already ends a text with this id
PYTHON
held
holds "preprocess adds what the tokenizer adds, one end of document and no more"

run 0 train $net --data.tokenizer_type=bpe --data.tokenizer_model=llama $small --train.train_iters=3 --optim.lr=0.01 \
  --checkpoint.save=base_run --checkpoint.export_hf=base
greedy="--max-new-tokens 6 --temperature 0"
for from in "--model.from base" "--load base_run"; do
  run 0 generate $from --prompt "third" $greedy
  cp out with_begin
  run 0 generate $from --no-special-tokens --prompt "<|begin_of_text|>third" $greedy
  [ "<|begin_of_text|>$(cat with_begin)" = "$(cat out)" ] && held || fail "generate $from: $(cat with_begin) and $(cat out)"
  echo third > prompts
  run 0 generate $from --prompts prompts $greedy
  cp out with_begin
  echo '<|begin_of_text|>third' > prompts
  run 0 generate $from --no-special-tokens --prompts prompts $greedy
  same='[json.load(open(name))["text"] for name in ("out", "with_begin")]'
  python3 -c "import json; a, b = $same; assert a == b, (a, b)" && held || fail "--prompts continues otherwise"
done
# A prompt beyond the context is rejected with its number of tokens.
long=$(printf 'third %.0s' $(seq 40))
echo "${long% }" > prompts
tokens=$(wc -w <<< "$("$metroplex" tokenizer encode --model llama --text "${long% }")")
run 3 generate --model.from base --no-special-tokens --prompts prompts $greedy
warns "a prompt of $tokens tokens"
run 3 generate --model.from base --prompts prompts $greedy
warns "a prompt of $((tokens + 1)) tokens"
holds "generate --prompt and --prompts begin as transformers does"

# Ids and generation settings pass through checkpoints.
cp -r "$cases/qwen3" source && chmod -R u+w source
python3 - << 'PYTHON'
import json
for name, change in (("config", {"bos_token_id": 7, "eos_token_id": 8, "pad_token_id": 9}),
                     ("generation_config", {"eos_token_id": [8, 11], "temperature": 0.6, "top_p": 0.95, "do_sample": True})):
    path = f"source/{name}.json"
    content = json.load(open(path)) | change
    json.dump(content, open(path, "w"))
PYTHON
# same_ids DIR: those of the source.
same_ids() {
  python3 - "$1" << 'PYTHON'
import json, sys
read = lambda folder, name: json.load(open(f"{folder}/{name}.json"))
source, written = read("source", "config"), read(sys.argv[1], "config")
for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
    assert written[key] == source[key], (key, written.get(key))
assert read(sys.argv[1], "generation_config") == read("source", "generation_config")
PYTHON
  held
}
mkdir source/additional_chat_templates
echo tools > source/additional_chat_templates/tool_use.jinja
cp "$tokenizers"/qwen2/tokenizer*.json source && echo chat > source/chat_template.jinja
run 0 convert source --to checkpoint source_ck
run 0 convert source_ck --to hf out_ck
same_ids out_ck
diff -r source/additional_chat_templates out_ck/additional_chat_templates && held || fail "the template of tools is lost"
rm source/tokenizer*.json source/chat_template.jinja
run 0 train --model.from source $small --train.train_iters=1 --checkpoint.save=tuned --checkpoint.export_hf=out_run
same_ids out_run
run 0 train tuned/run.yaml --checkpoint.load=tuned --train.train_iters=2 --optim.override_opt_param_scheduler=true \
  --checkpoint.export_hf=out_resumed
same_ids out_resumed
run 0 train --model.from source $small --train.train_iters=1 --peft.lora_rank=2 --checkpoint.save=adapted
run 0 convert adapted --to hf out_merged
same_ids out_merged
run 0 convert adapted --to checkpoint copied
run 0 convert copied --to hf out_copied
same_ids out_copied
holds "ids and generation settings of the source: convert there and back, export_hf, a resumed run, merged adapters"

# A run from scratch has the ids of its tokenizer and of its chat template.
json base/config.json 'd["bos_token_id"], d["eos_token_id"]' '(1200, 1201)'
json base/generation_config.json 'd["eos_token_id"]' 1201
mkdir talk && cp "$tokenizers"/qwen2/tokenizer*.json talk
cat > talk/chat_template.jinja << 'TEMPLATE'
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
TEMPLATE
run 0 tokenizer encode --model talk --text '<|im_end|>'
end=$(cat out)
run 0 train $net --data.tokenizer_type=bpe --data.tokenizer_model=talk $small --train.train_iters=1 --checkpoint.save=talk_run \
  --checkpoint.export_hf=talk_hf
json talk_hf/config.json 'd["eos_token_id"]' "[1000, $end]"
json talk_hf/generation_config.json 'd["eos_token_id"]' "[1000, $end]"
holds "a run from nothing exports the end of its tokenizer and the end of a turn"

# A tokenizer.model also finds a template's control tokens.
mkdir pieces && cp "$tokenizers"/sentencepiece_bpe/tokenizer* pieces
echo '{% for m in messages %}{{ bos_token if m.role == "user" }}{{ m.content }}{{ eos_token if m.role == "assistant" }}{% endfor %}' > pieces/chat_template.jinja
echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}' > pieces.jsonl
run 0 preprocess --chat --input pieces.jsonl --tokenizer-model pieces --output-prefix pieces_chats
[[ $(ids pieces_chats) == "1 "*" 2" ]] && held || fail "the chat is $(ids pieces_chats)"
[ ! -s err ] && held || fail "preprocess warns: $(cat err)"
holds "a chat with a tokenizer.model begins with <s> and learns </s>"

# Tokens beyond the embedding get new rows.
mkdir grow && cp "$cases/qwen3"/*.json "$cases/qwen3"/*.safetensors grow && cp "$tokenizers"/qwen2/tokenizer*.json grow && chmod -R u+w grow
run 2 train --model.from grow $small --train.train_iters=1
warns 'model.vocab_size = 256: the tokenizer has 1006 ids; set model.vocab_size = 0 .*adds rows'
for layout in "--nproc 1" "--nproc 2 --tp 2"; do
  rm -rf grown grown_hf
  run 0 train --model.from grow --model.vocab_size=0 $small --train.train_iters=1 --optim.lr=1e-30 --optim.weight_decay=0 $layout \
    --checkpoint.save=grown --checkpoint.export_hf=grown_hf
  json grown_hf/config.json 'd["vocab_size"]' 1006
  python3 - << 'PYTHON'
import array
from read_safetensors import tensors
(_, shape, old), (_, grown, new) = (tensors(f"{folder}/model.safetensors")["model.embed_tokens.weight"] for folder in ("grow", "grown_hf"))
columns = shape[1]
assert list(grown) == [1006, columns], grown
old, new = array.array("f", old), array.array("f", new)
assert new[:len(old)] == old
mean = [sum(old[c::columns]) / shape[0] for c in range(columns)]
sums = shape[0] * 2**-52 * max(map(abs, old))  # two sums of float64 in different orders
for row in range(shape[0], 1006):  # rounded to float32 once
    assert all(abs(new[row * columns + c] - mean[c]) <= 2**-24 * abs(mean[c]) + sums for c in range(columns)), row
PYTHON
  held
done
run 0 train --model.from grow --model.vocab_size=0 $small --train.train_iters=2 --optim.lr=0.01 --checkpoint.save=rows \
  --train.trainable=embedding.word_embeddings.weight
holds "the vocabulary grows by rows of the mean, in tp 2 too, and an export has its size"

# Epochs of chats are counted in samples of chats.
python3 - << 'PYTHON'
import json
for turn in range(12):
    chat = [{"role": "user", "content": f"question {turn}"}, {"role": "assistant", "content": f"answer {turn}" + " and more" * 6}]
    print(json.dumps({"messages": chat}), file=open("chats.jsonl", "a"))
PYTHON
run 0 preprocess --chat --input chats.jsonl --tokenizer-model talk --seq-length 64 --overwrite --output-prefix chats
cat > chats.yaml << YAML
model: {family: llama, num_layers: 2, hidden_size: 32, num_attention_heads: 4, ffn_hidden_size: 64}
data: {data_path: [chats], tokenizer_type: bpe, tokenizer_model: talk, split: "1,0,0", reset_position_ids: true, reset_attention_mask: true}
train: {seq_length: 64, micro_batch_size: 1, global_batch_size: 1, eval_iters: 0, progress: false}
YAML
run 0 train chats.yaml --train.train_epochs=1 --dry-run --json
samples=$(python3 -c 'import json; d = json.load(open("out"))["data"][0]; assert d["epochs"] == 1 and d["chats"]; print(round(d["epoch_samples"]))')
held
run 0 train chats.yaml --train.train_epochs=1 --dry-run
prints '12 chats to train on, 1 epochs'
run 0 train chats.yaml --train.train_epochs=1 --checkpoint.save=epochs_run
prints ', 1.00 epochs'
grep -q "train_samples: $samples\$" epochs_run/run.yaml && held || fail "another length: $(grep train_ epochs_run/run.yaml)"
run 0 train chats.yaml --train.train_epochs=2
prints ', 2.00 epochs'
for more in "" --dry-run --print-config; do
  run 2 train chats.yaml --train.train_epochs=1 --train.global_batch_size=64 $more
  warns "train.train_epochs = 1: has $samples samples, less than one global batch of 64; raise train_epochs"
done
run 2 train chats.yaml --train.train_epochs=1 --train.train_iters=5
warns 'train.train_epochs'
grep -q 'train_epochs: 0' epochs_run/run.yaml && held || fail "a resumed run would count its epochs again"
holds "a run of N epochs, of chats, in the run's lines, the dry run and its JSON"

# Checkpoints of other programs.
mkdir -p meg/iter_0000010/mp_rank_00 ds/global_step100
echo x > meg/iter_0000010/mp_rank_00/model_optim_rng.pt
echo 10 > meg/latest_checkpointed_iteration.txt
echo global_step100 > ds/latest
for load in "meg Megatron-LM" "ds DeepSpeed" "source Hugging"; do
  read -r folder program <<< "$load"
  for command in "train $net $small --model.vocab_size=64 --train.train_iters=1" "eval" "generate --prompt a"; do
    run 3 $command --load $folder
    warns "'$folder' contains a checkpoint in .*$program.*--model.from DIR"
    ! grep -qi 'damaged\|intact' err && held || fail "$folder is called damaged: $(cat err)"
  done
done
holds "train, eval and generate name the format of a checkpoint of another program"
