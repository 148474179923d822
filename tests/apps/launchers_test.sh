#!/usr/bin/env bash
# Two processes with the variables of torchrun, Slurm and Open MPI train as two threads do; so do the launchers
# themselves where they are installed.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
run_options=("${tiny[@]}" "${mock[@]}" --train.train_iters=2 --optim.lr_warmup_iters=0 --parallel.tensor_model_parallel_size=2)
run 0 train "${run_options[@]}" --nproc 2 --train.metrics_file=threads.jsonl
[ "$(losses threads.jsonl | wc -l)" = 2 ] || fail "2 iterations were not run"

# A port that nobody uses, in the range that Slurm's job numbers are mapped to.
free_port() {
  python3 - << 'PYTHON'
import random, socket
while True:
    port = random.randrange(20000, 32000)
    try:
        with socket.socket() as s:
            s.bind(("", port))
        print(port)
        break
    except OSError:
        pass
PYTHON
}

# A job around this test has variables of its own.
around=()
for variable in $(compgen -e | grep -E '^(SLURM|OMPI)_' || true); do around+=(-u "$variable"); done

# by_hand NAME VARIABLES...: two processes with these variables, in which R stands for the rank.
by_hand() {
  local name=$1 rank code
  shift
  rm -f by_hand.jsonl
  for rank in 0 1; do
    env "${around[@]}" "${@//=R/=$rank}" timeout -k 5 60 "$metroplex" train "${run_options[@]}" --train.metrics_file=by_hand.jsonl > out$rank 2> err$rank &
    pids[rank]=$!
  done
  for rank in 0 1; do
    code=0
    wait "${pids[rank]}" || code=$?
    [ $code = 0 ] || { cp err$rank err; cp out$rank out; fail "$name: rank $rank ended with $code"; }
    held
  done
  same_losses threads.jsonl by_hand.jsonl 0
  [ "$(losses by_hand.jsonl | wc -l)" = 2 ] || fail "$name: not one line an iteration"
  [ "$(grep -c ' iteration ' out0)" = 2 ] && ! grep -q ' iteration ' out1 || fail "$name: not only rank 0 prints"
  holds "$name: 2 losses as with two threads, bit for bit; only rank 0 prints"
}

echo "With a launcher's variables, over gloo"
by_hand "torchrun" RANK=R WORLD_SIZE=2 LOCAL_RANK=R LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$(free_port)"
job=$(($(free_port) - 20000)) # the port follows from the job's number
by_hand "Slurm, a job" SLURM_PROCID=R SLURM_NTASKS=2 SLURM_LOCALID=R SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2 \
  SLURM_JOB_NODELIST=localhost SLURM_JOB_ID=$job
by_hand "Slurm, a step of a larger job" SLURM_PROCID=R SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=R SLURM_NODEID=0 \
  SLURM_TASKS_PER_NODE="4(x2)" SLURM_STEP_TASKS_PER_NODE=2 SLURM_JOB_NODELIST=no-such-node SLURM_STEP_NODELIST="localhost,no-such-node" \
  "MASTER_PORT=$(free_port)"
by_hand "Open MPI" OMPI_COMM_WORLD_RANK=R OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=R OMPI_COMM_WORLD_LOCAL_SIZE=2 \
  "MASTER_PORT=$(free_port)"

echo "The launchers themselves"
# for_real COMMAND ARGUMENTS...
for_real() {
  if ! command -v "$1" > /dev/null; then
    skips "$1 is not on this machine"
    return
  fi
  rm -f for_real.jsonl
  timeout -k 5 120 "$@" "$metroplex" train "${run_options[@]}" --train.metrics_file=for_real.jsonl > out 2> err || fail "$1 ended with $?"
  same_losses threads.jsonl for_real.jsonl 0
  [ "$(losses for_real.jsonl | wc -l)" = 2 ] || fail "$1: not one line an iteration"
  holds "$1: 2 losses as with two threads, bit for bit"
}
# The wheel that the program was built with brings torchrun, if Python's other packages are there.
wheel=$(ldd "$metroplex" | sed -n 's|.* => \(.*\)/torch/lib/libtorch_cpu\.so .*|\1|p')
if ! command -v torchrun > /dev/null && PYTHONPATH=$wheel python3 -W ignore -c 'import torch.distributed.run' > /dev/null 2>&1; then
  printf '#!/bin/sh\nPYTHONPATH="%s" exec python3 -W ignore -m torch.distributed.run "$@"\n' "$wheel" > torchrun
  chmod +x torchrun
  PATH=$work:$PATH
fi
for_real torchrun --standalone --nproc-per-node 2 --no-python
export MASTER_PORT
MASTER_PORT=$(free_port) # mpirun and srun hand it on
for_real mpirun --allow-run-as-root --oversubscribe -n 2
for_real srun -n 2
