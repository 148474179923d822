#!/usr/bin/env bash
# Forty configurations drawn at random, each run and held to itself run another way; every wrong value of every key is
# refused with the key's name. scripts/random_runs.py and scripts/wrong_inputs.py go further.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python3 "$repository/scripts/random_runs.py" --keys > out || fail "keys that no walk reaches"
holds "every key is drawn, or listed with the reason why not"

python3 "$repository/scripts/wrong_inputs.py" --binary "$metroplex" > out || fail "wrong inputs"
held "$(sed -n 's/ wrong values of .*//p' out)"
holds "$(tail -n 1 out)"

python3 "$repository/scripts/random_runs.py" --binary "$metroplex" --seed 22 --runs 40 --checks 1 > out || fail "random runs"
held 40
holds "$(grep -m 1 ' runs in ' out)"
