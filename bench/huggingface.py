#!/usr/bin/env python3
"""Loading a Hugging Face directory, and conversions of checkpoints, on one machine. Prints Markdown tables.

    bench/huggingface.py --python PYTHON --build build [--work FOLDER] [--hidden 2048] [--layers 16] [--rounds 5]

PYTHON imports torch and transformers. Makes a llama of random bf16 weights in FOLDER,
then takes turns:
- one rank's load in metroplex (`hf_load`: an empty model, then its weights) and `from_pretrained` of transformers, both
  in the stored type and from the page cache, on all cores: the second load of a process, as the first one also loads code;
- `metroplex convert` between formats and numbers of files against `dd` of as many bytes with fsync, which is what the
  disk does with them. What a process keeps of its own (RssAnon, sampled every 5 ms) is beside it."""
import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def median(values):
    return sorted(values)[len(values) // 2]


# --- under --python ------------------------------------------------------------------------------------------------------

def make(folder, hidden, layers, vocabulary):
    import torch
    from safetensors.torch import save_file
    ffn, heads = hidden * 4, hidden // 64
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": ffn,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // 4,
              "vocab_size": vocabulary, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "dtype": "bfloat16",
              "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name, shape in {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 4, hidden),
                            "self_attn.v_proj": (hidden // 4, hidden), "self_attn.o_proj": (hidden, hidden),
                            "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn),
                            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}.items():
            shapes[f"{at}{name}.weight"] = shape
    torch.manual_seed(1)
    pathlib.Path(folder).mkdir(parents=True)
    save_file({name: (torch.randn(shape) * 0.02).bfloat16() for name, shape in shapes.items()}, f"{folder}/model.safetensors",
              metadata={"format": "pt"})
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))


def theirs(folder):
    import torch
    import transformers
    transformers.logging.disable_progress_bar()
    for _ in range(2):  # the first run imports the model's code
        begin, processor = time.perf_counter(), time.process_time()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        load = time.perf_counter() - begin
        # Copies memory-mapped weights, as a program does that modifies them.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        answer = {"load": load, "touched": time.perf_counter() - begin, "processor": time.process_time() - processor,
                  "parameters": sum(p.numel() for p in model.parameters()),
                  "versions": f"transformers {transformers.__version__}, torch {torch.__version__}"}
        del model
    print(json.dumps(answer))


# --- both sides ----------------------------------------------------------------------------------------------------------

def timed(command):
    """Returns wall time and CPU time in seconds, standard output, and the peak of the process's private memory in
    MiB."""
    most, done = 0, threading.Event()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def watch():
        nonlocal most
        while not done.wait(0.005):
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            most = max([most] + [int(kib) for kib in re.findall(r"RssAnon:\s+(\d+)", status)])

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, err = process.communicate()
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{err[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out, most / 1024


def load_table(args, folder, size):
    ours, their = [], []
    for _ in range(args.rounds):
        whole, processor, out, _ = timed([args.build / "bin/hf_load", folder])
        empty, weights, loading = map(float, re.findall(r"[\d.]+", out))
        ours.append((empty + weights, loading, weights, whole, processor))
        whole, processor, out, _ = timed([args.python, "-S", __file__, "--child", "load", folder])
        answer = json.loads(out.splitlines()[-1])
        their.append((answer["touched"], answer["processor"], answer["load"], whole, processor))
    ours_median, their_median = ([median(column) for column in zip(*rows)] for rows in (ours, their))
    ratio = [median([a / b for a, b in zip(first, second)]) for first, second in zip(zip(*ours), zip(*their))]
    print(f"{answer['parameters'] / 1e6:.0f} million parameters, {size / 1e9:.2f} GB, bf16; {answer['versions']}; {args.rounds} rounds.\n")
    print("| | second load in the process, s | processor time of it, s | of it | whole process with two loads, s | processor time, s |\n"
          "| --- | --- | --- | --- | --- | --- |")
    for name, row, of_it in (("metroplex, one rank", ours_median, f"weights {ours_median[2]:.2f} s, {size / 1e9 / ours_median[2]:.2f} GB/s"),
                             ("transformers", their_median, f"`from_pretrained` {their_median[2]:.2f} s, which maps the file, and a copy of each tensor")):
        print(f"| {name} | {row[0]:.2f} | {row[1]:.2f} | {of_it} | {row[3]:.2f} | {row[4]:.2f} |")
    print(f"| ratio (below 1: metroplex is quicker) | {ratio[0]:.2f} | {ratio[1]:.2f} | | {ratio[3]:.2f} | {ratio[4]:.2f} |\n", flush=True)


def convert_table(args, folder):
    binary, work = args.build / "bin/metroplex", args.work
    one, eight, hf = work / "one", work / "eight", work / "hf"
    rows = [("Hugging Face -> 1 file", [folder, "--to", "checkpoint", one], one),
            ("1 file -> 8 files", [one, "--to", "checkpoint", eight, "--ranks", 8], eight),
            ("8 files -> 3 files", [eight, "--to", "checkpoint", work / "three", "--ranks", 3], work / "three"),
            ("8 files -> Hugging Face", [eight, "--to", "hf", hf], hf),
            ("8 files -> Hugging Face, fp32", [eight, "--to", "hf", work / "hf32", "--dtype", "fp32"], work / "hf32")]
    times = {name: [] for name, _, _ in rows}
    for _ in range(args.rounds):
        for name, arguments, out in rows:
            shutil.rmtree(out, ignore_errors=True)
            seconds, processor, _, memory = timed([binary, "convert", *arguments])
            size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
            # The same bytes from the page cache to a new file.
            copy = work / "copy"
            disk, _, _, _ = timed(["bash", "-c", f"cat {' '.join(map(str, out.rglob('*.safetensors')))} | dd of={copy} bs=16M iflag=fullblock conv=fsync"])
            copy.unlink()
            times[name].append((seconds, disk, size, memory, processor))
    print("| conversion | GB written | s | GB/s | `dd` with fsync, GB/s | share of it | processor time, s | own memory at most, MiB |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, got in times.items():
        size, seconds, disk = got[0][2] / 1e9, median([g[0] for g in got]), median([g[1] for g in got])
        print(f"| {name} | {size:.2f} | {seconds:.2f} | {size / seconds:.2f} | {size / disk:.2f} | "
              f"{median([g[1] / g[0] for g in got]):.2f} | {median([g[4] for g in got]):.2f} | {max(g[3] for g in got):.0f} |", flush=True)
    done = timed([binary, "inspect", folder, "--diff", hf])[2]
    print(f"\nHugging Face in and out through all of these: {'equal' if 'tensors are equal' in done else done}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a python that can import torch and transformers")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench-work/huggingface", help="folder, about six times the model")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("load", "convert"))
    args = parser.parse_args()
    folder = args.work / f"llama-{args.hidden}-{args.layers}-{args.vocabulary}"
    args.work.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        timed([args.python, "-S", __file__, "--child", "make", folder, args.hidden, args.layers, args.vocabulary])
    size = (folder / "model.safetensors").stat().st_size
    largest = args.vocabulary * args.hidden * 2 / 2**20
    if args.only != "convert":
        load_table(args, folder, size)
    if args.only != "load":
        print(f"The largest tensor of the model has {largest:.0f} MiB.\n")
        convert_table(args, folder)


if __name__ == "__main__":
    if sys.argv[1:3] == ["--child", "make"]:
        make(sys.argv[3], *map(int, sys.argv[4:7]))
    elif sys.argv[1:3] == ["--child", "load"]:
        theirs(sys.argv[3])
    else:
        main()
