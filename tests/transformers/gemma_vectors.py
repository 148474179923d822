#!/usr/bin/env python3
"""Writes tests/vectors/hf/gemma: a tiny model of the first version of Gemma, and results of transformers, in the form of the
other cases. Runs with the packages of scripts/transformers.sh.

  gemma_vectors.py OUT      the directory to write; must not exist"""
import pathlib
import sys

import torch
import transformers

from recording import write_case

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


def main(out):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    write_case(out, make_model(), SEED)


main(pathlib.Path(sys.argv[1]))
