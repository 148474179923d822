#!/usr/bin/env python3
"""gpu_peer.py gpt2|llama|mixtral STEPS cuda|cpu COMPILE(0|1) [whole|small]: the models of gpu_step in plain PyTorch.
Parameters are fp32, with bf16 autocast, fused AdamW and libtorch's attention. Experts use torch._grouped_mm if the
device supports it in bf16, else they run one after another. time.perf_counter() is called only before and after each
step (turns.py makes the steps wait). Prints ms per step and tokens/s."""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Sizes:
    def __init__(self, model, small):
        gpt, experts = model == "gpt2", model == "mixtral"
        self.layers = (2 if small else 12) if gpt else (2 if small or experts else 4)
        self.hidden = 64 if small else (768 if gpt else 2048)
        self.heads = (2 if small else 12) if gpt else (4 if small else (16 if experts else 32))
        self.groups = self.heads if gpt else (2 if small else (4 if experts else 8))
        self.ffn = 4 * self.hidden if gpt else (128 if small else (7168 if experts else 8192))
        self.vocab = 512 if small else (50257 if gpt else 32000)
        self.seq = 32 if small else (1024 if gpt else 2048)
        self.batch = (2 if small else 8) if gpt else 2
        self.gpt, self.experts, self.topk = gpt, 8 if experts else 0, 2


def rotate(x):
    t, d = x.shape[-2], x.shape[-1]
    angles = torch.outer(torch.arange(t, device=x.device).float(), 10000.0 ** (-torch.arange(0, d, 2, device=x.device) / d))
    angles = torch.cat((angles, angles), -1)
    half = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1)
    return (x * angles.cos() + half * angles.sin()).to(x.dtype)


class Experts(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.router = nn.Linear(s.hidden, s.experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(s.experts, 2 * s.ffn, s.hidden) * 0.02)
        self.w2 = nn.Parameter(torch.randn(s.experts, s.hidden, s.ffn) * 0.02)

    def forward(self, x):
        s, shape = self.s, x.shape
        x = x.reshape(-1, s.hidden)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.router.weight)
        top, chosen = logits.topk(s.topk, -1)
        probs, counts = top.softmax(-1), torch.bincount(chosen.reshape(-1), minlength=s.experts)
        order = chosen.reshape(-1).argsort(stable=True)
        rows, row_probs = x[order // s.topk].to(torch.bfloat16), probs.reshape(-1)[order]
        w1, w2 = self.w1.to(torch.bfloat16), self.w2.to(torch.bfloat16)
        if x.is_cuda:
            ends = counts.cumsum(0).to(torch.int32)
            multiply = lambda a, w: torch._grouped_mm(a, w.transpose(1, 2), ends)
        else:
            splits = counts.tolist()
            multiply = lambda a, w: torch.cat([F.linear(part, one) for part, one in zip(a.split(splits), w)])
        gate, up = multiply(rows, w1).chunk(2, -1)
        y = multiply((F.silu(gate) * up * row_probs.unsqueeze(1)).to(torch.bfloat16), w2)
        out = torch.zeros_like(x, dtype=y.dtype).index_add_(0, order // s.topk, y).view(shape)
        return out, 0.01 * s.experts * (logits.softmax(-1).mean(0) * counts / counts.sum()).sum()


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, d = s, s.hidden // s.heads
        norm = nn.LayerNorm if s.gpt else nn.RMSNorm
        self.norm1, self.norm2 = norm(s.hidden, eps=1e-5), norm(s.hidden, eps=1e-5)
        self.qkv = nn.Linear(s.hidden, (s.heads + 2 * s.groups) * d, bias=s.gpt)
        self.proj = nn.Linear(s.hidden, s.hidden, bias=s.gpt)
        if s.experts:
            self.experts = Experts(s)
        else:
            self.fc1 = nn.Linear(s.hidden, s.ffn * (1 if s.gpt else 2), bias=s.gpt)
            self.fc2 = nn.Linear(s.ffn, s.hidden, bias=s.gpt)

    def mlp(self, x):
        if self.s.gpt:
            return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        gate, up = self.fc1(x).chunk(2, -1)
        return self.fc2(F.silu(gate) * up)

    def forward(self, x):
        s, (b, t, h) = self.s, x.shape
        d = h // s.heads
        q, k, v = self.qkv(self.norm1(x)).split([h, s.groups * d, s.groups * d], -1)
        q, k, v = (y.view(b, t, -1, d).transpose(1, 2) for y in (q, k, v))
        if not s.gpt:
            q, k = rotate(q), rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.groups != s.heads)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, h))
        y = self.norm2(x)
        y, aux = self.experts(y) if s.experts else (self.mlp(y), 0)
        return x + y, aux


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.words = s, nn.Embedding(s.vocab, s.hidden)
        self.positions = nn.Embedding(s.seq, s.hidden) if s.gpt else None
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = (nn.LayerNorm if s.gpt else nn.RMSNorm)(s.hidden, eps=1e-5)
        self.head = nn.Linear(s.hidden, s.vocab, bias=False)
        if s.gpt:
            self.head.weight = self.words.weight

    def forward(self, tokens, labels):
        x = self.words(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        total = 0
        for block in self.blocks:
            x, aux = block(x)
            total = total + aux
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)) + total


def main():
    name, steps, device, compiled = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1"
    s = Sizes(name, sys.argv[5:] == ["small"])
    torch.manual_seed(1)
    model = Model(s).to(device)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, labels = (torch.randint(0, s.vocab, (s.batch, s.seq), device=device) for _ in range(2))
    forward = torch.compile(model) if compiled else model
    times = []
    for _ in range(steps + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            loss = forward(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    median = sorted(times[2:])[steps // 2]
    print(f"PyTorch {torch.__version__} {name} {'compiled' if compiled else 'eager'} loss {value:.4f} median {median * 1e3:.2f} ms  {s.batch * s.seq / median:.0f} tok/s")


if __name__ == "__main__":
    main()
