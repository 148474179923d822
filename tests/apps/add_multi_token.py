#!/usr/bin/env python3
"""add_multi_token.py FROM TO NUMBER: the Hugging Face directory FROM, of deepseek_v3, with NUMBER layers of multi-token
prediction: as its last layer, with numbers of their own where there are none to take. Needs nothing but Python."""
import json
import pathlib
import shutil
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import read_safetensors  # noqa: E402

source, target, number = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
shutil.copytree(source, target)
for path in target.iterdir():
    path.chmod(0o644)
config = json.loads((target / "config.json").read_text())
layers, hidden = config["num_hidden_layers"], config["hidden_size"]
config["num_nextn_predict_layers"] = number
(target / "config.json").write_text(json.dumps(config))

tensors = read_safetensors.tensors(target)


def fresh(seed, shape):
    count = 1
    for length in shape:
        count *= length
    return "F32", shape, struct.pack(f"<{count}f", *(((i * 7919 + seed * 104729) % 2003 / 2003 - 0.5) * 0.2 + (len(shape) == 1)
                                                     for i in range(count)))


assert {dtype for dtype, _, _ in tensors.values()} == {"F32"}
for k in range(number):
    name = f"model.layers.{layers + k}."
    for other in [one for one in tensors if one.startswith(f"model.layers.{layers - 1}.")]:
        tensors[name + other.split(".", 3)[3]] = tensors[other]
    for i, norm in enumerate(("enorm", "hnorm", "shared_head.norm")):
        tensors[name + norm + ".weight"] = fresh(4 * k + i, [hidden])
    tensors[name + "eh_proj.weight"] = fresh(4 * k + 3, [hidden, 2 * hidden])
    tensors[name + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors[name + "shared_head.head.weight"] = tensors["lm_head.weight"]
header, body = {}, b""
for name, (dtype, shape, content) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(content)]}
    body += content
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
(target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
