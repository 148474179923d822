#!/usr/bin/env bash
# 30 runs are killed with SIGKILL, a third of them inside a save; each is resumed and ends with the bits of the
# undisturbed run. kill_resume.py lists the exact checks; scripts/kill_test.sh does it 500 times.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
runs=${KILL_RUNS:-30}
python3 "$apps/kill_resume.py" "$metroplex" "$work/corpus" --runs "$runs" --seed "${KILL_SEED:-1}" --only "${KILL_ONLY:-}"
held "$runs"
