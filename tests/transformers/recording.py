"""Results of transformers in the form of tests/vectors/hf/*/expected.json, for the scripts that record cases."""
import hashlib
import json

import torch
import transformers
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


def run(model, tokens):
    out = model(tokens, labels=tokens)
    return out.logits.detach(), out.loss.item(), torch.autograd.grad(out.loss, list(model.parameters()))


def write_case(out, model, seed, split=lambda name, tensor: {name: tensor}, constants=()):
    """Writes the directory `out` for the model. `split` maps a parameter's name and gradient to those of the files; `constants` are
    tensors of the files that are no parameters."""
    model.save_pretrained(out)
    tokens = torch.randint(3, model.config.vocab_size, (SEQUENCES, LENGTH))
    prompt = torch.randint(3, model.config.vocab_size, (1, PROMPT))
    generated = model.generate(prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, use_cache=False)
    logits, loss, gradients = run(model, tokens)
    stored = {key: tensor for (name, _), gradient in zip(model.named_parameters(), gradients) for key, tensor in split(name, gradient).items()}
    exact_logits, exact_loss, exact = run(model.double(), tokens)
    distance = max(((a - b).norm() / b.norm()).item() for a, b in zip(gradients, exact))
    expected = {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__}, "case": out.name, "seed": seed,
        "stored_dtype": "float32", "compute_dtype": "float32", "attention": "eager", "input_ids": tokens.tolist(), "loss": number(loss),
        "logits": describe_logits(logits),
        "generation": {"prompt": prompt[0].tolist(), "new_tokens": generated[0, PROMPT:].tolist()},
        "gradients": {name: describe_tensor(gradient) for name, gradient in sorted(stored.items())}, "no_gradient": list(constants),
        "rounding": {"loss": abs(loss - exact_loss), "logits_max_abs": (logits - exact_logits).abs().max().item(),
                     "gradients_max_relative_l2": distance},
        "tensor_sha256": sums(out / "model.safetensors")}
    (out / "expected.json").write_text(json.dumps(expected) + "\n")
