#!/usr/bin/env python3
"""Writes tests/vectors/hf/peft_dora: the model of peft_llama with DoRA adapters of PEFT, and PEFT's results, in the form
of the other cases. Runs with the packages of scripts/transformers.sh.

  dora_vectors.py OUT      the directory to write; must not exist"""
import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers

from recording import LENGTH, NEW_TOKENS, PROMPT, SEQUENCES, describe_logits, describe_tensor, number, sums

BASE = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "hf" / "peft_llama"
SEED = 31


def load_base():
    return transformers.AutoModelForCausalLM.from_pretrained(BASE, attn_implementation="eager").eval()


def make_model():
    """Returns the model with sampled adapters, whose magnitudes are not the lengths of the rows."""
    config = peft.LoraConfig(r=3, lora_alpha=5, use_dora=True, target_modules=["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"],
                             rank_pattern={"down_proj": 2}, task_type="CAUSAL_LM")
    model = peft.get_peft_model(load_base(), config)
    for name, parameter in model.named_parameters():
        if "lora_magnitude_vector" in name:
            parameter.data *= 1 + 0.3 * torch.randn_like(parameter)
        elif "lora_" in name:
            parameter.data = 0.2 * torch.randn_like(parameter)
    return model.eval()


def run(model, tokens):
    out = model(tokens, labels=tokens)
    gradients = torch.autograd.grad(out.loss, [p for p in model.parameters() if p.requires_grad])
    return out.logits.detach(), out.loss.item(), gradients


def main(out):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    shutil.copytree(BASE, out, ignore=shutil.ignore_patterns("adapter", "expected.json"))
    model = make_model()
    model.save_pretrained(out / "adapter")
    (out / "adapter" / "README.md").unlink()
    adapter = json.loads((out / "adapter" / "adapter_config.json").read_text())
    adapter["base_model_name_or_path"] = ".."
    (out / "adapter" / "adapter_config.json").write_text(json.dumps(adapter, indent=2))
    tokens = torch.randint(3, model.config.vocab_size, (SEQUENCES, LENGTH))
    prompt = torch.randint(3, model.config.vocab_size, (1, PROMPT))
    generated = model.generate(prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
    logits, loss, gradients = run(model, tokens)
    names = list(peft.get_peft_model_state_dict(model))
    without = load_base()(tokens, labels=tokens).loss.item()
    exact_logits, exact_loss, exact = run(model.double(), tokens)
    distance = max(((a - b).norm() / b.norm()).item() for a, b in zip(gradients, exact))
    merged = model.merge_and_unload().state_dict()
    expected = {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__, "peft": peft.__version__}, "case": out.name,
        "seed": SEED, "stored_dtype": "float32", "compute_dtype": "float32", "attention": "eager", "adapter": "adapter",
        "input_ids": tokens.tolist(), "loss": number(loss), "logits": describe_logits(logits),
        "generation": {"prompt": prompt[0].tolist(), "new_tokens": generated[0, PROMPT:].tolist()},
        "gradients": {name: describe_tensor(gradient) for name, gradient in zip(names, gradients)},
        "rounding": {"loss": abs(loss - exact_loss), "logits_max_abs": (logits - exact_logits).abs().max().item(),
                     "gradients_max_relative_l2": distance},
        "loss_without_adapter": number(without), "merged": {name: describe_tensor(tensor) for name, tensor in sorted(merged.items())},
        "tensor_sha256": sums(out / "model.safetensors"), "adapter_tensor_sha256": sums(out / "adapter" / "adapter_model.safetensors")}
    (out / "expected.json").write_text(json.dumps(expected) + "\n")


main(pathlib.Path(sys.argv[1]))
