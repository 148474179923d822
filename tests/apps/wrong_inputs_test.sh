#!/usr/bin/env bash
# Every wrong value of every key is rejected with the key's name, and the sweep over random configurations
# (scripts/random_runs.py, run by scripts/nightly.sh) covers every key.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python3 "$repository/scripts/random_runs.py" --keys > out || fail "keys that no walk reaches"
holds "every key is drawn, or listed with the reason why not"

python3 "$repository/scripts/wrong_inputs.py" --binary "$metroplex" > out || fail "wrong inputs"
held "$(sed -n 's/ wrong values of .*//p' out)"
holds "$(tail -n 1 out)"
