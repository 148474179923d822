#!/usr/bin/env python3
"""What a fuzzer starts from: seeds.py FUZZER FOLDER. Mutations reach the depths of a parser only from files that it
accepts, so the seeds are those of the recorded cases, small ones where there is a choice."""
import json
import math
import pathlib
import re
import shutil
import struct
import sys

tests = pathlib.Path(__file__).resolve().parent.parent
vectors = tests / "vectors"


def indexed_dataset(folder):
    """Two bytes with the length of the index, the index, the tokens; and an array of numpy's."""
    for case in json.loads((vectors / "indexed_dataset.json").read_text())["cases"]:
        index, tokens = bytes.fromhex(case["idx_hex"]), bytes.fromhex(case["bin_hex"])
        (folder / case["name"]).write_bytes(struct.pack("<H", len(index)) + index + tokens)
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (3, 2), }"
    header += b" " * ((-len(header) - 11) % 64) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<6q", *range(6))
    (folder / "npy").write_bytes(struct.pack("<H", 0) + array)


def vocab_merges(folder):
    """GPT-2's byte alphabet with its first merges, and nothing but the alphabet."""
    gpt2 = vectors / "tokenizers" / "gpt2"
    vocab = json.loads((gpt2 / "vocab.json").read_text(encoding="utf-8"))
    lines = (gpt2 / "merges.txt").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")][:40]
    small = {token: i for token, i in vocab.items() if i < 256}
    for rule in rules:
        small.setdefault(rule.replace(" ", ""), len(small))
    for name, words, merges in (("merges", small, rules), ("alphabet", {t: i for t, i in vocab.items() if i < 256}, [])):
        text = json.dumps(words, ensure_ascii=False) + "\0" + "#version: 0.2\n" + "".join(f"{rule}\n" for rule in merges)
        (folder / name).write_bytes(text.encode("utf-8"))


def configs(folder):
    """The examples, and each section with its keys at their defaults, where those are words or numbers."""
    copied("../examples/*.yaml")(folder)
    for keys in sorted((tests.parent / "metroplex" / "config").glob("*_keys.inc")):
        section = keys.name.removesuffix("_keys.inc")
        found = re.findall(r"^KEY\([^,]+, (\w+), (\"[^\"]*\"|[-\w.]+),", keys.read_text(), re.MULTILINE)
        (folder / section).write_text(f"{section}:\n" + "".join(f"  {key}: {value}\n" for key, value in found))


def hf_directory(folder):
    """A model of every family, as small as it can be, in one file or behind an index; and those of the vectors."""
    for case in sorted((vectors / "hf").iterdir()):
        if not (case / "config.json").exists():
            continue
        config = json.loads((case / "config.json").read_text())
        weights = tiny_weights(config)
        text, file = json.dumps(config).encode(), safetensors(weights)
        index = json.dumps({"metadata": {}, "weight_map": {name: "a.safetensors" for name in weights}}).encode()
        (folder / case.name).write_bytes(text + b"\0\0" + file)
        (folder / f"{case.name}_index").write_bytes(text + b"\0" + index + b"\0" + file)


def tiny_weights(config):
    """Makes the config of one layer of width 4 (two, where experts are in some) and returns the shapes of its tensors."""
    gpt2 = config["model_type"] == "gpt2"
    moe = config["model_type"] in ("mixtral", "qwen3_moe")
    layers = 2 if config["model_type"] == "qwen3_moe" else 1
    if gpt2:
        config |= {"n_layer": 1, "n_head": 2, "n_embd": 4, "n_inner": 6, "n_positions": 8, "vocab_size": 5}
        shapes = {"transformer.wte.weight": [5, 4], "transformer.wpe.weight": [8, 4]}
        layer = {"attn.c_attn.weight": [4, 12], "attn.c_attn.bias": [12], "attn.c_proj.weight": [4, 4], "attn.c_proj.bias": [4],
                 "mlp.c_fc.weight": [4, 6], "mlp.c_fc.bias": [6], "mlp.c_proj.weight": [6, 4], "mlp.c_proj.bias": [4]}
        shapes |= {f"transformer.h.0.{name}": shape for name, shape in layer.items()}
        shapes |= {f"transformer.{name}.{kind}": [4] for name in ("h.0.ln_1", "h.0.ln_2", "ln_f") for kind in ("weight", "bias")}
        return shapes
    config |= {"num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "hidden_size": 4,
               "intermediate_size": 6, "vocab_size": 5, "max_position_embeddings": 8}
    config.pop("layer_types", None)
    experts = 2 if moe else 0
    width = 6
    if moe:
        config |= {"num_experts_per_tok": 2, "num_local_experts": 2}
        if "num_experts" in config:
            config["num_experts"] = 2
    if config["model_type"] == "qwen3_moe":
        config |= {"moe_intermediate_size": 3, "decoder_sparse_step": 1, "mlp_only_layers": [1]}
        width = 3
    shapes = {"model.embed_tokens.weight": [5, 4], "model.norm.weight": [4]}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = [5, 4]
    for layer in range(layers):
        at = f"model.layers.{layer}."
        bias = config.get("attention_bias")
        for name, rows in (("q", 4), ("k", 2), ("v", 2), ("o", 4)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = [rows, 4]
            if bias or (config["model_type"] == "qwen2" and name != "o"):
                shapes[f"{at}self_attn.{name}_proj.bias"] = [rows]
        if config["model_type"].startswith("qwen3"):
            shapes |= {f"{at}self_attn.{name}_norm.weight": [2] for name in "qk"}
        shapes |= {f"{at}{name}_layernorm.weight": [4] for name in ("input", "post_attention")}
        if experts and layer == 0:
            block = "block_sparse_moe" if config["model_type"] == "mixtral" else "mlp"
            names = ("w1", "w3", "w2") if block != "mlp" else ("gate_proj", "up_proj", "down_proj")
            shapes[f"{at}{block}.gate.weight"] = [experts, 4]
            for e in range(experts):
                for name, shape in zip(names, ([width, 4], [width, 4], [4, width])):
                    shapes[f"{at}{block}.experts.{e}.{name}.weight"] = shape
            continue
        for name, shape in (("gate", [6, 4]), ("up", [6, 4]), ("down", [4, 6])):
            shapes[f"{at}mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                shapes[f"{at}mlp.{name}_proj.bias"] = shape[:1]
    return shapes


def safetensors(shapes):
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(end)


def chat_template(folder):
    """The recorded templates and pieces of Jinja."""
    templates = json.loads((vectors / "chat" / "renderings.json").read_text(encoding="utf-8"))["templates"]
    pieces = json.loads((vectors / "chat" / "pieces.json").read_text(encoding="utf-8"))["cases"]
    for name, text in [*templates.items(), *((f"piece{i}", piece["template"]) for i, piece in enumerate(pieces))]:
        (folder / name).write_text(text, encoding="utf-8")


def copied(*patterns):
    def copy(folder):
        for pattern in patterns:
            for path in tests.glob(pattern):
                shutil.copy(path, folder)
    return copy


SEEDS = {
    "chat_template_fuzz": chat_template,
    "config_fuzz": configs,
    "hf_directory_fuzz": hf_directory,
    "indexed_dataset_fuzz": indexed_dataset,
    "vocab_merges_fuzz": vocab_merges,
    "manifest_fuzz": copied("fuzz/manifest_corpus/*.members"),
    "pickle_fuzz": copied("vectors/megatron_checkpoints/gpt_legacy/*/*/*.pt", "vectors/megatron_checkpoints/gpt_dist/*/.metadata", "vectors/megatron_checkpoints/adam_legacy_tp2_dp2/*/mp_rank_00/distrib_optim.pt", "vectors/megatron_checkpoints/gpt_dist/*/common.pt"),
    "safetensors_fuzz": copied("vectors/safetensors/*.safetensors"),
    "tokenizer_json_fuzz": copied("vectors/tokenizers/gpt2/tokenizer.json"),
    "tokenizer_model_fuzz": copied("vectors/tokenizers/sentencepiece_unigram_rules/tokenizer.model"),
}

target = pathlib.Path(sys.argv[2])
SEEDS[sys.argv[1]](target)
copied(f"fuzz/found/{sys.argv[1]}/*")(target)  # inputs that were crashes once
if not any(target.iterdir()):
    sys.exit(f"no seed for {sys.argv[1]}")
