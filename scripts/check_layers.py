#!/usr/bin/env python3
"""Checks includes between modules, file sizes, and the includes of headers. Exits with 1 and lists all violations.
   check_layers.py [ROOT]     ROOT: another tree of the same form; by default the tree of this script"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
MAX_LINES = 600

# Layers: folders of metroplex/ that contain modules. core/ has the code of a training step, formats/ reads and writes
# files of other programs, and lab/ analyzes runs; both may include core/. run/ is a module: the loop around the step,
# which joins core/ with formats/ and with the predictions of lab/.
LAYERS = {"core": ["core"], "formats": ["core", "formats"], "lab": ["core", "lab"], "run": ["core", "formats", "lab", "run"]}
# A module may include itself and these. The first modules do not use torch.
GROUND = {
    "core": {
        "base": [],
        "config": ["base"],
        "files": ["base"],
        "topology": ["base", "config"],
        "plan": ["base", "config"],
        "data": ["base", "config", "files"],
        "checkpoint": ["base", "files"],
    },
    "lab": {
        "price": ["base"],
        "replay": ["base", "config", "plan", "price"],
        "draw": ["base", "config", "files", "topology", "plan", "replay"],
        "page": ["base", "config", "files", "topology", "plan", "replay", "draw"],
    },
    "formats": {
        "text": ["base", "files"],
        "hf": ["base", "config", "files", "checkpoint"],
        "megatron": ["base", "config"],
        "pickle": ["base", "files"],
        "mcore": ["base", "config", "files", "checkpoint", "megatron", "pickle"],
        "foreign": ["base", "config", "files", "checkpoint", "hf", "mcore"],
    },
}
NN = ["base", "config", "topology", "plan", "device", "kernels", "comm"]
STEP = [*NN, "files", "data", "checkpoint", "graph", "nn", "moe", "models", "pipeline", "distributed", "optim"]
UPPER = {
    "core": {
        "device": ["base"],
        "kernels": ["base", "config", "plan", "device"],
        "graph": ["base", "device"],
        "comm": ["base", "config", "topology", "device"],
        "nn": NN,
        "moe": [*NN, "nn"],
        "models": [*NN, "nn", "moe"],
        "pipeline": [*NN, "graph", "nn"],
        "distributed": [*NN, "nn"],
        "optim": [*NN, "nn", "distributed"],
        "step": STEP,
    },
    "lab": {
        "tape_check": ["base", "device", "graph"],
        "clock": ["base", "config", "topology", "device", "comm", "price"],
        "forecast": [*STEP, "price", "replay", "step"],
        "verify": [*STEP, "tape_check", "step"],
    },
    "run": {"run": [*STEP, "step", "replay", "forecast", "price", "text", "hf", "foreign"]},
}
LAYER_OF = {module: layer for floor in (GROUND, UPPER) for layer, modules in floor.items() for module in modules}
GROUND = {module: allowed for modules in GROUND.values() for module, allowed in modules.items()}
UPPER = {module: allowed for modules in UPPER.values() for module, allowed in modules.items()}
MODULES = GROUND | UPPER
# Additional modules that only the tests of a module may include.
TESTS = {
    "files": ["draw"],
    "plan": ["draw", "replay"],
    "comm": ["graph", "tape_check"],
    "graph": ["kernels"],
    "nn": ["clock", "price"],
    "run": ["verify", "tape_check", "draw", "clock", "price"],
}
# Folders that are not modules, and the modules that each may include. The tests of a module may include what the
# module may, TESTS, and support.
PROGRAMS = {
    "apps": [*GROUND],
    "apps/upper": [*GROUND, "device", "kernels", "comm", "step", "forecast", "verify", "tape_check", "run"],
    "bench": [module for module in MODULES if module not in ("megatron", "tape_check")],
    "bench/echo": ["base", "config", "files", "plan"],
    "bench/echo_model": ["base", "config", "files", "plan", "price"],
    "tests/bench": ["base", "config", "files", "plan", "price"],
    "tests/support": ["base", "config", "megatron", "topology", "plan", "device", "kernels", "graph", "comm", "tape_check"],
    "tests/apps": [*GROUND],
    "tests/conformance": ["base", "config", "megatron", "files", "text", "topology", "plan", "data"],
    "tests/conformance/tensor": ["megatron", "text", *STEP, "step"],
    "tests/parity": [module for module in MODULES if module != "clock"],
    "tests/hf_parity": [module for module in MODULES if module != "clock"],
    "tests/fuzz": ["base", "files", "text", "config", "checkpoint", "hf", "pickle"],
    "tests/kernels_on_host": ["base", "config", "plan", "device", "kernels"],
}
# The CMake target of each folder, and the file with its link list.
TARGETS = {
    "apps": ("metroplex_apps", "WithoutTorch.cmake"),
    "apps/upper": ("metroplex_upper_apps", "Apps.cmake"),
    "bench": ("${name}", "Apps.cmake"),
    "bench/echo": ("echo_bench", "WithoutTorch.cmake"),
    "bench/echo_model": ("metroplex_echo_model", "WithoutTorch.cmake"),
    "tests/apps": ("apps_test", "WithoutTorch.cmake"),
    "tests/conformance": ("metroplex_vectors", "WithoutTorch.cmake"),
    "tests/conformance/tensor": ("metroplex_vectors", "Apps.cmake"),
    "tests/parity": ("metroplex_parity", "Apps.cmake"),
    "tests/hf_parity": ("metroplex_hf_parity", "Apps.cmake"),
    "tests/fuzz": ("${name}", "WithoutTorch.cmake"),
}
# Folders of programs that others include by name, with the folders that may include them.
INNER = {"upper": ["apps/upper", "tests/parity", "tests/hf_parity"]}
TORCH = re.compile(r"<(ATen|torch|c10)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"} and "vectors" not in path.parts:
                yield path


def check_first_include(path, module, breaches):
    """The first include of a .cpp is the header of its name if there is one, else another header of the module.
    Kernels are exempt: their order of includes depends on the compiler of the file."""
    first = re.search(r"^#include .*\n(.*)$", path.read_text(), re.MULTILINE)
    alone = first and not first.group(1).startswith("#include")
    name = rf"(?:\w+/)*{path.stem}\.h" if path.with_suffix(".h").exists() else r"[\w/]+\.h"
    if path.suffix == ".cpp" and module != "kernels" and not (alone and re.match(rf'#include "{module}/{name}"', first.group(0))):
        breaches.append(f"{path.relative_to(ROOT)}: the first include is the header that declares its functions, alone")


# Sources without a header of their own or of an idea that they are a part of, and the reason.
FAMILIES = "one row of the table of its registry, which declares it"
WITHOUT_HEADER = {
    **{f"hf/families/{name}.cpp": FAMILIES for name in sorted(path.stem for path in (ROOT / "metroplex/formats/hf/families").glob("*.cpp"))},
    **{f"plan/schedules/{name}.cpp": FAMILIES for name in ("dualpipe_v", "gpipe", "interleaved", "none", "one_f_one_b", "overlapped", "searched", "zb_v", "zero_bubble")},
    "device/no_cuda.cpp": "stubs of a build without CUDA",
    "kernels/no_nvcc.cpp": "stubs of a build without CUDA",
}


def has_header(path):
    """NAME.cpp or a part of it, NAME_part.cpp, belongs to NAME.h; a file in NAMEs/ belongs to NAME.h next to the folder. A no_ or _cpu
    variant belongs to the header of what it varies."""
    words = re.sub(r"^no_|_cpu$", "", path.stem).split("_")
    headers = [path.with_name("_".join(words[:count]) + ".h") for count in range(1, len(words) + 1)]
    return any(header.exists() for header in [*headers, path.parent.with_name(path.parent.name.removesuffix("s") + ".h")])


def check_header(path, breaches):
    parts = path.relative_to(ROOT / "metroplex").parts
    listed = "/".join(parts[1:]) in WITHOUT_HEADER
    if path.suffix in {".cpp", ".cu"} and has_header(path) == listed:
        breaches.append(f"{path.relative_to(ROOT)}: a source is named NAME.cpp or NAME_part.cpp after the header NAME.h that declares its functions, "
                        "or is listed with a reason in scripts/check_layers.py")


def check_includes(path, module, breaches):
    allowed = {module, *MODULES[module]}
    where = path.relative_to(ROOT)
    check_first_include(path, module, breaches)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        angle, target = match.groups()
        if angle == '"':
            first = target.split("/")[0]
            if first in LAYERS and first not in MODULES:
                breaches.append(f"{where}:{number}: includes name the module without its layer {first}/")
            if first in MODULES and first not in allowed:
                breaches.append(f"{where}:{number}: {module}/ may not include {first}/ (allowed: {', '.join(sorted(allowed))})")
            continue
        torch = TORCH.search(f"<{target}")
        if target in {"torch/torch.h", "torch/all.h"}:
            breaches.append(f"{where}:{number}: {target} is never included; name the headers that are needed")
        if torch and module in GROUND:
            breaches.append(f"{where}:{number}: {module}/ is a module without torch")
        if torch and path.suffix == ".cu":
            breaches.append(f"{where}:{number}: a .cu file takes pointers and sizes, no torch header")
        if "c10d" in target and (module != "comm" or (path.suffix == ".h" and "backends" not in path.parts)):
            breaches.append(f"{where}:{number}: c10d belongs into comm/*.cpp and comm/backends/ only")
        if path.suffix == ".h" and target.startswith("ATen/ATen.h"):
            breaches.append(f"{where}:{number}: a header includes <ATen/core/Tensor.h> at most")
        if path.suffix == ".h" and target.split("/")[0] in {"fmt", "spdlog"}:
            breaches.append(f"{where}:{number}: fmt and spdlog stay out of headers")


def folder_of(path):
    """Returns the key of PROGRAMS for a file outside the modules, or the module that the file tests."""
    parts = path.relative_to(ROOT).parts[:-1]
    for depth in range(len(parts), 0, -1):
        if "/".join(parts[:depth]) in PROGRAMS:
            return "/".join(parts[:depth])
    return "/".join(parts[:2])


def check_program(path, breaches):
    """Checks programs and tests. `metroplex` starts without torch, so apps/ must not include it; apps/upper/ may."""
    folder = folder_of(path)
    where = path.relative_to(ROOT)
    module = folder.removeprefix("tests/")
    if folder in PROGRAMS:
        allowed = set(PROGRAMS[folder])
    elif module in MODULES:
        allowed = {module, *MODULES[module], *TESTS.get(module, [])}
    else:
        breaches.append(f"{where}: no folder {folder} is known; add it to scripts/check_layers.py")
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        angle, target = match.groups()
        first = target.split("/")[0]
        if angle == '"' and "/" in target and first in MODULES and first not in allowed:
            breaches.append(f"{where}:{number}: {folder}/ may not include {first}/ (allowed: {', '.join(sorted(allowed))})")
        if angle == '"' and first in INNER and "/" in target and folder not in INNER[first]:
            breaches.append(f"{where}:{number}: {folder}/ may not include {first}/")
        if angle == "<" and TORCH.search(f"<{target}") and allowed <= set(GROUND):
            breaches.append(f"{where}:{number}: {folder}/ may include no torch header; tensor code belongs elsewhere")


def module_links():
    """Module -> the modules that CMake links it with."""
    text = "\n".join((ROOT / "cmake" / name).read_text() for name in ("WithoutTorch.cmake", "WithTorch.cmake"))
    return {module: modules_in(words.split(" TESTS ")[0])
            for module, words in re.findall(r"metroplex_module\((?:\w+/)?(\w+)([^)]*)\)", text)}


def modules_in(words):
    return {word.removeprefix("metroplex_") for word in words.split() if word.removeprefix("metroplex_") in MODULES}


def check_links(breaches):
    """The modules that CMake links must be exactly the allowed includes, directly or through another module."""
    links = module_links()

    def reach(module):
        return links[module].union(*(reach(other) for other in links[module]))

    for module, allowed in MODULES.items():
        if module not in links:
            breaches.append(f"cmake: no metroplex_module({module} ...)")
            continue
        for extra in sorted(links[module] - set(allowed)):
            breaches.append(f"cmake: {module} is linked with {extra}, which it may not include")
        for missing in sorted(set(allowed) - reach(module)):
            breaches.append(f"cmake: {module} may include {missing}, and is not linked with it")
        for other in allowed:
            if LAYER_OF[other] not in LAYERS[LAYER_OF[module]]:
                breaches.append(f"check_layers.py: {module} of {LAYER_OF[module]}/ may not include {other} of {LAYER_OF[other]}/")
    if set(links) >= set(MODULES):
        check_program_links(reach, breaches)


def check_program_links(reach, breaches):
    """The same for programs: linked with the modules that they may include, also through other programs."""
    direct = {}
    for name in ("WithoutTorch.cmake", "Apps.cmake"):
        text = (ROOT / "cmake" / name).read_text()
        for target, words in re.findall(r"target_link_libraries\(([\w${}]+)([^)]*)\)", text):
            direct.setdefault((target, name), set()).update(words.split())
        for target, words in re.findall(r'metroplex_test\((\w+) "\w*"([^)]*)\)', text):
            direct.setdefault((target, name), set()).update(words.split())
    programs = {key[0]: key for key in direct if key[0].startswith("metroplex_")}

    def modules_of(key):
        words = " ".join(direct.get(key, set()))
        found = modules_in(words)
        found = found.union(*(reach(module) for module in found))
        return found.union(*(modules_of(programs[word]) for word in words.split() if word in programs and programs[word] != key))

    for folder, key in TARGETS.items():
        linked = modules_of(key)
        if folder == "tests/conformance/tensor":  # the same program with more files
            linked |= modules_of(TARGETS["tests/conformance"])
        for extra in sorted(modules_in(" ".join(direct.get(key, set()))) - set(PROGRAMS[folder])):
            breaches.append(f"cmake: {folder} ({key[0]}) is linked with {extra}, which it may not include")
        for missing in sorted(set(PROGRAMS[folder]) - linked):
            breaches.append(f"cmake: {folder} ({key[0]}) may include {missing}, and is not linked with it")


# Only one file may read a launcher's variables. oneDNN reads its own; kernels that replace oneDNN's follow the same
# variables.
READS_ENVIRONMENT = {"launch_environment.cpp", "grouped_product_cpu.cpp"}


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
            if re.search(r"\bthread_local\b", line) and path.name not in ("tape_recorder_hooks.cpp", "turns.cpp") and not line.strip().startswith("//"):
                breaches.append(f"{where}:{number}: no thread_local state")
            if re.search(r"\bgetenv\(", line) and path.parts[len(ROOT.parts)] == "metroplex" and path.name not in READS_ENVIRONMENT:
                breaches.append(f"{where}:{number}: the environment is read in apps/ and handed in")
            if re.search(r"(?<![\w.:>_])_?exit\(", line) and path.parts[len(ROOT.parts)] == "metroplex" and not line.strip().startswith("//"):
                breaches.append(f"{where}:{number}: only apps/ ends the process")


# Code must use the target of its context (device/launch_point.h), so that it also accepts tensors of another device
# such as meta. Code that moves data between devices uses the device of the data.
MOVES_DATA = {
    "nn/param_init.cpp": "values are rounded on the host before they move",
    "nn/saved_stores_host.cpp": "data on the host need not move there",
    "optim/host_chunks.cpp": "copies from and to a GPU go through pinned memory",
}
ASKS_DEVICE = re.compile(r"\bis_(cuda|cpu)\(\)")
GPU_FORM = re.compile(r"\b(\w+_cuda)\b")


def check_launch_points(breaches):
    """Layers and optimizers must not query the device of a tensor, and must name a kernel's GPU variant only once."""
    named = {}
    for module in ("nn", "models", "optim"):
        for path in sources(f"metroplex/core/{module}"):
            where = path.relative_to(ROOT / "metroplex/core")
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
        parts = path.relative_to(ROOT / "metroplex").parts
        module = parts[0] if parts[0] in MODULES else parts[1]
        if LAYER_OF.get(module) != parts[0]:
            breaches.append(f"{path.relative_to(ROOT)}: no module of this name is known; add it to scripts/check_layers.py and the CMake lists")
        elif path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            check_includes(path, module, breaches)
            check_header(path, breaches)
    check_links(breaches)
    check_launch_points(breaches)
    for path in sources("apps", "bench", "tests"):
        if path.suffix in {".h", ".cpp"}:
            check_program(path, breaches)
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
