#!/usr/bin/env bash
# Each command from outside: help, printed and written output, generation, launchers.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus

echo "--help of every command"
run 0 --help
commands=$(sed -n 's/^  \([a-z]*\)  .*/\1/p' out)
[ "$(echo $commands)" = "train eval generate plan calibrate verify preprocess tokenizer ranks schedule experts report plot convert inspect" ] || fail "commands: $commands"
for command in $commands; do
  run 0 "$command" --help
  [ ! -s err ] || fail "$command --help writes to stderr"
  [ "$(wc -c < out)" -ge 230 ] || fail "$command --help is $(wc -c < out) characters long"
  grep -q "metroplex $command" out || fail "$command --help has no example"
done
holds "13 commands: exit 0, on stdout, with an example"
run 0 train --help all
for key in run.seed model.num_layers parallel.sequence_parallel optim.lr data.split checkpoint.keep_last train.seq_length; do
  prints "--$key="
done
sed -n 's/^  --\([a-z]*\)\..*/\1/p' out | sort -u > sections
run 0 train --help
for section in $(cat sections); do prints "^Sections:.* $section( |\$)"; done
holds "train --help all lists the keys"
run 2 train --help optim.lrr
warns 'optim.lr'
run 0 help optim
prints 'lr_decay_style'
run 2 help optim.lrr
warns 'optim.lr'
holds "help for an unknown key names the nearest"

echo "What a run prints and writes"
run 0 train "${tiny[@]}" --nproc 2 --train.train_iters=60 --train.eval_interval=30 --train.eval_iters=1 --data.split=80,10,10 \
  --train.metrics_file=metrics.jsonl --train.tensorboard_dir=tb --train.timing_log_level=2 --train.log_num_zeros_in_grad=true \
  --checkpoint.save=ck --checkpoint.save_interval=30
python3 - << 'PYTHON' || fail "lines are not in Megatron's format"
import json, re
number, exponent = r"[\d.]+", r"\d\.\d{6}E[+-]\d\d"
iteration = re.compile(
    r"^ \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] iteration +(\d+)/ +60 \| consumed samples: +(\d+) \|"
    rf" elapsed time per iteration \(ms\): {number} \| throughput per GPU \(TFLOP/s/GPU\): {number} \|"
    rf" learning rate: {exponent} \| global batch size: +4 \| lm loss: ({exponent}) \| loss scale: {number} \|"
    rf" grad norm: {number} \| num zeros: {number} \| number of skipped iterations: +0 \| number of nan iterations: +0 \|"
    rf" tokens/s: {number} \| remaining: \d+:\d\d \|$")
found = [match.groups() for match in map(iteration.match, open("out")) if match]
assert [(int(i), int(n)) for i, n, _ in found] == [(i, 4 * i) for i in range(1, 61)], found
records = [json.loads(line) for line in open("metrics.jsonl")]
training = [r for r in records if "split" not in r]
assert [float(loss) for *_, loss in found] == [float(f"{r['lm loss']:.6E}") for r in training]
evaluation = re.findall(rf"^ (validation|test) loss at iteration (\d+) on (?:validation|test) set \| lm loss value: {exponent} \| lm loss PPL: {exponent} \| $", open("out").read(), re.M)
assert evaluation == [("validation", "30"), ("validation", "60"), ("test", "60")], evaluation
assert [r["split"] for r in records if "split" in r] == [split for split, _ in evaluation]
assert training[-1]["lm loss"] < training[0]["lm loss"] - 1, "the loss did not fall"
PYTHON
holds "60 iteration lines and 3 evaluations match Megatron's format; the metrics file has the same numbers; the loss falls"
python3 "$apps/tensorboard_records.py" tb metrics.jsonl || fail "the TensorBoard file"
holds "TensorBoard: every CRC is right, losses as in the metrics file"
for timer in batch-generator forward-backward all-grads-sync optimizer-clip-main-grad optimizer-inner-step params-all-gather evaluate \
  save-checkpoint; do
  prints "^    $timer "
done
holds "timers are printed with timing_log_level: the parts of a step, evaluation, saving"

# Evaluations continue at the sample where the last one ended, in whole microbatches, for any batch size.
run 0 train "${tiny[@]}" --train.micro_batch_size=2 --train.global_batch_size=5 --train.decrease_batch_size_if_needed=true \
  --train.train_iters=3 --train.eval_interval=1 --train.eval_iters=1 --data.split=80,10,10 --data.dataloader_type=cyclic \
  --data.data_sharding=false
[ "$(grep -c 'validation loss at iteration' out)" = 3 ] || fail "not three evaluations of a batch that is no multiple"
holds "a batch size that is rounded down is so in evaluation, over and over"
cp ck/run.yaml printed.yaml
unsaved=(--checkpoint.save= --checkpoint.save_interval=0)
run 0 train printed.yaml "${unsaved[@]}" --train.train_iters=60 --train.metrics_file=again.jsonl --train.tensorboard_dir=
same_losses metrics.jsonl again.jsonl 0
holds "the configuration beside the checkpoints loads back: same losses bit for bit"
cp again.jsonl first.jsonl
for number in 1 2; do
  run 0 train printed.yaml "${unsaved[@]}" --train.train_iters=$((number + 1)) --train.metrics_file=again.jsonl --train.tensorboard_dir=
  prints "^ train.metrics_file = again.jsonl belongs to another run; moved to again.jsonl.$number"
  [ "$(losses again.jsonl | wc -l)" = $((number + 1)) ] || fail "the metrics file is not the run's own: $(cat again.jsonl)"
done
cmp first.jsonl again.jsonl.1 || fail "the first run's metrics changed"
[ "$(losses again.jsonl.2 | wc -l)" = 2 ] || fail "the second run's metrics changed"
holds "a fresh run sets another run's metrics aside"
run 0 train printed.yaml --print-config
diff -q out printed.yaml || fail "--print-config prints another configuration than the run wrote"
run 0 train printed.yaml "${unsaved[@]}" --train.train_iters=2 --train.metrics_file= --train.tensorboard_dir= --quiet
[ ! -s out ] || fail "--quiet prints to stdout"
run 2 train
warns 'train needs a configuration: a YAML file'
for command in ranks train; do
  run 0 help "$command"
  prints "^Usage: |Usage:"
done
run 0 train "${tiny[@]}" --nproc 2 --tp 2 --print-config
prints '^  tensor_model_parallel_size: 2'
mkdir removed
(cd removed && rmdir ../removed && run 3 train "${tiny[@]}" --train.train_iters=2)
warns '^metroplex: \[files\] the current directory no longer exists'
run 0 --version
prints '^metroplex [0-9]+\.[0-9]+\.[0-9]+$'
holds "--print-config, --quiet and --version"

run 0 train "${tiny[@]}" --nproc 1 --train.train_iters=6 --train.log_interval=4 --train.metrics_file=every.jsonl --train.tensorboard_dir=every \
  --train.tensorboard_log_interval=3 --precision.params_dtype=fp16 --precision.initial_loss_scale=1e38 --precision.loss_scale_window=100
python3 - << 'PYTHON' || fail "metrics of every step"
import json, re
records = [json.loads(line) for line in open("every.jsonl")]
assert [r["iteration"] for r in records] == [1, 2, 3, 4, 5, 6], records
assert all(r["skipped"] and r["lm loss"] > 1 and r["grad-norm"] is None for r in records), records
lines = re.findall(r"\] iteration +(\d+)/", open("out").read())
assert lines == ["4", "6"], lines
PYTHON
holds "a JSON line every iteration whatever the log interval, skipped ones too, with their loss"

echo "Megatron's arguments"
cat > pretrain.sh << 'SCRIPT'
#!/bin/bash
# A launch script as people have them.
LAYERS=2
MODEL_ARGS=(
  --num-layers $LAYERS   # both of them
  --hidden-size 32 --num-attention-heads 2 --ffn-hidden-size 64
  --seq-length 16 --max-position-embeddings 16
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
  --untie-embeddings-and-output-weights --make-vocab-size-divisible-by 16
  --attention-dropout 0 --hidden-dropout 0
)
torchrun --nproc_per_node 1 pretrain_gpt.py "${MODEL_ARGS[@]}" \
  --micro-batch-size 1 --global-batch-size 4 --train-iters 5 --lr 0.01 --lr-decay-style constant \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 256 --seed 7 --log-interval 1 --eval-iters 0 --eval-interval 100 \
  --use-flash-attn --wandb-project x --recompute-num-layers 1
SCRIPT
run 0 train --from-megatron-args pretrain.sh --nproc 1 --train.metrics_file=megatron.jsonl
warns 'recompute-num-layers 1: ignored, as Megatron does'
[ "$(grep -c '^warning:' err)" = 1 ] || fail "flags without influence are warned about: $(cat err)"
run 0 train "${tiny[@]}" "${mock[@]}" --nproc 1 --train.train_iters=5 --optim.lr_decay_style=constant --optim.lr_warmup_iters=0 \
  --train.metrics_file=native.jsonl
same_losses native.jsonl megatron.jsonl 0
holds "--from-megatron-args: same losses as the native keys, a flag without effect is named"
run 0 train --from-megatron-args pretrain.sh --nproc 1 --print-config
warns 'recompute-num-layers 1: ignored'
! grep -q ignored out || fail "notes are part of the printed configuration"
run 0 train --from-megatron-args pretrain.sh --nproc 1 --dry-run
prints 'recompute-num-layers 1: ignored'
sed 's/--nproc_per_node 1/--nproc_per_node 2/; s/--num-layers \$LAYERS/--num-layers ${1:-4} --moe-n-hash-layers 8 --fantasy-knob 3/; s/--train-iters 5/--train-iters "$2"/' \
  pretrain.sh > hashed.sh
run 2 train --from-megatron-args hashed.sh 2 3
warns 'moe-n-hash-layers 8: not implemented'
warns 'fantasy-knob 3: unknown'
warns 'ignore-unknown-flags'
run 0 train --from-megatron-args hashed.sh 2 3 --ignore-unknown-flags
warns 'ignored: --moe-n-hash-layers 8'
prints 'iteration +3/ +3 '
run 0 train --from-megatron-args hashed.sh 2 3 --ignore-unknown-flags --print-config
prints '^  num_layers: 2$'
prints '^  nproc: 2$'
run 2 train --from-megatron-args hashed.sh
warns 'reads \$1 to \$2'
holds "a script with unknown flags is refused with all of them unless told otherwise; its arguments and its launcher's number of ranks count"

echo "eval"
run 0 eval "${tiny[@]}" --data.split=80,10,10 --train.eval_iters=2 --checkpoint.load=ck
cp out eval1
run 0 eval "${tiny[@]}" --data.split=80,10,10 --train.eval_iters=2 --checkpoint.load=ck --nproc 4 --parallel.tensor_model_parallel_size=2 \
  --parallel.pipeline_model_parallel_size=2
for split in validation test; do
  one=$(grep -oE "$split loss at .*value: [^ ]*" eval1) || fail "eval prints no $split loss"
  four=$(grep -oE "$split loss at .*value: [^ ]*" out) || fail "eval on 4 ranks prints no $split loss"
  python3 -c 'import sys; a, b = (float(text.split()[-1]) for text in sys.argv[1:]); sys.exit(abs(a - b) > 5e-6)' "$one" "$four" ||
    fail "'$one' and '$four'"
  holds "$split loss on 1 rank and on tp 2 x pp 2: ${one##* } and ${four##* }"
done
wc -l < metrics.jsonl > lines_before
run 0 eval --load ck --train.eval_iters=2
diff <(grep 'lm loss value' eval1) <(grep 'lm loss value' out) || fail "eval without a config evaluates something else"
wc -l < metrics.jsonl | cmp - lines_before || fail "eval writes into the training run's metrics"
run 2 eval --load ck --train.eval_iters=0
warns 'train.eval_iters = 0, .*give --train.eval_iters=N'
run 2 eval "${tiny[@]}"
warns '--load DIR'
run 2 eval
warns '--load DIR'
run 3 eval --load nowhere
warns 'no checkpoint in nowhere'
holds "eval takes its configuration from the checkpoint; without --load it says so"

echo "generate"
sampling=(--load ck --prompt "Document" --max-new-tokens 40 --temperature 0.9 --top-k 20 --top-p 0.95 --seed 3)
grid=(--nproc 4 --parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2)
run 0 generate "${sampling[@]}" && cp out text1
[ "$(head -c 8 text1)" = Document ] && [ "$(wc -c < text1)" -ge 12 ] || fail "generated: $(cat text1)"
run 0 generate "${sampling[@]}" && cmp out text1 || fail "the same seed gave another text"
run 0 generate "${sampling[@]}" "${grid[@]}" && cmp out text1 || fail "tp 2 x pp 2 gave another text: $(cat out text1)"
run 0 generate "${sampling[@]}" --nproc 2 --backend gloo --parallel.tensor_model_parallel_size=2 && cmp out text1 || fail "gloo gave another text"
run 0 generate "${sampling[@]}" --seed 4
cmp -s out text1 && fail "another seed gave the same text"
run 0 generate --load ck --prompt Document --prompt "It ends" --prompt-file <(printf 'Document 7') --max-new-tokens 8 --temperature 0
mv out both
for prompt in Document "It ends" "Document 7"; do
  run 0 generate --load ck --prompt "$prompt" --max-new-tokens 8 --temperature 0
  cat out >> each
done
cmp both each || fail "three prompts give $(cat both), each alone $(cat each)"
holds "several prompts are each continued, in order"
holds "same seed, same text: again, on tp 2 x pp 2 threads, on tp 2 gloo; another seed, another text"
run 0 generate --load ck --prompt "Document" --max-new-tokens 8 --temperature 0
head -c -1 out > whole
printf Document > grown
for _ in $(seq 8); do # one token per run: nothing is cached from the previous run
  run 0 generate --load ck --prompt-file grown --max-new-tokens 1 --temperature 0
  head -c -1 out > grown
done
cmp whole grown || fail "greedy with the cache: $(cat whole), recomputed: $(cat grown)"
[ "$(wc -c < whole)" = 16 ] || fail "8 tokens were not made: $(cat whole)"
holds "greedy with the cache is what recomputing each token gives: '$(cat whole)'"
printf 'ab\0cd' > nul
run 0 generate --load ck --prompt-file nul --max-new-tokens 1 --temperature 0
head -c 5 out | cmp - nul || fail "a prompt with a NUL was cut: $(od -c out | head -n 2)"
for command in "ranks --nproc 4" "generate --load ck --prompt a --max-new-tokens 1"; do
  code=0
  # shellcheck disable=SC2086
  "$metroplex" $command > /dev/full 2> err || code=$?
  [ $code = 3 ] && grep -q 'could not be written' err || fail "$command > /dev/full ended with $code: $(cat err)"
done
for limit in 30000 40000 50000 60000; do # KiB; some end in a library's destructor, where nothing can be caught
  code=0
  (ulimit -v $limit && exec "$metroplex" ranks --nproc 16384 --json > out 2> err) || code=$?
  [ $code = 2 ] && grep -q '^metroplex: \[memory\] out of memory' err || fail "ranks in $limit KiB ended with $code: $(cat err)"
done
run 2 ranks --nproc 16777217
warns 'at most 16777216 ranks'
mkfifo picture
timeout 10 cat picture > drawn &
run 0 ranks --nproc 4 --svg picture
wait $!
[ -p picture ] && grep -q '^<svg' drawn && held || fail "a picture into a pipe: $(head -c 100 drawn)"
holds "a NUL in the text stays; output that cannot be written is exit code 3; pictures go into pipes; little memory is said"

echo "Closed standard streams"
closed=("${tiny[@]}" "${mock[@]}" --train.train_iters=3 --optim.lr_warmup_iters=0)
"$metroplex" train "${closed[@]}" --train.metrics_file=closed1.jsonl >&- 2> err || fail "train with stdout closed ended with $?"
"$metroplex" train "${closed[@]}" --train.metrics_file=closed2.jsonl <&- >&- 2>&- || fail "train with all of them closed ended with $?"
"$metroplex" train "${closed[@]}" --train.metrics_file=closed3.jsonl --nproc 2 --backend gloo <&- >&- 2>&- ||
  fail "train on two processes with all of them closed ended with $?"
for file in closed1 closed2 closed3; do
  python3 -c 'import json, sys; assert [json.loads(line)["iteration"] for line in open(sys.argv[1])] == [1, 2, 3]' $file.jsonl ||
    fail "$file.jsonl holds: $(head -n 3 $file.jsonl)"
done
holds "what is printed to a closed stream does not land in a file of the run"

echo "A launcher of one's own: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
base=("${tiny[@]}" --train.train_iters=5)
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 60 "$metroplex" train \
    "${base[@]}" --train.metrics_file=launched.jsonl > rank$rank.out 2> rank$rank.err &
  pids[rank]=$!
done
for rank in 0 1; do
  wait "${pids[rank]}" || { cp rank$rank.err err; fail "rank $rank ended with $?"; }
done
run 0 train "${base[@]}" --nproc 2 --train.metrics_file=threads.jsonl
same_losses threads.jsonl launched.jsonl 0
[ "$(grep -c ' iteration ' rank0.out)" = 5 ] && [ "$(grep -c ' iteration ' rank1.out || true)" = 0 ] || fail "not only rank 0 prints the lines"
holds "2 processes over gloo: losses equal to 2 threads, bit for bit; only rank 0 prints"
code=0
RANK=0 WORLD_SIZE=2 timeout 20 "$metroplex" train "${base[@]}" > out 2> err || code=$?
[ $code = 4 ] && grep -q MASTER_ADDR err || fail "half an environment ended with $code"
holds "half of the variables: an error that names the missing one"

echo "What needs no tensors starts without libtorch"
libraries=$(ldd "$metroplex")
case "$libraries" in *libtorch* | *libc10*) fail "metroplex links libtorch: commands without tensors would wait for it" ;; esac
holds "$(wc -l <<< "$libraries") libraries"

echo "Context parallelism"
packed=("${tiny[@]}" --precision.params_dtype=fp64 --data.reset_attention_mask=true --data.reset_position_ids=true --train.seq_length=64)
run 0 train "${packed[@]}" --nproc 1 --train.metrics_file=whole.jsonl
for cut in zigzag balanced; do
  run 0 train "${packed[@]}" --nproc 4 --cp 2 --tp 2 --parallel.sequence_parallel=true --parallel.cp_comm_type=p2p,all_gather \
    --parallel.context_parallel_cut=$cut --parallel.data_parallel_sharding_strategy=optim --train.metrics_file=$cut.jsonl
  # float64 losses below 8, whose unit in the last place is 9e-16: this allows sums of a million terms over 8 steps.
  same_losses whole.jsonl $cut.jsonl 1e-12
done
run 0 train "${packed[@]}" --nproc 1 --optim.lr=0.01000001 --train.metrics_file=other.jsonl
! python3 "$apps/metrics.py" compare other.jsonl whole.jsonl 1e-12 > compared || fail "a rate a millionth off was not seen"
run 2 train "${tiny[@]}" --nproc 2 --cp 2 --train.seq_length=18
warns 'train.seq_length = 18: must be a multiple of 4, twice parallel.context_parallel_size = 2'
holds "a packed corpus has the same losses with cp 2 x tp 2; a length without a zigzag is refused"

echo "verify, ranks, schedule, inspect"
run 0 verify "${tiny[@]}" "${mock[@]}" "${grid[@]}" --steps 2
prints '^EQUAL'
prints '^  optim.lr_decay_style: cosine \(constant in the comparison\)'
prints '^  optim.adam_eps: '
run 0 verify "${tiny[@]}" "${mock[@]}" --nproc 2 --data.reset_attention_mask=true --data.eod_mask_loss=true --steps 1 \
  --optim.lr_decay_style=constant --optim.lr_warmup_iters=0 --optim.adam_eps=1e-5 --precision.params_dtype=fp64
prints '^EQUAL'
grep -q 'not compared' out && fail "verify leaves out what it compares: $(cat out)"
run 0 verify "${tiny[@]}" "${mock[@]}" --nproc 2 --steps 1 --optim.lr_decay_style=WSD --optim.lr_wsd_decay_iters=2
prints 'lr_decay_style: WSD \(constant'
run 2 verify "${tiny[@]}" "${mock[@]}"
warns 'nothing was compared'
run 2 verify "${tiny[@]}" "${mock[@]}" "${grid[@]}" --optim.optimizer=lion --model.family=gpt
warns 'depend on the layout, so nothing was compared'
warns "^  optim.optimizer = lion: .* the keys' bias \(model.add_bias_linear = true\) .*; set optim.optimizer to adam"
run 0 verify "${tiny[@]}" "${mock[@]}" "${grid[@]}" --cuda-graphs
prints '^CAPTURABLE: .* [0-9]{3,} operations on rank 0, .* [0-9]{2,}; 0 findings'
experts=(--model.family=mixtral --model.num_moe_experts=4)
run 0 verify "${tiny[@]}" "${mock[@]}" "${experts[@]}" --cuda-graphs
run 5 verify "${tiny[@]}" "${mock[@]}" "${experts[@]}" --nproc 2 --parallel.expert_model_parallel_size=2 \
  --model.moe_token_dispatcher_type=alltoall --cuda-graphs
prints '^rank 1: another shape: all_to_all of forward of decoder\.layers\.0, decoder\.layers\.0\.mlp\.dispatch: '
run 5 verify "${tiny[@]}" "${mock[@]}" "${experts[@]}" --model.moe_grouped_gemm=false --cuda-graphs
prints '^one rank, in a closed arena: the host reads values: read_on_host of forward of decoder\.layers\.1, '
prints '^NOT CAPTURABLE: .* findings$'
run 2 verify "${tiny[@]}" "${mock[@]}" --nproc 2 --parallel.context_parallel_size=2 --data.reset_attention_mask=true --cuda-graphs
warns 'train.cuda_graph_impl = full_iteration: .*parallel.cp_comm_type = p2p sends; set cp_comm_type to a2a$'
run 0 ranks --nproc 8 --tp 2 --pp 2 --json
python3 -c 'import json; json.load(open("out"))' || fail "ranks --json"
run 0 ranks --nproc 8 --tp 2 --pp 2 --rank 3 --group mp --json
python3 - << 'PYTHON' || fail "ranks --rank 3 --group mp --json"
import json
ranks = json.load(open("out"))
assert [entry["rank"] for entry in ranks["ranks"]] == [3], ranks["ranks"]
assert ranks["group"] == {"name": "mp", "groups": [[2, 3, 6, 7]]}, ranks["group"]
assert ranks["groups"]["tp"] == [[2, 3]] and all(3 in group for groups in ranks["megatron_groups"].values() for group in groups)
PYTHON
run 0 ranks --nproc 8 --tp 2 --pp 2 --group embedding
prints '^EMBEDDING_GROUP: 4 groups$'
run 0 ranks --world_size 16 --tensor_model_parallel_size=4 --pp 2
prints '16 ranks'
holds "options take underscores; ranks --json keeps to --rank and --group; --group takes short names"
run 0 ranks --nproc 16 --tp 4 --svg ranks.svg
run 0 schedule --pp 2 --vpp 2 --microbatches 4 --svg schedule.svg
python3 -c 'import xml.dom.minidom as m; [m.parse(f) for f in ("ranks.svg", "schedule.svg")]' || fail "an SVG does not parse"
for width in 60 100 200; do
  COLUMNS=$width run 0 schedule --pp 4 --vpp 2 --microbatches 16
  [ "$(grep '^rank' out | wc -L)" -le $width ] || fail "schedule is $(grep '^rank' out | wc -L) columns wide on a terminal of $width"
  [ "$(grep '^rank' out | wc -L)" -ge $((width * 6 / 10)) ] || fail "schedule leaves most of $width columns empty"
  python3 - "$metroplex" $width << 'PYTHON' || fail "schedule on a terminal of $width columns"
import fcntl, os, pty, re, struct, subprocess, sys, termios
terminal, its_end = pty.openpty()
fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[2]), 0, 0))
environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
process = subprocess.Popen([sys.argv[1], "schedule", "--pp", "4", "--microbatches", "40"], stdout=its_end, env=environment)
os.close(its_end)
text = b""
try:
    while part := os.read(terminal, 65536): text += part
except OSError: pass
assert process.wait() == 0
rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in text.decode().splitlines() if row.startswith("rank")]
sys.exit(not (len(rows) == 4 and max(map(len, rows)) <= int(sys.argv[2])))
PYTHON
done
run 0 schedule --pp 4 --microbatches 40 --columns 30
[ "$(grep '^rank' out | wc -L)" -le 62 ] || fail "--columns 30"
holds "schedule draws for the width of the terminal"
run 0 schedule --pp 4 --microbatches 9 --backward 2.5 --p2p 0.1 --rank-factors 1,1,1,1.2 --compare
[ "$(awk 'NR > 1 {print $1}' out | xargs)" = "gpipe 1f1b zb_h1 zb_h2 zb_v dualpipe_v searched" ] ||
  fail "schedule --compare: other rows"
prints "^zb_h2 .* more than --live$"
awk 'NR > 1 && $1 != "searched" && !/more than/ && (!best || $3 < best) {best = $3} $1 == "searched" {found = $3} END {exit !(found <= best)}' out ||
  fail "schedule --compare: the searched schedule is longer than a fixed one"
run 0 schedule --pp 4 --microbatches 9 --backward 2.5 --p2p 0.1 --rank-factors 1,1,1,1.2 --schedule searched
run 2 schedule --pp 4 --rank-factors 1,1
warns '--rank-factors has 2 numbers'
run 2 schedule --backward 1 --weight 2
run 2 schedule --compare --json
warns '--json excludes --compare'
run 2 schedule --schedule zb_h1 --overlap-experts
warns '--overlap-experts has no effect with the schedule zb_h1'
run 2 schedule --forward inf
warns 'above 1e12'
holds "schedule compares schedules and searches one"
run 0 schedule --pp 4 --microbatches 8 --graphs --layers 32 --hidden-size 2048
prints '^rank 3 .* instances 1$'
prints '^   0 +8 +4 +4 +64 +128 +64 +512.0 MiB +512.0 MiB +80.0 MiB +512.0 MiB$'
prints 'graphs: 2 x layers x instances of their chunk; .* 2 x layers x microbatches; bound: 2 x layers x pp'
for modules in "--cuda-graph-modules attn,mlp" "--cuda-graph-modules attn mlp" "--cuda-graph-scope mlp attn" "--cuda_graph_modules=mlp,attn"; do
  # shellcheck disable=SC2086
  run 0 schedule --pp 2 --microbatches 4 --layers 4 --graphs $modules
  [ ! -e modules ] || cmp -s out modules || fail "schedule $modules: another plan"
  mv out modules
done
run 2 schedule --pp 2 --microbatches 4 --layers 4 --graphs --cuda-graph-modules attn mlpp
warns "cuda-graph-modules mlpp: "
holds "schedule takes both forms of the list of modules"
run 0 schedule --pp 2 --vpp 2 --microbatches 4 --graphs --layout 'Et|tt|t|tL' --json
python3 - << 'PYTHON' || fail "schedule --graphs --json"
import json
ranks = [rank["graphs"] for rank in json.load(open("out"))["ranks"]]
assert [rank["layers_of_chunk"] for rank in ranks] == [[1, 1], [2, 1]]
for rank in ranks:
    layers, instances = rank["layers_of_chunk"], [set(chunk) for chunk in rank["instance_of_microbatch"]]
    assert set.union(*instances) == set(range(rank["instances"]))
    assert rank["graphs"] == len(rank["captures"]) == 2 * sum(l * len(i) for l, i in zip(layers, instances))
    assert rank["megatron_graphs"] == 2 * sum(layers) * 4 and rank["bound"] == 2 * sum(layers) * 2
    most = [max(l for l, i in zip(layers, instances) if n in i) for n in range(rank["instances"])]
    assert rank["input_bytes"] == sum(most) * 4096 * 4096 * 2
PYTHON
holds "schedule draws and counts the graph instances"
run 0 schedule --pp 8 --vpp 4 --microbatches 32 --graphs --layers 32 --json
python3 - << 'PYTHON' || fail "schedule --graphs: more instances than live passes"
import json
for rank in json.load(open("out"))["ranks"]:
    assert rank["graphs"]["instances"] == rank["live_activations"], rank["rank"]
PYTHON
holds "a rank has as many graph instances as live passes"
run 0 schedule --sequence --cp 4 --lengths 137,2041,89,1829 --svg sequence.svg
prints '^rank 3 .* 1024 tokens, area 2[45]\.[0-9]+ %, gets [0-9]+ keys$'
python3 -c 'import xml.dom.minidom as m; m.parse("sequence.svg")' || fail "the SVG of a cut does not parse"
run 0 schedule --sequence --cp 2 --cut zigzag --lengths 8 --json
python3 -c 'import json; r = json.load(open("out")); assert r["ranks"][1]["keys_from"] == {"0": [[0, 2]]}, r' || fail "schedule --sequence --json"
run 2 schedule --sequence --cp 3 --cut zigzag --lengths 8
warns '2 cp = 6 equal chunks'
for lengths in '5 0' '5 0\n' '5 x' '5 2147483648' '5 99999999999999999999'; do
  printf "$lengths" > lengths.txt
  run 3 schedule --sequence --cp 2 --lengths-file lengths.txt
  warns 'lengths.txt.*entry 2'
done
holds "schedule --sequence draws a cut of packed documents and refuses what it cannot cut"
run 0 inspect ck --json
python3 -c 'import json; assert json.load(open("out"))["latest"] == "iter_0000060"' || fail "inspect --json"
run 0 inspect corpus --json
python3 -c 'import json; assert json.load(open("out"))["documents"] == 40' || fail "inspect of the dataset"
holds "verify is EQUAL on tp 2 x pp 2; JSON and SVG of ranks, schedule and inspect parse"

echo "experts"
experts=(--nproc 2 --model.num_moe_experts=4 --parallel.expert_model_parallel_size=2 --model.moe_aux_loss_coeff=0.01
  --train.log_experts_interval=4 --train.expert_trace_file=moe/experts.jsonl --train.metrics_file=moe/metrics.jsonl)
mkdir moe
run 0 train "${tiny[@]}" "${experts[@]}" --train.exit_interval=4 --checkpoint.save=moe/ck --checkpoint.save_interval=4
prints 'iteration +4/ +8 .* lm loss: [0-9.E+]+ \| load_balancing_loss: [0-9.E+-]+ \| loss scale'
prints '^ experts: tokens of an expert, mean of 4 steps'
[ "$(grep -cE '^ +[01]( +[0-9]+){5} +\|(( +[0-9]+\.[0-9]{3}){3} \|){2} +0.00% \| +[0-9.]+ +[0-9.]+$' out)" = 2 ] || fail "no table of two layers"
run 0 train "${tiny[@]}" "${experts[@]}" --checkpoint.load=moe/ck
python3 - << 'PYTHON' || fail "the trace or the metrics are not what the model routes"
import json
head, *steps = map(json.loads, open("moe/experts.jsonl"))
assert head == {"expert_trace": 1, "num_experts": 4, "topk": 2, "ep": 2, "etp": 1, "layers": [0, 1]}, head
assert [step["iteration"] for step in steps] == list(range(1, 9))
for step in steps:  # 4 samples of 16 tokens, half of them on each rank
    assert [[sum(source) for source in layer] for layer in step["tokens"]] == [[64, 64], [64, 64]], step
lines = [json.loads(line) for line in open("moe/metrics.jsonl")]
assert [line["iteration"] for line in lines if "experts" in line] == [4, 8]
assert all(0.5 < line["load_balancing_loss"] < 4 for line in lines)
for row, layer in enumerate(lines[3]["experts"]):
    sums = [sum(step["tokens"][row][source][e] for step in steps[:4] for source in (0, 1)) for e in range(4)]
    assert layer["layer"] == row and layer["tokens max"] == max(sums) / 4 and layer["tokens min"] == min(sums) / 4
    each = [[sum(step["tokens"][row][source][e] for source in (0, 1)) for e in range(4)] for step in steps[:4]]
    uneven = [max(loads) * 4 / sum(loads) for loads in each]
    # Ratios of integers below 4, three roundings of 2^-53 each, and four of them added: 7 * 4 * 2^-53 = 3e-15.
    assert layer["steps"] == 4 and abs(layer["experts max over mean of a step"] - sum(uneven) / 4) < 4e-15
    assert abs(layer["experts max over mean of the worst step"] - max(uneven)) < 4e-15
PYTHON
holds "a table every 4 iterations, the losses of the router, a trace that a restarted run goes on with"
run 0 experts moe --svg experts.svg
prints '^tokens of the 4 experts, iterations 1-8$'
prints '^  layer 1 \|.*\|'
run 0 experts moe/experts.jsonl --layer 1 --iteration 3 --json
python3 -c 'import json, xml.dom.minidom as m; m.parse("experts.svg"); l, = json.load(open("out"))["layers"]; assert l["layer"] == 1 and sum(l["tokens"]) == 128 == sum(l["ranks"])' || fail "experts --json or --svg"
run 2 experts moe --layer 7
warns 'layer 7.*the layers 0, 1'
run 3 experts text
warns 'contains no expert trace'
holds "metroplex experts draws it, finds it in a folder, and refuses what is not there"

echo "tokenizer and preprocess"
run 0 tokenizer train --input text/*.txt --output words --vocab-size 300 --model-type bpe
run 0 tokenizer train --input text/*.txt --output new/folder/words --vocab-size 300
cmp words.model new/folder/words.model || fail "new/folder was not made"
run 0 tokenizer encode --model words.model --text 'Document 7 counts: 7 8 9.'
cp out ids
run 0 tokenizer decode --model words.model --input ids
[ "$(cat out)" = 'Document 7 counts: 7 8 9.' ] || fail "decoded: $(cat out)"
run 0 preprocess --input text --tokenizer-model words.model --append-eod --output-prefix words --workers 2
run 0 preprocess --input text --tokenizer-model words.model --append-eod --output-prefix words1 --workers 1
cmp words.bin words1.bin && cmp words.idx words1.idx || fail "one worker and two give other files"
for share in 0 1; do
  run 0 preprocess --input text --tokenizer-model words.model --append-eod --output-prefix part$share --partition $share/2
done
run 0 preprocess --merge part0 part1 --output-prefix merged
run 0 inspect merged --json
python3 -c 'import json; assert json.load(open("out"))["documents"] == 40' || fail "merged"
holds "encode and decode are inverse; 1 and 2 workers give the same files; partitions merge"
run 3 preprocess --merge part0 part1 --output-prefix merged
warns "merged.bin'.*--overwrite"
run 0 preprocess --merge part0 part1 --output-prefix merged --overwrite
cp merged.bin before.bin
run 3 preprocess --merge merged part1 --output-prefix new/../merged --overwrite
warns "'merged' would be merged into itself"
cmp merged.bin before.bin || fail "a refused merge changed the dataset"
other=("${tiny[@]}" --data.data_path=words --train.train_iters=1 --optim.lr_warmup_iters=0 --model.vocab_size=512)
run 3 train "${other[@]}" --data.tokenizer_type=bytes
warns "dataset 'words': its tokens were made with the tokenizer sentencepiece of 300 ids with the checksum [0-9a-f]*, but the tokenizer of this run is bytes of"
run 3 train "${other[@]}" --data.tokenizer_type=bytes --dry-run
run 0 train "${other[@]}" --data.tokenizer_type=bytes --data.allow_other_tokenizer=true
run 0 train "${other[@]}" --data.tokenizer_type=sentencepiece --data.tokenizer_model=words.model --train.metrics_file=learned.jsonl
run 3 train "${other[@]}" --data.tokenizer_type=sentencepiece --data.tokenizer_model=words.model --train.metrics_file=merged.bin
warns 'train.metrics_file = merged.bin exists and is not a metrics file'
cmp merged.bin before.bin && [ ! -e merged.bin.1 ] || fail "a dataset gave way to metrics"
ln -s learned.jsonl linked.jsonl
run 0 train "${other[@]}" --data.tokenizer_type=sentencepiece --data.tokenizer_model=words.model --train.metrics_file=linked.jsonl
[ -L linked.jsonl ] && [ -e learned.jsonl ] && [ -e learned.jsonl.1 ] || fail "metrics did not go through a link"
holds "data of another tokenizer is refused; no dataset gives way to a merge, a tokenizer or metrics"
mkdir -p hf && cp words.model hf/tokenizer.model
by_folder=(preprocess --input text --tokenizer-model hf --append-eod --output-prefix by_folder)
run 0 "${by_folder[@]}"
run 0 "${by_folder[@]}"
run 3 tokenizer train --input text/00*.txt --output hf/tokenizer --vocab-size 300 --model-type bpe
warns "hf/tokenizer.model'.*--overwrite"
cmp hf/tokenizer.model words.model || fail "a refused training changed the tokenizer"
run 0 tokenizer train --input text/00*.txt --output hf/tokenizer --vocab-size 300 --model-type bpe --overwrite
run 3 "${by_folder[@]}"
warns "by_folder.bin'.*--overwrite"
cmp by_folder.bin words.bin || fail "the refused job changed the dataset"
run 0 "${by_folder[@]}" --overwrite
cmp -s by_folder.bin words.bin && fail "both tokenizers give one dataset: the comparison says nothing"
run 3 preprocess --merge words by_folder --output-prefix never
warns "'words' was made with the tokenizer sentencepiece of 300 ids with the checksum [0-9a-f]+ and 'by_folder' with .*by_folder.preprocess.json"
run 3 preprocess --input words.bin --tokenizer-type bytes --output-prefix never
warns "words.bin' .*a token dataset.*--merge"
holds "another tokenizer in the same folder is another job, whose dataset is replaced only with --overwrite; .bin is no text"
