# Scripts that test running programs under signals and faults source this file after common.sh.
long=("${tiny[@]}" --train.train_iters=1000000 --optim.lr_decay_iters=1000000)

# start NAME ARGUMENTS...: in the background; returns when the third iteration is printed. Sets $job.
start() {
  local name=$1
  shift
  rm -f "$name.out" # of an earlier run under this name
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
children() { pgrep -P "$job"; }
# The first of them.
first_rank() {
  local ranks
  ranks=$(children)
  echo "${ranks%%$'\n'*}"
}

# A free port in the range that Slurm's job numbers are mapped to.
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

# A job around this test has its own variables.
around=()
for variable in "${!SLURM_@}" "${!OMPI_@}"; do around+=(-u "$variable"); done
