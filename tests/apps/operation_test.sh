#!/usr/bin/env bash
# System limits, leftovers of killed commands, manually changed files, and readers that do not read.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$apps/running.sh"
make_corpus
run 0 train "${tiny[@]}" --checkpoint.save=saved --checkpoint.save_interval=4

echo "Leftovers of a killed convert"
mkdir -p again.part
touch again.part/.unfinished again.part/half
run 0 convert saved --to checkpoint again
[ ! -e again.part ] && [ ! -e again/.unfinished ] || fail "leftovers stay"
run 0 inspect again --verify
run 3 convert saved --to checkpoint again
warns "'again' already exists"
mkdir -p mine.part
touch mine.part/data
run 3 convert saved --to checkpoint mine
[ -e mine.part/data ] && [ ! -e mine ] || fail "a folder that is not a leftover was removed"
for fraction in 1 2 3 4 5; do # kill convert at any time: the target is whole or missing, and the command can be repeated
  rm -rf killed
  "$metroplex" convert saved --to checkpoint killed > out 2> err &
  job=$!
  sleep 0.00$fraction
  kill -KILL $job 2> /dev/null || true
  wait $job 2> /dev/null || true
  [ -e killed ] || run 0 convert saved --to checkpoint killed
  run 0 inspect killed --verify
done
holds "a killed convert --to checkpoint can be repeated"

echo "Two commands that write one directory"
exec 9> locked.part.lock
flock 9
for to in checkpoint hf; do
  run 3 convert saved --to $to locked
  warns "another run is writing 'locked'; wait until it finishes, or choose another directory"
done
[ ! -e locked ] && [ ! -e locked.part ] || fail "a refused convert writes"
exec 9>&-
run 0 convert saved --to hf locked
[ ! -e locked.part ] && [ ! -e locked.part.lock ] || fail "a lock stays"
run 0 train "${tiny[@]}" --run.seed=8 --checkpoint.save=other
run 0 convert saved --to hf from_saved
run 0 convert other --to hf from_other
for turn in 1 2 3 4; do
  for from in saved other; do
    timeout -k 5 60 "$metroplex" convert $from --to hf at_once_$turn > $from.out 2> $from.err &
    declare "pid_$from=$!"
  done
  written=
  for from in saved other; do
    code=0
    pid=pid_$from
    wait "${!pid}" || code=$?
    case $code in
      0) written=$written$from ;;
      3) grep -qE "another run is writing 'at_once_$turn'|'at_once_$turn' already exists" $from.err || fail "$from: $(cat $from.err)" ;;
      *) fail "convert of $from ended with $code: $(cat $from.err)" ;;
    esac
  done
  [ "$written" = saved ] || [ "$written" = other ] || fail "'$written' says that it wrote the directory"
  cmp at_once_$turn/model.safetensors "from_$written/model.safetensors" || fail "the weights are not those of $written"
  held
done
holds "of two commands one writes the directory, the other is refused"

echo "Limits of memory that libtorch does not survive"
for limit in "d 40000 RLIMIT_DATA" "s 64 RLIMIT_STACK"; do
  read -r option kibibytes name <<< "$limit"
  code=0
  (ulimit -$option $kibibytes && timeout -k 5 60 "$metroplex" train "${tiny[@]}" --nproc 2) > out 2> err < /dev/null || code=$?
  [ $code = 2 ] || fail "$name: ended with $code"
  warns "$name = [0-9]+ bytes: must be at least [0-9]+; raise it"
done
holds "limits that are too low are named"

echo "Checkpoint folders changed by hand"
cp -a saved swapped
mv swapped/iter_0000004 swapped/x && mv swapped/iter_0000008 swapped/iter_0000004 && mv swapped/x swapped/iter_0000008
run 3 inspect swapped/iter_0000004 --verify
prints "DAMAGED .*has the name of iteration 4, .*iteration 8"
run 3 train "${tiny[@]}" --checkpoint.load=swapped
warns 'has the name of iteration 8, .*iteration 4'
holds "two swapped checkpoint folders are refused, with both iterations"
cp -a saved fifo
rm fifo/latest
mkfifo fifo/latest
run 0 train "${tiny[@]}" --checkpoint.load=fifo
warns "'fifo/latest' is not a regular file"
prints 'loaded checkpoint fifo/iter_0000008'
rm fifo/latest
mkdir fifo/latest
run 3 inspect fifo
prints "DAMAGED  'fifo/latest' is not a regular file"
holds "latest that is no file is reported, and the newest checkpoint is loaded"

echo "Limits of threads"
for backend in threads gloo; do
  code=0
  (ulimit -s 1000000 -v 6000000 && timeout -k 5 60 "$metroplex" train "${tiny[@]}" "${mock[@]}" --nproc 1 --run.backend=$backend \
    --run.threads_per_rank=16) > out 2> err < /dev/null || code=$?
  [ $code = 2 ] || fail "$backend: without threads the run ended with $code"
  warns 'only [0-9]+ of [0-9]+ threads can be started'
done
holds "threads that cannot be started end a run with a message"

echo "A pipe whose reader does not read"
mkfifo pipe
sleep 300 < pipe &
reader=$!
"$metroplex" train "${long[@]}" --train.metrics_file=piped.jsonl --checkpoint.save=piped --checkpoint.save_interval=100000000 > pipe 2> piped.err &
job=$!
lines=-1
for _ in $(seq 200); do
  sleep 1
  now=$([ ! -e piped.jsonl ] || wc -l < piped.jsonl)
  [ "$now" != "$lines" ] || [ "${now:-0}" = 0 ] || break
  lines=$now
done
kill -TERM $job
touch piped.out
ended_with 16 piped 20
[ -e piped/latest ] || fail "nothing was saved"
kill $reader
holds "SIGTERM saves and ends a run that waits for a full pipe"

for columns in 40 60; do
  COLUMNS=$columns "$metroplex" ranks --nproc 8 > out
  [ "$(awk '{ if (length($0) > most) most = length($0) } END { print most }' out)" -le $columns ] || fail "wider than $columns columns"
done
held 2
COLUMNS=60 "$metroplex" ranks --nproc 64 --tp 8 > out
[ "$(awk '{ if (length($0) > most) most = length($0) } END { print most }' out)" -le 60 ] || fail "wider than 60 columns"
held
holds "ranks fits into the terminal"
