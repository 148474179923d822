#!/usr/bin/env python3
"""Makes the damaged files that bad_inputs.txt names, in the working directory: bad_fixtures.py PORT_FILE keeps a port in use
until its standard input ends, and writes its number to PORT_FILE. Needs corpus.{bin,idx}, ck/ (a checkpoint folder) and
bpe.model there."""
import json
import os
import pathlib
import shutil
import socket
import struct
import sys


def write(name, content):
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def dataset(name, idx=None, binary=None):
    """A copy of the corpus with another .idx or .bin."""
    write(f"{name}.idx", pathlib.Path("corpus.idx").read_bytes() if idx is None else idx)
    write(f"{name}.bin", pathlib.Path("corpus.bin").read_bytes() if binary is None else binary)


def datasets():
    idx, binary = pathlib.Path("corpus.idx").read_bytes(), pathlib.Path("corpus.bin").read_bytes()
    dataset("idx_empty", idx=b"")
    dataset("idx_short", idx=idx[: len(idx) // 2])
    dataset("idx_long", idx=idx + b"\0" * 9)
    dataset("idx_magic", idx=b"X" + idx[1:])
    dataset("idx_version", idx=idx[:9] + struct.pack("<Q", 77) + idx[17:])
    dataset("idx_dtype", idx=idx[:17] + b"\x63" + idx[18:])
    dataset("idx_count", idx=idx[:18] + struct.pack("<Q", 2**62) + idx[26:])
    dataset("idx_length", idx=idx[:34] + struct.pack("<i", -5) + idx[38:])
    sequences = struct.unpack("<Q", idx[18:26])[0]
    pointer = 34 + 4 * sequences
    dataset("idx_pointer", idx=idx[: pointer + 8] + struct.pack("<q", 2**40) + idx[pointer + 16 :])
    dataset("bin_short", binary=binary[: len(binary) // 2])
    dataset("bin_empty", binary=b"")
    dataset("bin_tokens", binary=b"\xff\x7f" * (len(binary) // 2))
    write("idx_alone.idx", idx)
    # No documents at all: a header, no sequence, one document boundary.
    dataset("nothing", idx=b"MMIDIDX\0\0" + struct.pack("<QBQQq", 1, 8, 0, 1, 0), binary=b"")


def checkpoints():
    def copy(name):
        shutil.copytree("ck", name)
        return pathlib.Path(name, "iter_0000002")

    shard = "rank_00000.safetensors"
    data = pathlib.Path("ck/iter_0000002", shard).read_bytes()
    (copy("ck_shard_short") / shard).write_bytes(data[: len(data) // 2])
    (copy("ck_shard_empty") / shard).write_bytes(b"")
    (copy("ck_shard_header") / shard).write_bytes(struct.pack("<Q", 2**60) + data[8:])
    os.remove(copy("ck_shard_gone") / shard)
    manifest = pathlib.Path("ck/iter_0000002/manifest.json").read_bytes()
    (copy("ck_manifest_short") / "manifest.json").write_bytes(manifest[:500])
    (copy("ck_manifest_empty") / "manifest.json").write_bytes(b"")
    (copy("ck_manifest_changed") / "manifest.json").write_bytes(manifest.replace(b'"iteration":2', b'"iteration":3'))
    os.remove(copy("ck_manifest_gone") / "manifest.json")
    write("bare/" + shard, data)
    write("short.safetensors", data[: len(data) // 2])
    write("header.safetensors", struct.pack("<Q", 2**60) + data[8:])
    write("json.safetensors", struct.pack("<Q", 16) + b'{"a": [1, 2, 3 ]')
    os.makedirs("no_checkpoints")


def tokenizers():
    model = pathlib.Path("bpe.model").read_bytes()
    write("short.model", model[: len(model) // 3])
    write("noise.model", bytes((i * 37 + 11) % 256 for i in range(4000)))
    write("empty.model", b"")
    write("broken.json", '{"model": {"type": "BPE", "vocab": {"a": 0')
    write("other.json", '{"some": "other file"}')
    good = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}
    for name, change in {"merge": {"merges": ["a z"]}, "ids": {"vocab": {"a": 0, "b": 0, "ab": 2}}, "kind": {"type": "Unheard"}}.items():
        write(f"{name}.json", json.dumps(good | {"model": good["model"] | change}))
    write("vocab.json", '{"a": 0, "b": 1}')
    write("merges.txt", "#version: 0.2\na\n")


def texts():
    write("latin1.txt", "caf\xe9 au lait\n".encode("latin-1") * 20)
    write("latin1.jsonl", b'{"text": "caf\xe9"}\n')
    write("empty.txt", b"")
    write("blank.jsonl", b"\n\n")
    write("half.jsonl", b'{"text": "fine"}\n{"text": "cut off\n')
    write("number.jsonl", b'{"text": 17}\n')
    write("other_key.jsonl", b'{"body": "text"}\n')
    os.makedirs("empty_folder", exist_ok=True)
    write("list.yaml", "- 1\n- 2\n")
    write("tabs.yaml", "model:\n\tnum_layers: 2\n")
    write("twice.yaml", "model:\n  num_layers: 2\n  num_layers: 4\n")
    write("unknown_section.yaml", "modell:\n  num_layers: 2\n")
    write("unknown_key.yaml", "model:\n  num_layer: 2\n")
    write("quoted.yaml", 'model:\n  num_layers: "2"\n')
    write("nested.yaml", "model: {num_layers: {a: 1}}\n")
    write("binary.yaml", bytes(range(256)))
    write("deep.yaml", "[" * 5000)
    write("empty_args.sh", "--num-layers\n")
    model = ("--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 "
             "--micro-batch-size 1 --lr 0.1 --train-iters 2 --mock-data --vocab-size 100 ")
    write("hashed.sh", f"torchrun pretrain_gpt.py {model} --num-experts 8 --moe-n-hash-layers 8\n")
    write("experts_notes.txt", "what we saw")
    write("bert.sh", f"torchrun pretrain_bert.py {model}\n")
    write("positional.sh", f"torchrun pretrain_gpt.py {model} --save $1 --load $3\n")
    write("leaves.sh", "echo no such place\nexit 4\n")
    write("unset.sh", f'torchrun pretrain_gpt.py {model} --save "$OUT"\n')
    write("quote_args.sh", 'torchrun pretrain_gpt.py --num-layers "2\n')


def main():
    for make in (datasets, checkpoints, tokenizers, texts):
        make()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    write(sys.argv[1] + ".part", str(listener.getsockname()[1]))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    sys.stdin.read()


main()
