"""A training run of CodeGeeX's own model (codegeex/torch/codegeex_model.py), as golden_index.json describes it."""
import contextlib
import importlib.util
import math
import pathlib
from unittest import mock

import torch

import recipe


def load_model(config, checkout):
    path = pathlib.Path(checkout, "codegeex/torch/codegeex_model.py")
    spec = importlib.util.spec_from_file_location("codegeex_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    m = config["model"]
    return module.CodeGeeXModel(m["hidden_size"], m["num_layers"], m["num_attention_heads"], config["vocab"], config["seq"])


def in_fp32():
    """CodeGeeX's file casts tables, probabilities and the head to fp16, for GPUs; in here all stays in fp32."""
    stack = contextlib.ExitStack()
    for kind in (torch.Tensor, torch.nn.Module):
        stack.enter_context(mock.patch.object(kind, "half", lambda self: self))
    return stack


class Merged:
    """Several parameters under one golden name: their rows interleaved by heads, [q, k, v] or [k, v] of each head."""

    def __init__(self, parameters, heads):
        self.parameters, self.heads = parameters, heads

    def merge(self, tensors):
        rest = tensors[0].shape[1:]
        return torch.stack([t.reshape(self.heads, -1, *rest) for t in tensors], 1).reshape(-1, *rest)

    def value(self):
        return self.merge([p.data for p in self.parameters])

    def gradient(self):
        return self.merge([p.grad for p in self.parameters])

    def set(self, name):
        rest = self.parameters[0].shape[1:]
        whole = recipe.weight(name, self.value().shape)
        parts = whole.reshape(self.heads, len(self.parameters), -1, *rest).unbind(1)
        for parameter, part in zip(self.parameters, parts):
            parameter.data.copy_(part.reshape(parameter.shape))


def by_name(model, heads):
    """{golden name: Merged} of every parameter."""
    core = model.language_model
    found = {
        "embedding.word_embeddings.weight": [core.embedding.word_embeddings.weight],
        "embedding.position_embeddings.weight": [core.embedding.position_embeddings.weight],
        "decoder.top_query_embeddings.weight": [core.topQueryEmbedding.top_query_embeddings.weight],
    }
    layers = {f"decoder.layers.{i}": layer for i, layer in enumerate(core.transformer.layers)}
    layers["decoder.top_query_layer"] = core.transformer.topQueryLayer
    for kind in ("weight", "bias"):
        found[f"decoder.final_layernorm.{kind}"] = [getattr(core.transformer.final_layernorm, kind)]
        for prefix, layer in layers.items():
            attention = layer.attention
            q, k, v = (getattr(part, kind) for part in (attention.query, attention.key, attention.value))
            if "top_query" in prefix:
                merged = {"linear_q": [q], "linear_kv": [k, v]}
            else:
                merged = {"linear_qkv": [q, k, v]}
            found |= {f"{prefix}.self_attention.{name}.{kind}": parts for name, parts in merged.items()}
            single = {
                "input_layernorm": layer.input_layernorm,
                "self_attention.linear_proj": attention.dense,
                "pre_mlp_layernorm": layer.post_attention_layernorm,
                "mlp.linear_fc1": layer.mlp.dense_h_to_4h,
                "mlp.linear_fc2": layer.mlp.dense_4h_to_h,
            }
            found |= {f"{prefix}.{name}.{kind}": [getattr(part, kind)] for name, part in single.items()}
    return {name: Merged(parts, heads) for name, parts in found.items()}


def learning_rate(config, step):
    warmup, iters = config["warmup_iters"], config["iters"]
    if step <= warmup:
        return config["lr"] * step / warmup
    ratio = (step - warmup) / (iters - warmup)
    return config["min_lr"] + (config["lr"] - config["min_lr"]) * 0.5 * (1 + math.cos(math.pi * ratio))


def backward_all(config, model, iteration):
    """Adds up the gradients of one iteration; its loss."""
    seq, count = config["seq"], config["gbs"] // config["mbs"]
    future = torch.triu(torch.ones(1, 1, seq, seq), diagonal=1)
    total = 0.0
    for m in range(count):
        tokens, labels, _, positions = recipe.microbatch(config, iteration, m, 0, 1)
        logits = model(tokens, positions, future)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config["vocab"]), labels.reshape(-1))
        (loss / count).backward()
        total += loss.item() / count
    return total


def run(config, checkout):
    """{"history", "final_params", "grads_iter1"}."""
    unknown = [key for key in ("tp", "pp", "vpp", "sp", "dist_opt", "precision", "mask_last", "optimizer", "cfg") if key in config]
    if unknown or config["nproc"] != 1 or config["decay_style"] != "cosine":
        raise SystemExit(f"runs of CodeGeeX's model are of one rank, in fp32, with Adam and a cosine schedule; not {unknown}")
    with in_fp32():
        return train(config, load_model(config, checkout))


def train(config, model):
    tensors = by_name(model, config["model"]["num_attention_heads"])
    for name, tensor in tensors.items():
        tensor.set(name)
    parameters = list(model.parameters())
    flat = [p for p in parameters if p.dim() == 1]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.get("wd", 0.01)},
        {"params": flat, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0)
    history = []
    for iteration in range(config["iters"]):
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, iteration)
        loss = backward_all(config, model, iteration)
        if iteration == 0:
            first = recipe.summaries({name: tensor.gradient() for name, tensor in tensors.items()})
        zeros = sum(int((p.grad == 0).sum()) for p in parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.get("clip", 1.0) or math.inf).item()
        optimizer.step()
        history.append({
            "iter": iteration + 1, "loss": loss, "lr_used": learning_rate(config, iteration), "grad_norm": norm,
            "num_zeros": zeros, "update_ok": True, "loss_scale_used": 1.0,
        })  # fmt: skip
    final = recipe.summaries({name: tensor.value() for name, tensor in tensors.items()})
    return {"history": history, "final_params": final, "grads_iter1": first}
