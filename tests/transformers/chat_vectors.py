#!/usr/bin/env python3
"""Records what transformers makes of chat templates: chat_vectors.py FOLDER writes
     renderings.json   every template with every conversation: the text, or that it is refused
     pieces.json       small pieces of Jinja with what they give
     tokens.json       templates with generation blocks: token ids, and which the assistant's are
   Needs transformers and jinja2 (scripts/transformers.sh); the time is that of NOON."""
import copy
import datetime
import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils as utils

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from chat_conversations import CONVERSATIONS, EXTRAS
from chat_pieces import PIECES, VARIABLES
from chat_templates import TEMPLATES

NOON = 1718884800  # 20 June 2024, 12:00 UTC: the same day in every zone
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
tokenizers = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "tokenizers"


class Clock(datetime.datetime):
    @classmethod
    def now(cls, zone=None):
        return cls.fromtimestamp(NOON, datetime.timezone.utc).replace(tzinfo=None)


utils.datetime = Clock


def rendered(template, variables):
    """The text, or None where it is refused."""
    try:
        return utils._compile_jinja_template(template).render(**variables)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError, AssertionError):
        return None


chat_tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizers / "gpt2" / "tokenizer.json"), **SPECIAL)


def chat_text(template, messages, extra):
    """What apply_chat_template makes of it, which first drops keys of messages with the value None."""
    try:
        return chat_tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **extra)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


def renderings():
    cases = []
    for name, template in TEMPLATES.items():
        for conversation, messages in CONVERSATIONS.items():
            for extra, variables in EXTRAS.items():
                cases.append({"template": name, "conversation": conversation, "extra": extra, "text": chat_text(template, messages, variables)})
    return {"now": NOON, "special": SPECIAL, "templates": TEMPLATES, "conversations": CONVERSATIONS, "extras": EXTRAS, "cases": cases}


def pieces():
    return {"now": NOON, "variables": VARIABLES, "cases": [{"template": piece, "text": rendered(piece, copy.deepcopy(VARIABLES))} for piece in PIECES]}


def token_cases():
    cases = []
    # Their own tokens; a new one would get an id of its own.
    for folder, special in (("qwen2", {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
                            ("llama3", {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}),
                            ("gpt2", {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})):
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizers / folder / "tokenizer.json"), **special)
        for name in ("chatml_generation", "zephyr"):
            for conversation in ("answered", "system", "three_turns", "long", "empty", "unicode", "quotes", "assistant_first", "composed"):
                made = tokenizer.apply_chat_template(CONVERSATIONS[conversation], chat_template=TEMPLATES[name], tokenize=True,
                                                     return_dict=True, return_assistant_tokens_mask=True)
                cases.append({"tokenizer": folder, "special": special, "template": name, "conversation": conversation,
                              "ids": made["input_ids"], "mask": made["assistant_masks"]})
    return {"templates": {n: TEMPLATES[n] for n in ("chatml_generation", "zephyr")}, "conversations": CONVERSATIONS, "cases": cases}


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
made_by = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
for name, make in (("renderings", renderings), ("pieces", pieces), ("tokens", token_cases)):
    found = make()
    (folder / f"{name}.json").write_text(json.dumps({"made_by": made_by, **found}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    refused = sum(case.get("text", "") is None for case in found["cases"])
    print(f"{name}: {len(found['cases'])} cases, {refused} of them refused")
