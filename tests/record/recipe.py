"""What golden_index.json fixes for every run: weights by name, tokens by sample, and what is recorded of a tensor."""
import zlib

import numpy as np
import torch


def weight(name, shape):
    """float32 values of the unsharded tensor `name`."""
    count = int(np.prod(shape))
    mask = np.uint64(0xFFFFFFFF)
    x = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()))) & mask
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & mask
    x ^= x >> np.uint64(13)
    u = (x.astype(np.float64) / 4294967296.0 - 0.5) * 2
    if name.endswith(".bias"):
        values = 0.02 * u
    elif len(shape) == 1:
        values = 1 + 0.1 * u
    else:
        values = 0.08 * u
    return torch.from_numpy(values.reshape(tuple(shape))).float()


def sample(n, seq, vocab):
    """(tokens, labels) of global sample n."""
    x = torch.tensor([(37 * n + 11 * t + n * t % 17 + t * t % 5) % vocab for t in range(seq + 1)])
    return x[:-1], x[1:]


def microbatch(config, iteration, index, dp_rank, dp):
    """(tokens, labels, loss_mask, position_ids), each [mbs, seq], of one microbatch of one data-parallel rank."""
    mbs, seq = config["mbs"], config["seq"]
    first = iteration * config["gbs"] + (index * dp + dp_rank) * mbs
    rows = [sample(first + s, seq, config["vocab"]) for s in range(mbs)]
    mask = torch.ones(mbs, seq)
    if config.get("mask_last"):
        mask[:, -config["mask_last"] :] = 0
    positions = torch.arange(seq).expand(mbs, seq)
    return torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows]), mask, positions


def summary(tensor):
    flat = tensor.detach().double().flatten()
    return {
        "shape": list(tensor.shape),
        "numel": flat.numel(),
        "sum": flat.sum().item(),
        "l2": flat.norm().item(),
        "first": flat[:4].tolist(),
        "last": flat[-2:].tolist(),
    }


def summaries(tensors):
    return {name: summary(tensors[name]) for name in sorted(tensors)}
