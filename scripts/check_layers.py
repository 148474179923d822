#!/usr/bin/env python3
"""Holds the house in order: who may include whom, file sizes, what headers may pull in. Exit 1 with every breach."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 600

# A room may include itself and these. Ground floor first: nothing there sees torch.
GROUND = {
    "base": [],
    "config": ["base"],
    "megatron": ["base", "config"],
    "files": ["base"],
    "text": ["base", "files"],
    "topology": ["base", "config"],
    "plan": ["base", "config", "topology"],
    "sim": ["base", "config", "topology", "plan"],
    "data": ["base", "config", "files", "text"],
    "checkpoint": ["base", "files"],
}
UPPER = {
    "cuda": ["base"],
    "comm": ["base", "topology", "cuda"],
    "nn": ["base", "config", "topology", "cuda", "comm"],
    "models": ["base", "config", "comm", "nn", "cuda", "topology"],
    "pipeline": ["base", "config", "topology", "plan", "cuda", "comm", "nn"],
    "optim": ["base", "config", "topology", "plan", "cuda", "comm", "nn"],
    "train": ["base", "config", "files", "text", "topology", "plan", "sim", "data", "checkpoint", "cuda", "comm", "nn", "models", "pipeline", "optim"],
}
ROOMS = GROUND | UPPER
TORCH = re.compile(r"<(ATen|torch|c10)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"} and "vectors" not in path.parts:
                yield path


def check_includes(path, room, breaches):
    allowed = {room, *ROOMS[room]}
    where = path.relative_to(ROOT)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        angle, target = match.groups()
        if angle == '"':
            first = target.split("/")[0]
            if first in ROOMS and first not in allowed:
                breaches.append(f"{where}:{number}: {room}/ may not include {first}/ (allowed: {', '.join(sorted(allowed))})")
            continue
        torch = TORCH.search(f"<{target}")
        if target in {"torch/torch.h", "torch/all.h"}:
            breaches.append(f"{where}:{number}: {target} is never included; name the headers that are needed")
        if torch and room in GROUND:
            breaches.append(f"{where}:{number}: {room}/ is on the ground floor and sees no torch")
        if torch and path.suffix == ".cu":
            breaches.append(f"{where}:{number}: a .cu file takes pointers and sizes, no torch header")
        if "c10d" in target and (room != "comm" or (path.suffix == ".h" and "backends" not in path.parts)):
            breaches.append(f"{where}:{number}: c10d belongs into comm/*.cpp and comm/backends/ only")
        if path.suffix == ".h" and target.startswith("ATen/ATen.h"):
            breaches.append(f"{where}:{number}: a header includes <ATen/core/Tensor.h> at most")
        if path.suffix == ".h" and target.split("/")[0] in {"fmt", "spdlog"}:
            breaches.append(f"{where}:{number}: fmt and spdlog stay out of headers")


def check_ground_app(path, breaches):
    """`metroplex` itself starts without torch; commands with tensors are in apps/upper/."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match and (TORCH.search(f"<{match.group(2)}") or match.group(2).split("/")[0] in {*UPPER, "upper"}):
            breaches.append(f"{path.relative_to(ROOT)}:{number}: what needs tensors belongs into apps/upper/")


def check_links(breaches):
    """What CMake links a room with is what it may include, no more; and what it may include, it links with, if by way of another."""
    text = "\n".join((ROOT / "cmake" / name).read_text() for name in ("GroundFloor.cmake", "UpperFloor.cmake"))
    links = {}
    for room, words in re.findall(r"metroplex_room\((\w+)([^)]*)\)", text):
        links[room] = {word.removeprefix("metroplex_") for word in words.split() if word.startswith("metroplex_")}

    def reach(room):
        return links[room].union(*(reach(other) for other in links[room]))

    for room, allowed in ROOMS.items():
        if room not in links:
            breaches.append(f"cmake: no metroplex_room({room} ...)")
            continue
        for extra in sorted(links[room] - set(allowed)):
            breaches.append(f"cmake: {room} is linked with {extra}, which it may not include")
        for missing in sorted(set(allowed) - reach(room)):
            breaches.append(f"cmake: {room} may include {missing}, and is not linked with it")


def check_shape(path, breaches):
    text = path.read_text()
    where = path.relative_to(ROOT)
    lines = text.count("\n")
    if lines > MAX_LINES:
        breaches.append(f"{where}: {lines} lines; more than {MAX_LINES} is two files")
    if path.suffix == ".h":
        if "#pragma once" not in text:
            breaches.append(f"{where}: a header needs #pragma once")
        opening = next((line for line in text.splitlines() if line.strip()), "")
        if not opening.startswith("//"):
            breaches.append(f"{where}: a header opens with the one idea of the file in a comment")
    if path.suffix in {".h", ".cpp", ".cu"}:
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"\bthread_local\b", line) and path.name != "graph_tape.cpp" and not line.strip().startswith("//"):
                breaches.append(f"{where}:{number}: no thread_local state")
            if re.search(r"(?<![\w.:>_])_?exit\(", line) and path.parts[len(ROOT.parts)] == "metroplex" and not line.strip().startswith("//"):
                breaches.append(f"{where}:{number}: only apps/ ends the process")


# Paths ask the target of their context (cuda/launch_point.h), so that tensors of another device, meta say, take them
# too. What moves data between devices asks the data.
MOVES_DATA = {
    "nn/param_init.cpp": "values are rounded on the host before they move",
    "nn/saved_host.cpp": "what lies on the host already need not move there",
    "optim/host_pieces.cpp": "copies from and to a GPU go through pinned memory",
}
ASKS_DEVICE = re.compile(r"\bis_(cuda|cpu)\(\)")
GPU_FORM = re.compile(r"\b(\w+_cuda)\b")


def check_launch_points(breaches):
    """In layers and optimizers no tensor is asked where it is, and a kernel's GPU form is named once."""
    named = {}
    for room in ("nn", "models", "optim"):
        for path in sources(f"metroplex/{room}"):
            where = path.relative_to(ROOT / "metroplex")
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if ASKS_DEVICE.search(line) and str(where) not in MOVES_DATA:
                    breaches.append(f"{where}:{number}: a path asks its context's target, not a tensor, which device it is on")
                for form in GPU_FORM.findall(line):
                    named.setdefault(form, []).append(f"{where}:{number}")
    for form, places in named.items():
        if len(places) > 1:
            breaches.append(f"{form} is named at {', '.join(places)}: a kernel has one launch point")


def main():
    breaches = []
    for path in sources("metroplex"):
        room = path.relative_to(ROOT / "metroplex").parts[0]
        if room not in ROOMS:
            breaches.append(f"{path.relative_to(ROOT)}: no room of this name is known; add it to scripts/check_layers.py and the CMake lists")
        elif path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            check_includes(path, room, breaches)
    check_links(breaches)
    check_launch_points(breaches)
    for path in sources("apps"):
        if path.suffix in {".h", ".cpp"} and "upper" not in path.relative_to(ROOT).parts:
            check_ground_app(path, breaches)
    count = 0
    for path in sources("metroplex", "apps", "tests", "bench", "scripts", "cmake"):
        check_shape(path, breaches)
        count += 1
    for breach in breaches:
        print(breach)
    print(f"layers: {count} files checked, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
