#!/usr/bin/env python3
"""save_torch.py FOLDER BYTES: torch.distributed.checkpoint with the commands of save_stall, on a state of BYTES in fp32
tensors of at most 32 MiB. "sync" is dcp.save. "async" is dcp.async_save with its default stager; the other stagers of
torch 2.11 need pinned memory and thus a GPU, or fail for CPU tensors. Prints "stall SECONDS total SECONDS bytes N"."""
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

folder, size = sys.argv[1], int(sys.argv[2])
os.environ.setdefault("MASTER_ADDR", "localhost")
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
most = 32 << 20
state = {f"tensor_{i}": torch.rand(min(most, size - at) // 4) for i, at in enumerate(range(0, size, most))}
for number, line in enumerate(sys.stdin):
    path = os.path.join(folder, f"iter_{number}")
    start = time.perf_counter()
    if line.strip() == "sync":
        dcp.save(state, checkpoint_id=path)
        stall = time.perf_counter() - start
    else:
        future = dcp.async_save(state, checkpoint_id=path)
        stall = time.perf_counter() - start
        future.result()
    print(f"stall {stall:.6f} total {time.perf_counter() - start:.6f} bytes {size}", flush=True)
    shutil.rmtree(path)
