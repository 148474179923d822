#!/usr/bin/env python3
"""The memory that an MoE rank stores from forward to backward, as predicted by a dry run. Prints a Markdown table.
   kept_memory.py [METROPLEX]     the program, by default build/bin/metroplex; run it in the root of the repository"""
import json
import subprocess
import sys

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/bin/metroplex"
MODEL = ("--model.num_layers=8 --model.hidden_size=512 --model.num_attention_heads=8 --model.ffn_hidden_size=512"
         " --train.seq_length=1024")
PLAIN = "--model.moe_enable_echo=false --model.moe_num_echo_experts=0 --model.moe_echo_planner=capfill"
WHOLE = PLAIN + " --model.moe_expert_rank_capacity_factor=2"
STASH = "model.moe_paged_stash"
FACTOR = f"--{STASH}_buffer_size_factor"
# Row label, keys, pool factor. The factor is below the capacity factor of 2, so that the host pool can hold all
# pages.
ROWS = [
    ("alltoall, even load | | none",
     PLAIN + " --model.moe_token_dispatcher_type=alltoall --model.moe_expert_rank_capacity_factor=0", None),
    ("static_buffer | 2 | none", WHOLE, None),
    ("static_buffer, pages 1.1 | 2 | none", WHOLE, 1.1),
    ("static_buffer, pages 1.5 | 2 | none", WHOLE, 1.5),
    ("static_buffer | 1 | exact, 2 slots, kept for backward", "", None),
    ("static_buffer | 1 | exact, 2 slots, fetched again", "--model.moe_echo_recompute_expert_dispatch=true", None),
]


def predicted(keys):
    """Returns the bytes of rank 0 by kind, and the peak."""
    command = [PROGRAM, "train", "examples/echo_tiny.yaml", "--dry-run", "--json", *MODEL.split(), *keys.split()]
    ran = subprocess.run(command, capture_output=True, text=True)
    if not ran.stdout:
        sys.exit(f"kept_memory.py: {' '.join(command)} failed:\n{ran.stderr}")
    rank = json.loads(ran.stdout)["memory"]["ranks"][0]
    return dict(rank["bytes"], peak=rank["peak"])


def main():
    print("| dispatcher | factor | clones | activations | pool | both | workspace | peak |")
    print("|---|---|---|---|---|---|---|---|")
    for words, keys, factor in ROWS:
        pool = 0
        if factor is None:
            said = predicted(keys)
        else:
            stash = f"{keys} --{STASH}=true "
            said = predicted(f"{stash} {FACTOR}_cuda={factor}")
            # A dry run counts the pool as workspace. Pages in host memory have a separate line.
            away = predicted(f"{stash} {FACTOR}_cuda=1e-9 {FACTOR}_cpu={factor}")
            pool = away["host"] - said["host"]
        both = said["activations"] + pool
        sizes = [said["activations"], pool or None, both, said["workspace"] - pool, said["peak"]]
        print(f"| {words} | " + " | ".join("" if x is None else f"{x / 2**20:.1f}" for x in sizes) + " |")


if __name__ == "__main__":
    main()
