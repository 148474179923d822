#!/usr/bin/env python3
"""Where a GPT-2 124M training step of ours spends its time, in percent of the samples of all threads, by phase.
Needs `perf` (Debian: linux-perf). Several programs take turns: profile_step.py B T DTYPE PROGRAM [PROGRAM...]"""
import argparse
import collections
import os
import re
import subprocess
import tempfile

# A sample belongs to the first phase with the name of a frame of its stack. oneDNN's generated code has no frames and
# counts as GEMM.
PHASES = (
    ("attention", r"attention|heads_first|forward_block|backward_tile|backward_blocks|exponentials|gradients_of_scores|::masked"),
    ("products", r"\[JIT\]|perf-\d+\.map|mkldnn|dnnl|mkl_|gemm|grouped_product|compute_blocks|linear_product|weight_gradient|input_gradient|at::.*mm(_out)?\b"),
    ("optimizer", r"adam_step|kernels::\(anonymous namespace\)::(run|step)\b|OptimizerRange"),
    ("gradient norm", r"gradient_sums|sum_block|GradientSums"),
    ("loss", r"cross_entropy|statistics_rows|LogitsShape"),
    ("norms, residuals, activations", r"norm|Norm|dropout|Dropout|activation|Activation"),
    ("embedding", r"gather|scatter|Table"),
    ("adding gradients", r"add_elements|column_sums|add_columns|add_row"),
    ("zeroing, copies, sums of libtorch", r"zero_|fill_|memset|copy_|reduced_float_copy|VectorizedLoop|sum_kernel|add_"),
    ("page faults, allocation", r"malloc|free|mmap|munmap|page_fault|unmap|brk|clear_page|_raw_spin_unlock|\[kernel"),
    ("waiting", r"libgomp|gomp_"),
)
RULES = [(name, re.compile(pattern)) for name, pattern in PHASES]
WARM_UP, UNWATCHED = 2, 4  # steps before the record; what a step takes is the least of the latter


def phase_of(frames):
    for name, rule in RULES[:-1]:
        if any(rule.search(frame) for frame in frames):
            return name
    return RULES[-1][0] if frames and RULES[-1][1].search(frames[0]) else "other"


def stacks(data):
    """Returns the frames of each sample, the innermost first."""
    script = subprocess.Popen(["perf", "script", "-i", data, "--no-inline", "-F", "ip,sym,dso"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
    frames = []
    for line in script.stdout:
        if line.strip():
            frames.append(line.strip().split(" ", 1)[-1])
        elif frames:
            yield frames
            frames = []
    if frames:
        yield frames


def shares(program, b, t, dtype, steps):
    process = subprocess.Popen([program, b, t, str(WARM_UP + UNWATCHED + steps), "0", dtype, "turns"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    times = []

    def step():
        process.stdin.write("\n")
        process.stdin.flush()
        line = process.stdout.readline()
        while not line.startswith("step "):
            line = process.stdout.readline()
        times.append(float(line.split()[1]))

    for _ in range(WARM_UP + UNWATCHED):
        step()
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "perf.data")
        recorder = subprocess.Popen(["perf", "record", "-o", data, "-F", "299", "-e", "task-clock", "--call-graph", "dwarf,8192", "-p", str(process.pid)],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(steps):
            step()
        recorder.send_signal(2)
        recorder.wait()
        process.stdin.close()
        process.kill()
        process.wait()
        counts = collections.Counter(phase_of(frames) for frames in stacks(data))
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}, min(times[WARM_UP:WARM_UP + UNWATCHED])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("b"), parser.add_argument("t"), parser.add_argument("dtype", choices=("f32", "bf16"))
    parser.add_argument("programs", nargs="+", metavar="PROGRAM", help="gpt2_step of a build")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    found = [shares(program, args.b, args.t, args.dtype, args.steps) for program in args.programs]
    print(f"| B {args.b} T {args.t} {args.dtype} |" + " % of the step, ms |" * len(found))
    print("| --- |" + " --- |" * len(found))
    for name in [name for name, _ in PHASES] + ["other"]:
        print(f"| {name} |" + "".join(f" {share.get(name, 0):.1%}, {share.get(name, 0) * least * 1e3:.0f} |" for share, least in found))
    print("| step, the quickest, ms |" + "".join(f" {least * 1e3:.0f} |" for _, least in found))


if __name__ == "__main__":
    main()
