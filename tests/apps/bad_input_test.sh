#!/usr/bin/env bash
# Every line of bad_inputs.txt is a wrong use of the program: wrong values and names, impossible layouts, damaged and
# missing files, a port in use. Each must end at once with one clear error and its exit code; see bad_inputs.py.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
run 0 tokenizer train --input text/*.txt --output bpe --vocab-size 300 --model-type bpe
run 0 train "${tiny[@]}" --nproc 1 --train.exit_interval=2 --checkpoint.save=ck --checkpoint.save_interval=2
rm -f err out

mkfifo hold
python3 "$apps/bad_fixtures.py" port < hold &
exec 9> hold # the port is in use until this is closed
for _ in $(seq 1 100); do [ ! -e port ] || break; sleep 0.1; done
[ -e port ] || fail "the fixtures were not made"

python3 "$apps/bad_inputs.py" "$metroplex" "$(cat port)" "${tiny[@]}"
held "$(grep -cE '^[^#]' "$apps/bad_inputs.txt")"
exec 9>&-
wait
