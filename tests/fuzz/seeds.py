#!/usr/bin/env python3
"""What a fuzzer starts from: seeds.py FUZZER FOLDER. Mutations reach the depths of a parser only from files that it
accepts, so the seeds are those of the recorded cases, small ones where there is a choice."""
import json
import pathlib
import shutil
import struct
import sys

tests = pathlib.Path(__file__).resolve().parent.parent
vectors = tests / "vectors"


def indexed_dataset(folder):
    """Two bytes with the length of the index, the index, the tokens; and an array of numpy's."""
    for case in json.loads((vectors / "indexed_dataset.json").read_text())["cases"]:
        index, tokens = bytes.fromhex(case["idx_hex"]), bytes.fromhex(case["bin_hex"])
        (folder / case["name"]).write_bytes(struct.pack("<H", len(index)) + index + tokens)
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (3, 2), }"
    header += b" " * ((-len(header) - 11) % 64) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<6q", *range(6))
    (folder / "npy").write_bytes(struct.pack("<H", 0) + array)


def vocab_merges(folder):
    """GPT-2's byte alphabet with its first merges, and nothing but the alphabet."""
    gpt2 = vectors / "tokenizers" / "gpt2"
    vocab = json.loads((gpt2 / "vocab.json").read_text(encoding="utf-8"))
    lines = (gpt2 / "merges.txt").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")][:40]
    small = {token: i for token, i in vocab.items() if i < 256}
    for rule in rules:
        small.setdefault(rule.replace(" ", ""), len(small))
    for name, words, merges in (("merges", small, rules), ("alphabet", {t: i for t, i in vocab.items() if i < 256}, [])):
        text = json.dumps(words, ensure_ascii=False) + "\0" + "#version: 0.2\n" + "".join(f"{rule}\n" for rule in merges)
        (folder / name).write_bytes(text.encode("utf-8"))


def copied(*patterns):
    def copy(folder):
        for pattern in patterns:
            for path in tests.glob(pattern):
                shutil.copy(path, folder)
    return copy


SEEDS = {
    "indexed_dataset_fuzz": indexed_dataset,
    "vocab_merges_fuzz": vocab_merges,
    "manifest_fuzz": copied("fuzz/manifest_corpus/*.members"),
    "safetensors_fuzz": copied("vectors/safetensors/*.safetensors"),
    "tokenizer_json_fuzz": copied("vectors/tokenizers/gpt2/tokenizer.json"),
    "tokenizer_model_fuzz": copied("vectors/tokenizers/sentencepiece_unigram_rules/tokenizer.model"),
}

target = pathlib.Path(sys.argv[2])
SEEDS[sys.argv[1]](target)
if not any(target.iterdir()):
    sys.exit(f"no seed for {sys.argv[1]}")
