#!/usr/bin/env python3
"""Counts the breaches of the language rules of docs/CONTRIBUTING.md per module and compares them with scripts/language_counts.txt.
Exits with 1 if a count rose.
  check_language.py            compare
  check_language.py --update   write the present counts, none of which may be higher than before
  check_language.py --list KIND [MODULE]   print every place that counts; KIND is one of the kinds below
Kinds: opening (a comment that starts with "Of", a headless clause or a bare participle), retired (a word of the retired list in a comment, a
message or a page), long (a sentence of a page with more than 25 words), of (a function named *_of), letter (a variable with a name of one letter
in a function of more than five lines; i, j, k, m, n and x, y are names of formulas)."""
import collections
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNTS = ROOT / "scripts" / "language_counts.txt"
KINDS = ("opening", "retired", "long", "of", "letter")
MAX_WORDS = 25

# Participles open a sentence without a subject only before these.
AFTER_PARTICIPLE = r"(?= (?:by|with|in|into|for|from|on|at|to|as|of|before|after|when|where|once|while|only|here|and|or|too|again|there|that|what|if|without|over)\b|[,;:.])"
IRREGULAR = "Given|Told|Made|Kept|Held|Taken|Written|Sent|Drawn|Known|Left|Begun|Built|Cut|Put|Said|Seen|Shown|Found|Lost|Gone|Read|Set|Run|Split|Thrown"
OPENINGS = [re.compile(pattern) for pattern in (
    r"^Of\b(?! course)", r"^What\b", r"^That which\b", r"^Who(?:ever)?\b", r"^Whatever\b", r"^Those (?:that|which|who|of)\b", r"^Where\b[^,.]*, there\b", r"^Nor\b",
    r"^(?:[A-Z][a-z]+ed|" + IRREGULAR + r")\b" + AFTER_PARTICIPLE)]

RETIRED = re.compile(r"\b(?:" + "|".join((
    r"told", r"tells?", r"says", r"hears?", r"heard", r"asked", r"asks", r"wants?", r"wanted", r"owes?", r"owed", r"looks at", r"knows?(?= (?:of|nothing|what|which))",
    r"beside", r"behind", r"lies", r"lie", r"under way", r"whoever", r"whatever", r"nobody", r"somebody", r"anybody", r"a mistake in", r"mend(?:s|ed|ing)?", r"way out",
    r"stranger(?:'s|s)?", r"stand-ins?", r"twins?", r"bring-up", r"(?-i:islands?)", r"rooms?", r"ground floor", r"upper floor", r"house", r"live sets?",
    r"verdicts?", r"dice", r"as it happened", r"came", r"gone", r"at home", r"of before", r"behave[sd]? as if nothing", r"thrice", r"meanwhile", r"hence")) + r")\b", re.IGNORECASE)
QUOTED = re.compile(r"`[^`]*`|\b\w+_\w*\b|\b[a-z]+[A-Z]\w*\b")  # identifiers are names, not prose
FORMULA_NAMES = set("ijkmnxy")
CODE = {".h", ".cpp", ".cu", ".cuh", ".inc"}
SCRIPTS = {".py", ".sh", ".cmake"}
FOLDERS = ("metroplex", "apps", "bench", "tests", "scripts", "cmake", "docs", "examples")


def module_of(path):
    parts = path.relative_to(ROOT).parts
    if parts[0] == "metroplex":  # metroplex/MODULE, without the layer
        parts = (parts[0], *parts[2 if parts[1] in ("core", "lab", "formats") else 1:])
    if parts[0] in ("metroplex", "tests") and len(parts) > 2:
        return "/".join(parts[:2])
    return "docs" if parts[0] == "README.md" else parts[0]


def files():
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in CODE | SCRIPTS | {".md"}]
    skipped = {"vectors", "mutants", "__pycache__", "third_party"}
    return [p for p in [ROOT / "README.md", *found] if not skipped & set(p.parts) and p != pathlib.Path(__file__).resolve()]


def comment_blocks(text, mark):
    """(line number, text) of every comment: neighboring lines of comments are one block."""
    blocks, last = [], -2
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*" + mark + r"+ ?(.*)$", line) or re.search(r"\s" + mark + r" (.*)$", line)
        if not match or line.startswith("#!"):
            continue
        whole_line = line.lstrip().startswith(mark)
        if blocks and whole_line and last == number - 1 and blocks[-1][2]:
            blocks[-1][1].append(match.group(1))
        else:
            blocks.append([number, [match.group(1)], whole_line])
        last = number
    return [(number, " ".join(lines)) for number, lines, _ in blocks]


def messages(text):
    """(line number, text) of every string literal with at least three words."""
    for number, line in enumerate(text.splitlines(), 1):
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line.split(" // ")[0]):
            if len(literal.split()) >= 3:
                yield number, literal


def paragraphs(text):
    """(line number, text) of every paragraph and list item of a page, without code, tables, headings and links' addresses."""
    out, start, fenced = [], 0, False
    lines = [*text.splitlines(), ""]
    block = []
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        is_prose = line.strip() and not fenced and not re.match(r"    |\||#|```|<|!\[", line)
        begins_item = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        if (not is_prose or begins_item) and block:
            out.append((start, " ".join(block)))
            block = []
        if is_prose:
            start = start if block else number
            block.append(line.strip())
    clean = lambda t: re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", t))
    return [(number, clean(text)) for number, text in out]


def headings(text):
    """(line number, text) of every heading of a page, outside of code."""
    lines = re.sub(r"^```.*?^```", lambda code: "\n" * code.group(0).count("\n"), text, flags=re.M | re.S).splitlines()
    return [(number, line.lstrip("# ")) for number, line in enumerate(lines, 1) if re.match(r"#+ ", line)]


def sentences(text):
    return re.split(r"(?<=[.:;!?])\s+(?=[A-Z(\[])|(?<=;)\s+", re.sub(r"^(?:[-*]|\d+\.) ", "", text))


def functions(text):
    """(line number, head and body) of every function of more than five lines, by the indentation that clang-format gives."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if not re.match(r"(?:  )?[A-Za-z].*\)(?: const)?(?: noexcept)?(?: override)? \{$|    .*\)(?: const)?(?: override)? \{$", line) or re.match(r"\s*(?:if|for|while|switch|else|do|namespace)\b", line):
            continue
        head = i
        while head > 0 and lines[head - 1].strip() and not re.search(r"[;{}]$|^\s*//|^#|:$|>$", lines[head - 1]):
            head -= 1
        indent = len(lines[head]) - len(lines[head].lstrip())
        end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith(" " * indent + "}")), None)
        if end is not None and end - head > 5:
            yield head + 1, "\n".join(re.sub(r'"(?:[^"\\]|\\.)*"|//.*', "", text) for text in lines[head:end])


def findings(path):
    """(kind, line number, text) of one file."""
    text = path.read_text(errors="replace")
    is_page = path.suffix == ".md"
    if is_page:
        blocks = paragraphs(text) + headings(text)
    else:
        blocks = comment_blocks(text, "//" if path.suffix in CODE else "#")
    for number, block in blocks:
        for sentence in sentences(block):
            if any(opening.search(sentence) for opening in OPENINGS):
                yield "opening", number, sentence
            if is_page and len(sentence.split()) > MAX_WORDS:
                yield "long", number, sentence
    for number, block in [*blocks, *(messages(text) if path.suffix in CODE else [])]:
        for match in RETIRED.finditer(QUOTED.sub("", block)):
            yield "retired", number, f"{match.group(0)}: {block}"
    if path.suffix not in CODE:
        return
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r'"(?:[^"\\]|\\.)*"|//.*', "", line)
        for name in re.findall(r"(?:^|[\w>&*] )(\w+_of)\((?=[^()]*(?:\w [*&]?\w|\)))", code):
            if not re.search(r"\b(?:return|throw|else) " + name, code):
                yield "of", number, name
    for number, body in functions(text):
        names = re.findall(r"[\w>][*&]* [*&]?([a-z])\b(?= ?[=,){;:\[])", body)
        for name in sorted(set(names) - FORMULA_NAMES):
            yield "letter", number, name


def count():
    counts = collections.Counter()
    for path in files():
        for kind, _, _ in findings(path):
            counts[module_of(path), kind] += 1
    return counts


def read_counts():
    counts = {}
    for line in COUNTS.read_text().splitlines():
        if line and not line.startswith("#"):
            module, *pairs = line.split()
            counts |= {(module, kind): int(number) for kind, number in (pair.split("=") for pair in pairs)}
    return counts


def write_counts(counts):
    modules = sorted({module for module, _ in counts})
    lines = ["# Written by scripts/check_language.py --update. No count may rise."]
    lines += [f"{module:24}" + " ".join(f"{kind}={counts[module, kind]}" for kind in KINDS if counts[module, kind]) for module in modules]
    COUNTS.write_text("\n".join(lines) + "\n")


def main(arguments):
    if arguments[:1] == ["--list"]:
        for path in [path for path in files() if arguments[2:] in ([], [module_of(path)])]:
            for kind, number, text in findings(path):
                if kind == arguments[1]:
                    print(f"{path.relative_to(ROOT)}:{number}: {text}")
        return 0
    counts = count()
    known = read_counts() if COUNTS.exists() else {}
    risen = [(key, counts[key]) for key in sorted(counts) if counts[key] > known.get(key, 0)]
    if risen and not (arguments == ["--update"] and not COUNTS.exists()):
        for (module, kind), number in risen:
            print(f"{module}: {number} findings of kind {kind}, not at most {known.get((module, kind), 0)}; `scripts/check_language.py --list {kind} {module}` prints them")
        return 1
    if arguments == ["--update"]:
        write_counts(counts)
    total = {kind: sum(number for (_, k), number in counts.items() if k == kind) for kind in KINDS}
    print("language: " + ", ".join(f"{kind} {number}" for kind, number in total.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
