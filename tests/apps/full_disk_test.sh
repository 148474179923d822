#!/usr/bin/env bash
# A full disk: existing checkpoints stay whole and the run continues; if its last save fails too it exits with 6 and
# names the existing checkpoints. Failed writes of metrics end nothing. The disk is a tmpfs in a separate mount
# namespace. If neither root nor a user namespace may mount one, a file size limit simulates it, and the script
# reports that. The script always tests that limit.
if [ -z "${METROPLEX_DISK:-}" ]; then
  for namespace in "unshare -m" "unshare -rm"; do
    if $namespace bash -c 'mount -t tmpfs -o size=64k tmpfs /mnt' 2> /dev/null; then
      METROPLEX_DISK=tmpfs exec $namespace bash "$0" "$@"
    fi
  done
  METROPLEX_DISK=limit
fi
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
at_exit() { umount disk sinks 2> /dev/null || true; }
make_corpus
saving=("${tiny[@]}" --nproc 1 --checkpoint.save_interval=1 --train.train_iters=6)
two=(--nproc 2 --parallel.tensor_model_parallel_size=2)

not_saved() { # FOLDER: the run reported that it could not save, and left no unfinished files
  warns "could not save iteration [0-9]+: .*($1)"
  [ -z "$(ls -A "$2" | grep '^\.tmp-' || true)" ] || fail "left behind: $(ls -A "$2")"
  "$metroplex" inspect "$2" --verify > inspected || fail "inspect --verify after the full disk: $(cat inspected)"
}

if [ "$METROPLEX_DISK" = tmpfs ]; then
  echo "Full disk: a tmpfs of 1200 kB, checkpoints of about 460 kB each"
  mkdir disk sinks && mount -t tmpfs -o size=1200k tmpfs disk && mount -t tmpfs -o size=256k tmpfs sinks
  for ranks in 1 2; do
    rm -rf disk/*
    [ $ranks = 1 ] && layout=(--nproc 1) || layout=("${two[@]}")
    run 6 train "${saving[@]}" "${layout[@]}" --checkpoint.save=disk/ck --train.metrics_file=metrics.jsonl
    tail -n 1 err | grep -qE '^metroplex: iteration 6 could not be saved: .*No space left.* iter_0000002 as the newest' ||
      fail "the last line does not say what is on disk: $(tail -n 1 err)"
    [ "$(grep -c 'could not save' err)" = 4 ] || fail "4 of 6 saves should fail: $(cat err)"
    not_saved 'No space left' disk/ck
    [ "$(cd disk/ck && echo iter_*)" = "iter_0000001 iter_0000002" ] || fail "there are $(ls disk/ck)"
    [ "$(losses metrics.jsonl | wc -l)" = 6 ] || fail "the run did not go on to its end"
    holds "$ranks rank(s): saves 1 and 2 are whole, 3 to 6 failed with a warning, the run ended with 6 and says that 2 is there"
    rm -rf disk/ck/iter_0000001 metrics.jsonl
    run 0 train "${saving[@]}" "${layout[@]}" --checkpoint.save=disk/ck --checkpoint.load=disk/ck --checkpoint.keep_last=1
    prints 'loaded checkpoint disk/ck/iter_0000002 at iteration 2'
    [ "$(cd disk/ck && echo iter_*)" = "iter_0000006" ] || fail "there are $(ls disk/ck)"
    holds "$ranks rank(s): with room again it goes on from iteration 2 and saves"
  done

  echo "Metrics and TensorBoard on a full disk"
  head -c 250k /dev/zero > sinks/ballast 2> /dev/null || true
  run 0 train "${tiny[@]}" --nproc 1 --train.train_iters=200 --train.metrics_file=sinks/metrics.jsonl --train.tensorboard_dir=sinks/tb
  warns "cannot write to 'sinks/metrics.jsonl': No space left on device; training continues"
  warns "cannot write to 'sinks/tb/.*': No space left on device; training continues"
  warns "cannot write to 'sinks/metrics.jsonl.run.part': No space left on device; training continues"
  [ "$(grep -c 'continues without' err)" = 3 ] || fail "more than one warning a file"
  [ "$(grep -c ' iteration ' out)" = 200 ] || fail "the run did not go on"
  holds "one warning each, the run goes on to iteration 200 and ends with 0"

  echo "Preprocessing onto a full disk"
  rm -rf sinks/* && head -c 240k /dev/zero > sinks/ballast
  run 3 preprocess --input text --tokenizer-type bytes --append-eod --output-prefix sinks/corpus
  warns 'No space left'
  [ ! -e sinks/corpus.idx ] && [ ! -e sinks/corpus.bin ] || fail "a dataset stands there: $(ls sinks)"
  rm sinks/ballast
  holds "exit 3, no PREFIX.bin and no PREFIX.idx"
else
  skips "a disk of its own: no tmpfs can be mounted here (neither root nor user namespaces)"
fi

echo "A limit on the size of files (ulimit -f) in the middle of a run"
run 0 train "${saving[@]}" --checkpoint.save=limited --train.exit_interval=2
(
  ulimit -f 200
  run 6 train "${saving[@]}" --checkpoint.save=limited --checkpoint.load=limited
)
tail -n 1 err | grep -q 'iter_0000002 as the newest' || fail "the last line: $(tail -n 1 err)"
not_saved 'File too large' limited
[ "$(cd limited && echo iter_*)" = "iter_0000001 iter_0000002" ] || fail "there are $(ls limited)"
holds "saves 3 to 6 failed with a warning, 1 and 2 are whole, the run ended with 6"

echo "A last save that fails: at the end and at SIGTERM, ranks as threads and as processes; one that works again is no failure"
mkdir -p shut
for form in threads gloo; do
  layout=(--nproc 2 --backend $form --checkpoint.save=shut/$form --checkpoint.save_interval=1000000)
  (
    ulimit -f 200
    run 6 train "${saving[@]}" "${layout[@]}" # stdout and the files of a rank stay below the limit, a checkpoint does not
  )
  tail -n 1 err | grep -qE "^metroplex: iteration 6 could not be saved: .*shut/$form contains no checkpoint" || fail "$form: $(tail -n 1 err)"
  rm -f term.out
  (
    ulimit -f 200
    exec "$metroplex" train "${saving[@]}" "${layout[@]}" --train.train_iters=1000000 --optim.lr_decay_iters=1000000 \
      --train.log_interval=100 > term.out 2> term.err
  ) &
  job=$!
  for _ in $(seq 1 600); do ! grep -qsE 'iteration +100/' term.out || break; sleep 0.1; done
  kill -TERM $job
  code=0
  wait $job || code=$?
  cp term.err err && cp term.out out
  [ $code = 6 ] || fail "$form: SIGTERM with a save that fails ended with $code"
  tail -n 1 err | grep -qE "^metroplex: iteration [0-9]+ could not be saved: .*contains no checkpoint" || fail "$form: $(tail -n 1 err)"
  holds "$form: exit 6 at the end and at SIGTERM, the last line says that nothing is on disk"
done

echo "Sinks that take nothing"
run 0 train "${tiny[@]}" --nproc 1 --train.metrics_file=/dev/full
warns "cannot write to '/dev/full': No space left on device; training continues"
holds "metrics into /dev/full: one warning, exit 0"
