#!/usr/bin/env python3
"""Writes what inspect_test.sh looks at, byte by byte and without the product: token datasets in Megatron's .bin/.idx
format (one a token type) and a safetensors file."""
import json
import struct

# Megatron's code, struct's letter.
TYPES = {"uint8": (1, "B"), "int8": (2, "b"), "int16": (3, "h"), "int32": (4, "i"), "int64": (5, "q"), "float64": (6, "d"),
         "float32": (7, "f"), "uint16": (8, "H")}
SEQUENCES = [[1, 2, 3], [4], [], [5, 6, 7, 8]]
DOCUMENTS = [0, 2, 4]  # where they begin, and the end


def write_dataset(prefix, name, sequences):
    code, letter = TYPES[name]
    size = struct.calcsize("<" + letter)
    lengths = [len(s) for s in sequences]
    pointers = [size * sum(lengths[:i]) for i in range(len(lengths))]
    with open(prefix + ".idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(DOCUMENTS)))
        index.write(struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(pointers)}q", *pointers))
        index.write(struct.pack(f"<{len(DOCUMENTS)}q", *DOCUMENTS))
    with open(prefix + ".bin", "wb") as tokens:
        for sequence in sequences:
            tokens.write(struct.pack(f"<{len(sequence)}{letter}", *sequence))


def write_safetensors(path):
    header = json.dumps({"__metadata__": {"made by": "hand"},
                         "wide": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                         "scalar": {"dtype": "I16", "shape": [], "data_offsets": [24, 26]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack("<6f", *range(6)) + struct.pack("<h", -7))


for name in TYPES:
    write_dataset("data_" + name, name, SEQUENCES)
write_dataset("data_changed", "uint16", SEQUENCES[:3] + [[5, 6, 7, 9]])
write_safetensors("by_hand.safetensors")
header = json.dumps({"\x1b]0;owned\x07\nname": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}).encode()
with open("control.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + b"x")
