"""The checks of a sweep. Each runs the program in another way and compares. A check returns nothing, or one line with
the problem; the text before the first colon is its kind."""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from walk import corpus
from walk.case import Case
from walk.said import said_twice

CRASH = re.compile(r"terminate called|Segmentation fault|AddressSanitizer|ThreadSanitizer|LeakSanitizer|runtime error:|MPX_ASSERT|internal error")
NAMES_KEY = re.compile(r"\b(model|peft|parallel|train|optim|memory|precision|data|checkpoint|run)\.\w+")
VARYING = re.compile(r"time|second|throughput|tokens_per|per_s|tflop|elapsed|memory|mfu|\bms$")  # of a line of metrics
EPSILON = {"fp32": 2.0**-23, "bf16": 2.0**-8, "fp16": 2.0**-11, "fp64": 2.0**-52}


class Bench:
    """The binary, a private folder with a small dataset, and the time limit of a run."""

    def __init__(self, binary, folder, limit=120):
        self.binary, self.folder, self.limit = str(pathlib.Path(binary).resolve()), pathlib.Path(folder), limit
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "METROPLEX_RANK"):
            self.environment.pop(name, None)

    def run(self, command, words):
        return Outcome(self, [self.binary, command, *words])

    def train(self, case, extra=(), **more):
        """Runs train on the dataset instead of synthetic data."""
        if not (self.folder / "corpus.idx").exists():
            corpus.write(self.folder / "corpus", case.number("model.vocab_size", 0))
        return self.run("train", [*case.words(data__mock_data=None, data__data_path="corpus", **more), *extra])


class Outcome:
    def __init__(self, bench, command):
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd=bench.folder,
                                  env=bench.environment, timeout=bench.limit)
            self.code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            self.code, out, err = None, error.stdout or b"", error.stderr or b""
        self.out, self.err = out.decode(errors="replace"), err.decode(errors="replace")

    def broken(self):
        """Returns an error that no run may cause, whatever its arguments; else None."""
        tail = " / ".join(self.err.strip().splitlines()[-3:])[:300]
        if self.code is None:
            return "hang: no end in time"
        if self.code < 0 or self.code in (132, 134, 135, 136, 137, 139):
            return f"signal: exit {self.code}: {tail}"
        crash = CRASH.search(self.err)
        if crash:
            return f"crash: {crash.group(0)}: {tail}"
        if self.code == 1:
            return f"internal error: {tail}"
        if self.code == 2 and not NAMES_KEY.search(self.err):
            return f"refusal without a key: {tail}"
        return said_twice(self.err)

    def failed(self, expected=0):
        return self.broken() or (None if self.code == expected else f"exit {self.code}: " + " / ".join(self.err.strip().splitlines()[-3:])[:400])


class Base:
    """The unmodified run of a case, with a save every second step and one at the end: the reference of the checks."""

    def __init__(self, bench, case):
        self.bench, self.case = bench, case
        self.outcome = train(bench, case, "base")
        self.refused = self.outcome.code == 2 and not self.outcome.broken()
        self.saves = saves(bench, "base")
        self.metrics = metrics(bench, "base")


def train(bench, case, name, **more):
    where = {"checkpoint__save": f"{name}.ck", "checkpoint__save_interval": "2", "train__metrics_file": f"{name}.jsonl"}
    for key, value in (("train.tensorboard_dir", f"{name}.tb"), ("train.expert_trace_file", f"{name}.trace")):
        if key in case.keys:
            where[key.replace(".", "__")] = value
    for path in bench.folder.glob(f"{name}.*"):  # of a check with the same name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return bench.train(case, **{**where, **more})


def saves(bench, name):
    return sorted(path.name for path in (bench.folder / f"{name}.ck").glob("iter_*"))


def metrics(bench, name):
    path = bench.folder / f"{name}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line.get("split", "train"), line["iteration"]): line for line in lines if "iteration" in line}


def finite(base):
    """The unmodified run must succeed, and its losses must be finite."""
    problem = base.outcome.failed()
    if problem:
        return problem
    for place, line in base.metrics.items():
        loss = line.get("lm loss")
        if loss is not None and not math.isfinite(loss):
            return f"loss: {loss} at {place}"
    if not base.saves:
        return "no checkpoint: a run that ended well left none"
    return held_rates(base)


def held_rates(base):
    """A skipped step must not advance the learning rate: the next step has the same."""
    for (split, step), line in base.metrics.items():
        after = base.metrics.get((split, step + 1))
        if split == "train" and line.get("skipped") and after and after["learning-rate"] != line["learning-rate"]:
            return f"learning rate: {line['learning-rate']} of skipped step {step}, {after['learning-rate']} of the next"
    return None


def steady(value):
    """Returns the values of a line of metrics that are equal in every run."""
    if isinstance(value, list):
        return [steady(part) for part in value]
    return {field: steady(part) for field, part in value.items() if not VARYING.search(field)} if isinstance(value, dict) else value


def same_end(base, name, since=0):
    """Compares the last checkpoint and the metrics of another run with the reference: tensors bit for bit, numbers
    exactly."""
    last = base.saves[-1]
    if saves(base.bench, name)[-1:] != [last]:
        return f"other checkpoints: {saves(base.bench, name)} instead of {last}"
    other = base.bench.run("inspect", [f"base.ck/{last}", "--diff", f"{name}.ck/{last}"])
    if other.code != 0:
        lines = [line for line in other.out.splitlines() if "differ" in line or "only in" in line]
        return f"checkpoint differs: exit {other.code}: {'; '.join(lines[-3:])[:300]} {other.err[:200]}"
    for what in ("iteration", "consumed_samples", "extra"):
        one, two = (json.loads((base.bench.folder / f"{n}.ck" / last / "manifest.json").read_text())[what] for n in ("base", name))
        if one != two:
            return f"manifest differs: {what}: {one} and {two}"[:400]
    there = {place: steady(line) for place, line in metrics(base.bench, name).items()}
    for place, line in base.metrics.items():
        if place[1] <= since:
            continue
        if place not in there:
            return f"metrics lack: {place}"
        for field, value in steady(line).items():
            if there[place].get(field) != value:
                return f"metrics differ: {field} of {place} is {there[place].get(field)}, not {value}"
    return None


def resume(base, rng):
    """A run resumed from the middle, in another folder, must have the same end."""
    if len(base.saves) < 2:
        return None
    middle = base.saves[rng.randrange(len(base.saves) - 1)]
    outcome = train(base.bench, base.case, "resumed", checkpoint__load=f"base.ck/{middle}")
    return outcome.failed() or same_end(base, "resumed", since=int(middle.split("_")[1].split(".")[0]))


def captured(impl, modules):
    """A run with CUDA graphs must have the same end."""

    def check(base, rng):
        more = {"train__cuda_graph_impl": impl, "train__cuda_graph_modules": modules,
                "train__cuda_graph_warmup_steps": str(rng.choice((0, 1, 2)))}
        outcome = train(base.bench, base.case, "captured", **more)
        problem = outcome.failed() or same_end(base, "captured")
        return problem or (same_capture(base, outcome, more) if impl == "full_iteration" else None)

    return check


CAPTURED = re.compile(r"has captured (\d+) graphs of (\d+) operations")


def same_capture(base, outcome, more):
    """The second step is eager if memory is logged. It must not change the capture. Only the order of training and
    evaluation may differ, so the last line counts, with both."""
    if {"train.rampup_batch_size", "train.step_batch_size_schedule"} & base.case.keys.keys():
        return None  # the captured step may have another number of microbatches
    logged = "true" if base.case.get("memory.log_memory") == "false" else "false"
    other = train(base.bench, base.case, "recaptured", **more, memory__log_memory=logged)
    problem = other.failed()
    if problem:
        return problem
    one, two = (CAPTURED.findall(each.out + each.err)[-1:] for each in (outcome, other))
    return None if one == two else f"capture differs: {one} graphs and operations, {two} with memory.log_memory={logged}"


def capturable(impl, modules):
    def check(base, rng):
        case = base.case.put(train__cuda_graph_impl=impl, **({"train__cuda_graph_modules": modules} if modules else {}))
        outcome = base.bench.run("verify", [*case.words(), "--cuda-graphs"])
        problem = outcome.failed()
        return f"{problem} {' / '.join(outcome.out.strip().splitlines()[-3:])}"[:500] if problem else None

    return check


def depends_on_layout(case):
    """Settings that by design change the computation with the layout."""
    return (rounds_operands(case) or "model.moe_combine_bwd_dtype" in case.keys or
            "global_aux_loss" in case.get("model.moe_router_load_balancing_type") or
            case.get("model.moe_overflow_policy") == "drop" or
            "model.moe_expert_capacity_factor" in case.keys or "sinkhorn" in case.get("model.moe_router_load_balancing_type"))


def regroups_samples(case):
    """Without data_sharding the number of data-parallel ranks determines which samples share a microbatch, as in
    Megatron. Values that are not sums over samples change with it. These are aux_loss, a product of means over a
    microbatch, and the mean over a microbatch with unequal token counts per sample. (train.calculate_per_token_loss
    computes that mean over the whole step.)"""
    aux = "aux_loss" in case.get("model.moe_router_load_balancing_type", "").split(",")
    means = case.get("data.eod_mask_loss") == "true" and case.get("train.calculate_per_token_loss") != "true"
    return (aux or means) and case.data_parallel() > 1 and case.get("data.data_sharding") == "false"


def layout(base, rng):
    """In float64 the layout must not change the result, except for the settings that verify lists."""
    outcome = base.bench.run("verify", base.case.words())
    if outcome.code == 2 and "depend on the layout, so nothing was compared" in outcome.err:
        return None
    problem = outcome.failed()
    return f"{problem} {' / '.join(outcome.out.strip().splitlines()[-2:])}"[:500] if problem else None


LAYOUT_KEYS = re.compile(r"^parallel\.|^memory\.|^model\.moe_(token_dispatcher_type|expert_rank_capacity_factor|rank_pair_capacity_factor|overflow_policy)$|^model\.moe_shared_expert_overlap$|^model\.moe_.*(echo|paged_stash)")


def on_one_rank(case):
    keys = {key: value for key, value in case.keys.items() if not LAYOUT_KEYS.match(key)}
    return Case(1, keys)


def close(base, name, since, all_of_it):
    """Compares losses of another layout. Compares the first step after `since`, before any update, within the rounding
    of the number format; in float64 all steps."""
    there = metrics(base.bench, name)
    steps = sorted(i for split, i in base.metrics if split == "train" and i > since)
    dtype = base.case.get("precision.params_dtype", "fp32")
    # A loss is a mean over tokens of sums over the vocabulary and the layers' widths. These are at most some thousand
    # roundings that partly cancel: about a hundred in fp32. Half precision rounds at layer boundaries, about a dozen
    # times. A token near a tie may be routed to another expert.
    allowed = EPSILON[dtype] * {"fp32": 128, "fp64": 2.0**16, "bf16": 8, "fp16": 16}[dtype] * (8 if base.case.has_experts() and dtype != "fp64" else 1)
    for step in steps if all_of_it and dtype == "fp64" else steps[:1]:
        one, two = base.metrics[("train", step)], there.get(("train", step))
        if two is None:
            return f"metrics lack: {step}"
        if one["consumed_samples"] != two["consumed_samples"]:
            return f"samples differ: {one['consumed_samples']} and {two['consumed_samples']} at {step}"
        a, b = one.get("lm loss"), two.get("lm loss")
        if a is None or b is None:
            continue
        if not abs(a - b) <= allowed * max(1.0, abs(a)):
            return f"loss differs: step {step}: {a} and {b}, {abs(a - b):.1e} apart, allowed {allowed * max(1.0, abs(a)):.1e}"
    return None


def one_rank(base, rng):
    """Runs with the same number format on one rank."""
    outcome = train(base.bench, on_one_rank(base.case), "one")
    return outcome.failed() or close(base, "one", 0, True)


def moved(base, rng):
    """A checkpoint of this layout must resume on one rank."""
    if len(base.saves) < 2:
        return None
    middle = base.saves[0]
    outcome = train(base.bench, on_one_rank(base.case), "moved", checkpoint__load=f"base.ck/{middle}")
    return outcome.failed() or close(base, "moved", int(middle.split("_")[1].split(".")[0]), True)


def twin(base, rng):
    """Settings that must not change any bit: storage of activations, timing of buckets, prefetching, logging."""
    keys = base.case.keys
    ways = [{"data__num_workers": "3"}, {"train__timing_log_level": "2"},
            {"train__trace_file": "twin.trace", "train__trace_step_start": "2", "train__trace_step_end": "4", "train__log_slowest_rank": "true",
             "train__machine": "cpu"}]
    if keys.get("parallel.data_parallel_sharding_strategy") != "optim":  # with optim, buckets split the sum of a norm
        ways.append({"parallel__overlap_grad_reduce": "true" if "parallel.overlap_grad_reduce" in keys else "false"})
    if "parallel.align_param_gather" not in keys:
        ways.append({"parallel__overlap_param_gather": "true" if "parallel.overlap_param_gather" in keys else "false"})
    again = {f"memory__{k}": None for k in ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "distribute_saved_activations")}
    if "memory.recompute_granularity" not in keys:
        full, selective = ({"memory__recompute_granularity": "full", "memory__recompute_method": "uniform", "memory__recompute_num_layers": "1"},
                           {"memory__recompute_granularity": "selective", "memory__recompute_modules": "core_attn,mlp,layernorm,activation"})
        again = rng.choice((full, selective))
        if "model.moe_paged_stash" in keys:  # excludes full recompute of all layers
            again = selective
    ways += [again, again]
    if not {"memory.offload_activations", "model.moe_paged_stash", "parallel.overlap_moe_expert_parallel_comm"} & keys.keys():  # these exclude it
        ways.append({"memory__offload_activations": "file"})
    if "model.moe_enable_echo" in keys:
        ways += 2 * [{"model__moe_echo_recompute_expert_dispatch": "false" if "model.moe_echo_recompute_expert_dispatch" in keys else "true"},
                     {"model__moe_echo_expert_dispatch_overlap": "true" if "model.moe_echo_expert_dispatch_overlap" in keys else "false"}]
    more = {}
    for way in rng.sample(ways, 3):
        more.update(way)
    outcome = train(base.bench, base.case, "twin", **more)
    problem = outcome.failed() or same_end(base, "twin")
    return f"{problem} [with {more}]" if problem else None


SHARDING_KEYS = ("data_parallel_sharding_strategy", "num_distributed_optimizer_instances", "overlap_param_gather", "align_param_gather")
PREDICTED = re.compile(r"maximum over ranks.* peak ([\d.]+) \(([\d.]+)\)")


def dry(base, rng):
    """A dry run must predict the run: whether it fits, the same peak as the run's prediction, and approximately the
    measured peak."""
    where = {"checkpoint__save": "dry.ck", "checkpoint__save_interval": "2"}
    outcome = base.bench.train(base.case, ("--dry-run", "--json"), **where)
    problem = outcome.failed()
    if problem:
        return problem
    said = json.loads(outcome.out)
    if said["fits"] is False:
        return "dry run: says that it does not fit"
    told = PREDICTED.search(base.outcome.out)
    if not told:
        return None
    measured, predicted = float(told.group(1)), float(told.group(2))
    peak = max(rank["peak"] for rank in said["memory"]["ranks"]) / 2**20
    grows = base.case.get("train.rampup_batch_size") or base.case.get("train.step_batch_size_schedule")
    if abs(peak - predicted) > 0.006 and not grows:
        return f"dry run: predicts a peak of {peak:.3f} MiB, the run {predicted:.2f}"
    # The first steps of a growing batch may have fewer microbatches than a pipeline holds.
    if measured > predicted * 1.1 + 0.1 or (predicted > measured * 1.5 + 0.1 and not grows):
        return f"memory: a peak of {measured} MiB where {predicted} was predicted"
    return None


def rounds_operands(case):
    return any(f"precision.{name}" in case.keys for name in ("fp8_format", "fp4_format"))


def alone(base, rng):
    """With one data-parallel rank ZeRO shards nothing, so its memory must equal that without ZeRO, which keeps rounded weights."""
    peaks = []
    keeps = {"precision__keep_rounded_weights": "false"} if rounds_operands(base.case) else {}
    of_shards = [*SHARDING_KEYS, "reduce_scatter_with_fp32_accumulation"]
    unsharded = {f"parallel__{key}": None for key in of_shards} | {"precision__fp8_param_gather": None}
    for more in (keeps, keeps | unsharded):
        outcome = base.bench.train(base.case, ("--dry-run", "--json"), checkpoint__save="alone.ck", checkpoint__save_interval="2", **more)
        problem = outcome.failed()
        if problem:
            return problem
        peaks.append(max(rank["peak"] for rank in json.loads(outcome.out)["memory"]["ranks"]))
    return None if peaks[0] == peaks[1] else f"alone: a peak of {peaks[0]} bytes, {peaks[1]} without ZeRO"


def sends_by_documents(case):
    """Documents determine what context-parallel ranks store or send, so captures cannot be replayed."""
    if "parallel.context_parallel_token_slack" in case.keys:
        return True
    if "parallel.context_parallel_size" not in case.keys or case.keys.get("data.reset_attention_mask") not in (True, "true"):
        return False
    words = str(case.keys.get("parallel.cp_comm_type", "p2p")).split(",")
    return case.keys.get("parallel.context_parallel_cut") == "balanced" or any(word != "a2a" for word in words)


def checks_of(case, ways):
    """Returns (name, check, weight) of the checks for a case; `ways` are its possible forms of capture."""
    found = [("resume", resume, 3), ("twin", twin, 2), ("dry", dry, 1)]
    for impl, modules in ways if not sends_by_documents(case) else ():
        found.append((f"graphs={impl}={modules or ''}", captured(impl, modules), 3 / len(ways)))
        found.append((f"capturable={impl}={modules or ''}", capturable(impl, modules), 1 / len(ways)))
    shares = case.data_parallel() > 1 or (case.has_experts() and case.expert_data_parallel() > 1)
    if not shares and "parallel.data_parallel_sharding_strategy" in case.keys:
        found.append(("alone", alone, 2))
    if case.ranks > 1 and not depends_on_layout(case):
        found.append(("layout", layout, 3))
        rounds = "train.decrease_batch_size_if_needed" in case.keys  # on one rank to another batch size
        other = rounds or regroups_samples(case)
        if "model.sharded_initialization" not in case.keys and not other:
            found.append(("one_rank", one_rank, 1.5))
        if not other:
            found.append(("moved", moved, 1.5))
    return found


def check_named(name):
    kind, *rest = name.split("=")
    if kind in ("graphs", "capturable"):
        return {"graphs": captured, "capturable": capturable}[kind](rest[0], rest[1] or None)
    return {"run": lambda base, rng: None, "resume": resume, "twin": twin, "dry": dry, "alone": alone, "layout": layout, "one_rank": one_rank, "moved": moved}[kind]


class Scratch:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="metroplex_walk.")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)
