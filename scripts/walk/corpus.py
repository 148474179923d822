"""A small indexed dataset (PREFIX.bin and PREFIX.idx, Megatron's format). data.mock_data has about 200 million tokens,
which every run would split into samples and shuffle again."""
import random
import struct

DOCUMENTS, LONGEST = 80, 90


def write(prefix, vocab_size):
    rng = random.Random(vocab_size)
    documents = []
    for _ in range(DOCUMENTS):
        start, step = rng.randrange(vocab_size), rng.randrange(1, 8)
        documents.append([(start + step * i + rng.randrange(2)) % vocab_size for i in range(rng.randint(1, LONGEST))])
    lengths = [len(tokens) for tokens in documents]
    pointers = [4 * sum(lengths[:d]) for d in range(len(lengths))]
    with open(f"{prefix}.bin", "wb") as out:
        for tokens in documents:
            out.write(struct.pack(f"<{len(tokens)}i", *tokens))
    with open(f"{prefix}.idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(lengths), len(lengths) + 1))
        out.write(struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *pointers))
        out.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))
