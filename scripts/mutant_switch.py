"""Plants many mutants of scripts/mutants.py in one tree. The environment variable METROPLEX_MUTANT selects one at run
time.

The sixth field of a row is its kind:
  expr   old and new are expressions of one type:      (is_planted(N) ? (new) : (old))
  stmt   old and new are whole statements, new may be empty:  { if (is_planted(N)) { new } else { old } }
Declarations used by later lines, table rows, case labels and constexpr variables have no kind: each needs its own
build."""
import os
import pathlib
import re
import zlib

VARIABLE = "METROPLEX_MUTANT"
HEADER = "metroplex/core/mutant_switch.h"
HEADER_TEXT = """#pragma once
// scripts/mutants.py writes this file into its copy of the tree.
#ifdef __CUDACC__
namespace mutant_switch {
constexpr bool is_planted(int) { return false; }  // device code cannot read the environment: kernels_on_host runs it
}
#else
#include <cstdlib>
#include <type_traits>
#ifdef METROPLEX_KERNELS_ON_HOST
#define MUTANT_SWITCH_UNWATCHED __attribute__((no_sanitize_thread, noinline))
#else
#define MUTANT_SWITCH_UNWATCHED
#endif
namespace mutant_switch {
struct Number {
  int value = 0;
  Number() {
    if (const char* text = std::getenv("METROPLEX_MUTANT")) value = std::atoi(text);
  }
};
// Initialized before the static tables of any other file.
__attribute__((init_priority(101))) inline const Number number;
MUTANT_SWITCH_UNWATCHED inline bool is_number(int value) { return number.value == value; }
constexpr bool is_planted(int value) { return std::is_constant_evaluated() ? false : is_number(value); }
}
#endif
"""
KINDS = {"expr", "stmt"}
PAIRS = {")": "(", "]": "[", "}": "{"}
KEYWORDS = re.compile(r"\s*(return|if|for|while|do|else|switch|case|break|continue|throw|using|auto|const|static|constexpr)\b")


def number_of(name):
    """Returns a number that stays the same when rows are added, so that only files with new rows are recompiled."""
    return zlib.crc32(name.encode()) & 0x3FFFFFFF or 1


def top_level(text):
    """Returns the characters of text outside brackets and literals; None if brackets do not match."""
    open_brackets, out, i = [], [], 0
    while i < len(text):
        char = text[i]
        if char in "\"'" and not (char == "'" and i > 0 and text[i - 1].isalnum()):
            end = i + 1
            while end < len(text) and text[end] != char:
                end += 2 if text[end] == "\\" else 1
            if end >= len(text):
                return None
            i = end
        elif char in "([{":
            open_brackets.append(char)
        elif char in PAIRS:
            if not open_brackets or open_brackets.pop() != PAIRS[char]:
                return None
        elif not open_brackets:
            out.append(char)
        i += 1
    return None if open_brackets else "".join(out)


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text).rstrip()


def expression_problem(text):
    top = top_level(text)
    if not text.strip():
        return "an expression is empty"
    if top is None or re.search(r"//", text):
        return f"brackets of {text!r} do not pair, or it holds a comment"
    if ";" in top or "," in re.sub(r"<[^<>]*>", "", top) or KEYWORDS.match(text):
        return f"{text!r} is not one expression"
    return None


def statement_problem(text, may_be_empty):
    code = without_comments(text)
    if may_be_empty and not code.strip():
        return None
    if top_level(code) is None:
        return f"brackets of {text!r} do not pair"
    if not code.endswith((";", "}")):
        return f"{text!r} does not end a statement"
    return None


def switch_problem(mutant, text):
    """Returns why a mutant with a kind cannot be switched in text, the content of its file; or None."""
    if mutant.kind not in KINDS:
        return f"kind {mutant.kind!r} is not one of expr and stmt"
    if mutant.path.endswith(".inc"):
        return "rows of an .inc file cannot be switched"
    begin = text.index(mutant.old)
    line = text[text.rfind("\n", 0, begin) + 1:begin]
    whole = text[text.rfind("\n", 0, begin) + 1:text.find("\n", begin)]
    if whole.lstrip().startswith("#") or "static_assert" in line or re.match(r"\s*(inline |static )*constexpr [^()]*=", line):
        return f"a constant cannot be switched: {whole.strip()!r}"
    if re.match(r"\s*case [^:]*$", line) or (whole + text[begin:text.find("\n", begin)]).endswith("\\"):
        return f"a case label or a macro cannot be switched: {whole.strip()!r}"
    if mutant.kind == "expr":
        if line.count('"') % 2:
            return "the text begins inside a literal"
        return expression_problem(mutant.old) or expression_problem(mutant.new)
    before = without_comments(text[:begin]) if "//" in line else re.sub(r"(\s*//[^\n]*\n)+\s*$", "\n", text[:begin]).rstrip()
    if not re.search(r"([;{})]|\belse|:)$", before):
        return f"no statement begins at {mutant.old!r}"
    return statement_problem(mutant.old, False) or statement_problem(mutant.new, True)


def switched(mutant):
    test = f"::mutant_switch::is_planted({number_of(mutant.name)})"
    if mutant.kind == "expr":
        return f"({test} ? ({mutant.new}) : ({mutant.old}))"
    new = mutant.new if mutant.new.endswith("\n") else mutant.new + "\n"
    old = mutant.old if mutant.old.endswith("\n") else mutant.old + "\n"
    return f"{{ if ({test}) {{\n{new}}} else {{\n{old}}} }}\n"


def overlaps(mutants, text):
    """Returns pairs of mutants of one file whose old texts overlap."""
    spans = sorted((text.index(m.old), text.index(m.old) + len(m.old), m.name) for m in mutants)
    return [(a[2], b[2]) for a, b in zip(spans, spans[1:]) if b[0] < a[1]]


def plant(path, text, mutants):
    """Returns the content of a file at path with all mutants, and each mutant's lines: name -> (first, last)."""
    include = os.path.relpath(HEADER, pathlib.Path(path).parent)
    out, at, lines = f'#include "{include}"\n', 0, {}
    for mutant in sorted(mutants, key=lambda m: text.index(m.old)):
        begin = text.index(mutant.old)
        out += text[at:begin]
        first = out.count("\n") + 1
        out += switched(mutant)
        lines[mutant.name] = (first, out.count("\n") + 1)
        at = begin + len(mutant.old)
    return out + text[at:], lines


def plant_all(root, mutants):
    """Returns the planted files of a tree, path -> content, and the locations of mutants, name -> (path, first,
    last)."""
    files, at = {HEADER: HEADER_TEXT}, {}
    for path in sorted({m.path for m in mutants}):
        files[path], lines = plant(path, (root / path).read_text(), [m for m in mutants if m.path == path])
        at.update({name: (path, *of) for name, of in lines.items()})
    return files, at


def broken(log_text, tree, build, at):
    """Returns the mutants at whose lines a compiler reports an error; a note counts if no error does."""
    names = set()
    for kind in (r"(?:fatal )?error:", r"(?:required from|note:|warning:)"):
        for path, line in re.findall(r"^\s*([^\s:]+):(\d+):(?:\d+:)?\s+" + kind, log_text, re.MULTILINE):
            path = (build / path).resolve()
            names |= {name for name, (of, first, last) in at.items() if (tree / of).resolve() == path and first <= int(line) <= last}
        if names:
            break
    return names
