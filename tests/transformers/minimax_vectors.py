#!/usr/bin/env python3
"""Writes tests/vectors/hf/minimax_factors: a tiny MiniMax whose residual factors differ, with blocks that do not divide a sequence,
and results of transformers, in the form of the other cases. Runs with the packages of scripts/transformers.sh.

  minimax_vectors.py OUT      the directory to write; must not exist"""
import pathlib
import sys

import torch
import transformers

from recording import write_case

SEED = 73
LAYERS = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]


def make_model():
    config = transformers.MiniMaxConfig(
        vocab_size=101, hidden_size=24, intermediate_size=16, num_hidden_layers=len(LAYERS), layer_types=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, num_local_experts=4, num_experts_per_tok=2, block_size=5, max_position_embeddings=128,
        full_attn_alpha_factor=1.6, full_attn_beta_factor=0.7, linear_attn_alpha_factor=0.8, linear_attn_beta_factor=1.5, mlp_alpha_factor=1.2,
        mlp_beta_factor=0.6, attn_implementation="eager", experts_implementation="eager", dtype="float32")
    model = transformers.MiniMaxForCausalLM(config)
    for name, parameter in model.named_parameters():
        parameter.data = 1 + 0.3 * torch.randn_like(parameter) if "norm" in name else 0.2 * torch.randn_like(parameter)
    return model.eval()


def split(name, tensor):
    """The files have a tensor per expert and matrix."""
    block = name.replace(".mlp.", ".block_sparse_moe.")
    stem, _, kind = block.rpartition(".experts.")
    if kind == "gate_up_proj":
        half = tensor.shape[1] // 2
        return {f"{stem}.experts.{e}.{w}.weight": part for e in range(len(tensor)) for w, part in (("w1", tensor[e, :half]), ("w3", tensor[e, half:]))}
    return {f"{stem}.experts.{e}.w2.weight": tensor[e] for e in range(len(tensor))} if kind == "down_proj" else {block: tensor}


def main(out):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = make_model()
    write_case(out, model, SEED, split, sorted(name for name, _ in model.named_buffers() if "self_attn" in name))


main(pathlib.Path(sys.argv[1]))
