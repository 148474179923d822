#!/usr/bin/env python3
"""Records a golden run with the real megatron.core (or CodeGeeX's own model) on the CPU, or compares one with a record.

    record_golden.py SPEC.json --megatron DIR --out FILE      train what SPEC asks for, write the golden file
    record_golden.py SPEC.json... --megatron DIR --compare    train it again, print the worst differences from SPEC's record;
                                                              exit 1 where they are more than other kernels cost

SPEC is a golden file, or its `config` object alone."""
import argparse
import importlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
import warnings

import compare


def commit_of(checkout):
    found = subprocess.run(["git", "-C", checkout, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else "of an unknown commit"


def versions(*packages):
    import torch

    named = [f"{package} {importlib.metadata.version(package)}" for package in ("torch", "numpy", *packages)]
    return ", ".join([*named, torch.backends.cpu.get_cpu_capability()])


def rank_main(rank, config, meeting, out):
    """In a forked process: one rank; rank 0 writes what all agree on."""
    import torch

    import megatron_run

    torch.set_num_threads(1)
    code = 1
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=config["nproc"])
        result = megatron_run.run(config)
        if rank == 0:
            pathlib.Path(out).write_text(json.dumps(result))
        torch.distributed.barrier()
        code = 0
    except BaseException as error:
        print(f"rank {rank}:", file=sys.stderr)
        error.__cause__ or traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def record_megatron(config, checkout):
    """Forks the ranks after the imports, which take ten seconds."""
    import logging

    import cuda_on_cpu

    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
        warnings.filterwarnings("ignore")
        logging.getLogger("megatron").setLevel(logging.ERROR)
        cuda_on_cpu.install()
        for module in ("models.gpt.gpt_model", "models.gpt.gpt_layer_specs", "optimizer"):
            importlib.import_module(f"megatron.core.{module}")
    with tempfile.TemporaryDirectory() as folder:
        out, ranks = pathlib.Path(folder, "result.json"), []
        for rank in range(config["nproc"]):
            child = os.fork()
            if child == 0:
                rank_main(rank, config, pathlib.Path(folder, "meeting"), out)
            ranks.append(child)
        # A rank that failed takes the others with it: they would wait for it.
        failed = False
        while ranks:
            child, status = os.wait()
            ranks.remove(child)
            if status != 0 and not failed:
                failed = True
                for other in ranks:
                    os.kill(other, 9)
        if failed:
            raise RuntimeError("a rank failed")
        packages = ["emerging-optimizers"] if config.get("optimizer") == "muon" else []
        source = f"megatron.core {commit_of(checkout)} on the CPU through tests/record ({versions(*packages)})"
        return json.loads(out.read_text()) | {"source": source}


def record(config, arguments):
    import megatron_options

    megatron_options.refuse_unknown(config)
    if config["model"].get("kind") == "codegeex":
        if not arguments.codegeex:
            raise SystemExit(f"{config['name']} is a run of CodeGeeX's model: give --codegeex DIR")
        import codegeex_run

        result = codegeex_run.run(config, arguments.codegeex)
        source = (
            f"CodeGeeXModel of THUDM/CodeGeeX {commit_of(arguments.codegeex)} (codegeex/torch/codegeex_model.py) in fp32 on "
            f"the CPU through tests/record ({versions()}); query, key and value merged as linear_qkv and linear_kv are"
        )
        return result | {"source": source}
    if not arguments.megatron:
        raise SystemExit("give --megatron DIR, a checkout of NVIDIA/Megatron-LM")
    return record_megatron(config, arguments.megatron)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", nargs="+", help="a golden file or a config object")
    parser.add_argument("--megatron", type=pathlib.Path, help="checkout of NVIDIA/Megatron-LM")
    parser.add_argument("--codegeex", type=pathlib.Path, help="checkout of THUDM/CodeGeeX, for its runs")
    parser.add_argument("--out", type=pathlib.Path, help="file to write, or a folder for several specs")
    parser.add_argument("--compare", action="store_true", help="print how far the run is from the record in SPEC")
    arguments = parser.parse_args()
    if not arguments.out and not arguments.compare:
        parser.error("one of --out and --compare is needed")
    os.environ["OMP_NUM_THREADS"] = "1"
    good = True
    for path in arguments.spec:
        spec = json.loads(pathlib.Path(path).read_text())
        config = spec.get("config", spec)
        config.setdefault("name", pathlib.Path(path).stem)
        result = {"name": config["name"], "config": config} | record(config, arguments)
        if arguments.out:
            target = arguments.out / f"{config['name']}.json" if arguments.out.is_dir() else arguments.out
            target.write_text(json.dumps(result) + "\n")
        if arguments.compare:
            words, fits = compare.line(config["name"], result, spec)
            print(words, flush=True)
            good &= fits
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
