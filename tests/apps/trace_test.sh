#!/usr/bin/env bash
# An error that libtorch finds inside a rank is one line that names the rank; with --trace its stack follows.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# An embedding of half a petabyte: more than the address space of a process on any machine.
too_large=("${tiny[@]}" "${mock[@]}" --model.vocab_size=2000000000 --model.hidden_size=65536 --nproc 2 --memory.check_fit=off)

echo "Errors of ranks, with and without --trace"
for backend in threads gloo; do
  run 2 train "${too_large[@]}" --backend $backend
  warns "^metroplex: \[memory\] rank [01] \(tp 0 pp 0 dp [01]\) failed: out of memory: .*can't allocate memory"
  grep -q 'frame #' err && fail "a stack without --trace"
  ! grep -qv '^metroplex: ' err || fail "more than one line a message"
  run 2 train "${too_large[@]}" --backend $backend --trace
  warns "^metroplex: \[memory\] rank [01] \(tp 0 pp 0 dp [01]\) failed: out of memory: .*can't allocate memory"
  warns '^frame #[0-9]+: .*alloc_cpu'
  holds "$backend: one line; with --trace the stack of the rank that failed"
done
