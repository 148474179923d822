#!/usr/bin/env python3
"""Records what AutoTokenizer makes of directories whose other files change a tokenizer.json: class_vectors.py FILE.
   Needs transformers (scripts/transformers.sh)."""
import json
import pathlib
import shutil
import sys
import tempfile

import transformers

tokenizers = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "tokenizers"
CONFIG, MODEL, MAP = "tokenizer_config.json", "config.json", "special_tokens_map.json"
END = {"content": "<|endoftext|>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
SPACES = ["<s>[INST] hi [/INST] x</s> y", " two  <x>", "a<s>x"]
NEW = ["a<new>b [PAD]<img>"]
CASES = [
    ("llama2", {CONFIG: {"tokenizer_class": "LlamaTokenizer"}}, SPACES),
    ("llama2", {CONFIG: {"tokenizer_class": "LlamaTokenizerFast", "legacy": True}}, SPACES),
    ("llama2", {CONFIG: {"tokenizer_class": "LlamaTokenizer", "legacy": None, "add_prefix_space": False}}, SPACES),
    ("llama2", {CONFIG: {"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}}, SPACES),
    ("llama2", {CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}}, SPACES),
    ("llama2", {CONFIG: {"tokenizer_class": "LlamaTokenizer"}, MODEL: {"model_type": "mistral"}}, SPACES),
    ("llama2", {CONFIG: {}, MODEL: {"model_type": "gemma2", "tokenizer_class": "LlamaTokenizer"}}, SPACES),
    ("llama3", {CONFIG: {"tokenizer_class": "LlamaTokenizerFast"}, MODEL: {"model_type": "llama"}}, ["a b 123"]),
    ("gpt2", {CONFIG: {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}}, ["Hello<|endoftext|>you"]),
    ("gpt2", {CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}, MODEL: {"model_type": "qwen2"}}, ["12 don'T e\u0301\n\n x"]),
    ("gpt2", {CONFIG: {"additional_special_tokens": ["<new>"], "pad_token": "[PAD]", "image_token": "<img>"}}, NEW),
    ("gpt2", {CONFIG: {"extra_special_tokens": {"image_token": "<img>"}, "eos_token": "<new>"}}, NEW),
    ("gpt2", {CONFIG: {"eos_token": "<|endoftext|>", "pad_token": "!"}, MAP: {"eos_token": "<new>", "extra_special_tokens": ["<img>"]}}, NEW + ["hi!"]),
    ("gpt2", {CONFIG: {"eos_token": "!", "added_tokens_decoder": {"1000": END}}, MAP: {"eos_token": "<new>"}}, NEW + ["a <|endoftext|> b"]),
    ("gpt2", {CONFIG: {"split_special_tokens": True}}, ["a<|endoftext|>b"]),
]


def record(base, files, texts):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(tokenizers / base / "tokenizer.json", folder)
        for name, content in files.items():
            (pathlib.Path(folder) / name).write_text(json.dumps(content))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return {"base": base, "files": files, "texts": texts, "ids": ids, "decoded": [tokenizer.decode(one) for one in ids],
            "size": len(tokenizer), "eos": tokenizer.eos_token_id}


lines = ",\n".join(json.dumps(record(*case), ensure_ascii=False) for case in CASES)
pathlib.Path(sys.argv[1]).write_text('{"transformers": "%s", "cases": [\n%s\n]}\n' % (transformers.__version__, lines))
