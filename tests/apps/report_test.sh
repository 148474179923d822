#!/usr/bin/env bash
# metroplex report and metroplex plot: their output for a real and for made-up runs, and the page in a browser.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
runs() { mkdir -p "$2" && python3 "$apps/report_runs.py" "$1" "$2/metrics.jsonl"; }
lacks() { ! grep -qE -- "$1" "$2" && held || fail "$2 has: $1"; }
has() { grep -qE -- "$1" "$2" && held || fail "$2 lacks: $1"; }

mkdir real
run 0 train "${tiny[@]}" "${mock[@]}" --train.metrics_file=real/metrics.jsonl
run 0 report real
prints '^wrote report.html \([0-9.]+ KiB\)$'
has '"steps":8,' report.html
run 0 plot real --list
prints '^  lm loss +8 values, last [0-9.]+$'
run 0 plot real --metric grad-norm --metric learning-rate --width 60 --height 10 --ascii
[ "$(wc -l < out)" = 20 ] && [ "$(wc -L < out)" -le 60 ] && held || fail "two pictures of 10 lines and 60 columns"
lacks '[^ -~]' out
run 0 plot real
prints '─ real [0-9.]+$'
holds "a run that was trained just now"

runs all all
runs other other
printf '{"iteration": 301, "lm lo' >> all/metrics.jsonl
run 0 plot all other --width 80 --height 12
prints '^ +\* all 2\.188[0-9]*   o other 2\.856[0-9]*$'
lacks $'\033' out
cp all/metrics.jsonl cut.jsonl
run 0 report cut.jsonl -o cut.html
has '"iteration":300,' cut.html
run 2 plot all --metric los
warns '--metric los: is not a metric of these runs; use one of: consumed_samples, lm loss'
run 3 report missing
warns "'missing' is not a file"
mkdir two && cp all/metrics.jsonl two/a.jsonl && cp all/metrics.jsonl two/b.jsonl
run 3 report two
warns "'two' contains 2 metrics files, including 'two/a.jsonl' and 'two/b.jsonl'; pass the path"
run 3 report all -o missing/page.html
run 2 report all ./all/metrics.jsonl
warns "'./all/metrics.jsonl' is the same file as 'all/metrics.jsonl'; pass each run once"
cp cut.jsonl self.jsonl && ln self.jsonl hard.jsonl && ln -s self.jsonl soft.jsonl
for output in self.jsonl ./self.jsonl hard.jsonl soft.jsonl; do
  run 2 report self.jsonl -o $output
  warns "--output = $output: must not be an input of the command; choose another path"
  cmp -s cut.jsonl self.jsonl && held || fail "report replaced its input through $output"
done
holds "cut lines, other metrics, and files that are missing or ambiguous"

mkdir grows && head -20 all/metrics.jsonl > grows/metrics.jsonl
for signal in TERM INT; do
  "$metroplex" report grows --follow -o follow.html > follow.out &
  follower=$!
  for _ in $(seq 100); do ! grep -q '"reload":5' follow.html 2> /dev/null || break; sleep 0.1; done
  sed -n 21,40p all/metrics.jsonl >> grows/metrics.jsonl
  for _ in $(seq 100); do [ "$(wc -l < follow.out)" -lt 2 ] || break; sleep 0.1; done
  has '"reload":5' follow.html
  kill -$signal $follower
  code=0 && wait $follower || code=$?
  [ $code = 0 ] && held || fail "SIG$signal ended metroplex report --follow with $code, not 0"
  [ "$(wc -l < follow.out)" = 3 ] && held || fail "pages at the start, of new lines, and at the end: $(cat follow.out)"
  has '"reload":0' follow.html
done
[ ! -e follow.html.part ] && held || fail "follow.html.part is left"
holds "a page follows a file that grows, until a signal"

# The trainer moves the file of another run to .1; the next file may be longer.
pages() { for _ in $(seq 100); do [ "$(wc -l < moved.out)" -lt "$1" ] || break; sleep 0.1; done; }
mkdir moved && head -20 all/metrics.jsonl > moved/metrics.jsonl
"$metroplex" report moved --follow -o moved.html > moved.out &
follower=$!
pages 1
mv moved/metrics.jsonl moved/metrics.jsonl.1
sleep 2.5
kill -0 $follower && held || fail "metroplex report --follow ended with its file"
has '"iteration":' moved.html
cp other/metrics.jsonl moved/metrics.jsonl
pages 2
kill -TERM $follower
wait $follower && held || fail "metroplex report --follow ended with $?"
run 0 report moved -o whole.html
cmp -s moved.html whole.html && held || fail "the followed page of a replaced file differs from its page"
holds "a page waits for an absent file, and follows a longer one in its place"

runs million big
run 0 report big -o page.html
[ "$(stat -c %s page.html)" -lt 3000000 ] && held || fail "the page of a million steps has $(stat -c %s page.html) bytes"
has '\[20,' <(grep -o '"y":\[[^]]*' page.html | tr ',' '\n' | sed -n '/^20$/s/.*/[20,/p')
holds "a million steps are a small page with their extremes"
rm -r big

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
  skips "the page in a browser: no chromium (Debian package chromium)"
  exit 0
fi
# browse PAGE [OPTION...]: the facts of report_frame.html about a page, in $work/out.
browse() {
  cp "$apps/report_frame.html" frame.html
  [ "$1" = page.html ] || cp "$1" page.html
  shift
  timeout -k 5 90 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/browser" --window-size=500,900 \
    --allow-file-access-from-files --enable-logging=stderr --virtual-time-budget=5000 --dump-dom "$@" "file://$work/frame.html" > dom 2> err < /dev/null ||
    fail "the browser ended with $?"
  grep "^fact" dom > out
  prints '^fact error: none$'
  prints '^fact drawn: yes$'
  prints '^fact overflow: 0$'
  prints '^fact blank charts: 0$'
  lacks 'CONSOLE.*(rror|refused|blocked)' err
}
browse page.html
prints '^fact charts: Loss, Learning rate, Gradient norm$'
prints '^fact axis: (.* )?20 ' # the largest loss; the others are about 2
holds "draws a million steps"

run 0 report all -o one.html
browse one.html
while read -r line; do
  grep -qxF -- "fact $line" out && held || fail "no fact '$line'"
done << 'FACTS'
background: rgb(245, 246, 247)
sections: Summary, Training, Speed, Predicted and measured, Slowest rank, Expert load, Rounding of operands, Layout, Configuration
charts: Loss, Learning rate, Gradient norm, Loss scale, Throughput, Compute, Time of a step
unnamed charts: 0
curves of loss: 3
marks: 1 restarts, 2 skipped, 1 not finite
heat: 90
strip: 30
bars: 5 and 5
pictures: 2
rounding: 12 operands, first decoder.layers.3.mlp.linear_fc1
other cursors: 6
left: none
log scale: other axis
after double click: hidden
zoom by key: done
after Escape: hidden
filtered keys: hidden_size, ffn_hidden_size
FACTS
prints '^fact cursor: 15[01]$'
prints '^fact value: 3\.2[0-9]* 3\.[0-9]+ 3\.3[0-9]* 3\.3[0-9]*$' # 2 + 8 exp(-150 / 80) = 3.227, its average, and +0.1
prints '^fact zoom: 7[56]–15[01] '
prints '^fact keys: 15[67]$' # two hundredths of 299 iterations further
holds "draws every section at 400 px; cursor, zoom, log scale, keys and filter work"

browse one.html --blink-settings=preferredColorScheme=0
prints '^fact background: rgb\(16, 19, 22\)$'
holds "is dark where the browser prefers dark"

run 0 report all other -o two.html
browse two.html
prints '^fact title: all, other$'
prints '^fact differing: run.name, optim.lr$'
prints '^fact curves of loss: 6$'
holds "overlays two runs; keys that differ come first"

: > empty.jsonl
run 0 report empty.jsonl -o empty.html
browse empty.html
prints '^fact sections: Summary$'
head -2 all/metrics.jsonl > first.jsonl
run 0 report first.jsonl -o first.html
browse first.html
prints '^fact cursor: 1$'
holds "runs of no step and of one step have a page"
