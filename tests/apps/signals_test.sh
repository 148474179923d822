#!/usr/bin/env bash
# Signals, a deleted file, NaN: the end of a run, its exit code, its save and its messages.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$apps/running.sh"
make_corpus

echo "SIGTERM, SIGINT, SIGHUP and SIGUSR1 save and end with code 16; the run can be resumed"
for form in threads gloo; do
  for signal in TERM INT HUP USR1; do
    # A background job of a script ignores SIGINT by default, so the test restores the default action.
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

# ends_saved NAME: as a first signal ends a run, with one line that reports it.
ends_saved() {
  ended_with 16 "$1" 10
  [ "$(grep -c 'saving and stopping after this step' err)" = 1 ] || fail "$1: not one line says what the signal does"
  grep -q '^ saved checkpoint' out && grep -q '^ stopped on request after iteration' out || fail "$1: nothing was saved"
  rm -rf "$1"
}
echo "One signal is one request, to whomever it is sent: the run is saved and ends with code 16"
for form in threads gloo; do
  for target in group launcher rank timeout; do
    [ "$form $target" != "threads rank" ] || continue
    for turn in 1 2; do
      name=one_${form}_$target$turn
      layout=("${long[@]}" --nproc 2 --backend $form --checkpoint.save=$name --checkpoint.save_interval=1000000)
      set -m # a separate group
      if [ $target = timeout ]; then
        rm -f $name.out
        timeout -k 20 120 "$metroplex" train "${layout[@]}" > $name.out 2> $name.err < /dev/null &
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
          for _ in $(seq 600); do
            grep -qs 'iteration  *3/' $name.out && break
            sleep 0.1
          done
          kill -TERM $job # forwards it to its child and its group, as with its own timeout
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

echo "A reader of stdout that ends does not end the run"
for form in threads gloo; do
  {
    code=0
    "$metroplex" train "${tiny[@]}" --nproc 2 --backend $form --train.train_iters=1000 --checkpoint.save=read_$form 2> err < /dev/null || code=$?
    echo $code > code
  } | grep -m 1 -q 'iteration  *3/' || fail "the run printed no third iteration"
  # A thousand lines exceed the size of a pipe. 3: the output could not be written.
  [ "$(cat code) $(cut -d' ' -f1 < read_$form/latest)" = "3 iter_0001000" ] || fail "$form: it ended with $(cat code): $(ls read_$form)"
  holds "$form: all 1000 iterations are trained and saved, exit $(cat code)"
done

echo "A reader of stdout and stderr that ends with the signal, as tee does at Ctrl-C, does not cost the save"
for form in threads gloo; do
  name=tee_$form
  mkfifo $name.pipe
  cat $name.pipe > $name.out &
  reader=$!
  "$metroplex" train "${long[@]}" --nproc 2 --backend $form --checkpoint.save=$name --checkpoint.save_interval=1000000 > $name.pipe 2>&1 < /dev/null &
  job=$!
  for _ in $(seq 600); do
    grep -qs 'iteration  *3/' $name.out && break
    sleep 0.1
  done
  kill -KILL $reader
  kill -TERM $job
  cp $name.out $name.err
  ended_with 16 $name 10
  [ -e $name/latest ] || fail "nothing was saved"
  holds "$form: saved, exit 16 after $took ms"
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
  warns "metroplex: \[files\] '.*short.bin' can no longer be read"
  holds "$form: exit 3 after $took ms"
  rm -rf cache
done

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
