#!/usr/bin/env python3
"""Writes tests/vectors/hf/gemma: a tiny model of the first version of Gemma, and results of transformers, in the form of the
other cases. Runs with the packages of scripts/transformers.sh.

  gemma_vectors.py OUT      the directory to write; must not exist"""
import json
import pathlib
import sys

import torch
import transformers

from recording import LENGTH, NEW_TOKENS, PROMPT, SEQUENCES, describe_logits, describe_tensor, number, sums

SEED = 47


def make_model():
    """Returns a model with sampled weights; norms multiply by 1 + weight, so their weights are around 0."""
    config = transformers.GemmaConfig(
        vocab_size=149, hidden_size=48, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=2, attn_implementation="eager", dtype="float32")
    model = transformers.GemmaForCausalLM(config)
    for name, parameter in model.named_parameters():
        scale = 0.03 if "embed_tokens" in name else 0.3
        parameter.data = scale * torch.randn_like(parameter)
    return model.eval()


def run(model, tokens):
    out = model(tokens, labels=tokens)
    return out.logits.detach(), out.loss.item(), torch.autograd.grad(out.loss, list(model.parameters()))


def main(out):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = make_model()
    model.save_pretrained(out)
    tokens = torch.randint(3, model.config.vocab_size, (SEQUENCES, LENGTH))
    prompt = torch.randint(3, model.config.vocab_size, (1, PROMPT))
    generated = model.generate(prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
    names = [name for name, _ in model.named_parameters()]
    logits, loss, gradients = run(model, tokens)
    exact_logits, exact_loss, exact = run(model.double(), tokens)
    distance = max(((a - b).norm() / b.norm()).item() for a, b in zip(gradients, exact))
    expected = {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__}, "case": out.name, "seed": SEED,
        "stored_dtype": "float32", "compute_dtype": "float32", "attention": "eager", "input_ids": tokens.tolist(), "loss": number(loss),
        "logits": describe_logits(logits),
        "generation": {"prompt": prompt[0].tolist(), "new_tokens": generated[0, PROMPT:].tolist()},
        "gradients": {name: describe_tensor(gradient) for name, gradient in sorted(zip(names, gradients))}, "no_gradient": [],
        "rounding": {"loss": abs(loss - exact_loss), "logits_max_abs": (logits - exact_logits).abs().max().item(),
                     "gradients_max_relative_l2": distance},
        "tensor_sha256": sums(out / "model.safetensors")}
    (out / "expected.json").write_text(json.dumps(expected) + "\n")


main(pathlib.Path(sys.argv[1]))
