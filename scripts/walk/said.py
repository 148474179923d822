"""What a reader of errors and warnings would hear twice."""
import re

# "[config] [files] ...", "metroplex: metroplex: ...", "rank 1: rank 1: ...", "warning: warning: ..."
DOUBLED_PREFIX = re.compile(r"(?:^|[:\s])(?:\[[a-z]+\] +\[[a-z]+\]|([\w.][\w.() -]{2,}:) +\1)(?:\s|$)", re.MULTILINE)
SHORTEST = 20  # characters of a line that is no coincidence


def said_twice(text):
    """The doubled prefix, or the first line that is there twice; None where nothing is."""
    doubled = DOUBLED_PREFIX.search(text)
    if doubled:
        return f"doubled prefix: {doubled.group(0).strip()}"
    seen = set()
    for line in text.splitlines():
        if len(line.strip()) >= SHORTEST and line in seen:
            return f"said twice: {line.strip()[:200]}"
        seen.add(line)
    return None
