# The scripts of this folder source this file; each is called as SCRIPT BINARY. It provides a temporary folder, a tiny
# model, and assertions that print the checked fact and end the script at the first failure. The last line,
# "assertions: N", counts the passed assertions; scripts/count_tests.py reads it.
set -Eeuo pipefail
trap 'echo "FAILED: $0 line $LINENO: $BASH_COMMAND" >&2' ERR

metroplex=$(realpath "${1:?usage: $0 path/to/metroplex}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
apps=$repository/tests/apps
export PYTHONPATH=$repository/tests/support${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 # read_safetensors
work=$(mktemp -d "${TMPDIR:-/tmp}/metroplex_apps.XXXXXX")
asserted=$work/.asserted # one byte per assertion, because subshells assert too
: > "$asserted"
# A script that needs more cleanup defines its own at_exit.
at_exit() { :; }
finish() {
  local code=$?
  kill -KILL $(jobs -p) 2> /dev/null || true # fails after a passed test, which has ended its jobs
  at_exit
  [ $code != 0 ] || echo "assertions: $(wc -c < "$asserted")"
  rm -rf "$work"
}
trap finish EXIT
cd "$work"

# Ranks share the cores; a launcher's variables around the tests must not reach them.
export OMP_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_RANK SLURM_PROCID METROPLEX_RANK || true

# held [N]: one assertion, or N, passed.
held() { printf "%${1:-1}s" '' >> "$asserted"; }
holds() {
  held
  printf '  ok: %s\n' "$*"
}
# skips REASON: a check that this machine cannot run.
skips() { printf '  skipped: %s\n' "$*"; }
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  [ ! -s "$work/out" ] || { echo '--- last output' >&2; tail -n 15 "$work/out" >&2; }
  [ ! -s "$work/err" ] || { echo '--- last errors' >&2; tail -n 15 "$work/err" >&2; }
  exit 1
}

# run EXPECTED_CODE ARGUMENTS...: the binary, with its output in $work/out and $work/err.
run() {
  local expected=$1 code=0
  shift
  timeout -k 5 90 "$metroplex" "$@" > "$work/out" 2> "$work/err" < /dev/null || code=$?
  [ "$code" = "$expected" ] || fail "metroplex $* ended with $code, not $expected"
  held
}
prints() { grep -qE -- "$1" "$work/out" && held || fail "stdout lacks: $1"; }
warns() { grep -qE -- "$1" "$work/err" && held || fail "stderr lacks: $1"; }

# tool FILE SCRIPT: an executable that stands in for a program.
tool() {
  mkdir -p "$(dirname "$1")"
  printf '#!/usr/bin/env bash\n%s\n' "$2" > "$1"
  chmod +x "$1"
}
# The page that a GPU script wrote to $work/report: an assertion about it, and the number of its lines that match.
page_says() { grep -qF -- "$1" "$work"/report/*.md && held || { cp "$work"/report/*.md out; fail "the page lacks: $1"; }; }
count() { sed -n "\\~$1~p" "$work"/report/*.md | wc -l; }

# The tiny corpus: 40 documents of bytes, each with an end-of-document token.
make_corpus() {
  mkdir -p text
  local i
  for i in $(seq 1 40); do
    printf 'Document %d counts: %s.\nIt ends here, after %d words of nothing much.\n' "$i" "$(seq -s ' ' "$i" $((i + 12)))" "$((i * 7))"
  done | awk '/^Document/ {n++} {print > sprintf("text/%03d.txt", n)}'
  "$metroplex" preprocess --input text --tokenizer-type bytes --append-eod --output-prefix "$work/corpus" > /dev/null
}

# A model of 2 layers on the corpus; later options on a command line override it.
tiny=(--run.seed=7 --model.family=llama --model.num_layers=2 --model.hidden_size=32 --model.num_attention_heads=2
  --model.num_query_groups=2 --model.ffn_hidden_size=64 --model.make_vocab_size_divisible_by=16 --optim.lr=0.01
  --optim.lr_decay_style=cosine --optim.lr_warmup_iters=2 "--data.data_path=$work/corpus" --data.tokenizer_type=bytes
  --train.seq_length=16 --train.micro_batch_size=1 --train.global_batch_size=4 --train.train_iters=8 --train.log_interval=1
  --train.progress=false --train.eval_iters=0 --run.device=cpu)
mock=(--data.data_path= --data.mock_data=true --data.tokenizer_type=none --model.vocab_size=256)

# losses FILE: "iteration loss" of each training line of a metrics file.
losses() { python3 "$apps/metrics.py" losses "$1"; }
# same_losses A B TOLERANCE [FIRST]: absolute, over the iterations of B from FIRST on; prints the largest difference.
same_losses() { python3 "$apps/metrics.py" compare "$@" && held || fail "losses of $1 and $2 are not within $3"; }

# same_end A B: the last checkpoints of two save folders have the same bytes.
same_end() {
  local last
  last=$(ls "$1" | grep -E '^iter' | sort | tail -1)
  [ -n "$last" ] && [ -d "$2/$last" ] || fail "$1 and $2 end with other checkpoints"
  local file
  for file in "$1/$last"/*.safetensors; do
    cmp -s "$file" "$2/$last/$(basename "$file")" || fail "$2/$last/$(basename "$file") differs from $1"
    held
  done
}
