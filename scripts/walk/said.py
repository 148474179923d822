"""Finds repeated text in errors and warnings."""
import re

# "[config] [files] ...", "metroplex: metroplex: ...", "rank 1: rank 1: ...", "warning: warning: ..."
DOUBLED_PREFIX = re.compile(r"(?:^|[:\s])(?:\[[a-z]+\] +\[[a-z]+\]|([\w.][\w.() -]{2,}:) +\1)(?:\s|$)", re.MULTILINE)
SHORTEST = 20  # characters; shorter lines may repeat by coincidence


def said_twice(text):
    """Returns the doubled prefix, or the first repeated line; None if nothing repeats."""
    doubled = DOUBLED_PREFIX.search(text)
    if doubled:
        return f"doubled prefix: {doubled.group(0).strip()}"
    seen = set()
    for line in text.splitlines():
        if len(line.strip()) >= SHORTEST and line in seen:
            return f"said twice: {line.strip()[:200]}"
        seen.add(line)
    return None
