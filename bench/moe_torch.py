#!/usr/bin/env python3
"""A training step of a small mixture of experts in plain PyTorch, to be set beside moe_step: GPT with learned positions,
RMSNorm and tied words, SwiGLU experts behind a softmax router with the auxiliary loss of the Switch Transformer, AdamW.
moe_torch.py [--experts-by sequential|grouped] [--dtype f32|bf16] and sizes; prints ms a step and tokens/s.
grouped: all experts by torch._grouped_mm. bf16: autocast, parameters in fp32."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 4), ("hidden", 512), ("heads", 8), ("ffn", 1024), ("experts", 8), ("topk", 2), ("vocab", 8192), ("seq", 256), ("batch", 4), ("steps", 10), ("threads", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--aux", type=float, default=0.01, help="factor of the auxiliary loss")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--experts-by", choices=("sequential", "grouped"), default="grouped")
    return parser.parse_args()


class Experts(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.router = nn.Linear(a.hidden, a.experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(a.experts, 2 * a.ffn, a.hidden))
        self.w2 = nn.Parameter(torch.empty(a.experts, a.hidden, a.ffn))

    def activate(self, x, probs):
        gate, up = x.chunk(2, -1)
        return (F.silu(gate) * up * probs.unsqueeze(1)).to(x.dtype)

    def grouped(self, rows, probs, counts, w1, w2):
        ends = counts.cumsum(0).to(torch.int32)
        inner = torch._grouped_mm(rows, w1.transpose(1, 2), ends)
        return torch._grouped_mm(self.activate(inner, probs), w2.transpose(1, 2), ends)

    def sequential(self, rows, probs, counts, w1, w2):
        splits = counts.tolist()
        parts = zip(rows.split(splits), probs.split(splits), w1, w2)
        return torch.cat([F.linear(self.activate(F.linear(x, u), p), d) for x, p, u, d in parts])

    def forward(self, x):
        a, shape = self.a, x.shape
        x = x.reshape(-1, a.hidden)
        with torch.autocast("cpu", enabled=False):
            logits = F.linear(x.float(), self.router.weight)
        top, chosen = logits.topk(a.topk, -1)
        probs = top.softmax(-1)
        counts = torch.bincount(chosen.reshape(-1), minlength=a.experts)
        share = logits.softmax(-1).mean(0)
        aux = a.aux * a.experts * (share * counts / counts.sum()).sum()
        order = chosen.reshape(-1).argsort(stable=True)
        token = order // a.topk
        rows, row_probs = x[token], probs.reshape(-1)[order]
        if torch.is_autocast_enabled("cpu"):
            rows = rows.to(torch.bfloat16)
        w1, w2 = self.w1.to(rows.dtype), self.w2.to(rows.dtype)
        y = getattr(self, a.experts_by)(rows, row_probs, counts, w1, w2)
        return torch.zeros_like(x, dtype=y.dtype).index_add_(0, token, y).view(shape), aux


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.norm1, self.norm2 = nn.RMSNorm(a.hidden, eps=1e-5), nn.RMSNorm(a.hidden, eps=1e-5)
        self.qkv, self.proj = nn.Linear(a.hidden, 3 * a.hidden, bias=False), nn.Linear(a.hidden, a.hidden, bias=False)
        self.experts = Experts(a)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h))
        y, aux = self.experts(self.norm2(x))
        return x + y, aux


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.words, self.positions = nn.Embedding(a.vocab, a.hidden), nn.Embedding(a.seq, a.hidden)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.hidden, eps=1e-5)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        total = 0
        for block in self.blocks:
            x, aux = block(x)
            total = total + aux
        logits = F.linear(self.norm(x), self.words.weight).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)) + total


def main():
    a = arguments()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = Model(a)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, labels = torch.randint(0, a.vocab, (a.batch, a.seq)), torch.randint(0, a.vocab, (a.batch, a.seq))
    times = []
    for _ in range(a.steps + 2):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
            loss = model(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    median = sorted(times[2:])[a.steps // 2]
    print(f"PyTorch {a.experts_by} {a.dtype} threads={torch.get_num_threads()} loss={loss.item():.4f} median {median * 1e3:.1f} ms  {a.batch * a.seq / median:.1f} tok/s")


if __name__ == "__main__":
    main()
