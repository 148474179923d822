#!/usr/bin/env python3
"""megatron.core loads checkpoints that `metroplex convert --to torch_dist` wrote: load_written.py BIN_FOLDER [CASE...]. Needs torch,
safetensors and megatron_core; scripts/transformers.sh has them.

Each recorded case of tests/vectors/megatron_checkpoints is converted to a checkpoint and from there to torch_dist.
megatron.core.dist_checkpointing loads it into a GPTModel on a CPU, whose values were all set to 7 before. On one rank, all
tensors must equal the recorded ones bit for bit, and the logits must equal the recorded ones. On two tensor-parallel
ranks, the tensors must equal those that Megatron loads from its own checkpoint. The distributed optimizer must have the
recorded main parameters, moments, and step. A copy with one changed byte in the data must fail."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

vectors = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "megatron_checkpoints"
sys.path.insert(0, str(vectors))
import record  # noqa: E402

ITERATION = f"iter_{record.ITERATION:07d}"
# case that is converted; model; a case that Megatron loads on every layout; tensor-parallel sizes
CASES = [("gpt_legacy", "gpt", "gpt_dist", (1, 2)), ("llama_legacy_tp2_pp2", "llama", "llama_dist_tp2_pp2", (1, 2)),
         ("moe_legacy_ep2", "moe", "moe_dist_ep2", (1, 2)), ("latent_dist_tp2", "latent", "latent_dist_tp2", (1, 2)),
         ("trained_dist_dp2", "trained", "trained_dist_dp2", (1,))]
# Both sides compute in fp32 with the same weights. The last sum of a logit has 16 terms; other processors may add in another
# order, with an error of about 16 * 2^-24 times the sum of magnitudes, which is below 8 here.
TOLERANCE = 16 * 2**-24 * 8


def load_state(chunk, directory, metadata, optimizer=None):
    """Loads a checkpoint into a model and an optimizer with other values."""
    with torch.no_grad():
        for tensor in [*chunk.parameters(), *(b for n, b in chunk.named_buffers() if n.endswith("expert_bias"))]:
            tensor.fill_(7)
    record.load_state(chunk, directory, metadata, optimizer)


def tensors(chunk):
    return {name: value.clone() for name, value in chunk.state_dict().items()
            if isinstance(value, torch.Tensor) and not name.endswith(("_extra_state", "inv_freq", "tokens_per_expert"))}


def find_differences(expected, found):
    return [name for name in sorted({*expected, *found})
            if name not in found or name not in expected or not torch.equal(expected[name].flatten(), found[name].flatten())]


def check_equal(expected, found, what):
    different = find_differences(expected, found)
    if different:
        sys.exit(f"{what}: these tensors differ: {', '.join(different)}")


def optimizer_state(chunk, optimizer):
    """Main parameters and moments as KIND/NAME; one rank has whole parameters."""
    inner = optimizer.chained_optimizers[0]
    state = {}
    for name, param in chunk.named_parameters():
        main = param.main_param
        values = inner.optimizer.state[main]
        state |= {f"main/{name}": main.detach(), **{f"{kind}/{name}": values[kind] for kind in ("exp_avg", "exp_avg_sq")}}
        if values["step"] != record.STEPS:
            sys.exit(f"{name}: step is {values['step']}")
    return state


def check_logits(chunk, model):
    tokens = torch.tensor(json.loads((vectors / model / "tokens.json").read_text()))
    length = tokens.shape[1]
    mask = torch.triu(torch.ones(length, length), 1).bool()[None, None]
    with torch.no_grad():
        logits = chunk(tokens, torch.arange(length).expand(*tokens.shape), mask)
    error = (logits - load_file(vectors / model / "logits.safetensors")["logits"]).abs().max().item()
    if not error <= TOLERANCE:
        sys.exit(f"{model}: the logits differ by {error:.3g}, more than {TOLERANCE:.3g}")
    return error


def load_case(task, tp):
    """Loads one case on the ranks of this process group, and compares it with the recorded values."""
    model, written = task["model"], pathlib.Path(task["written"])
    spec, layout = record.MODELS[model], {"tp": tp}
    metadata = torch.load(written / "common.pt", weights_only=False)["content_metadata"]
    chunk = record.build(spec, layout)[0]
    optimizer = None
    if "bf16" in spec:
        record.OnCpu().__enter__()
        optimizer = record.train(chunk.bfloat16(), spec, {"dp": 1})  # the distributed optimizer
    load_state(chunk, written, metadata, optimizer)
    found = tensors(chunk)
    if tp > 1:
        load_state(chunk, vectors / task["own"] / ITERATION, record.metadata("stacked"))
        check_equal(tensors(chunk), found, f"{model}, tp {tp}")
        return f"{len(found)} tensors are equal"
    recorded = load_file(vectors / model / "weights.safetensors")
    recorded = {name: value for name, value in recorded.items() if not name.endswith(("inv_freq", "tokens_per_expert"))}
    logits = "" if optimizer is not None else f", logits differ by {check_logits(chunk, model):.2g}"
    if optimizer is not None:
        found |= optimizer_state(chunk, optimizer)
    check_equal(recorded, found, model)
    load_state(chunk, pathlib.Path(task["changed"]), metadata)
    if not find_differences({name: recorded[name] for name in tensors(chunk)}, tensors(chunk)):
        sys.exit(f"{model}: a changed byte is not found")
    return f"{len(found)} tensors are equal{logits}; a changed byte is found"


def worker(tasks, tp):
    record.start({"tp": tp})
    record.keep_steps()
    for task in tasks:
        result = load_case(task, tp)
        if torch.distributed.get_rank() == 0:
            print(f"megatron.core loads {task['case']} on tp {tp}: {result}", flush=True)


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr or done.stdout}")


def load_on_ranks(tasks, tp, port):
    ranks = []
    for rank in range(tp):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(tp), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   PYTHONWARNINGS="ignore")
        ranks.append(subprocess.Popen([sys.executable, *(["-S"] if sys.flags.no_site else []), __file__, "--worker", json.dumps(tasks), str(tp)],
                                      env=env, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate(timeout=900)[1] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join(errors))


def change_data(directory):
    data = directory / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[content.index(b"archive/data/0") + 128] ^= 1  # after the padding of the first tensor
    data.write_bytes(content)


def main(programs, names):
    metroplex, tasks = pathlib.Path(programs).resolve() / "metroplex", []
    with tempfile.TemporaryDirectory() as folder:
        for case, model, own, sizes in CASES:
            if names and case not in names:
                continue
            work = pathlib.Path(folder) / case
            work.mkdir()
            run(metroplex, "convert", vectors / case, "--to", "checkpoint", work / "checkpoint")
            run(metroplex, "convert", work / "checkpoint", "--to", "torch_dist", work / "written")
            shutil.copytree(work / "written", work / "changed")
            change_data(work / "changed" / ITERATION)
            tasks.append({"case": case, "model": model, "own": own, "sizes": sizes, "written": str(work / "written" / ITERATION),
                          "changed": str(work / "changed" / ITERATION)})
        for tp in (1, 2):
            load_on_ranks([task for task in tasks if tp in task["sizes"]], tp, 29911 + tp)


if __name__ == "__main__":
    worker(json.loads(sys.argv[2]), int(sys.argv[3])) if sys.argv[1] == "--worker" else main(sys.argv[1], sys.argv[2:])
