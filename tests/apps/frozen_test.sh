#!/usr/bin/env bash
# The other ranks name a stopped process within 20 s, and exit; a job that is stopped as a whole resumes.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$apps/running.sh"
make_corpus
three=("${long[@]}" --train.global_batch_size=6)

seconds_since() { echo $((($(date +%s%N) - $1) / 1000000000)); }

start whole "${three[@]}" --nproc 3 --backend gloo --checkpoint.save=whole --checkpoint.save_interval=1000000
whole=$job
whole_ranks=$(children)
names=$(ps -o comm= -p "${whole_ranks//$'\n'/,}" | sort -u)
[ "$names" = metroplex-torch ] || fail "ranks appear in ps as $names"
holds "ranks appear in ps as metroplex-torch"
kill -STOP $whole_ranks $whole
whole_stopped=$(date +%s%N)

start first "${three[@]}" --nproc 3 --backend gloo
first=$job
port=$(free_port)
for rank in 0 1 2; do
  env "${around[@]}" RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    "$metroplex" train "${three[@]}" > out$rank 2> err$rank < /dev/null &
  pids[rank]=$!
done
for _ in $(seq 600); do
  grep -qs 'iteration  *3/' out0 && break
  sleep 0.1
done
grep -q 'iteration  *3/' out0 || fail "the ranks by hand did not train"

job=$first
kill -STOP "$(first_rank)" "${pids[1]}"
stopped=$(date +%s%N)
job=$first ended_with 4 first 30
warns 'rank 0 \(.*\) has not answered for 15 s: its machine answers, but its process is not running \(stopped by a signal'
holds "rank 0 stopped: its launcher ends after $(seconds_since $stopped) s and names it"
for rank in 0 2; do
  code=0
  wait "${pids[rank]}" || code=$?
  cp err$rank err
  [ $code = 4 ] || fail "rank $rank ended with $code, not 4"
  warns 'rank 1 \(.*\) has not answered for 15 s'
done
[ "$(seconds_since $stopped)" -le 30 ] || fail "the others ended after $(seconds_since $stopped) s"
kill -KILL "${pids[1]}"
holds "rank 1 stopped, without our launcher: the others end after $(seconds_since $stopped) s and name it"

while [ "$(seconds_since $whole_stopped)" -lt 25 ]; do sleep 0.5; done
lines=$(wc -l < whole.out)
kill -CONT $whole_ranks $whole
for _ in $(seq 300); do
  [ "$(wc -l < whole.out)" -gt $((lines + 2)) ] && break
  sleep 0.1
done
[ "$(wc -l < whole.out)" -gt $((lines + 2)) ] || { cp whole.err err; fail "the job does not train after $(seconds_since $whole_stopped) s"; }
sleep 4 # longer than a pause after which the count restarts
kill -TERM $whole
job=$whole ended_with 16 whole 15
holds "all ranks and their launcher stopped for 25 s and continued: the job goes on, and saves at SIGTERM"
