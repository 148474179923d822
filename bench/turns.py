#!/usr/bin/env python3
"""turns.py PEER.py ARGUMENTS...: runs PEER.py; each step waits for a line on stdin and prints its time in seconds.
PEER.py must call time.perf_counter() only before and after each step; modules that it imports may call it too."""
import runpy
import sys
import time

clock, begun = time.perf_counter, []


def perf_counter():
    if sys._getframe(1).f_code.co_filename != sys.argv[0]:
        return clock()
    if begun:
        start, now = begun.pop(), clock()
        print(f"step {now - start:.6f}", flush=True)
        return now
    if not sys.stdin.readline():
        sys.exit("turns.py: stdin ended before the steps did")
    begun.append(clock())
    return begun[0]


time.perf_counter = perf_counter
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
