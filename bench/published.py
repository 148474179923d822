#!/usr/bin/env python3
"""Compares predicted step times with published runs (published_runs.json): all rows are printed, also bad ones.
   published.py BINARY [--rows REGEX] [--json FILE]
One factor per device is fitted on every third row of the device; errors are given without and with it."""
import argparse
import concurrent.futures
import json
import pathlib
import re
import statistics
import subprocess

ROWS = pathlib.Path(__file__).with_name("published_runs.json")
FAMILY = {"gpt": "gpt", "llama": "llama", "nemotron4": "llama", "qwen2": "llama", "qwen3_moe": "llama"}


def settings(row):
    model = row["model"]
    zero = row["zero"] if row["zero"] is not None else 1
    sp = row["sp"] if row["sp"] is not None else row["tp"] > 1
    out = {
        "model.family": FAMILY[model["family"]], "model.num_layers": model["layers"], "model.hidden_size": model["hidden"],
        "model.ffn_hidden_size": model["ffn_hidden"], "model.num_attention_heads": model["heads"],
        "model.num_query_groups": model["kv_groups"], "model.kv_channels": model["head_dim"],
        "model.vocab_size": model["vocab"], "model.max_position_embeddings": row["seq"],
        "model.untie_embeddings_and_output_weights": str(not model["tied_embeddings"]).lower(),
        "train.seq_length": row["seq"], "train.micro_batch_size": row["mbs"], "train.global_batch_size": row["gbs"],
        "train.train_iters": 10, "data.mock_data": "true", "precision.params_dtype": "bf16",
        "parallel.tensor_model_parallel_size": row["tp"], "parallel.sequence_parallel": str(bool(sp and row["tp"] > 1)).lower(),
        "parallel.pipeline_model_parallel_size": row["pp"], "parallel.context_parallel_size": row["cp"],
        "parallel.virtual_pipeline_model_parallel_size": row["vpp"] or 1,
        "parallel.data_parallel_sharding_strategy": ["no_shard", "optim", "optim_grads", "optim_grads_params"][zero],
        "memory.recompute_granularity": row["recompute"] or "none"}
    if model["family"] == "nemotron4":
        out |= {"model.activation": "squared_relu", "model.gated_linear_unit": "false"}
    if row["recompute"] == "full":
        out |= {"memory.recompute_method": "uniform", "memory.recompute_num_layers": 1}
    if row["cuda_graphs"] or row["compile"]:
        out |= {"train.cuda_graph_impl": "full_iteration"}
    if model.get("experts"):
        out |= {"model.num_moe_experts": model["experts"], "model.moe_router_topk": model["topk"],
                "model.moe_ffn_hidden_size": model["expert_ffn"], "parallel.expert_model_parallel_size": row["ep"],
                "parallel.expert_tensor_parallel_size": row["etp"] or 1}
    return [f"--{key}={value}" for key, value in out.items()]


def predict(binary, row):
    command = [binary, "plan", *settings(row), "--gpus", str(row["gpus"]), "--cluster", row["device"], "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        return None, result.stderr.strip().splitlines()[-1][:100] if result.stderr else "failed"
    return json.loads(result.stdout)["step_s"], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--rows", default="")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = [row for row in json.loads(ROWS.read_text()) if re.search(options.rows, row["name"])]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda row: predict(options.binary, row), rows))
    by_device = {}
    for row, (seconds, problem) in zip(rows, results):
        if seconds:
            by_device.setdefault(row["device"], []).append((row, seconds))
    factors = {}
    for device, found in by_device.items():
        factors[device] = statistics.median(row["step_seconds"] / seconds for row, seconds in found[::3])
        for index, (row, _) in enumerate(found):
            row["fitted"] = index % 3 == 0
    print("| run | GPUs | measured s | predicted s | error | with factor | fitted on |\n|---|---|---|---|---|---|---|")
    raw, scaled = [], []
    for row, (seconds, problem) in zip(rows, results):
        if not seconds:
            print(f"| {row['name']} | {row['gpus']} {row['device']} | {row['step_seconds']:.3g} | not predicted: {problem} | | | |")
            continue
        error = seconds / row["step_seconds"] - 1
        after = seconds * factors[row["device"]] / row["step_seconds"] - 1
        raw.append(abs(error))
        if not row["fitted"]:
            scaled.append(abs(after))
        print(f"| {row['name']} | {row['gpus']} {row['device']} | {row['step_seconds']:.3g} | {seconds:.3g} | {100 * error:+.1f} % "
              f"| {100 * after:+.1f} % | {'yes' if row['fitted'] else ''} |")
    print("\nfactors:", {device: round(factor, 3) for device, factor in factors.items()})
    print(f"{len(raw)} rows: mean error {100 * statistics.mean(raw):.1f} %, worst {100 * max(raw):.1f} %")
    if scaled:
        print(f"{len(scaled)} rows that the factors were not fitted on: mean {100 * statistics.mean(scaled):.1f} %, "
              f"median {100 * statistics.median(scaled):.1f} %, worst {100 * max(scaled):.1f} %")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps([[row["name"], *result] for row, result in zip(rows, results)]))


if __name__ == "__main__":
    main()
