#!/usr/bin/env python3
"""Preprocessing speed on one core: `metroplex preprocess --workers 1` against the Python packages `tokenizers` and
`sentencepiece`, taking turns over the same documents. Prints a Markdown table and fails when the ids differ.

    bench/preprocess.py --python VENV/bin/python            needs: pip install tokenizers sentencepiece

Both sides are held on one core by affinity and are timed without start-up and loading. Of the package two speeds are
given: encoding alone (documents already in memory, ids not taken out), and what preprocessing is: read, encode, write."""
import argparse
import array
import hashlib
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPE_CODES = {8: "H", 4: "i"}  # of the .idx header: uint16, int32


def median(values):
    return sorted(values)[len(values) // 2]


# --- the package's side: runs under --python ---------------------------------------------------------------------------

def encoder(model):
    """A function from a list of texts to a list of results, and one from a result to its ids."""
    if model.endswith(".json"):
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(model)
        return lambda texts: tokenizer.encode_batch_fast(texts, add_special_tokens=False), lambda result: result.ids
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    return lambda texts: [processor.encode(text) for text in texts], lambda result: result


def package_side(model, corpus, output, type_code, clock_name):
    encode, ids_of = encoder(model)
    paths = sorted(os.path.join(corpus, name) for name in os.listdir(corpus))
    encode(["warm up"])
    encode_seconds, size, batch, lengths = 0.0, 0, 64, array.array("i")
    clock = time.process_time if clock_name == "processor" else time.perf_counter
    begin = clock()
    with open(output, "wb") as out:
        for first in range(0, len(paths), batch):
            texts = []
            for path in paths[first:first + batch]:
                with open(path, encoding="utf-8", newline="") as file:
                    texts.append(file.read())
                size += os.path.getsize(path)
            encode_begin = clock()
            results = encode(texts)
            encode_seconds += clock() - encode_begin
            for result in results:
                ids = array.array(type_code, ids_of(result))
                ids.tofile(out)
                lengths.append(len(ids))
    seconds = clock() - begin
    with open(output + ".lengths", "wb") as out:
        lengths.tofile(out)
    print(json.dumps({"encode": size / encode_seconds / 1e6, "all": size / seconds / 1e6}))


def train_model(kind, corpus, output, vocabulary):
    """A tokenizer of a realistic size, made once. sentencepiece learns from the first 8 MB, as that takes long."""
    paths = sorted(os.path.join(corpus, name) for name in os.listdir(corpus))
    if kind == "byte-level BPE":
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False, special_tokens=["<|endoftext|>"],
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train(paths, trainer)
        tokenizer.save(output)
    else:
        import io
        import sentencepiece
        lines, size = [], 0
        for path in paths:
            text = open(path, encoding="utf-8").read()
            lines += [line for line in text.split("\n") if line.strip()]
            size += len(text)
            if size > 8e6:
                break
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=vocabulary,
            model_type=kind.split()[1].lower(), byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False,
            minloglevel=2, num_threads=1)
        pathlib.Path(output).write_bytes(model.getvalue())


# --- both sides --------------------------------------------------------------------------------------------------------

def one_core(command, core):
    environment = dict(os.environ, RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                             preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with status {process.returncode}:\n{process.stderr[-2000:]}")
    return process.stdout


def child(args, *what):
    return one_core([args.python, __file__, "--child", *map(str, what)], args.core)


def make_corpus(args):
    """Copies UTF-8 files up to the size that was asked for, in the order of a hash of their names: neighbours in a folder
    are too alike."""
    sources, folder = [], args.work / "corpus"
    for path in map(pathlib.Path, args.text):
        files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        sources += [(hashlib.sha256(str(p.relative_to(path)).encode()).digest(), p) for p in files]
    sources = [path for _, path in sorted(sources)]
    stamp = args.work / "corpus.json"
    key = json.dumps([list(map(str, args.text)), args.megabytes])
    if not stamp.exists() or json.loads(stamp.read_text())["key"] != key:
        for old in args.work.glob("corpus/*"):
            old.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        size = count = 0
        for source in sources:
            data = source.read_bytes()
            try:
                data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if not data.strip():
                continue
            (folder / f"{count:06}.txt").write_bytes(data)
            count, size = count + 1, size + len(data)
            if size >= args.megabytes * 1e6:
                break
        if count == 0:
            sys.exit(f"no UTF-8 text in {args.text}")
        for model in args.work.glob("trained-*"):
            model.unlink()
        stamp.write_text(json.dumps({"key": key, "bytes": size, "files": count}))
    return folder, json.loads(stamp.read_text())


def our_side(args, model, folder, prefix):
    for old in args.work.glob(prefix.name + "*"):
        if old.is_file():
            old.unlink()
    def run(text):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = one_core([args.binary, "preprocess", "--input", text, "--tokenizer-model", model, "--workers", "1",
                        "--output-prefix", prefix, "--overwrite"], args.core)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return out, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    if args.clock == "wall":
        return float(re.search(r"([\d.]+) MB/s", run(folder)[0]).group(1))
    start_up = run(min(folder.iterdir(), key=lambda path: path.stat().st_size))[1]
    size = sum(path.stat().st_size for path in folder.iterdir())
    return size / (run(folder)[1] - start_up) / 1e6


def lengths_in_bytes(path, offset, count, width):
    lengths = array.array("i")
    lengths.frombytes(path.read_bytes()[offset:offset + 4 * count])
    return [length * width for length in lengths]


def documents_that_differ(args, package_ids, type_code):
    width = array.array(type_code).itemsize
    count = (args.work / "package.bin.lengths").stat().st_size // 4
    index = (args.work / "ours.idx").read_bytes()
    if int.from_bytes(index[18:26], "little") != count:  # sequences
        return count
    ours, theirs = (args.work / "ours.bin").read_bytes(), package_ids.read_bytes()
    ours_at = theirs_at = differ = 0
    for a, b in zip(lengths_in_bytes(args.work / "ours.idx", 34, count, width),
                    lengths_in_bytes(args.work / "package.bin.lengths", 0, count, width)):
        differ += ours[ours_at:ours_at + a] != theirs[theirs_at:theirs_at + b]
        ours_at, theirs_at = ours_at + a, theirs_at + b
    return differ


def compare(args, name, model, folder, corpus):
    prefix, package_ids = args.work / "ours", args.work / "package.bin"
    ours, encode, everything = [], [], []
    for _ in range(args.rounds):
        ours.append(our_side(args, model, folder, prefix))
        type_code = TYPE_CODES[(args.work / "ours.idx").read_bytes()[17]]
        peer = json.loads(child(args, "encode", model, folder, package_ids, type_code, args.clock))
        encode.append(peer["encode"])
        everything.append(peer["all"])
    differ = documents_that_differ(args, package_ids, type_code)
    against_encode = median([a / b for a, b in zip(ours, encode)])
    against_all = median([a / b for a, b in zip(ours, everything)])
    print(f"| {name} | {median(ours):.1f} | {median(encode):.1f} | {median(everything):.1f} | {against_encode:.2f} | "
          f"{against_all:.2f} | {f'differ in {differ} documents' if differ else 'equal'} |", flush=True)
    return differ == 0


def models(args, folder):
    vectors = ROOT / "tests" / "vectors" / "tokenizers"
    for kind, vocabulary, suffix in (("byte-level BPE", args.vocabulary, "json"), ("sentencepiece BPE", 8000, "model"),
                                     ("sentencepiece unigram", 8000, "model")):
        path = args.work / f"trained-{kind.replace(' ', '-').lower()}-{vocabulary}.{suffix}"
        if not path.exists():
            child(args, "train", kind, folder, path, vocabulary)
        yield f"{kind}, {vocabulary} ids, trained on the corpus", path
    yield "byte-level BPE, tests/vectors gpt2", vectors / "gpt2" / "tokenizer.json"
    yield "byte-level BPE, tests/vectors llama3", vectors / "llama3" / "tokenizer.json"
    for kind, folder in (("BPE", "sentencepiece_bpe"), ("BPE with nmt_nfkc", "sentencepiece_bpe_nmt_nfkc"),
                         ("unigram", "sentencepiece_unigram")):
        yield f"sentencepiece {kind}, tests/vectors", vectors / folder / "tokenizer.model"


def torch_headers(build):
    for line in (build / "CMakeCache.txt").read_text().splitlines() if (build / "CMakeCache.txt").exists() else []:
        if line.startswith("TORCH_ROOT:"):
            return [line.split("=", 1)[1] + "/include"]
    sys.exit("no corpus: give --text PATH... (without it the C++ headers of the torch wheel that the build uses are taken)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a python that can import tokenizers and sentencepiece")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/bin/metroplex")
    parser.add_argument("--text", nargs="*", help="files or folders; the C++ headers of the torch wheel where left out")
    parser.add_argument("--megabytes", type=float, default=32, help="how much of it is used")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall",
                        help="processor: seconds of the core that a side had, on a machine that is busy; ours without start-up")
    parser.add_argument("--vocabulary", type=int, default=32000, help="of the byte-level BPE that is trained")
    parser.add_argument("--model", nargs="*", help="tokenizer.json or tokenizer.model files instead of the usual ones")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench-work", help="folder for corpus and models")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.text = args.text or torch_headers(args.binary.parent.parent)
    folder, corpus = make_corpus(args)
    print(f"| one core, {corpus['bytes'] / 1e6:.1f} MB in {corpus['files']} documents, {args.rounds} rounds | ours MB/s | "
          "package MB/s, encoding alone | package MB/s, read + encode + write | ratio to encoding alone | ratio | ids |\n"
          "| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    chosen = [(os.path.basename(m), pathlib.Path(m)) for m in args.model] if args.model else models(args, folder)
    equal = [compare(args, name, model, folder, corpus) for name, model in chosen]
    return 0 if all(equal) else 1


if __name__ == "__main__":
    if sys.argv[1:3] == ["--child", "encode"]:
        package_side(*sys.argv[3:8])
    elif sys.argv[1:3] == ["--child", "train"]:
        train_model(sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))
    else:
        sys.exit(main())
