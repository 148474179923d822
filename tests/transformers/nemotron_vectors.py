#!/usr/bin/env python3
"""Writes tests/vectors/hf/nemotron_h_latent: a tiny Nemotron-H whose experts work on a projection of the hidden states, and results
of transformers, in the form of the other cases. Runs with the packages of scripts/transformers.sh.

  nemotron_vectors.py OUT      the directory to write; must not exist"""
import json
import pathlib
import sys

import torch
import transformers

from recording import LENGTH, NEW_TOKENS, PROMPT, SEQUENCES, describe_logits, describe_tensor, number, sums

SEED = 5


def make_model():
    """Returns a model with sampled weights and expert biases; norms are around 1."""
    config = transformers.NemotronHConfig(
        vocab_size=131, hidden_size=32, layers_block_type=["mamba", "moe", "attention", "moe"], num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, mamba_num_heads=4, mamba_head_dim=8, n_groups=2, ssm_state_size=8, chunk_size=8,
        intermediate_size=56, moe_intermediate_size=16, moe_latent_size=12, moe_shared_expert_intermediate_size=20, n_routed_experts=4,
        num_experts_per_tok=2, routed_scaling_factor=1.5, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        attn_implementation="eager", experts_implementation="eager", dtype="float32")
    model = transformers.NemotronHForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data = 1 + 0.2 * torch.randn_like(parameter)
        elif not name.endswith(("A_log", "dt_bias", ".D")):
            parameter.data = 0.25 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * torch.randn_like(buffer))
    return model.eval()


def run(model, tokens):
    out = model(tokens, labels=tokens, use_cache=False)
    return out.logits.detach(), out.loss.item(), torch.autograd.grad(out.loss, list(model.parameters()))


def route(model, tokens):
    """Returns the chosen experts, ascending, and their weights, by layer."""
    found, handles = {}, []
    for index, layer in enumerate(model.model.layers):
        if layer.block_type != "moe":
            continue
        def keep(module, args, index=index):
            _, experts, weights = args
            order = experts.argsort(-1)
            found[str(index)] = {"experts": experts.gather(-1, order).tolist(),
                                 "weights": [[number(x) for x in row] for row in weights.gather(-1, order).tolist()]}
        handles.append(layer.mixer.experts.register_forward_pre_hook(keep))
    with torch.no_grad():
        model(tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def on_disk(names, gradients):
    """Returns the gradients by the names of the file, which has one tensor per expert."""
    named = {}
    for name, gradient in zip(names, gradients):
        stored = name.replace("model.", "backbone.", 1)
        if not stored.endswith(("experts.up_proj", "experts.down_proj")):
            named[stored] = gradient
            continue
        block, matrix = stored.rsplit(".", 1)
        named |= {f"{block}.{expert}.{matrix}.weight": one for expert, one in enumerate(gradient)}
    return named


def main(out):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = make_model()
    model.save_pretrained(out)
    stored = sums(out / "model.safetensors")
    tokens = torch.randint(3, model.config.vocab_size, (SEQUENCES, LENGTH))
    prompt = torch.randint(3, model.config.vocab_size, (1, PROMPT))
    generated = model.generate(prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
    routing = route(model, tokens)
    logits, loss, gradients = run(model, tokens)
    named = on_disk([name for name, _ in model.named_parameters()], gradients)
    exact_logits, exact_loss, exact = run(model.double(), tokens)
    distance = max(((a - b).norm() / b.norm()).item() for a, b in zip(gradients, exact))
    unnamed = sorted({*named} ^ {*stored})
    assert all(name.endswith("e_score_correction_bias") for name in unnamed), unnamed
    expected = {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__}, "case": out.name, "seed": SEED,
        "stored_dtype": "float32", "compute_dtype": "float32", "attention": "eager", "experts": "eager", "input_ids": tokens.tolist(),
        "loss": number(loss), "logits": describe_logits(logits),
        "generation": {"prompt": prompt[0].tolist(), "new_tokens": generated[0, PROMPT:].tolist()}, "routing": routing,
        "gradients": {name: describe_tensor(gradient) for name, gradient in sorted(named.items())}, "no_gradient": unnamed,
        "rounding": {"loss": abs(loss - exact_loss), "logits_max_abs": (logits - exact_logits).abs().max().item(),
                     "gradients_max_relative_l2": distance},
        "tensor_sha256": stored}
    (out / "expected.json").write_text(json.dumps(expected) + "\n")


main(pathlib.Path(sys.argv[1]))
