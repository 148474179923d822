#!/usr/bin/env python3
"""Compares the gradients of each recipe of 8 and 4 bits with those of fp32, for the weights after some steps in bf16.
   gradient_errors.py BINARY DATA FOLDER [--model moe] [--steps 400] [--microbatches 32] [--recipes bf16,mxfp8]
Prints for each kind of parameter |g - g32| / |g32|, and the projection of g - g32 on g32, relative to g32. Errors that
are independent in each microbatch become smaller with their number; a projection other than 0 is a bias.
DATA, FOLDER: see low_precision.py. The momentum of SGD stores the gradient: its second step has nearly no share of the
first, which fills the histories of delayed scales."""
import argparse
import array
import json
import math
import operator
import pathlib
import re
import struct
import subprocess

from low_precision import COMMON, MODELS, RECIPES

# The learning rate changes no weight: its product with a gradient is below half a unit in the last place.
KEEP = {"optim.optimizer": "sgd", "optim.sgd_momentum": 1e-3, "optim.lr": 1e-20, "optim.lr_warmup_iters": 0,
        "optim.weight_decay": 0, "optim.clip_grad": 0, "train.train_iters": 2, "checkpoint.finetune": "true"}


def run(args, name, keys):
    """Returns the folder of the checkpoint."""
    save = args.folder / name
    if not (save / "latest").exists():
        common = COMMON | MODELS[args.model] | {
            "train.eval_interval": 0, "run.seed": 1, "data.data_path": args.data / "data",
            "data.tokenizer_model": args.data / "tokenizer.model", "checkpoint.save": save}
        command = [args.binary, "train", *(f"--{key}={value}" for key, value in (common | keys).items())]
        with (args.folder / f"{name}.log").open("w") as out:
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=True, cwd=args.folder)
    return save / (save / "latest").read_text().split()[0]


def read_momentum(folder):
    tensors = {}
    for path in folder.glob("rank_*.safetensors"):
        data = path.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:start]).items():
            if "momentum" in name:
                begin, end = (start + offset for offset in entry["data_offsets"])
                tensors[name] = array.array("f", data[begin:end])
    return tensors


def kind(name):
    return re.sub(r".*layers\.\d+\.|local_experts\.\d+\.|.*/|#\d+|\.weight", "", name)


def dot(left, right):
    return sum(map(operator.mul, left, right))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", default="moe")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--recipes", default="bf16,delayed,tensorwise,blockwise,mxfp8,nvfp4")
    args = parser.parse_args()
    args.binary, args.data, args.folder = args.binary.resolve(), args.data.resolve(), args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    run(args, f"{args.model}_weights", {"train.train_iters": args.steps, "optim.lr_decay_iters": 4 * args.steps})
    keys = KEEP | {"checkpoint.load": args.folder / f"{args.model}_weights",
                   "train.global_batch_size": COMMON["train.micro_batch_size"] * args.microbatches}
    exact = read_momentum(run(args, f"{args.model}_fp32_{args.microbatches}", keys | {"precision.params_dtype": "fp32"}))
    for recipe in args.recipes.split(","):
        name = f"{args.model}_{re.sub('[^a-z0-9]+', '_', recipe)}_{args.microbatches}"
        got = read_momentum(run(args, name, keys | RECIPES[recipe]))
        sums = {}
        for tensor, wanted in exact.items():
            products = dot(wanted, wanted), dot(got[tensor], got[tensor]), dot(got[tensor], wanted)
            sums[kind(tensor)] = [a + b for a, b in zip(sums.get(kind(tensor), (0, 0, 0)), products)]
        print(recipe)
        for group, (exact2, got2, both) in sums.items():
            error = math.sqrt(max(0, got2 - 2 * both + exact2) / exact2)
            print(f"  {group:32} error {error:.4f}  projection {both / exact2 - 1:+.4f}")


if __name__ == "__main__":
    main()
