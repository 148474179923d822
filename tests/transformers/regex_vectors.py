#!/usr/bin/env python3
"""Records what regular expressions of a tokenizer.json match in the tokenizers package: regex_vectors.py FILE writes, for character classes,
the matched code points (their number, sum and sum of squares modulo 2^64) and, for other expressions, the byte ranges of the parts that an isolating split makes of a text."""
import json
import pathlib
import sys

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

POSIX = ("alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word", "xdigit")
CLASSES = [f"[[:{name}:]]" for name in POSIX] + [
    "[[:^alpha:]]", "[^[:alpha:]_]", "[^[:^alpha:]]", "[[:alpha:]&&[^[:upper:]]]", r"\h", r"\H", r"[\h]", r"[\H]", r"[^\h]", r"[^\H]", r"[g\H]", r"[5[b\H]]", r"\w", r"\W", r"[\w]", r"[\W]", r"[^\W]",
    r"[\W_]", r"\s", r"\S", r"[\S]", r"[^\S\n]", r"\d", r"\D", r"[\D]", r"[5\D]", r"\p{L}", r"\P{L}", r"[\P{L}]", r"[x\P{L}]", r"[^\P{L}x]", r"[a[^b]]", r"[^a[^b-d]]", r"[\p{L}&&[^\p{Lu}]a]",
    r"\v", r"[\v]", r"\V", r"[\Q]"]
TEXTS = [
    (r"\Q.\E", "a.QbE.c"), ("(?m:a.b)", "xa\nbx"), ("(?im)A.b", "xa\nbx"), ("a.b", "a\nb"), (r"\b", "a\u0301b b\u00b2 c"), (r"\B", "a\u0301b b"), (r"\bb", "a\u0301b b"), ("a{1,2}+", "aaaaab"),
    ("a{1,2}+b", "xaaaaabc"), ("(ab){2}+", "xababababc"), ("a{2}?b", "ab aab"), ("a{1,2}?", "aaaa"), ("xa{,2}", "xaaaax"), ("a{2}{2}", "aaaaaa"), (r"\p{N}{1,3}+", "12345 6"), ("[ab]{2}+c", "ababac"),
    ("\u00e9{1,2}+", "\u00e9\u00e9\u00e9e"), (r"\x{61}{1,2}+", "aaaa"), ("(?i:a(b|c){1,2}+)", "ABCBx"), ("a{x}", "a{x}"), ("a++b", "aab"), (r"(?<=[\H])a", "xa ga aa"), (r"\R", "a\r\nb"),
    (r"[\n\b]", "a\bb\n"), (r"a\v", "a\vb\nc")]


def ranges(pattern, text):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    parts = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return [[at[begin], at[end]] for _, (begin, end) in parts]


def matched(pattern, everything):
    left = set(normalizers.Replace(Regex(pattern), "").normalize_str(everything))
    return [ord(c) for c in everything if c not in left]


characters = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
classes = []
for pattern in CLASSES:
    found = matched(pattern, characters)
    classes.append({"regex": pattern, "count": len(found), "sum": sum(found), "squares": sum(c * c for c in found) % 2**64})
texts = [{"regex": pattern, "text": text, "ranges": ranges(pattern, text)} for pattern, text in TEXTS]
lines = [",\n ".join(json.dumps(item) for item in items) for items in (classes, texts)]
pathlib.Path(sys.argv[1]).write_text(
    f'{{"made_by": {{"tokenizers": "{tokenizers.__version__}"}},\n"classes": [\n {lines[0]}],\n"texts": [\n {lines[1]}]}}\n', encoding="utf-8")
print(len(classes), "classes,", len(texts), "texts")
