#!/usr/bin/env bash
# From a bare machine to a language model that trains on eight ranks, evaluates, saves, resumes and writes.
#   ./quickstart.sh [--text PATH...] [--cpu | --cuda] [--dir runs/quickstart] [--fresh]
# --text takes files or folders, a kilobyte or more together; without it, it learns from the C++ headers that the torch
# wheel ships. Run again, it installs and builds nothing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$root/scripts/text_corpus.sh"
stop() { echo "quickstart.sh: $*" >&2; exit 2; }
text=()
variant=()
dir=$root/runs/quickstart
fresh=0
while [ $# -gt 0 ]; do
  case "$1" in
    --text)
      shift
      while [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; do text+=("$(realpath -ms "$1")"); shift; done
      [ ${#text[@]} -gt 0 ] || stop "--text needs a file or a folder" ;;
    --cpu | --cuda) variant=("$1"); shift ;;
    --dir) [ $# -ge 2 ] || stop "--dir needs a folder"; dir=$(realpath -ms "$2"); shift 2 ;;
    --fresh) fresh=1; shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) stop "unknown option '$1'; see --help" ;;
  esac
done
made=(corpus files text tokenizer.model tokenizer.vocab data.bin data.idx cache checkpoints tensorboard metrics.jsonl logs)
# Before anything is installed.
for path in "${text[@]}"; do
  for name in "${made[@]}"; do
    case "$path/" in "$dir/$name/"*) stop "--text $path lies where --dir $dir keeps what it makes, which --fresh removes; move one of them" ;; esac
  done
done
[ ${#text[@]} -eq 0 ] || check_text "${text[@]}" || exit 2
cd "$root"
step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

step "1/7 Set-up and build (Debian packages, the torch wheel, then some minutes of compiling the first time)"
scripts/build.sh "${variant[@]}" --target metroplex
metroplex=$PWD/build/bin/metroplex
torch_root=$(sed -n 's/^TORCH_ROOT:PATH=//p' build/CMakeCache.txt)

# Removes only files that this script created; .made marks its folders.
if [ ! -e "$dir/.made" ]; then
  for name in "${made[@]}"; do
    [ ! -e "$dir/$name" ] || stop "$dir/$name exists and quickstart.sh did not create it; give another --dir"
  done
fi
[ "$fresh" = 1 ] && for name in "${made[@]}"; do rm -rf "${dir:?}/$name"; done
mkdir -p "$dir" && touch "$dir/.made"
if [ -e "$dir/text" ] && [ "$(cat "$dir/text")" != "${text[*]:-}" ]; then
  stop "$dir was made from '$(cat "$dir/text")'; give another --dir, or --fresh to start over"
fi
printf '%s' "${text[*]:-}" > "$dir/text"
dir=$(cd "$dir" && pwd)
corpus=$dir/corpus
if [ ${#text[@]} -eq 0 ]; then
  step "2/7 Corpus: the C++ headers of the torch wheel"
  if [ ! -e "$corpus/.complete" ]; then
    rm -rf "$corpus" && mkdir -p "$corpus"
    # One document a header; generated operator headers all look alike and would drown the rest.
    # Relative paths: `metroplex preprocess` skips hidden folders, and the default path of the wheel has one (~/.cache).
    (cd "$torch_root/include" && find . -name '*.h' -not -path '*/ATen/ops/*' -size -200k -print0 | sort -z > "$dir/files" &&
      xargs -0 cp --parents -t "$corpus" < "$dir/files")
    touch "$corpus/.complete"
  fi
  text=("$corpus")
else
  step "2/7 Corpus: ${text[*]}"
  if few_documents "${text[@]}"; then
    if [ ! -e "$corpus/.complete" ]; then
      rm -rf "$corpus"
      cut_documents "$corpus" "${text[@]}"
      touch "$corpus/.complete"
    fi
    text=("$corpus")
    echo "   cut into $(find "$corpus" -name '*.txt' | wc -l) documents"
  fi
fi
du -shL "${text[@]}" | sed 's/^/   /'

step "3/7 Tokenizer: sentencepiece"
[ -e "$dir/tokenizer.model" ] || train_tokenizer "$metroplex" "$dir/tokenizer" "${text[@]}"

step "4/7 Preprocess: text -> $dir/data.bin, data.idx"
if [ ! -e "$dir/data.idx" ]; then
  "$metroplex" preprocess --input "${text[@]}" --tokenizer-type sentencepiece --tokenizer-model "$dir/tokenizer.model" \
    --append-eod --output-prefix "$dir/data"
fi

config=(examples/llama_tiny.yaml "--data.data_path=$dir/data" "--data.tokenizer_model=$dir/tokenizer.model"
  --model.vocab_size=0 "--data.split=$(split_of "$metroplex" "$dir/data")"
  "--checkpoint.save=$dir/checkpoints" "--checkpoint.load=$dir/checkpoints" --optim.override_opt_param_scheduler=true
  "--train.tensorboard_dir=$dir/tensorboard" "--train.metrics_file=$dir/metrics.jsonl")
done_so_far=$( (ls "$dir/checkpoints" 2>/dev/null || true) | sed -n 's/^iter_0*\([0-9][0-9]*\).*/\1/p' | sort -n | tail -n 1)
target=$((${done_so_far:-0} >= 200 ? done_so_far + 20 : 200))
step "5/7 Train a Llama on 8 ranks: tensor 2 x pipeline 2 (2 virtual stages each) x data 2, sequence parallel"
"$metroplex" train "${config[@]}" "--train.train_iters=$target" --optim.lr_decay_iters=200 --train.log_interval=20

step "6/7 Resume from the checkpoint for ten more steps"
mkdir -p "$dir/logs"
"$metroplex" train "${config[@]}" "--train.train_iters=$((target + 10))" --optim.lr_decay_iters=200 --train.eval_interval=0 |
  tee "$dir/logs/resume.log" | grep -E '^ (loaded|saved) checkpoint|^ \[.*\] iteration'

step "7/7 Generate"
prompt='#include <'
[ -z "$(cat "$dir/text")" ] || prompt=$(first_words "${text[@]}")
"$metroplex" generate --load "$dir/checkpoints" --prompt "$prompt" --max-new-tokens 60 --temperature 0.7 --top-k 40

cat <<END

Done. Commands to try next:
  build/bin/metroplex inspect $dir/checkpoints   lists the saved checkpoints
  build/bin/metroplex verify examples/llama_tiny.yaml   compares this layout with a single rank in float64
  build/bin/metroplex ranks --nproc 8 --tp 2 --pp 2   draws the rank map
  build/bin/metroplex schedule --pp 2 --vpp 2 --microbatches 4   draws the pipeline schedule
  build/bin/metroplex train --help   describes the options of a run
  tensorboard --logdir $dir/tensorboard
END
