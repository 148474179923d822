#!/usr/bin/env bash
# A dry run describes a run without starting it; a run that cannot fit is rejected before it allocates memory.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus

# measured CODE ARGUMENTS...: as run; writes the peak of the process's own memory, in KiB, to $work/rss. Its address
# space is limited to 16 GiB, so that an accidental run does not exhaust the machine.
measured() {
  local expected=$1
  shift
  python3 - "$expected" "$work" "$metroplex" "$@" <<'PYTHON' || fail "metroplex $*"
import os, resource, subprocess, sys
expected, work, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
with open(work + "/out", "w") as out, open(work + "/err", "w") as err:
    code = subprocess.run(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, timeout=90,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))).returncode
open(work + "/rss", "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code != expected)
PYTHON
  held
}
json() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$work/out" "$1"; }
# Function `says EXPRESSION VALUE`: compares an expression of the JSON `d` in $work/out.
says() {
  local got
  got=$(json "$1")
  [ "$got" = "$2" ] || fail "$1 is $got, not $2"
  held
}

gpt3=("${mock[@]}" --model.family=gpt --model.num_layers=96 --model.hidden_size=12288 --model.num_attention_heads=96
  --model.vocab_size=50257 --train.seq_length=2048 --train.micro_batch_size=1 --train.global_batch_size=1536
  --train.train_iters=100000 --precision.params_dtype=bf16)

echo "A dry run"
ls > before
run 0 train "${tiny[@]}" --nproc 4 --parallel.tensor_model_parallel_size=2 --checkpoint.save=ck --checkpoint.save_interval=5 --train.tensorboard_dir=tb --dry-run
! grep -q '^model:' out || fail "a dry run prints the configuration"
for word in "4 ranks: tensor 2, pipeline 1, data 2" "^  parameters +[0-9.]+ thousand in all" "^  operations " \
  "bubble 0.0 %" "128 in all|512 in all" "corpus: .* tokens in 39 documents" "epochs$" "main parameters|gradients" "it fits"; do prints "$word"; done
rm -f out err
[ "$(ls | grep -v -x before)" = "$(grep -v -x before before)" ] || fail "a dry run wrote something: $(ls)"
holds "says what the run would be and writes nothing"
run 0 train "${tiny[@]}" --nproc 4 --dry-run --print-config
prints '^  num_layers: 2$'
prints 'it fits'
run 0 train "${tiny[@]}" --nproc 4 --dry-run --json
says 'd["fits"], d["ranks"], d["layout"]["dp"]' "(True, 4, 4)"
says 'd["tokens"]["all"]' $((8 * 4 * 16))
says 'd["data"][0]["documents"] > 0 and d["data"][0]["epochs"] > 0' True
says 'd["config"]["model"]["hidden_size"]' 32
says 'all(isinstance(v, int) for r in d["memory"]["ranks"] for v in r["bytes"].values())' True
run 2 train "${tiny[@]}" --dry-run --model.num_attention_heads=3
warns 'num_attention_heads'
run 0 train "${tiny[@]}" --data.data_path=nowhere --dry-run
prints 'nowhere.idx does not exist'
run 3 train "${tiny[@]}" --data.tokenizer_type=sentencepiece --data.tokenizer_model=nowhere.model --dry-run
run 0 train "${tiny[@]}" --data.tokenizer_type=sentencepiece --data.tokenizer_model=nowhere.model --model.vocab_size=300 --dry-run
prints 'tokenizer was not checked'
run 2 train "${tiny[@]}" --schedules
warns '--schedules requires --dry-run'
holds "prints JSON, and names what it did not check"
pipe=("${tiny[@]}" --nproc 2 --pp 2 --model.num_layers=4)
run 0 train "${pipe[@]}" --dry-run --json --schedules
cp out schedules
says 'len(d["schedules"])' 9
for row in 3 8; do # zb_h1, and the searched V
  mapfile -t settings < <(python3 -c "import json, sys; print(*json.load(open('schedules'))['schedules'][$row]['settings'], sep='\n')")
  run 0 train "${pipe[@]}" "${settings[@]/#/--}" --dry-run --json
  says "d['memory']['need'] == json.load(open('schedules'))['schedules'][$row]['memory']" True
  says "d['pipeline']['bubble_share'] == json.load(open('schedules'))['schedules'][$row]['bubble_share']" True
done
run 0 train "${pipe[@]}" "${settings[@]/#/--}" --train.train_iters=3
holds "compares the schedules that the run allows, as runs with their settings"

echo "What a start would refuse"
# refused_alike CODE ARGUMENTS...: the dry run ends like the start of the run, with the same message.
refused_alike() {
  local expected=$1
  shift
  run "$expected" train "${tiny[@]}" "$@" --dry-run
  prints '^a start would be refused: '
  grep '^metroplex: ' err > refused
  run "$expected" train "${tiny[@]}" "$@"
  diff <(grep '^metroplex: ' err | sed 's/rank 0 (tp 0 pp 0 dp 0) failed: //') refused > compared || fail "$*: the dry run says something else than the start: $(cat compared)"
  held
}
save=(--checkpoint.save=saved --checkpoint.save_interval=8)
"$metroplex" preprocess --input text/001.txt text/002.txt --tokenizer-type bytes --append-eod --output-prefix other > out
run 0 train "${tiny[@]}" "${save[@]}"
refused_alike 3 "${save[@]}"
refused_alike 3 "${save[@]}" --checkpoint.load=saved --model.hidden_size=64
refused_alike 3 "${save[@]}" --checkpoint.load=saved --run.seed=99
refused_alike 3 "${save[@]}" --checkpoint.load=saved --train.seq_length=8
refused_alike 3 "${save[@]}" --checkpoint.load=saved --data.data_path=other
refused_alike 3 --checkpoint.load=nothing_here
for schedule in --optim.lr=0.5 --train.train_iters=16 --train.global_batch_size=8 --optim.lr_decay_style=linear; do
  refused_alike 2 "${save[@]}" --checkpoint.load=saved $schedule
  warns 'the schedules of this run and of its checkpoint differ'
done
run 0 train "${tiny[@]}" "${save[@]}" --checkpoint.load=saved --optim.lr=0.5 --optim.override_opt_param_scheduler=true --dry-run
refused_alike 3 --train.metrics_file=text/001.txt
refused_alike 3 --train.trace_file=text --train.trace_step_start=1 --train.trace_step_end=2
warns 'train.trace_file = text is a directory; choose another path'
for way in --dry-run --quiet; do # the error has the free bytes, which change
  run 2 train "${tiny[@]}" --train.eval_iters=1000000000 --train.eval_interval=1 --data.split=90,10,0 $way
  warns "split valid of '.*corpus': the order of [0-9]+ samples of 16 tokens"
done
refused_alike 3 --data.split=0,50,50
refused_alike 3 --data.split=99.99,0.01,0 --train.eval_interval=4 --train.eval_iters=1
run 3 train "${tiny[@]}" --checkpoint.save=out/below --checkpoint.save_interval=8 --dry-run
warns 'checkpoint.save = out/below: .*/out is not a directory'
run 3 train "${tiny[@]}" --checkpoint.save=out/below --checkpoint.save_interval=8
refused_alike 3 --data.data_path=text/001.txt
warns '  metroplex preprocess --input text/001.txt --tokenizer-type bytes --append-eod --output-prefix text/001_document'
$(grep -o 'metroplex preprocess .*' err | sed "s:^metroplex:$metroplex:") > out
run 0 train "${tiny[@]}" --data.data_path=text/001_document --data.split=1 --checkpoint.save=ended --data.num_workers=0
prints '^ saved checkpoint ended/iter_0000008'
[ "$(ls -d ended/iter_* | wc -l)" = 1 ] || fail "checkpoint.save without an interval saves at the end"
holds "text is no dataset, the line that makes one runs; without an interval a run saves at its end"
run 0 train "${tiny[@]}" "${save[@]}" --checkpoint.load=saved --dry-run --json
says 'd["refused"]' None
run 3 train "${tiny[@]}" "${save[@]}" --dry-run --json
says '"is not empty" in d["refused"] and d["fits"]' True
"$metroplex" train "${tiny[@]}" --train.train_iters=1000000 --checkpoint.save=living --checkpoint.save_interval=1000000 > living.out 2>&1 < /dev/null &
living=$!
for _ in $(seq 100); do grep -q '"pid"' living/.run 2> no_matter && break; sleep 0.1; done
run 3 train "${tiny[@]}" --checkpoint.save=living --checkpoint.save_interval=8 --checkpoint.load=living --dry-run
warns "checkpoint.save = living is in use by another run .*process $living,"
kill -9 $living
code=0
wait $living || code=$?
[ $code = 137 ] || fail "the run was not living any more: it ended with $code"
run 0 train "${tiny[@]}" --checkpoint.save=living --checkpoint.save_interval=8 --checkpoint.load=living --dry-run
holds "a folder that is taken, not empty or no folder, another model, seed or data, an empty split: the dry run ends as the start"

echo "A GPU, whether one is here or not"
run 0 train "${gpt3[@]}" --nproc 16384 --parallel.tensor_model_parallel_size=8 --parallel.pipeline_model_parallel_size=16 \
  --run.device=cuda --device-memory 80GiB --dry-run --json
says 'd["memory"]["domain"], d["memory"]["have"], d["memory"]["ranks_of_domain"]' "('gpu', $((80 * 1024 ** 3)), 1)"
says 'len(d["memory"]["ranks"]), d["fits"]' "(16, True)"
says '174e9 < d["parameters"]["all"] < 176e9' True
run 2 train "${gpt3[@]}" --nproc 16384 --parallel.tensor_model_parallel_size=8 --parallel.pipeline_model_parallel_size=16 \
  --backend nccl --memory.device_memory_gib=20 --dry-run --json
says 'd["fits"], len(d["memory_options"]["single"])' "(False, 3)"
says 'all(w["need"] == d["memory"]["need"] - w["saves"] for w in d["memory_options"]["single"])' True
run 0 train "${gpt3[@]}" --nproc 64 --run.device=cuda --device-memory 100TB --dry-run
holds "a GPU is told of, not looked for"

echo "A run that cannot fit"
run 0 train --help
measured 0 train --help
base=$(cat rss)
for backend in threads gloo; do
  measured 2 train "${gpt3[@]}" --model.num_layers=24 --nproc 2 --backend $backend --checkpoint.save=ck --checkpoint.save_interval=5
  warns '^metroplex: \[config\] this run cannot fit: the 2 ranks of a machine are predicted to hold [0-9.]+ TiB'
  warns ' main parameters +moments +activations '
  warns 'saves [0-9.]+ .iB'
  [ "$(grep -c '^metroplex: ' err)" = 1 ] || fail "more than one error"
  # One matrix of the model takes 300 MiB, a tenth of a layer's state.
  [ $(($(cat rss) - base)) -lt 300000 ] || fail "took $(cat rss) KiB, $base without a run"
  [ ! -e ck ] || fail "a folder was made"
  holds "$backend: refused with the table and the memory options, in $(cat rss) KiB ($base KiB for --help)"
done
# A machine just large enough for one of two ranks.
run 0 train "${tiny[@]}" --dry-run --json
need=$(json 'd["memory"]["need"] * 1.5 / 2**30')
run 2 train "${tiny[@]}" --nproc 2 --memory.device_memory_gib="$need"
run 0 train "${tiny[@]}" --nproc 1 --memory.device_memory_gib="$need"
prints '^ memory: rank 0 \(pp 0\) is predicted to hold .*; the machine has '
run 0 train "${tiny[@]}" --nproc 2 --memory.device_memory_gib="$need" --memory.check_fit=warn --train.exit_interval=1
warns '^warning: this run cannot fit'
run 0 train "${tiny[@]}" --nproc 2 --memory.device_memory_gib="$need" --memory.check_fit=off --train.exit_interval=1
grep -q 'predicted to hold' out err && fail "off is said to look"
holds "memory.check_fit = warn and off go on"
# A suggested memory option is sufficient. (Half of the memory of such a small run is the scratch memory of
# attention.)
run 0 train "${tiny[@]}" --train.micro_batch_size=4 --train.exit_interval=1 --dry-run --json
need=$(json 'd["memory"]["need"] * 0.95 / 2**30')
run 2 train "${tiny[@]}" --train.micro_batch_size=4 --memory.device_memory_gib="$need" --dry-run --json
way=$(json '" ".join("--" + s for w in d["memory_options"]["single"] if w["fits"] for s in w["settings"][:9] if w is d["memory_options"]["single"][0])')
run 0 train "${tiny[@]}" --train.micro_batch_size=4 --memory.device_memory_gib="$need" $way --train.exit_interval=1
holds "$way is enough"

echo "Ranks that a launcher started"
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 20000))
RANK=1 LOCAL_RANK=1 run 0 train "${tiny[@]}" --dry-run
[ ! -s out ] || fail "rank 1 prints"
RANK=0 LOCAL_RANK=0 run 0 train "${tiny[@]}" --dry-run
prints '2 ranks: '
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=$rank timeout -k 5 90 "$metroplex" train "${tiny[@]}" --memory.device_memory_gib=0.0001 > out.$rank 2> err.$rank < /dev/null &
  pids[rank]=$!
done
for rank in 0 1; do
  code=0
  wait "${pids[$rank]}" || code=$?
  [ $code = 2 ] || fail "rank $rank ended with $code: $(cat "err.$rank")"
  grep -q 'this run cannot fit: rank 0 reports' "err.$rank" || fail "rank $rank does not refuse: $(cat "err.$rank")"
done
grep -q 'moments' err.0 || fail "rank 0 does not say why"
! grep -q 'moments' err.1 || fail "rank 1 says why as well"
unset WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
holds "all refuse, rank 0 says why"
