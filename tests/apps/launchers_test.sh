#!/usr/bin/env bash
# Two processes with the variables of torchrun, Slurm and Open MPI train like two threads; so do the real launchers if
# they are installed.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$apps/running.sh"
make_corpus
run_options=("${tiny[@]}" "${mock[@]}" --train.train_iters=2 --optim.lr_warmup_iters=0 --parallel.tensor_model_parallel_size=2)
run 0 train "${run_options[@]}" --nproc 2 --train.metrics_file=threads.jsonl
[ "$(losses threads.jsonl | wc -l)" = 2 ] || fail "2 iterations were not run"

# by_hand NAME VARIABLES...: two processes with these variables; R in them is replaced by the rank.
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
  SLURM_JOB_NODELIST=localhost SLURM_JOB_ID=$job SLURM_STEP_ID=0
by_hand "Slurm, a step of a larger job" SLURM_PROCID=R SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=R SLURM_NODEID=0 \
  SLURM_TASKS_PER_NODE="4(x2)" SLURM_STEP_TASKS_PER_NODE=2 SLURM_JOB_NODELIST=no-such-node SLURM_STEP_NODELIST="localhost,no-such-node" \
  "MASTER_PORT=$(free_port)"
by_hand "Open MPI" OMPI_COMM_WORLD_RANK=R OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=R OMPI_COMM_WORLD_LOCAL_SIZE=2 \
  "MASTER_PORT=$(free_port)"

# apart NAME CODE OPTIONS0 OPTIONS1: two ranks with separate options; each exits with the code.
apart() {
  local rank code port
  port=$(free_port)
  for rank in 0 1; do
    local options=$((rank + 3))
    env "${around[@]}" RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      timeout -k 5 60 "$metroplex" train "${run_options[@]}" ${!options} > out$rank 2> err$rank &
    pids[rank]=$!
  done
  for rank in 0 1; do
    code=0
    wait "${pids[rank]}" || code=$?
    cp err$rank err
    [ $code = "$2" ] || fail "$1: rank $rank ended with $code, not $2"
    held
  done
}
apart "other rates" 2 --optim.lr=0.01 --optim.lr=0.02
for rank in 0 1; do
  grep -q 'optim.lr = 0.01 on rank 0 and 0.02 on rank 1' err$rank || fail "rank $rank does not say what differs: $(cat err$rank)"
  ! grep -q ' iteration ' out$rank || fail "rank $rank trained"
done
apart "other lengths" 2 --train.train_iters=2 --train.train_iters=3
warns 'train.train_iters = 2 on rank 0 and 3 on rank 1'
apart "other layouts" 2 --parallel.tensor_model_parallel_size=2 \
  "--parallel.tensor_model_parallel_size=1 --parallel.pipeline_model_parallel_size=2"
for rank in 0 1; do
  grep -q 'parallel.tensor_model_parallel_size = 2 on rank 0 and 1 on rank 1' err$rank ||
    fail "rank $rank does not say which layouts: $(cat err$rank)"
done
apart "what is a machine's own" 0 --run.threads_per_rank=1 --run.threads_per_rank=2
holds "ranks by hand with different configurations: all end with 2 and name the keys, both values and both ranks"

# ends RANK CODE SECONDS: of a process in pids, from `began` on.
ends() {
  local code=0 took
  wait "${pids[$1]}" || code=$?
  took=$((($(date +%s%N) - began) / 1000000))
  cp "err$1" err
  [ $code = "$2" ] || fail "rank $1 ended with $code, not $2"
  [ $took -lt $(($3 * 1000)) ] || fail "rank $1 ended after $took ms"
  held
}

# refused COMMAND-AND-OPTIONS OF RANK 0, OF RANK 1, OF RANK 2: three ranks, some of which cannot start.
refused() {
  local rank port
  port=$(free_port)
  began=$(date +%s%N)
  for rank in 0 1 2; do
    local line=$((rank + 1))
    env "${around[@]}" RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      timeout -k 5 60 "$metroplex" ${!line} > out$rank 2> err$rank &
    pids[rank]=$!
  done
}
three="train ${tiny[*]} ${mock[*]} --train.global_batch_size=6"
for rank in 0 2; do
  lines=("$three" "$three" "$three")
  lines[rank]="$three --train.no_such_key=1"
  refused "${lines[@]}"
  for other in 0 1 2; do
    if [ $other = $rank ]; then ends $other 2 15; else ends $other 4 15; fi
    [ $other = $rank ] || warns "rank $rank could not start: \[config\].*no_such_key"
  done
done
refused "$three --data.tokenizer_type=gpt2bpe" "$three" "$three --optim.lr=fast"
ends 0 2 15
ends 1 4 15
warns 'rank [02] could not start'
ends 2 2 15
warns 'optim.lr'
refused "generate --load nothing-there" "generate --load nothing-there" "generate --load nothing-there"
for rank in 0 1 2; do ends $rank 3 15; done
holds "ranks by hand of which some cannot start: the others end too and name the rank and why"

# sbatch without srun starts one process for any number of tasks of the job.
batch=("${around[@]}" SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=8 SLURM_JOB_NODELIST=localhost
  SLURM_JOB_ID=$job)
rm -f batch.jsonl
env "${batch[@]}" timeout -k 5 60 "$metroplex" train "${run_options[@]}" --nproc 2 --train.metrics_file=batch.jsonl > out 2> err ||
  fail "a batch script without srun ended with $?"
same_losses threads.jsonl batch.jsonl 0
run 0 train "${run_options[@]}" --nproc 2 --checkpoint.save=saved --checkpoint.save_interval=2 --data.mock_data=false "--data.data_path=$work/corpus" --data.tokenizer_type=bytes \
  --model.vocab_size=0
for command in "train ${run_options[*]}" "generate --load saved --prompt Document --max-new-tokens 4" "eval --load saved"; do
  code=0
  env "${batch[@]}" timeout -k 5 15 "$metroplex" $command > out 2> err || code=$?
  [ $code = 2 ] || fail "$command in a batch script without srun ended with $code"
  warns 'batch script of a Slurm job of 8 tasks.*srun.*--nproc N'
done
env "${batch[@]}" timeout -k 5 30 "$metroplex" generate --load saved --prompt Document --max-new-tokens 4 --nproc 1 > out 2> err ||
  fail "generate with --nproc 1 in a batch script ended with $?"
prints '^Document'
holds "Slurm, a batch script without srun: --nproc starts the ranks there, and is asked for"

# srun with one task starts one program on a node; our launcher starts the ranks.
lone=("${around[@]}" SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=3 SLURM_LOCALID=0 SLURM_NODEID=0
  SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NODELIST=localhost SLURM_JOB_ID=$job)
for backend in threads gloo; do
  rm -f lone.jsonl
  env "${lone[@]}" timeout -k 5 60 "$metroplex" train "${run_options[@]}" --nproc 2 --run.backend=$backend \
    --train.metrics_file=lone.jsonl > out 2> err || fail "--nproc 2 in a step of one task ended with $?"
  same_losses threads.jsonl lone.jsonl 0
done
code=0
env "${lone[@]}" timeout -k 5 30 "$metroplex" train "${run_options[@]}" > out 2> err || code=$?
[ $code = 2 ] || fail "tp 2 in a step of one task without --nproc ended with $code"
echo 'torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16
  --max-position-embeddings 16 --micro-batch-size 1 --lr 0.01 --train-iters 2' | tr '\n' ' ' > lone.sh
env "${lone[@]}" timeout -k 5 60 "$metroplex" train "${mock[@]}" --tp 2 --dry-run --from-megatron-args lone.sh > out 2> err ||
  fail "a launch script in a step of one task ended with $?"
holds "Slurm, a step of one task: --nproc and a launch script's ranks are started there"
sed 's/torchrun --nproc-per-node 2/deepspeed/' lone.sh > all.sh
run 2 train "${mock[@]}" --dry-run --from-megatron-args all.sh
warns 'all.sh: deepspeed: the number of ranks is unknown; add --nproc N'
run 0 train "${mock[@]}" --tp 2 --nproc 2 --dry-run --from-megatron-args all.sh
holds "a launcher that does not state the number of ranks is refused by name without --nproc"

echo "Open files, a name that leads nowhere, a configuration from a pipe"
(ulimit -Sn 32 && run 0 train "${run_options[@]}" --nproc 2 --backend gloo)
holds "the soft limit of open files is raised"
(ulimit -n 32 && run 2 train "${run_options[@]}" --nproc 2 --backend gloo)
warns 'RLIMIT_NOFILE = 32: with 2 ranks over gloo, .* 38 files.*ulimit -Hn'
(ulimit -n 32 && run 0 train "${run_options[@]}" --nproc 2 --backend threads)
holds "a hard limit below what ranks over gloo open is refused by name; threads need no connections"
(ulimit -s 1000000 -v 6000000 && run 2 train "${run_options[@]}" --train.global_batch_size=64 --nproc 64) # stacks of 1 GB
warns 'only [0-9]* of 64 threads can be started .*ulimit -u or -v.*use fewer ranks'
holds "ranks that cannot be started are refused, and none begins"
begun=$SECONDS code=0
env "${around[@]}" RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid MASTER_PORT=29501 \
  timeout -k 5 90 "$metroplex" train "${run_options[@]}" > out 2> err < /dev/null || code=$?
[ $code = 4 ] || fail "without a master a rank ended with $code"
warns "the master's name 'no-such-host.invalid' cannot be resolved: .*MASTER_ADDR"
[ $((SECONDS - begun)) -le 80 ] || fail "it took $((SECONDS - begun)) s" # 10, and the time of the name servers
holds "an unknown master is named after $((SECONDS - begun)) s"
run 0 train "${run_options[@]}" --config <(printf 'train:\n  metrics_file: piped.jsonl\n') --nproc 2 --backend gloo
same_losses threads.jsonl piped.jsonl 0
holds "all processes get the configuration that was read from a pipe"

echo "The launchers themselves"
# for_real COMMAND ARGUMENTS...: a launcher that starts two ranks of the program named after its arguments
for_real() {
  rm -f for_real.jsonl
  timeout -k 5 120 "$@" "$metroplex" train "${run_options[@]}" --train.metrics_file=for_real.jsonl > out 2> err || fail "$1 ended with $?"
  same_losses threads.jsonl for_real.jsonl 0
  [ "$(losses for_real.jsonl | wc -l)" = 2 ] || fail "$1: not one line an iteration"
  holds "$1: 2 losses as with two threads, bit for bit"
}

# The wheel that the program was built with contains torchrun, and its folder the imports.
wheel=$(ldd "$metroplex-torch" | sed -n 's|.* => \(.*\)/torch/lib/libtorch_cpu\.so .*|\1|p')
[ -e "$wheel/torch/distributed/run.py" ] || fail "no wheel of torch is found behind $metroplex-torch"
printf '#!/bin/sh\nPYTHONPATH="%s" exec python3 -W ignore -m torch.distributed.run "$@"\n' "$wheel" > torchrun
chmod +x torchrun
PATH=$work:$PATH
if [ ! -e "$wheel/nvidia/cu13/lib/libcublas.so.13" ]; then
  echo "  not run: torchrun (the CPU set of the wheel lacks the CUDA libraries that Python's torch loads)"
else
  for_real torchrun --standalone --nproc-per-node 2 --no-python
  # The first attempt fails in training, with its cause in the agent's store; the second one must not read it.
  rm -f for_real.jsonl
  cat > attempts << 'SCRIPT'
#!/bin/sh
[ "$TORCHELASTIC_RESTART_COUNT" != 0 ] || set -- "$@" --optim.lr=1e30 --train.train_iters=20
exec "$@"
SCRIPT
  chmod +x attempts
  timeout -k 5 180 torchrun --standalone --nproc-per-node 2 --max-restarts 1 --no-python ./attempts "$metroplex" train "${run_options[@]}" \
    --train.metrics_file=for_real.jsonl > out 2> err || fail "torchrun with a second attempt ended with $?"
  grep -q 'numerics' err || fail "the first attempt did not fail"
  losses for_real.jsonl | tail -n 2 > last
  losses threads.jsonl | cmp - last || fail "the second attempt gave other losses"
  holds "torchrun: a second attempt trains as if there had been no first one"
fi

command -v mpirun > /dev/null || fail "mpirun is missing; scripts/setup.sh installs it"
export MASTER_PORT
MASTER_PORT=$(free_port) # mpirun and srun pass it on
for_real mpirun --allow-run-as-root --oversubscribe -n 2
if command -v srun > /dev/null; then
  for_real srun -n 2
else
  echo "  not run: srun (no Slurm on this machine; its variables were tried above)"
fi
