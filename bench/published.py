#!/usr/bin/env python3
"""Compares predicted step times with published runs. Every row is printed, rows of one layout in one line.
   published.py BINARY [--rows REGEX] [--json FILE]   prints the table
   published.py BINARY --fit [--devices REGEX]        fits at most five constants per device and rewrites its machine file
Machines are read from metroplex/lab/price/machines, not from the binary. The fit uses every third row of a device in
published_runs.json. The rows of published_later.json are never used for it."""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
ROWS, LATER = HERE / "published_runs.json", HERE / "published_later.json"
UNSTATED = dict.fromkeys(("sp", "vpp", "zero", "compile", "cuda_graphs"))
MACHINES = HERE.parent / "metroplex/lab/price/machines"
FAMILY = {"gpt": "gpt", "llama": "llama", "nemotron4": "gpt", "qwen2": "llama", "qwen3_moe": "llama"}
UNFUSED = {"model.attention_dropout": 0.1, "model.hidden_dropout": 0.1, "precision.params_dtype": "fp16",
           "precision.main_grads_dtype": "params", "parallel.overlap_grad_reduce": "false"}
NEMO = {"precision.main_grads_dtype": "params", "parallel.overlap_p2p_comm": "true", "parallel.align_param_gather": "true",
        "parallel.ddp_bucket_size": 134217728}
LOW_PRECISION = {"delayed": {"precision.fp8_format": "hybrid", "precision.fp8_recipe": "delayed"},
                 "tensorwise": {"precision.fp8_format": "hybrid", "precision.fp8_recipe": "tensorwise"},
                 "mxfp8": {"precision.fp8_format": "e4m3", "precision.fp8_recipe": "mxfp8"},
                 "nvfp4": {"precision.fp4_format": "e2m1"}}
# Properties of the published programs that the rows do not hold: settings and a note for the table.
PROGRAMS = {
    "Megatron SC21 table 1": (UNFUSED, "dropout 0.1, which Megatron-LM defaults to: attention without flash"),
    "Megatron sequence parallelism 2022": (UNFUSED, "dropout 0.1, which Megatron-LM defaults to: attention without flash"),
    "DGX Cloud benchmarking (NeMo)": (NEMO, "NeMo's performance mode: gradients in bf16, buckets of 128 Mi elements, overlapped messages, aligned gathers"),
    "Megatron-Bridge performance summary": (NEMO, "NeMo's performance mode as above; experts in one graph have static buffers for 1.5 times the even load and, without MTP, a paged stash; partial graphs count as eager"),
    "Megatron-Bridge documentation": ({}, "partial graphs count as eager"),
    "torchtitan": ({}, "H100 with 2.4 TB/s and a limit of 500 W (torchtitan's page); selective per op, which repeats every second product, counts as MLPs and norms"),
    "LLMQ": ({"precision.main_grads_dtype": "params", "optim.main_params_dtype": "bf16", "optim.exp_avg_dtype": "bf16",
              "optim.exp_avg_sq_dtype": "bf16"}, "optimizer in bf16 (its flags); recomputed FFN counts as module mlp"),
    "llm.c": ({"precision.main_grads_dtype": "params", "model.activation": "gelu_tanh"}, "gradients in bf16"),
    "SimuMax B200 measurements": ({"parallel.overlap_grad_reduce": "false", "parallel.overlap_param_gather": "false"},
                                  "no overlap, all-to-all context parallelism (its reproduction guide)"),
}
# Experts whose iterations are one graph (Megatron-Bridge 26.06 and later; the capacity factor is in the rows' notes).
GRAPHED_EXPERTS = {"train.cuda_graph_impl": "full_iteration", "model.moe_token_dispatcher_type": "static_buffer",
                   "model.moe_expert_rank_capacity_factor": 1.5, "model.moe_paged_stash": "true"}
RECOMPUTE = {"selective": "core_attn", "selective (torchtitan policy: op)": "mlp,layernorm",
             "selective (per op)": "mlp,layernorm", "selective: --recompute-ffn": "mlp",
             "selective: --recompute-ffn --recompute-norm": "mlp,layernorm",
             "selective: --recompute-swiglu --recompute-norm": "mlp,layernorm", "selective: mla_up_proj": "mla_up_proj",
             "selective: mlp": "mlp", "selective: layernorm,moe_act": "layernorm,moe_act"}
# Devices that differ from a built-in machine: base, published figures, and the fitted factor of matmul and attention.
VARIANTS = {"h100_500w": ("h100", {"memory_bytes_per_s": 2.4e12, "memory_bytes": 1.02e11}, {"clock": 0.5747})}
# Devices without enough rows, and the relative whose factors they take. Their rows are not fitted.
BORROWED = {"mi300x": "h100"}
SOURCES = {"matmul": "operators.matmul", "memory": "operators.memory", "attention": "operators.attention",
           "inner": r"links\.(?:nvlink|xgmi)\.share", "latency": r"links\.(?:nvlink|xgmi)\.latency_s"}
# Fitted factors, the most important first. "inner" and "latency" are of the innermost link.
CONSTANTS = ("matmul", "memory", "attention", "inner", "latency")
# Plausible factors of the measured figures. SimuMax fits 87 us for an all-gather over 8 B200, 3.6 times the first figure.
LIMITS = {"matmul": (0.7, 1.15), "memory": (0.5, 1.1), "attention": (0.8, 1.1), "inner": (0.6, 1.2), "latency": (0.25, 4),
          "clock": (0.4, 1)}


def fitted_constants(device, rows):
    """Returns the names of the fitted factors: at most half of the number of rows. A variant of a device has one."""
    return ("clock",) if device in VARIANTS else CONSTANTS[:max(1, len(rows) // 2)]


def model_settings(model):
    out = {}
    family = model["family"]
    if family == "nemotron4":
        out |= {"model.activation": "squared_relu", "model.gated_linear_unit": "false", "model.normalization": "LayerNorm",
                "model.position_embedding_type": "rope", "model.add_bias_linear": "false"}
    if family == "qwen2":
        out |= {"model.add_qkv_bias": "true"}
    if family == "qwen3_moe":
        out |= {"model.qk_layernorm": "true"}
    return out


def expert_settings(row):
    model = row["model"]
    if not model.get("experts"):
        return {}
    out = {"model.num_moe_experts": model["experts"], "model.moe_router_topk": model["topk"],
           "model.moe_ffn_hidden_size": model["expert_ffn"], "parallel.expert_model_parallel_size": row["ep"],
           "parallel.expert_tensor_parallel_size": row["etp"] or 1, "model.moe_router_force_load_balancing": "true"}
    if row["cuda_graphs"] is True:
        out |= GRAPHED_EXPERTS
        if "model.mtp_num_layers" in row.get("keys", {}):  # excludes a stash
            del out["model.moe_paged_stash"]
    # The notes name the keys of Megatron that the run set, which are ours too.
    for key in ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
        if key in row.get("note", ""):
            out[f"parallel.{key}"] = "true"
    return out


def settings(row):
    model = row["model"]
    zero = row["zero"] if row["zero"] is not None else 1
    sp = row["sp"] if row["sp"] is not None else row["tp"] > 1
    out = {
        "model.family": FAMILY[model["family"]], "model.num_layers": model["layers"], "model.hidden_size": model["hidden"],
        "model.ffn_hidden_size": model.get("ffn_hidden", model.get("expert_ffn")), "model.num_attention_heads": model["heads"],
        "model.num_query_groups": model["kv_groups"], "model.kv_channels": model["head_dim"],
        "model.vocab_size": model["vocab"], "model.max_position_embeddings": row["seq"],
        "model.untie_embeddings_and_output_weights": str(not model["tied_embeddings"]).lower(),
        "train.seq_length": row["seq"], "train.micro_batch_size": row["mbs"], "train.global_batch_size": row["gbs"],
        "train.train_iters": 10, "data.mock_data": "true", "precision.params_dtype": "bf16",
        "parallel.tensor_model_parallel_size": row["tp"], "parallel.sequence_parallel": str(bool(sp and row["tp"] > 1)).lower(),
        "parallel.pipeline_model_parallel_size": row["pp"], "parallel.context_parallel_size": row["cp"],
        "parallel.virtual_pipeline_model_parallel_size": row["vpp"] or 1,
        "parallel.data_parallel_sharding_strategy": ["no_shard", "optim", "optim_grads", "optim_grads_params"][zero]}
    out |= model_settings(model) | PROGRAMS[row["group"]][0] if row["group"] in PROGRAMS else model_settings(model)
    if (row["vpp"] or 1) == 1:
        out.pop("parallel.overlap_p2p_comm", None)
        out.pop("parallel.align_param_gather", None)
    if row["group"].startswith("SimuMax") and row["cp"] > 1:
        out["parallel.cp_comm_type"] = "a2a"
    # NVIDIA's recipes count the embedding and the loss as one layer each.
    stages = row["pp"] * (row["vpp"] or 1)
    if model["layers"] % stages and (model["layers"] + 2) % stages == 0:
        out |= {"parallel.account_for_embedding_in_pipeline_split": "true",
                "parallel.account_for_loss_in_pipeline_split": "true"}
    recompute = row["recompute"] or "none"
    if recompute == "full":
        out |= {"memory.recompute_granularity": "full", "memory.recompute_method": "uniform",
                "memory.recompute_num_layers": 1}
    elif recompute != "none":
        out |= {"memory.recompute_granularity": "selective", "memory.recompute_modules": RECOMPUTE[recompute]}
    if (row["cuda_graphs"] or row["compile"]) and not model.get("experts"):
        out |= {"train.cuda_graph_impl": "full_iteration"}
    out |= expert_settings(row)
    if row.get("fp8"):
        out |= LOW_PRECISION[row["fp8"]] | {"precision.fp8_products": "library"}
        if row["fp8"] in ("delayed", "tensorwise") and zero > 0:
            out |= {"precision.fp8_param_gather": "true"}
    out |= row.get("keys", {})
    return [f"--{key}={value}" for key, value in out.items()]


def machine_text(device, constants):
    """Returns the machine file of a device with its shares multiplied by the constants."""
    base, figures, known = VARIANTS.get(device, (device, {}, {}))
    constants = known | constants
    lines, section = [], ""
    for line in (MACHINES / f"{base}.yaml").read_text().splitlines():
        key = re.match(r"\s*(\w+):", line)
        if key and not line.lstrip().startswith("-"):
            section = key[1]
            if section in figures:
                line = re.sub(r":.*", f": {figures[section]}", line)
        factor = None
        if "share:" in line and line.lstrip().startswith("-"):
            if "name:" in line and "ranks: 0" not in line:
                factor = constants.get("inner", 1)
                line = re.sub(r"(latency_s|step_s): ([0-9.e+-]+)",
                              lambda found: f"{found[1]}: {float(found[2]) * constants.get('latency', 1):.3g}", line)
            elif section in ("matmul", "attention"):
                factor = constants.get(section, 1) * constants.get("clock", 1)
            elif section == "memory":
                factor = constants.get(section, 1)
        if factor is not None:
            line = re.sub(r"share: ([0-9.e+-]+)", lambda found: f"share: {min(1, float(found[1]) * factor):.4g}", line)
        lines.append(line)
    return "\n".join(lines) + "\n"


def predict(binary, row, machine):
    command = [binary, "plan", *settings(row), "--gpus", str(row["gpus"]), "--cluster", machine, "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        return None, result.stderr.strip().splitlines()[-1][:100] if result.stderr else "failed"
    return json.loads(result.stdout), ""


class Predictor:
    def __init__(self, binary):
        self.binary = binary
        self.folder = tempfile.TemporaryDirectory()
        self.pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        self.files = 0

    def machine(self, device, constants):
        self.files += 1
        path = pathlib.Path(self.folder.name) / f"{device}-{self.files}.yaml"
        path.write_text(machine_text(device, constants))
        return str(path)

    def rows(self, rows, constants=None):
        """Returns (plan, problem) of each row; `constants` by device."""
        devices = {row["device"] for row in rows}
        machines = {device: self.machine(device, (constants or {}).get(device, {})) for device in devices}
        return list(self.pool.map(lambda row: predict(self.binary, row, machines[row["device"]]), rows))


def read_rows(path):
    return [UNSTATED | row for row in json.loads(path.read_text())]


def fitted_rows():
    """Returns the names of the rows that the constants are fitted on: every third row of a device."""
    names, counts = set(), {}
    for row in read_rows(ROWS):
        if row["device"] in BORROWED:
            continue
        count = counts.get(row["device"], 0)
        counts[row["device"]] = count + 1
        if count % 3 == 0:
            names.add(row["name"])
    return names


def log_errors(plans, rows):
    return [math.log(plan["step_s"] / row["step_seconds"]) for (plan, _), row in zip(plans, rows)]


def solve(errors, slopes, limits, prior):
    """Coordinate descent on the absolute errors + slopes * x, by reweighted squares, with limits on x. The prior keeps
    a value at 0 if no row depends on it."""
    values = [0.0] * len(slopes)
    for _ in range(300):
        weights = [1 / max(0.01, abs(e + sum(s[i] * v for s, v in zip(slopes, values)))) for i, e in enumerate(errors)]
        for k, slope in enumerate(slopes):
            rest = [e + sum(s[i] * v for j, (s, v) in enumerate(zip(slopes, values)) if j != k)
                    for i, e in enumerate(errors)]
            curvature = sum(w * s * s for w, s in zip(weights, slope)) + prior * sum(weights)
            best = -sum(w * s * r for w, s, r in zip(weights, slope, rest)) / curvature
            values[k] = min(max(best, limits[k][0]), limits[k][1])
    return values


def fit_device(predictor, device, rows, passes=2):
    """Returns the factors of the shares of a device that minimize the mean absolute error in the logarithm."""
    names = fitted_constants(device, rows)
    constants = dict.fromkeys(names, 1.0)
    step, best = 0.05, None
    for _ in range(passes):
        errors = log_errors(predictor.rows(rows, {device: constants}), rows)
        score = statistics.mean(abs(error) for error in errors)
        if best is None or score < best[0]:
            best = (score, dict(constants), errors)
        slopes = []
        for name in names:
            moved = constants | {name: constants[name] * (1 - step)}
            after = log_errors(predictor.rows(rows, {device: moved}), rows)
            slopes.append([(b - a) / math.log(1 - step) for a, b in zip(errors, after)])
        limits = [tuple(math.log(limit / constants[name]) for limit in LIMITS[name]) for name in names]
        moves = solve(errors, slopes, limits, 1e-4)
        constants = {name: constants[name] * math.exp(max(-0.7, min(0.7, move))) for name, move in zip(names, moves)}
        print(f"{device}: mean error {100 * score:.2f} %, next", {k: round(v, 3) for k, v in constants.items()}, flush=True)
    errors = log_errors(predictor.rows(rows, {device: constants}), rows)
    score = statistics.mean(abs(error) for error in errors)
    return constants if score < best[0] else best[1]


FITTED = r" Times ([0-9]+\.[0-9]+): fitted[^\"]*"


def remove_factors(device):
    """Divides the shares in the device's machine file by the factors of an earlier fit."""
    path = MACHINES / f"{device}.yaml"
    found = {name: re.search(rf'(?m)^  {SOURCES[name]}: ".*{FITTED}"$', path.read_text()) for name in CONSTANTS}
    text = machine_text(device, {name: 1 / float(one[1]) for name, one in found.items() if one})
    path.write_text(re.sub(FITTED, "", text))


def write_machine(device, constants, origin):
    """Multiplies the shares in the device's machine file by the constants and adds them to the figures' sources."""
    text = machine_text(device, constants)
    for name, factor in constants.items():
        text = re.sub(rf'(?m)^(  {SOURCES[name]}: ".*?)\.?"$',
                      lambda line: f'{line[1]}. Times {factor:.3f}: fitted on {origin}."', text)
    (MACHINES / f"{device}.yaml").write_text(text)


def fit_and_write(predictor, device, every, fitted):
    rows = [row for row in every if row["device"] == device and row["name"] in fitted]
    if not rows:
        return
    relatives = [name for name, relative in BORROWED.items() if relative == device]
    if device not in VARIANTS:
        for name in [device, *relatives]:
            remove_factors(name)
    constants = fit_device(predictor, device, rows)
    print(device, {name: round(value, 4) for name, value in constants.items()})
    if device in VARIANTS:
        return  # its factor is stored in VARIANTS
    groups = ", ".join(dict.fromkeys(row["group"] for row in rows))
    origin = f"{len(rows)} rows of bench/published_runs.json ({groups}; bench/published.py --fit)"
    write_machine(device, constants, origin)
    for other in relatives:
        write_machine(other, constants, f"the rows of {device}, its relative (bench/published.py --fit)")


def summary(title, errors):
    if not errors:
        return f"- {title}: no rows"
    return (f"- {title}: {len(errors)} rows, mean error {100 * statistics.mean(errors):.1f} %, "
            f"median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %")


def precision(row):
    return row.get("fp8", "16 bits")


def layout(row):
    """What the rows of one line of the table have in common."""
    varying = {"name", "gpus", "gbs", "step_seconds", "step_from", "source"}
    return json.dumps({key: value for key, value in row.items() if key not in varying})


def print_table(rows, plans, fitted):
    print("| run | device | precision | GPUs | measured s | predicted s | error in % (*: fitted) |\n|---|---|---|---|---|---|---|")
    lines, problems = {}, []
    for row, (plan, problem) in zip(rows, plans):
        if not plan:
            problems.append(f"{row['name']}: {problem}")
            continue
        error = 100 * (plan["step_s"] / row["step_seconds"] - 1)
        lines.setdefault(layout(row), []).append(
            (row, f"{row['step_seconds']:.3g}", f"{plan['step_s']:.3g}", f"{error:+.1f}{'*' * (row['name'] in fitted)}"))
    for line in lines.values():
        row = line[0][0]
        cells = [" ".join(cell) for cell in zip(*(cells for _, *cells in line))]
        print(f"| {row['name']} | {row['device']} | {precision(row)} | {' '.join(str(one['gpus']) for one, *_ in line)} | "
              + " | ".join(cells) + " |")
    print()
    for group in dict.fromkeys(row["group"] for row in rows):
        if group in PROGRAMS:
            print(f"- {group}: {PROGRAMS[group][1]}.")
    print()
    for problem in problems:
        print(f"- not predicted: {problem}")


def print_summaries(rows, plans, fitted):
    groups = {"rows not fitted": [], "all rows": []}
    later = {row["name"] for row in read_rows(LATER)}
    for row, (plan, _) in zip(rows, plans):
        if not plan:
            continue
        error = abs(plan["step_s"] / row["step_seconds"] - 1)
        names = ["all rows", f"{row['group']}, {precision(row)}{', experts' if row['model'].get('experts') else ''}"]
        if row["name"] not in fitted:
            age = "later rows" if row["name"] in later else "rows of the first file, not fitted"
            names += ["rows not fitted", age, f"{age}, {precision(row)}", f"{row['device']}, {precision(row)}, not fitted"]
        for name in names:
            groups.setdefault(name, []).append(error)
    for name, errors in sorted(groups.items()):
        print(summary(name, errors))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rows", default="")
    parser.add_argument("--json")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--devices", default="")
    options = parser.parse_args()
    every = read_rows(ROWS) + read_rows(LATER)
    fitted = fitted_rows()
    predictor = Predictor(options.binary)
    if options.fit:
        for device in dict.fromkeys(row["device"] for row in every if re.search(options.devices, row["device"])):
            fit_and_write(predictor, device, every, fitted)
        return
    rows = [row for row in every if re.search(options.rows, row["name"])]
    plans = predictor.rows(rows)
    print_table(rows, plans, fitted)
    print_summaries(rows, plans, fitted)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps([[row["name"], *plan] for row, plan in zip(rows, plans)]))


if __name__ == "__main__":
    main()
