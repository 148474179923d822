#!/usr/bin/env bash
# Kills N training runs (default 500) with SIGKILL, a third of them inside a save, resumes each and compares it bit for bit
# with the undisturbed run: about a second and a half a run.
#   scripts/kill_test.sh [N] [SEED] [ONLY]  ONLY: layouts whose name contains it, as "8 gloo" (about six seconds a run)
#   METROPLEX=path/to/metroplex             another binary than build/bin/metroplex
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
KILL_RUNS=${1:-500} KILL_SEED=${2:-1} KILL_ONLY=${3:-} exec bash tests/apps/kill_resume_test.sh "${METROPLEX:-build/bin/metroplex}"
