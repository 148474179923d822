#!/usr/bin/env bash
# Commands that must end within seconds. The script measures time, so nothing else may run at the same time.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$apps/running.sh"
make_corpus

echo "A second signal says what it does, and ends the run at once"
# Steps take more than a second, so that the second signal arrives during the wait for the first.
slow=("${tiny[@]}" --train.train_iters=1000 --optim.lr_decay_iters=1000 --train.global_batch_size=6000 --train.log_interval=1)
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
    [ "$(grep -c 'a second SIGTERM: ending at once; progress since the last save is lost' err)" = 1 ] || fail "the second signal is not told once"
    ! grep -q 'failed: killed by signal' err || fail "an end that was asked for is called a failure"
    [ ! -e $name/latest ] || fail "it saved"
    holds "$form, to the $target: ended after $took ms, exit 143"
  done
done

echo "A rank that waits for its master ends at the first SIGTERM: there is nothing to save yet"
RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "$metroplex" train "${tiny[@]}" --backend gloo > lonely.out 2> lonely.err &
job=$!
sleep 1.5
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
    if grep -zqx "METROPLEX_RANK=$victim" /proc/$child/environ; then echo "$child"; fi
  done)
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
code=0
wait $job || code=$?
[ $code = 137 ] || fail "the killed launcher ended with $code"
for _ in $(seq 1 30); do
  # A rank has ended if its process no longer exists or is a zombie.
  left=$(for child in $ranks; do
    if grep -qs '^State:.[^ZX]' /proc/$child/status; then echo "$child"; fi
  done)
  [ -n "$left" ] || break
  sleep 0.1
done
[ -z "$left" ] || fail "ranks live on: $left"
holds "both ranks ended"

echo "A rank of Slurm killed: nobody but the ranks themselves notices"
port=$(free_port)
for rank in 0 1 2; do
  env "${around[@]}" SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=$rank SLURM_STEP_TASKS_PER_NODE=3 SLURM_STEP_NODELIST=localhost \
    MASTER_PORT=$port timeout -k 5 120 "$metroplex" train "${tiny[@]}" "${mock[@]}" --train.global_batch_size=6 \
    --train.train_iters=1000000 > out$rank 2> err$rank &
  pids[rank]=$!
done
for _ in $(seq 600); do
  ! grep -q ' iteration ' out0 || break
  sleep 0.1
done
grep -q ' iteration ' out0 || fail "three ranks of Slurm did not start to train"
kill -9 "$(pgrep -P "${pids[1]}")" # the child of timeout
killed=$(date +%s%N)
for rank in 0 2; do
  code=0
  wait "${pids[rank]}" || code=$?
  took=$((($(date +%s%N) - killed) / 1000000))
  cp err$rank err
  [ $code = 4 ] || fail "rank $rank ended with $code after rank 1 was killed"
  [ $took -lt 2000 ] || fail "rank $rank needed $took ms to notice that rank 1 was killed"
  grep -q 'rank 1 (tp 0 pp 0 dp 1) died' err$rank || fail "rank $rank does not name rank 1"
done
code=0
wait "${pids[1]}" || code=$?
[ $code = 137 ] || fail "the killed rank ended with $code"
holds "Slurm: a rank killed is named by the others within two seconds, exit code 4"
