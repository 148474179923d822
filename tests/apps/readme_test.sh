#!/usr/bin/env bash
# The lines of README's "Your own run" work as printed, on text of some megabytes; the run itself ends early.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkdir -p build text
ln -s "$(dirname "$metroplex")" build/bin
ln -s "$repository/examples" examples
# The text of this repository, three times: README requires some megabytes.
for turn in 1 2 3; do
  find "$repository/docs" "$repository/metroplex" -name '*.md' -o -name '*.cpp' -o -name '*.h' | sort |
    awk -v turn=$turn '{printf "%s\ttext/%s_%04d.txt\n", $0, turn, NR}' | while IFS=$'\t' read -r from to; do cp "$from" "$to"; done
done
sed -n '/^## Your own run/,/^## /s/^    //p' "$repository/README.md" > printed
[ "$(grep -c '^build/bin/metroplex' printed)" -ge 5 ] || fail "README prints other lines: $(cat printed)"
grep -q 'llama_tiny.yaml --nproc 8$' printed || fail "README trains otherwise: $(cat printed)"
sed 's/llama_tiny.yaml --nproc 8$/& --train.exit_interval=2 --train.log_interval=1/' printed > lines
code=0
timeout -k 5 300 bash -e lines > out 2> err < /dev/null || code=$?
[ $code = 0 ] || fail "they end with $code: $(tail -n 5 err)"
prints 'it fits'
prints 'iteration +2/'
prints '^Once upon'
[ -e checkpoints/llama_tiny/latest ] || fail "nothing was saved"
holds "$(grep -c '^build/bin/metroplex' printed) commands, from text to what the model writes"
