"""Results of transformers in the form of tests/vectors/hf/*/expected.json, for the scripts that record cases."""
import hashlib

from safetensors.torch import load_file

PROMPT, NEW_TOKENS, SEQUENCES, LENGTH = 6, 12, 2, 24


def number(value):
    """Returns the shortest decimal that reads back as the same float32."""
    return float(f"{value:.9g}")


def describe_logits(logits):
    vocabulary = [[row.tolist() for row in sequence] for sequence in logits]
    return {"argmax": logits.argmax(-1).tolist(), "logsumexp": [[number(x) for x in row] for row in logits.logsumexp(-1).tolist()],
            "first16": [[[number(x) for x in row[:16]] for row in sequence] for sequence in vocabulary],
            "last16": [[[number(x) for x in row[-16:]] for row in sequence] for sequence in vocabulary],
            "rows": [{"sequence": s, "position": p, "values": [number(x) for x in vocabulary[s][p]]}
                     for s in range(SEQUENCES) for p in (0, LENGTH // 2, LENGTH - 1)]}


def describe_tensor(tensor):
    values = tensor.double().flatten()
    return {"shape": list(tensor.shape), "sum": values.sum().item(), "l2": values.norm().item(),
            "first": [number(x) for x in values[:4].tolist()], "last": [number(x) for x in values[-4:].tolist()]}


def sums(path):
    return {name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for name, tensor in load_file(path).items()}
