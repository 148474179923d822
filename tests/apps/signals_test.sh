#!/usr/bin/env bash
# Signals, deaths and NaN: what ends a run, with which code, and what it says.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
long=("${tiny[@]}" --train.train_iters=1000000 --optim.lr_decay_iters=1000000)

# start NAME ARGUMENTS...: in the background; returns when the third iteration is printed. Sets $job.
start() {
  local name=$1
  shift
  rm -f "$name.out" # of a run before under this name
  "$metroplex" train "$@" > "$name.out" 2> "$name.err" < /dev/null &
  job=$!
  for _ in $(seq 1 600); do
    grep -qs 'iteration  *3/' "$name.out" && return
    kill -0 $job 2> /dev/null || break
    sleep 0.1
  done
  cp "$name.err" err
  fail "$name did not come to iteration 3"
}
# ended_with CODE NAME SECONDS: waits for $job.
ended_with() {
  local code=0 begun
  begun=$(date +%s%N)
  wait $job || code=$?
  took=$((($(date +%s%N) - begun) / 1000000))
  cp "$2.out" out && cp "$2.err" err
  [ $code = "$1" ] || fail "$2 ended with $code, not $1"
  [ $took -le $(($3 * 1000)) ] || fail "$2 took $took ms to end"
  held 2
}

# The rank processes that $job started.
children() { grep -l "^PPid:[[:space:]]*$job$" /proc/[0-9]*/status 2> /dev/null | cut -d/ -f3 || true; }

echo "SIGTERM and SIGINT save and end with code 16; the run can be resumed"
for form in threads gloo; do
  for signal in TERM INT; do
    # A background job of a script ignores SIGINT unless it is told otherwise: only the default is of interest here.
    layout=(--nproc 2 --backend $form --checkpoint.save=$form$signal --checkpoint.save_interval=1000000)
    if [ $signal = INT ]; then set -m; fi
    start $form$signal "${long[@]}" "${layout[@]}"
    set +m
    kill -$signal $job
    ended_with 16 $form$signal 10
    saved=$(sed -n 's/^ saved checkpoint .*iter_0*\([0-9]*\)$/\1/p' out | tail -n 1)
    [ -n "$saved" ] && [ "$(cut -d' ' -f1 < $form$signal/latest)" = "$(printf 'iter_%07d' "$saved")" ] || fail "nothing was saved"
    run 0 train "${long[@]}" "${layout[@]}" --checkpoint.load=$form$signal --train.exit_interval=1
    prints "loaded checkpoint $form$signal/iter_0*$saved at iteration $saved"
    prints "iteration  *$((saved + 1))/"
    holds "$form, SIG$signal: saved iteration $saved in $took ms, exit 16, resumed at $((saved + 1))"
  done
done

# ends_saved NAME: as a first signal ends a run, with one line that says so.
ends_saved() {
  ended_with 16 "$1" 10
  [ "$(grep -c 'saving and stopping after this step' err)" = 1 ] || fail "$1: not one line says what the signal does"
  grep -q '^ saved checkpoint' out && grep -q '^ stopped as asked after iteration' out || fail "$1: nothing was saved"
  rm -rf "$1"
}
# The first of its ranks, or the run itself where they are threads.
first_rank() {
  local ranks
  ranks=$(children)
  echo "${ranks%%$'\n'*}"
}
echo "One signal is one request, to whomever it is sent: the run is saved and ends with code 16"
for form in threads gloo; do
  for target in group launcher rank timeout; do
    [ "$form $target" != "threads rank" ] || continue
    for turn in 1 2; do
      name=one_${form}_$target$turn
      layout=("${long[@]}" --nproc 2 --backend $form --checkpoint.save=$name --checkpoint.save_interval=1000000)
      set -m # a group of its own
      if [ $target = timeout ]; then
        rm -f $name.out
        timeout -k 20 8 "$metroplex" train "${layout[@]}" > $name.out 2> $name.err < /dev/null &
        job=$!
      else
        start $name "${layout[@]}"
      fi
      set +m
      signal=$([ $((turn % 2)) = 1 ] && echo TERM || echo INT)
      case $target in
        group) kill -$signal -- -$job ;;
        launcher) kill -$signal $job ;;
        rank) kill -$signal "$(first_rank)" ;;
        timeout)
          for _ in $(seq 100); do
            grep -qs 'iteration  *3/' $name.out && break
            sleep 0.1
          done
          kill -TERM $job # it hands it on to its child, and to its group, as at its own time
          code=0
          wait $job || code=$?
          [ $code = 16 ] || { cp $name.err err; fail "under timeout the run ended with $code"; }
          grep -q '^ saved checkpoint' $name.out || fail "nothing was saved"
          held
          continue
          ;;
      esac
      ends_saved $name
    done
    holds "$form, to the $target: SIGTERM and SIGINT save, exit 16"
  done
done

echo "A second signal says what it does, and ends the run at once"
# Steps of some seconds, so that the first signal is still waited for.
slow=("${tiny[@]}" --train.train_iters=1000 --optim.lr_decay_iters=1000 --train.global_batch_size=4000 --train.log_interval=1)
for form in threads gloo; do
  for target in group launcher rank; do
    [ "$form $target" != "threads rank" ] || continue
    name=twice_${form}_$target
    set -m
    "$metroplex" train "${slow[@]}" --nproc 2 --backend $form --checkpoint.save=$name --checkpoint.save_interval=1000000 > $name.out 2> $name.err < /dev/null &
    job=$!
    set +m
    for _ in $(seq 300); do
      grep -qs 'iteration  *1/' $name.out && break
      sleep 0.1
    done
    to=$job
    [ $target != group ] || to=-$job
    [ $target != rank ] || to=$(first_rank)
    kill -TERM -- "$to"
    sleep 0.4
    kill -TERM -- "$to"
    ended_with 143 $name 2
    [ "$(grep -c 'a second SIGTERM: ending at once; what was done since the last save is lost' err)" = 1 ] || fail "the second signal is not told once"
    ! grep -q 'failed: killed by signal' err || fail "an end that was asked for is called a failure"
    [ ! -e $name/latest ] || fail "it saved"
    holds "$form, to the $target: ended after $took ms, exit 143"
  done
done

echo "A launcher that inherits SIGCHLD as ignored still sees its ranks end"
code=0
timeout -k 5 60 env --ignore-signal=CHLD "$metroplex" train "${tiny[@]}" --nproc 2 --backend gloo --train.train_iters=4 > out 2> err < /dev/null || code=$?
[ $code = 0 ] || fail "with SIGCHLD ignored the run ended with $code"
holds "two ranks trained, and ended"

echo "SIGTERM in an evaluation stops it, saves what was trained since the last save, and ends with code 16"
for form in threads gloo; do
  for phase in "while training" "at the end"; do
    interval=4 expected=4
    [ "$phase" = "while training" ] || interval=1000000 expected=5
    name=eval_$form$expected
    layout=(--nproc 2 --backend $form --checkpoint.save=$name --checkpoint.save_interval=1000000 --data.split=80,10,10
      --train.train_iters=5 --train.eval_interval=$interval --train.eval_iters=20000)
    start $name "${tiny[@]}" "${layout[@]}"
    sleep 2 # 20000 batches take minutes
    kill -TERM $job
    ended_with 16 $name 10
    grep -q 'validation loss' out && fail "half an evaluation was reported"
    [ "$(cut -d' ' -f1 < $name/latest)" = "iter_000000$expected" ] || fail "saved: $(ls $name)"
    holds "$form, $phase: iteration $expected is on disk, exit 16 after $took ms"
  done
done

echo "A mapped file that somebody truncates is an error that names it"
for form in threads gloo; do
  cp corpus.bin short.bin && cp corpus.idx short.idx
  start truncated "${long[@]}" --data.data_path=short --nproc 2 --backend $form
  : > short.bin
  ended_with 3 truncated 20
  warns "metroplex: \[files\] '.*short.bin' cannot be read any more"
  holds "$form: exit 3 after $took ms"
  rm -rf cache
done

echo "A rank that waits for its master ends at the first SIGTERM: there is nothing to save yet"
RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "$metroplex" train "${tiny[@]}" --backend gloo > lonely.out 2> lonely.err &
job=$!
sleep 3
kill -0 $job || fail "it did not wait: $(cat lonely.err)"
kill -TERM $job
ended_with 143 lonely 3
holds "ended after $took ms"

echo "A gloo rank killed with SIGKILL: the others end within about a second and the message names the rank"
for victim in 1 2; do
  start killed "${long[@]}" --nproc 4 --backend gloo --parallel.tensor_model_parallel_size=2
  ranks=$(children)
  [ "$(wc -w <<< "$ranks")" = 4 ] || fail "there are not 4 ranks: $ranks"
  pid=$(for child in $ranks; do
    tr '\0' '\n' < /proc/$child/environ | grep -qx "METROPLEX_RANK=$victim" && echo "$child"
  done || true)
  kill -KILL "$pid"
  ended_with 137 killed 3
  warns "rank $victim \\(tp $((victim % 2)) pp 0 dp $((victim / 2))\\).* signal 9"
  for child in $ranks; do
    [ ! -d "/proc/$child" ] || fail "rank process $child lives on"
  done
  holds "rank $victim of 4: all ended after $took ms, exit 137, '$(grep -o "rank $victim ([^)]*) failed: killed by signal 9" err | head -n 1)'"
done

echo "The launcher killed with SIGKILL takes its ranks along"
start orphans "${long[@]}" --nproc 2 --backend gloo
ranks=$(children)
kill -KILL $job
wait $job 2> /dev/null || true
for _ in $(seq 1 30); do
  left=$(for child in $ranks; do [ -d /proc/$child ] && ! grep -q '^State:.[ZX]' /proc/$child/status 2> /dev/null && echo "$child"; done || true)
  [ -n "$left" ] || break
  sleep 0.1
done
[ -z "$left" ] || fail "ranks live on: $left"
holds "both ranks ended"

echo "NaN stops the run with code 5 and names rank and iteration"
for form in "1 threads" "2 threads" "2 gloo"; do
  # shellcheck disable=SC2086
  set -- $form
  run 5 train "${tiny[@]}" --nproc "$1" --backend "$2" --optim.lr=1e30 --optim.lr_warmup_iters=0 --checkpoint.save=nan --checkpoint.save_interval=100
  warns 'rank [01] \(tp 0 pp 0 dp [01]\)'
  warns 'iteration [2-8]'
  [ ! -e nan/latest ] || fail "a NaN run saved a checkpoint"
  holds "$1 rank(s), $2: $(grep -oE 'rank [01].*' err | head -n 1 | cut -c 1-150)"
done
