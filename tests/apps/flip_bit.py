#!/usr/bin/env python3
"""Flips one bit of a file: flip_bit.py FILE SEED. The seed chooses which."""
import random
import sys

path, seed = sys.argv[1], int(sys.argv[2])
data = bytearray(open(path, "rb").read())
bit = random.Random(seed).randrange(len(data) * 8)
data[bit // 8] ^= 1 << bit % 8
open(path, "wb").write(data)
print(f"      bit {bit} of {len(data) * 8} in {path.rsplit('/', 1)[-1]}")
