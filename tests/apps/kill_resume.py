#!/usr/bin/env python3
"""Kills training with SIGKILL, resumes it, and asks for the bits of the run that nobody disturbed.

kill_resume.py BINARY CORPUS [--runs 30] [--seed 1] [--only "8 gloo"]

Every third run is killed inside a save: the processes are stopped while .tmp-iter_* exists, this is seen once more, then
they are killed. The others are killed at a random moment between start and end: in start-up, in the building of the
index cache, in a step, in the removal of an old checkpoint. Every second run saves in the background. Runs take turns
over LAYOUTS, or those whose name contains --only; of processes one or all are killed. After each kill:
  - the resumed run starts from what `latest` names, without a warning, and ends with exit code 0;
  - each iteration's line in the metrics file, repeated ones too, has the loss of the undisturbed run;
  - the files of the last checkpoint are those of the undisturbed run, byte for byte."""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing

ITERATIONS = 12
TINY = """--run.seed=7 --model.num_layers=2 --model.hidden_size=32 --model.num_attention_heads=2
--model.make_vocab_size_divisible_by=16 --model.hidden_dropout=0.1 --model.attention_dropout=0.1 --optim.lr=0.01
--optim.lr_decay_style=cosine --optim.lr_warmup_iters=2 --data.tokenizer_type=bytes --train.seq_length=16
--train.micro_batch_size=1 --train.global_batch_size=4 --train.log_interval=1 --train.progress=false
--checkpoint.save_interval=1 --checkpoint.keep_last=2 --train.eval_iters=0""".split() + [f"--train.train_iters={ITERATIONS}"]
LAYOUTS = [
    ("1 rank", ["--nproc", "1"]),
    ("tp 2 x pp 2, threads", ["--nproc", "4", "--parallel.tensor_model_parallel_size=2",
                              "--parallel.pipeline_model_parallel_size=2", "--parallel.sequence_parallel=true"]),
    ("dp 2, gloo", ["--nproc", "2", "--backend", "gloo"]),
    ("tp 2 x pp 2 x dp 2, 8 gloo processes", ["--nproc", "8", "--backend", "gloo",
                                              "--parallel.tensor_model_parallel_size=2",
                                              "--parallel.pipeline_model_parallel_size=2"]),
    ("experts, ep 2, threads", ["--nproc", "2", "--parallel.expert_model_parallel_size=2", "--model.num_moe_experts=4",
                                "--model.add_bias_linear=false", "--model.moe_router_score_function=sigmoid",
                                "--model.moe_router_enable_expert_bias=true",
                                "--parallel.data_parallel_sharding_strategy=optim"]),
    ("clones of experts, ep 4, threads", ["--nproc", "4", "--parallel.expert_model_parallel_size=4",
                                          "--model.num_moe_experts=8", "--model.add_bias_linear=false",
                                          "--model.moe_enable_echo=true", "--model.moe_num_echo_experts=8",
                                          "--model.moe_echo_planner=exact", "--model.moe_router_force_skew=1",
                                          "--model.moe_token_dispatcher_type=static_buffer",
                                          "--model.moe_expert_rank_capacity_factor=1",
                                          "--train.cuda_graph_impl=full_iteration"]),
]


class Failure(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Failure(what)


class Run(typing.NamedTuple):
    layout: str
    in_save: bool  # killed during a save
    background: bool
    found: str  # what it went on from, or None

    def __str__(self):
        return (f"killed {'inside a save' if self.in_save else 'at a random moment'}, {self.layout}"
                f"{', saves in the background' if self.background else ''}, went on from {self.found or 'nothing'}")


def table(runs):
    lines = ["| layout | kills | inside a save | of runs that save in the background | went on from a checkpoint |",
             "|---|---|---|---|---|"]
    for layout, _ in LAYOUTS + [("all", [])]:
        mine = [run for run in runs if layout in (run.layout, "all")]
        lines.append(f"| {layout} | {len(mine)} | {sum(run.in_save for run in mine)} "
                     f"| {sum(run.background for run in mine)} | {sum(run.found is not None for run in mine)} |")
    return "\n".join(lines)


class Job:
    """One run's folder: checkpoints, metrics, index cache, what was printed."""

    def __init__(self, args, folder, layout, background=False):
        self.folder, self.save, self.metrics = folder, folder / "checkpoints", folder / "metrics.jsonl"
        folder.mkdir()
        self.command = [args.binary, "train", *TINY, *LAYOUTS[layout][1], f"--data.data_path={args.corpus}",
                        f"--data.data_cache_path={folder}/cache", f"--checkpoint.save={self.save}",
                        f"--checkpoint.load={self.save}", f"--train.metrics_file={self.metrics}",
                        f"--checkpoint.async_save={str(background).lower()}"]

    def start(self):
        self.output = open(self.folder / "output", "w+b")
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=subprocess.STDOUT, start_new_session=True)

    def finish(self):
        try:
            code = self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.signal_all(signal.SIGKILL)
            raise Failure("hung") from None
        self.output.seek(0)
        return code, self.output.read().decode(errors="replace")

    def signal_all(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def members(self):
        """Processes of the run that are still there (a killed launcher's ranks end with it, a moment later)."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                if int(fields[2]) == self.process.pid and fields[0] not in "ZX":
                    found.append(int(entry))
        return found

    def temporary(self):
        try:
            return [name for name in os.listdir(self.save) if name.startswith(".tmp-")]
        except FileNotFoundError:
            return []

    def complete(self):
        try:
            return [name for name in os.listdir(self.save) if name.startswith("iter_")]
        except FileNotFoundError:
            return []

    def latest(self):
        try:
            return (self.save / "latest").read_text().split()[0]
        except FileNotFoundError:
            return None


def kill_inside_save(job, rng):
    """True when the kill was inside; a run that got away is done again by the caller."""
    after = f".tmp-iter_{rng.randint(1, ITERATIONS - 1):07d}"
    while job.process.poll() is None:
        seen = job.temporary()
        if seen and seen[0] >= after:
            time.sleep(rng.random() * 0.004)
            job.signal_all(signal.SIGSTOP)
            time.sleep(0.002)  # a stop of several threads takes a moment
            if job.temporary():
                job.signal_all(signal.SIGKILL)
                job.process.wait()
                return bool(job.temporary())
            job.signal_all(signal.SIGCONT)
        time.sleep(0.0003)
    return False


def kill_any_moment(job, rng, seconds):
    # Start-up is most of so short a run: three of four kills wait until there is something to go on from, and fall
    # anywhere in what is left.
    if rng.random() < 0.75:
        while job.latest() is None and job.process.poll() is None:
            time.sleep(0.001)
        seconds /= 4
    time.sleep(rng.random() * seconds)
    members = job.members()
    if len(members) > 1 and rng.random() < 0.5:
        try:
            os.kill(rng.choice(members), signal.SIGKILL)  # one of them alone: the others must end by themselves
        except ProcessLookupError:
            pass
        start = time.monotonic()
        while job.members():
            check(time.monotonic() - start < 10, "the others live on after one process was killed")
            time.sleep(0.01)
    else:
        job.signal_all(signal.SIGKILL)
    return job.process.wait() != 0


def compare(job, reference):
    for line in job.metrics.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the line that was cut by the kill
        wanted = reference["losses"][record["iteration"]]
        check(record["lm loss"] == wanted, f"iteration {record['iteration']}: loss {record['lm loss']}, undisturbed {wanted}")
    check(record["iteration"] == ITERATIONS, "the last line is not the last iteration")
    files = final_files(job)
    check(files.keys() == reference["files"].keys(), f"files {sorted(files)}")
    for name, content in files.items():
        check(content == reference["files"][name], f"{name} of the last checkpoint differs from the undisturbed run's")


def final_files(job):
    return {path.name: path.read_bytes() for path in (job.save / job.latest()).glob("rank_*.safetensors")}


def undisturbed(args, folder, layout):
    job = Job(args, folder, layout)
    start = time.monotonic()
    job.start()
    code, text = job.finish()
    check(code == 0, f"the undisturbed run ended with {code}:\n{text}")
    records = [json.loads(line) for line in job.metrics.read_text().splitlines()]
    check(len(records) == ITERATIONS and job.latest() == f"iter_{ITERATIONS:07d}", "the undisturbed run is not complete")
    return {"losses": {r["iteration"]: r["lm loss"] for r in records}, "files": final_files(job),
            "seconds": time.monotonic() - start}


def one_run(args, number, scratch, references):
    rng = random.Random(args.seed * 1000003 + number)
    turn, inside = number // 3, number % 3 == 0
    layout, background = turn % len(LAYOUTS), (number + turn // len(LAYOUTS)) % 2 == 0
    for attempt in range(100):
        folder = scratch / f"run_{number}_{attempt}"
        job = Job(args, folder, layout, background)
        job.start()
        killed = kill_inside_save(job, rng) if inside else kill_any_moment(job, rng, references[layout]["seconds"])
        if killed:
            break
        job.process.wait()
        shutil.rmtree(folder)
    check(killed, "no kill struck in 100 attempts")
    found, left, complete = job.latest(), job.temporary(), job.complete()
    job.start()
    code, text = job.finish()
    check(code == 0, f"the resumed run ended with {code}:\n{text[-3000:]}")
    said = "\n".join(line for line in text.splitlines() if "is still being written" not in line)
    check("skipped: " not in said and "warning" not in said.lower(), f"the resumed run warns:\n{text[-3000:]}")
    loaded = re.search(r"loaded checkpoint \S*/(iter_\S+) at", text)
    used = loaded.group(1) if loaded else None
    # Killed between the renames of the very first save: it is complete, and nothing is named.
    check(used == found or (found is None and used in complete), f"`latest` named {found}, loaded {used}")
    # A kill between the two renames of a save leaves a complete iter_N that `latest` does not name; the next one is iter_N.2.
    check((job.latest() or "").split(".")[0] == f"iter_{ITERATIONS:07d}", f"`latest` names {job.latest()} in the end")
    check(found == job.latest() or not job.temporary(), f"the resumed run left {job.temporary()}")
    compare(job, references[layout])
    shutil.rmtree(folder)
    return Run(LAYOUTS[layout][0], bool(left), background, found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("corpus")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    LAYOUTS[:] = [layout for layout in LAYOUTS if args.only in layout[0]]
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="metroplex_kill."))
    number = -1
    try:
        references = [undisturbed(args, scratch / f"reference_{i}", i) for i in range(len(LAYOUTS))]
        runs = []
        for number in range(args.runs):
            runs.append(one_run(args, number, scratch, references))
            print(f"  run {number + 1}/{args.runs}: {runs[-1]}: same bits", flush=True)
        inside, resumed = sum(run.in_save for run in runs), sum(run.found is not None for run in runs)
        check(inside * 3 >= args.runs, f"only {inside} of {args.runs} kills were inside a save")
        check(resumed * 2 > args.runs, f"only {resumed} of {args.runs} runs had something to go on from")
        print(table(runs))
        print(f"  ok: {args.runs} runs, {inside} killed inside a save, {resumed} went on from a checkpoint, all end with the same bits")
    except Failure as failure:
        print(f"FAILED: run {number + 1}, seed {args.seed}: {failure}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


sys.exit(main())
