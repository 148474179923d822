#!/usr/bin/env bash
# Any text from a kilobyte up goes the whole way of quickstart.sh: documents, tokenizer, dataset, split, training,
# evaluation, generation. And what is wrong with --text is said before anything is installed.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repository/scripts/text_corpus.sh"

# Runs the steps of quickstart.sh after the build, with 2 steps of training.
whole_way() {
  local name=$1
  shift
  local text=("$@") dir=$work/$name
  rm -rf "$dir" && mkdir -p "$dir"
  check_text "${text[@]}" || fail "$name: refused"
  if few_documents "${text[@]}"; then
    cut_documents "$dir/corpus" "${text[@]}"
    cat $(printf '%s\n' "${text[@]}" | sort) | LC_ALL=C tr -d '\n' > one
    cat "$dir"/corpus/*.txt | LC_ALL=C tr -d '\n' > two
    cmp one two || fail "$name: the documents are not the text"
    text=("$dir/corpus")
  fi
  train_tokenizer "$metroplex" "$dir/tokenizer" "${text[@]}" || fail "$name: no tokenizer"
  run 0 preprocess --input "${text[@]}" --tokenizer-type sentencepiece --tokenizer-model "$dir/tokenizer.model" --append-eod \
    --output-prefix "$dir/data"
  run 0 train "$repository/examples/llama_tiny.yaml" "--data.data_path=$dir/data" "--data.tokenizer_model=$dir/tokenizer.model" \
    --model.vocab_size=0 "--data.split=$(split_of "$metroplex" "$dir/data")" "--checkpoint.save=$dir/ck" --train.train_iters=2 \
    --model.hidden_size=32 --train.eval_interval=2 --train.eval_iters=1 --optim.lr_warmup_iters=1 --train.progress=false
  prints 'validation loss at iteration 2'
  run 0 generate --load "$dir/ck" --prompt "$(first_words "${text[@]}")" --max-new-tokens 3
}

echo "Texts of all sizes"
words() { awk -v n="$1" -v seed="${2:-1}" 'BEGIN {srand(seed); while (n-- > 0) printf "%s%s", substr("thequickbrownfoxjumpsoverlazydogs", 1 + int(rand() * 25), 2 + int(rand() * 6)), (n % 12 ? " " : "\n")}'; }
words 1000 > text.txt
head -c 1024 text.txt > kilobyte.txt
head -c 3000 text.txt > three.txt
tr '\n' ' ' < three.txt | head -c 1500 > line.txt
words 40000 > large.txt
whole_way kilobyte kilobyte.txt
whole_way three three.txt
whole_way line line.txt
whole_way large large.txt
holds "a kilobyte, three kilobytes, one long line, $(wc -c < large.txt) bytes: one file each"
for i in $(seq 1 10); do words 150 "$i" > "part$i.txt"; done
whole_way ten part*.txt
holds "ten files"
mkdir folder
for i in $(seq 1 120); do words 15 "$i" > "folder/$i.txt"; done
whole_way many folder
[ ! -e many/corpus ] || fail "120 files need not be cut"
holds "a folder of 120 files: each a document"
for i in $(seq 1 400); do printf '%b' "\\u$(printf '%04x' $((0x4e00 + i * 7 % 900)))"; done > chinese.txt
whole_way chinese chinese.txt
holds "$(wc -c < chinese.txt) bytes of 400 characters without a space or a line's end, nearly all of them different"
for i in $(seq 1 400); do echo ab; done > same.txt
whole_way same same.txt
holds "the same word over and over"
for i in $(seq 1 30); do printf '{"text": "%s"}\n' "$(words 30 "$i" | tr '\n' ' ')"; done > lines.jsonl
whole_way jsonl lines.jsonl
holds "JSON lines stay documents"

echo "Without --text, quickstart.sh learns from the headers of the wheel, also under a hidden folder"
mkdir -p clone/scripts clone/build/bin .cache/torch/include/c10
cp "$repository/quickstart.sh" clone
cp "$repository/scripts/text_corpus.sh" clone/scripts
printf '#!/bin/sh\n' > clone/scripts/build.sh && chmod +x clone/scripts/build.sh
ln -s "$metroplex" clone/build/bin/metroplex
ln -s "$(dirname "$metroplex")/metroplex-torch" clone/build/bin/metroplex-torch
echo "TORCH_ROOT:PATH=$work/.cache/torch" > clone/build/CMakeCache.txt
for i in $(seq 1 30); do words 60 "$i" > ".cache/torch/include/c10/$i.h"; done
clone/quickstart.sh > out 2> err && fail "quickstart.sh trained without examples/llama_tiny.yaml"
run 0 inspect clone/runs/quickstart/data
prints '30 documents'
holds "30 headers below .cache are 30 documents"

echo "What cannot be learned from is said first"
mkdir -p bin
printf '#!/bin/sh\necho installs >> "%s/installed"\nexit 1\n' "$work" | tee bin/apt-get bin/cmake bin/curl bin/sudo bin/ninja bin/wget > /dev/null
chmod +x bin/*
wrong() {
  local code=0
  PATH=$work/bin:$PATH bash "$repository/quickstart.sh" --dir "$work/quick" "${@:2}" > out 2> err || code=$?
  [ "$code" = 2 ] || fail "quickstart.sh ${*:2} ended with $code"
  grep -q -- "$1" err || fail "quickstart.sh ${*:2} does not say: $1"
  [ ! -e installed ] && [ ! -e quick ] && ! grep -q '1/7' out || fail "quickstart.sh ${*:2} began to install"
}
head -c 900 kilobyte.txt > small.txt
printf 'caf\351 %.0s' $(seq 300) > latin.txt
wrong 'nowhere.txt: there is no such file' --text kilobyte.txt nowhere.txt
wrong '900 bytes in all' --text small.txt
wrong 'latin.txt is not UTF-8' --text latin.txt
wrong 'needs a file' --text
wrong 'needs a file' --text --cpu
wrong 'unknown option' --txt kilobyte.txt
holds "a wrong path, too little text, another encoding, no path at all: exit 2 before the first step"
