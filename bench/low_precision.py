#!/usr/bin/env python3
"""Trains a small model with each recipe of 8 and 4 bits, and prints how far its validation loss is from bf16's.
   low_precision.py BINARY DATA FOLDER [--steps 2000] [--seeds 1,2,3] [--repeats 1] [--models dense,moe] [--recipes REGEX]
DATA: a folder of quickstart.sh with data.bin and tokenizer.model. FOLDER keeps logs; finished runs are not repeated.
Repeats of a seed differ in their learning rate, by 1e-5 of it: their losses show how far chance alone moves a run."""
import argparse
import pathlib
import re
import statistics
import subprocess

COMMON = {
    "run.nproc": 1, "run.threads_per_rank": 1, "model.num_layers": 3, "model.hidden_size": 128,
    "model.num_attention_heads": 4, "model.num_query_groups": 2, "train.seq_length": 64, "train.micro_batch_size": 8,
    "train.global_batch_size": 8, "train.log_interval": 100, "train.eval_iters": 100, "optim.lr": 0.002,
    "optim.lr_decay_style": "cosine", "optim.lr_warmup_iters": 20, "precision.params_dtype": "bf16",
    "data.tokenizer_type": "sentencepiece", "data.split": "949,51,0",
}
MODELS = {
    "dense": {"model.family": "llama", "model.ffn_hidden_size": 384},
    "moe": {"model.family": "mixtral", "model.ffn_hidden_size": 256, "model.num_moe_experts": 4},
}
HYBRID, E4M3 = {"precision.fp8_format": "hybrid"}, {"precision.fp8_format": "e4m3"}
NVFP4 = {"precision.fp4_format": "e2m1"}
ENDS = {"precision.first_last_layers_bf16": "true"}
RECIPES = {
    "bf16": {},
    "delayed": HYBRID | {"precision.fp8_amax_history_len": 16, "precision.fp8_amax_compute_algo": "max"},
    "tensorwise": HYBRID | {"precision.fp8_recipe": "tensorwise"},
    "blockwise": E4M3 | {"precision.fp8_recipe": "blockwise"},
    "mxfp8": E4M3 | {"precision.fp8_recipe": "mxfp8"},
    "nvfp4": NVFP4 | ENDS,
    "nvfp4, all layers": NVFP4,
    "nvfp4, nearest": NVFP4 | ENDS | {"precision.fp4_stochastic_rounding": "false"},
    "nvfp4, no Hadamard": NVFP4 | ENDS | {"precision.fp4_hadamard": "false"},
    "nvfp4, rows of weights": NVFP4 | ENDS | {"precision.fp4_square_weights": "false"},
    "nvfp4, all layers, nearest, no Hadamard": NVFP4 | {"precision.fp4_stochastic_rounding": "false",
                                                        "precision.fp4_hadamard": "false"},
}


def train(args, model, recipe, seed, repeat):
    """Returns the validation loss; None if the log has none."""
    name = f"{model}_{re.sub('[^a-z0-9]+', '_', recipe)}_{seed}"
    log = args.folder / (f"{name}_{repeat}.log" if repeat else f"{name}.log")
    if not log.exists() or "validation loss" not in log.read_text():
        keys = COMMON | MODELS[model] | RECIPES[recipe] | {
            "optim.lr": COMMON["optim.lr"] * (1 + 1e-5 * repeat), "run.seed": seed, "train.train_iters": args.steps, "train.eval_interval": args.steps,
            "data.data_path": args.data / "data", "data.tokenizer_model": args.data / "tokenizer.model"}
        command = [args.binary, "train", *(f"--{key}={value}" for key, value in keys.items())]
        with log.open("w") as out:
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=True, cwd=args.folder)
    losses = re.findall(r"validation loss at iteration .*lm loss value: (\S+)", log.read_text())
    return float(losses[-1]) if losses else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--models", default="dense,moe")
    parser.add_argument("--recipes", default=".*")
    args = parser.parse_args()
    args.binary, args.data, args.folder = args.binary.resolve(), args.data.resolve(), args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    recipes = [name for name in RECIPES if name == "bf16" or re.fullmatch(args.recipes, name)]
    print("| model | recipe | validation loss | above bf16, mean | each seed | deviation of repeats |\n" + "| --- " * 6 + "|")
    for model in args.models.split(","):
        runs = {(recipe, seed): [train(args, model, recipe, seed, repeat) for repeat in range(args.repeats)]
                for seed in seeds for recipe in recipes}
        losses = {key: statistics.mean(values) for key, values in runs.items()}
        for recipe in recipes:
            all_seeds = [losses[recipe, seed] for seed in seeds]
            excess = [100 * (losses[recipe, seed] / losses["bf16", seed] - 1) for seed in seeds]
            deviation = statistics.mean(statistics.variance(runs[recipe, seed]) if args.repeats > 1 else 0 for seed in seeds) ** 0.5
            print(f"| {model} | {recipe} | {statistics.mean(all_seeds):.4f} | {statistics.mean(excess):+.2f} % | "
                  f"{', '.join(f'{value:+.2f} %' for value in excess)} | {deviation:.4f} |", flush=True)


if __name__ == "__main__":
    main()
