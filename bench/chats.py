#!/usr/bin/env python3
"""Chats: tokenizing them against transformers, and training on them against training on text. Prints Markdown tables.

    bench/chats.py --python PYTHON --build build [--chats 2000] [--rounds 5] [--only tokenize|train]

PYTHON imports transformers. Sides take turns; figures are processor time, which a busy machine stretches less.
- `metroplex preprocess --chat --workers 1` and `apply_chat_template(..., return_assistant_tokens_mask=True)`, with
  the same tokenizer and template; start-up of both is measured with one chat and taken off. Ids and masks must be equal.
- steps of a small llama on samples of chats and on samples of text, of equal length and number of tokens."""
import argparse
import json
import pathlib
import random
import resource
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}{{ message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}"""

THEIRS = """
import array, json, sys, transformers
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=sys.argv[1])
ids, masks = array.array("i"), bytearray()
for line in open(sys.argv[3], encoding="utf-8"):
    made = tokenizer.apply_chat_template(json.loads(line)["messages"], chat_template=open(sys.argv[2]).read(), tokenize=True,
                                         return_dict=True, return_assistant_tokens_mask=True)
    ids.extend(made["input_ids"])
    masks.extend(made["assistant_masks"])
open(sys.argv[4], "wb").write(ids.tobytes())
open(sys.argv[4] + ".masks", "wb").write(masks)
"""


def median(values):
    return sorted(values)[len(values) // 2]


def processor_time(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_chats(path, count):
    words = [w for p in sorted((ROOT / "docs").glob("*.md")) for w in p.read_text(encoding="utf-8").split()]
    draw = random.Random(3)
    size = 0
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(count):
            messages = []
            for turn in range(2 * draw.randint(1, 4)):
                at, length = draw.randrange(len(words)), draw.randint(5, 60)
                messages.append({"role": "assistant" if turn % 2 else "user", "content": " ".join(words[at:at + length])})
            line = json.dumps({"messages": messages}, ensure_ascii=False)
            size += len(line.encode())
            out.write(line + "\n")
    return size


def tokenize(options, work):
    tokenizer = ROOT / "tests" / "vectors" / "tokenizers" / "qwen2" / "tokenizer.json"
    (work / "template").write_text(TEMPLATE)
    (work / "theirs.py").write_text(THEIRS)
    megabytes = make_chats(work / "many.jsonl", options.chats) / 1e6
    make_chats(work / "one.jsonl", 1)

    def ours(chats):
        return processor_time([options.build / "bin/metroplex", "preprocess", "--chat", "--input", work / chats, "--tokenizer-model", tokenizer,
                               "--chat-template", work / "template", "--workers", "1", "--output-prefix", work / "ours", "--overwrite"])

    def theirs(chats):
        return processor_time([options.python, work / "theirs.py", tokenizer, work / "template", work / chats, work / "theirs.ids"])

    ours("one.jsonl"), theirs("one.jsonl")
    seconds = {"metroplex": [], "transformers": []}
    for _ in range(options.rounds):
        start = ours("one.jsonl"), theirs("one.jsonl")  # first: the ids of many stay
        seconds["metroplex"].append(ours("many.jsonl") - start[0])
        seconds["transformers"].append(theirs("many.jsonl") - start[1])
    made = (work / "ours.bin").read_bytes()
    theirs_ids = (work / "theirs.ids").read_bytes()
    ours_ids = struct.unpack(f"<{len(made) // 2}H", made)
    if ours_ids != struct.unpack(f"<{len(theirs_ids) // 4}i", theirs_ids):
        sys.exit("the ids differ")
    if (work / "ours_loss_mask.bin").read_bytes() != (work / "theirs.ids.masks").read_bytes():
        sys.exit("the masks differ")
    print(f"{options.chats} chats, {megabytes:.1f} MB of JSON lines, {len(ours_ids)} tokens; ids and masks are equal; {options.rounds} rounds.\n")
    print("| | processor time, s | chats/s |\n| --- | --- | --- |")
    for name, values in seconds.items():
        print(f"| {name} | {median(values):.2f} | {options.chats / median(values):.0f} |")
    ratio = median([b / a for a, b in zip(seconds["metroplex"], seconds["transformers"])])
    print(f"| ratio (above 1: metroplex is quicker) | {ratio:.1f} | |\n")


def train(options, work):
    make_chats(work / "many.jsonl", options.chats)
    metroplex = options.build / "bin/metroplex"
    tokenizer = ROOT / "tests" / "vectors" / "tokenizers" / "qwen2" / "tokenizer.json"
    (work / "template").write_text(TEMPLATE)
    (work / "text").mkdir()
    for i, line in enumerate(open(work / "many.jsonl", encoding="utf-8")):
        (work / "text" / f"{i}.txt").write_text("\n".join(m["content"] for m in json.loads(line)["messages"]))
    processor_time([metroplex, "preprocess", "--chat", "--input", work / "many.jsonl", "--tokenizer-model", tokenizer, "--seq-length", "512",
                    "--chat-template", work / "template", "--output-prefix", work / "chats"])
    processor_time([metroplex, "preprocess", "--input", work / "text", "--tokenizer-model", tokenizer, "--append-eod", "--output-prefix", work / "plain"])
    base = [metroplex, "train", "--model.family=llama", "--model.num_layers=4", "--model.hidden_size=256", "--model.num_attention_heads=4",
            "--data.tokenizer_type=bpe", f"--data.tokenizer_model={tokenizer}", "--data.split=1,0,0", "--train.seq_length=512",
            "--train.micro_batch_size=2", "--train.global_batch_size=4", "--train.eval_iters=0", "--optim.lr=1e-4", "--train.progress=false", "--run.device=cpu"]
    apart = ["--data.reset_position_ids=true", "--data.reset_attention_mask=true"]
    kinds = {"text": [f"--data.data_path={work}/plain"], "text, documents apart": [f"--data.data_path={work}/plain", *apart],
             "chats": [f"--data.data_path={work}/chats", *apart]}
    seconds = {name: [] for name in kinds}
    for round in range(options.rounds + 1):
        for name, keys in kinds.items():
            few = processor_time([*base, *keys, "--train.train_iters=2"])
            many = processor_time([*base, *keys, "--train.train_iters=12"])
            if round > 0:
                seconds[name].append((many - few) / 10)
    print(f"A llama of 4 layers of width 256, steps of 4 samples of 512 tokens, fp32, one rank; {options.rounds} rounds.\n")
    print("| samples of | processor time of a step, s | tokens a second of it | to text |\n| --- | --- | --- | --- |")
    for name, values in seconds.items():
        ratio = median([a / b for a, b in zip(values, seconds["text"])])
        print(f"| {name} | {median(values):.3f} | {2048 / median(values):.0f} | {ratio:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--chats", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["tokenize", "train"])
    options = parser.parse_args()
    for name, part in (("tokenize", tokenize), ("train", train)):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as work:
                part(options, pathlib.Path(work))


if __name__ == "__main__":
    main()
