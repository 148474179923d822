#!/usr/bin/env bash
# scripts/count_tests.py, the last step of ./test.sh: the counted results, and failure if there are fewer than
# expected.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# A folder of results in the form of ctest and GoogleTest: 2 tests ran and 1 was skipped, 12 cases ran and 3 wait, 5
# and 2 assertions, a missing launcher, and one entry without a status.
results() {
  rm -rf results && mkdir results
  cat > results/some_test.xml << 'XML'
<testsuites tests="3" failures="0" errors="0"><testsuite><testcase name="A" status="run" result="completed"/>
<testcase name="B" status="run" result="completed"/><testcase name="C" status="run" result="skipped"/></testsuite></testsuites>
XML
  cat > results/ctest.xml << 'XML'
<testsuite><testcase name="some_test" status="run"><system-out>noise</system-out></testcase>
<testcase name="metroplex_vectors" status="run"><system-out>a.json: 10 passed, 0 failed, 0 waiting
b.json: 2 passed, 0 failed, 3 waiting
  waits  x: for a part
12 passed, 0 failed
</system-out></testcase>
<testcase name="app_x_test" status="run"><system-out>  ok: this holds
assertions: 5
  skipped: a launcher is not on this machine
assertions: 2
</system-out></testcase>
<testcase name="layers" status="run"><system-out>0 breaches</system-out></testcase></testsuite>
XML
}
# counts CODE WORDS: exit code and output of count_tests.py.
counts() {
  local code=0
  python3 "$repository/scripts/count_tests.py" results expected > out 2> err || code=$?
  [ $code = "$1" ] || fail "count_tests.py ended with $code, not $1: $(cat out err)"
  held
  prints "$2"
}
# becomes FILE FROM TO: one change of the results.
becomes() {
  results
  grep -q -- "$2" "results/$1" || fail "no '$2' in $1"
  sed -i "s#$2#$3#" "results/$1"
}

echo "Counting"
results
python3 "$repository/scripts/count_tests.py" results expected --update
printf '%s\n' "app_x_test 7" "layers 1" "metroplex_vectors/a.json 10" "metroplex_vectors/b.json 2" "some_test 2" | cmp - expected ||
  fail "written as expected: $(cat expected)"
counts 0 '^22 passed, 0 failed, 5 skipped$'
holds "tests, cases by file, assertions; skipped and waiting ones apart"

echo "Fewer than expected"
becomes ctest.xml '10 passed' '9 passed' && counts 1 '^MISSING metroplex_vectors/a.json: 9 of 10 ran$'
becomes ctest.xml 'b.json: .*' '' && counts 1 '^MISSING metroplex_vectors/b.json: 0 of 2 ran$'
becomes ctest.xml 'assertions: 5' 'assertions: 4' && counts 1 '^MISSING app_x_test: 6 of 7 ran$'
becomes ctest.xml 'assertions: .' '' && counts 1 '^MISSING app_x_test: 1 of 7 ran$'
becomes some_test.xml '"B" status="run" result="completed"' '"B" status="run" result="skipped"' && counts 1 '^MISSING some_test: 1 of 2 ran$'
becomes ctest.xml 'layers' 'other' && counts 1 '^MISSING layers: 0 of 1 ran$'
holds "a case, a file, an assertion, all assertions, a test that skips itself, an entry that is gone"

echo "Failures"
becomes ctest.xml '10 passed, 0 failed' '9 passed, 1 failed' && counts 1 '^21 passed, 1 failed, 5 skipped$'
becomes ctest.xml 'metroplex_vectors" status="run"' 'metroplex_vectors" status="fail"' && counts 1 '^21 passed, 1 failed, 5 skipped$'
becomes ctest.xml 'some_test" status="run"' 'some_test" status="fail"' && counts 1 '^21 passed, 1 failed, 5 skipped$'
becomes ctest.xml 'layers" status="run"' 'layers" status="fail"' && counts 1 '^21 passed, 1 failed, 5 skipped$'
holds "a case that failed, entries that ended badly though all they say is well"
