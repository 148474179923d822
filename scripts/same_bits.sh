#!/usr/bin/env bash
# Trains the runs of same_bits.txt with two builds and compares losses, gradient norms, parameters and optimizer state bit
# for bit; then the new build goes on from the old one's checkpoint and must end at the same bits. About five seconds a run.
#   scripts/same_bits.sh OLD NEW [--quick] [NAME...]     OLD and NEW are folders with `metroplex` in them (build/bin)
# --quick: every third run. NAME: these runs only. Exit code 1 when any bit differs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
case "${1:-}" in -h | --help) usage; exit 0 ;; esac
[ $# -ge 2 ] || { usage >&2; exit 2; }
old=$(realpath "$1")/metroplex new=$(realpath "$2")/metroplex
shift 2
every=1 names=()
for word in "$@"; do
  if [ "$word" = --quick ]; then every=3; else names+=("$word"); fi
done
for binary in "$old" "$new"; do [ -x "$binary" ] || { echo "same_bits.sh: no program $binary" >&2; exit 2; }; done

export OMP_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT # set by a launcher; they would make each run one rank
# Checkpoints and metrics of both builds, a few megabytes at a time; removed at exit.
work=$(mktemp -d "${TMPDIR:-/tmp}/metroplex_bits.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
for i in $(seq 1 60); do
  printf 'Document %d counts: %s.\n' "$i" "$(seq -s ' ' "$i" $((i + i % 9)))" > "$i.txt"
done
"$old" preprocess --input ./*.txt --tokenizer-type bytes --append-eod --output-prefix corpus > preprocess.out
base=(--run.seed=7 --run.device=cpu --model.hidden_size=32 --model.num_attention_heads=4 --model.make_vocab_size_divisible_by=16
  --data.data_path=corpus --data.tokenizer_type=bytes --optim.lr=0.01 --train.seq_length=16 --train.micro_batch_size=1
  --train.global_batch_size=8 --train.train_iters=6 --train.log_interval=1 --train.progress=false --train.eval_iters=0
  --checkpoint.save_interval=3)

# arguments OPTION...: converts the short words of same_bits.txt to config keys, one per line.
arguments() {
  local layers=2
  while [ $# -gt 0 ]; do
    case "$1" in
      --tp) echo "--parallel.tensor_model_parallel_size=$2"; shift ;;
      --pp) echo "--parallel.pipeline_model_parallel_size=$2"; shift ;;
      --vpp) echo "--parallel.virtual_pipeline_model_parallel_size=$2"; shift ;;
      --zero) echo "--parallel.data_parallel_sharding_strategy=$2"; shift ;;
      --layers) layers=$2; shift ;;
      --sp) echo --parallel.sequence_parallel=true ;;
      --dropout) printf '%s\n' --model.hidden_dropout=0.1 --model.attention_dropout=0.1 ;;
      --documents) printf '%s\n' --data.reset_position_ids=true --data.reset_attention_mask=true --data.eod_mask_loss=true ;;
      --llama) printf '%s\n' --model.family=llama --model.num_query_groups=2 --model.ffn_hidden_size=48 ;;
      --codegeex) echo --model.family=codegeex ;;
      --nproc | --backend) printf '%s\n' "$1" "$2"; shift ;;
      *) echo "$1" ;;
    esac
    shift
  done
  echo "--model.num_layers=$layers"
}
# train BINARY FOLDER ARGUMENT...
train() {
  local binary=$1 folder=$2
  shift 2
  timeout -k 5 120 "$binary" train "${base[@]}" "$@" "--checkpoint.save=$folder" "--train.metrics_file=$folder.jsonl" > "$folder.out" 2> "$folder.err" < /dev/null ||
    { echo "same_bits.sh: ${folder} failed with $?:" >&2; tail -n 5 "$folder.err" >&2; return 1; }
}

count=0 run=0 failed=()
while read -r name words; do
  case "$name" in '' | '#'*) continue ;; esac
  if [ ${#names[@]} -gt 0 ]; then
    [[ " ${names[*]} " = *" $name "* ]] || continue
  else
    run=$((run + 1))
    [ $(((run - 1) % every)) = 0 ] || continue
  fi
  read -ra given <<< "$words"
  mapfile -t keys < <(arguments "${given[@]}")
  count=$((count + 1))
  mkdir continued
  if train "$old" old "${keys[@]}" && train "$new" new "${keys[@]}" && cp -r old/iter_0000003 continued/ &&
    train "$new" continued "${keys[@]}" --checkpoint.load=continued --checkpoint.ckpt_step=3 &&
    python3 "$here/same_bits.py" "$name" old new continued; then :; else failed+=("$name"); fi
  rm -rf old new continued ./*.jsonl
done < "$here/same_bits.txt"
[ "$count" -gt 0 ] || { echo "same_bits.sh: no run of these names: ${names[*]}" >&2; exit 2; }
echo "same_bits: $((count - ${#failed[@]})) of $count runs have the same bits${failed[*]:+; not ${failed[*]}}"
[ ${#failed[@]} = 0 ]
