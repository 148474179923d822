#!/usr/bin/env python3
"""Records which bytes of a text each token comes from: range_vectors.py FILE writes, for tokenizers of tests/vectors/tokenizers and
variants of them with other normalizers, the ids and offsets of the tokenizers and sentencepiece packages.
Needs tokenizers, sentencepiece and protobuf."""
import itertools
import json
import pathlib
import random
import sys

import sentencepiece
import tokenizers

folders = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "tokenizers"
EXPANDING = {"type": "Sequence", "normalizers": [
    {"type": "Lowercase"}, {"type": "NFC"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "x\u00e9y"},
    {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": ""}]}
WORDS = {"type": "Sequence", "pretokenizers": [
    {"type": "WhitespaceSplit"}, {"type": "Punctuation"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}]}
# Name, folder, changed keys of tokenizer.json.
KINDS = [(name, name, {}) for name in ("deepseek_v3", "gpt2", "gpt2_prefix_space", "llama2", "llama2_metaspace", "llama3", "qwen2")] + [
    ("qwen2, NFD", "qwen2", {"normalizer": {"type": "NFD"}}),
    ("qwen2, NFKC", "qwen2", {"normalizer": {"type": "NFKC"}}),
    ("qwen2, NFKD", "qwen2", {"normalizer": {"type": "NFKD"}}),
    ("qwen2, a sequence", "qwen2", {"normalizer": EXPANDING}),
    ("qwen2, Strip and Prepend", "qwen2", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "z\u00e9"}]}}),
    ("gpt2, trimmed", "gpt2", {"post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}}),
    ("llama2, no bytes", "llama2", {"model": {"byte_fallback": False}}),
    ("llama2, no bytes, no fusing", "llama2", {"model": {"byte_fallback": False, "fuse_unk": False}}),
    ("llama2_metaspace, words", "llama2_metaspace", {"pre_tokenizer": WORDS})]
MODELS = ("sentencepiece_bpe", "sentencepiece_bpe_nmt_nfkc", "sentencepiece_unigram", "sentencepiece_unigram_rules")
PARTS = list("abeoE \u00c3\u00e312.,\n\t") + [
    "  ", "\n\n", " hello", "the ", "N\u00e3o", "S\u00c3O", "1\u00c32", "\u00e9", "\u09af", "\u09df", "\u1100", "\u1112", "\uac00", "\ud7a3", "\uf900", "\ufb01", "\u01c6",
    "\u2460", "\u3300", "\ufdfa", "\u00bd", "\u304c", "\u304b", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u00a0", "\u3000", "\u2581", "\u00df",
    "\u0130", "\u212b", "\u2126", "\u4e16\u754c", "\u05e9\u05c1", "\u0627\u0653", "<|im_start|>", "<|im_end|>", "</s>", "<s>", "<|endoftext|>", "<unk>", "<0x41>"]
MARKS = [chr(c) for c in (0x300, 0x301, 0x303, 0x308, 0x30a, 0x327, 0x323, 0x338, 0x1161, 0x1175, 0x11a8, 0x9bc, 0x93c, 0x9be, 0x3099)]


def texts(count):
    fixed = ["e\u0301", "\u09df", "1\u00c32", "N\u00c3O", "S\u00c3O PAULO", "\u2581 a\u2581", "  a  b  ", "\u1100\u1161\u11a8", "a\u0327\u0301\u0323", ""]
    for text in fixed:
        yield text
    dice = random.Random(7)
    for _ in range(count):
        yield "".join(dice.choice(PARTS) + (dice.choice(MARKS) if dice.random() < 0.35 else "") for _ in range(dice.randint(1, 10)))


def in_bytes(text, offsets):
    at = [0, *itertools.accumulate(len(c.encode()) for c in text)]
    return [[at[begin], at[end]] for begin, end in offsets]


def of_package(folder, changes, text_list):
    config = json.loads((folders / folder / "tokenizer.json").read_text(encoding="utf-8"))
    for key, value in changes.items():
        config[key] = {**config[key], **value} if key == "model" else value
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(config))
    for text in text_list:
        made = tokenizer.encode(text, add_special_tokens=False)
        yield {"text": text, "ids": made.ids, "ranges": in_bytes(text, made.offsets)}


def of_sentencepiece(folder, text_list):
    model = sentencepiece.SentencePieceProcessor(model_file=str(folders / folder / "tokenizer.model"))
    for text in text_list:
        pieces = model.encode(text, return_type="proto").pieces
        ranges = [[piece.begin, piece.end] for piece in pieces]
        # The package gives a character's range to the last of its bytes only.
        for i in reversed(range(len(pieces) - 1)):
            if model.is_byte(pieces[i].id) and ranges[i][0] == ranges[i][1]:
                ranges[i] = ranges[i + 1]
        yield {"text": text, "ids": [piece.id for piece in pieces], "ranges": ranges}


kinds = [{"name": name, "folder": folder, "changes": changes, "cases": list(of_package(folder, changes, texts(40)))} for name, folder, changes in KINDS]
kinds += [{"name": folder, "folder": folder, "changes": {}, "cases": list(of_sentencepiece(folder, texts(40)))} for folder in MODELS]
made_by = {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__}
lines = [json.dumps({**kind, "cases": []}, ensure_ascii=True)[:-2] + ",\n ".join(json.dumps(case) for case in kind["cases"]) + "]}" for kind in kinds]
pathlib.Path(sys.argv[1]).write_text('{"made_by": ' + json.dumps(made_by) + ', "kinds": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
print(sum(len(kind["cases"]) for kind in kinds), "cases")
