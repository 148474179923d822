#!/usr/bin/env python3
"""scripts/check_layers.py finds what is planted: every breach in a copy of the tree's sources, and none without them."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("metroplex", "apps", "bench", "cmake", "scripts", "tests")

# (file, text that is put into it, words of the breach); a text with -> replaces what stands left of it.
BREACHES = [
    ("metroplex/core/config/load.cpp", '#include "megatron/flags.h"\n', "config/ may not include megatron/"),
    ("metroplex/core/step/batch.cpp", '#include "forecast/fit.h"\n', "step/ may not include forecast/"),
    ("metroplex/core/step/batch.cpp", '#include "core/nn/linear.h"\n', "includes name the module without its layer core/"),
    ("metroplex/core/plan/layout.cpp", '#include "plan/layout.h"\n -> #include <string>\n', "the first include is the header that declares"),
    ("metroplex/core/plan/buckets.cpp", '#include "plan/buckets.h" -> #include "plan/layout.h"', "the first include is the header that declares"),
    ("metroplex/core/plan/orphan.cpp", '#include "plan/layout.h"\n\n#include <string>\n', "after the header NAME.h that declares"),
    ("metroplex/core/optim/clip.cpp", '#include "models/registry.h"\n', "optim/ may not include models/"),
    ("metroplex/core/plan/buckets.cpp", "#include <ATen/ATen.h>\n", "plan/ is a module without torch"),
    ("metroplex/core/nn/linear.cpp", "#include <torch/torch.h>\n", "torch/torch.h is never included"),
    ("metroplex/core/step/step.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>\n", "c10d belongs into comm/"),
    ("metroplex/core/nn/linear.h", "#include <ATen/ATen.h>\n", "a header includes <ATen/core/Tensor.h> at most"),
    ("metroplex/lab/draw/schedule.h", "#include <fmt/format.h>\n", "fmt and spdlog stay out of headers"),
    ("metroplex/core/kernels/norm.cu", "#include <ATen/ATen.h>\n", "a .cu file takes pointers and sizes"),
    ("metroplex/core/base/error.cpp", "thread_local int counter = 0;\n", "no thread_local state"),
    ("metroplex/core/base/error.cpp", "void leave() { exit(1); }\n", "only apps/ ends the process"),
    ("metroplex/lab/draw/schedule.cpp", 'const char* home = std::getenv("HOME");\n', "the environment is read in apps/"),
    ("metroplex/core/base/error.h", "#pragma once -> ", "a header needs #pragma once"),
    ("metroplex/cellar/wine.cpp", "\n", "no module of this name is known"),
    ("metroplex/core/plan/long.cpp", "\n" * 601, "more than 600 is two files"),
    ("apps/ranks.cpp", '#include "run/trainer.h"\n', "apps/ may not include run/"),
    ("apps/ranks.cpp", '#include "upper/launch.h"\n', "apps/ may not include upper/"),
    ("apps/ranks.cpp", "#include <ATen/ATen.h>\n", "may include no torch header"),
    ("apps/upper/train.cpp", '#include "models/registry.h"\n', "apps/upper/ may not include models/"),
    ("bench/gpt2_step.cpp", '#include "megatron/flags.h"\n', "bench/ may not include megatron/"),
    ("bench/echo/echo_bench.cpp", '#include "text/tokenizer.h"\n', "bench/echo/ may not include text/"),
    ("tests/support/run_ranks.h", '#include "nn/linear.h"\n', "tests/support/ may not include nn/"),
    ("tests/plan/buckets_test.cpp", '#include "data/blend.h"\n', "tests/plan/ may not include data/"),
    ("tests/elsewhere/some_test.cpp", "\n", "no folder tests/elsewhere is known"),
    ("cmake/WithoutTorch.cmake", "metroplex_module(core/plan LINKS -> metroplex_module(core/plan LINKS metroplex_data ", "plan is linked with data"),
    ("cmake/WithTorch.cmake", "metroplex_device metroplex_plan EXCLUDE -> metroplex_device EXCLUDE", "may include plan, and is not linked"),
    ("cmake/WithoutTorch.cmake", "metroplex_text metroplex_page metroplex_data -> metroplex_text metroplex_data", "apps (metroplex_apps) may include page"),
    ("cmake/Apps.cmake", "PRIVATE metroplex_run metroplex_verify metroplex_clock metroplex_apps) -> PRIVATE metroplex_models)", "bench (${name}) may include run"),
    ("cmake/Apps.cmake", "metroplex_apps metroplex_run metroplex_verify) -> metroplex_apps metroplex_run)", "apps/upper (metroplex_upper_apps) may include verify"),
    ("cmake/WithoutTorch.cmake", 'metroplex_test(apps_test "" metroplex_apps -> metroplex_test(apps_test "" metroplex_run', "tests/apps (apps_test) is linked with run"),
]


def run(tree):
    result = subprocess.run([sys.executable, ROOT / "scripts/check_layers.py", tree], capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def plant(path, text):
    path.parent.mkdir(exist_ok=True)
    old = path.read_text() if path.exists() else ""
    if " -> " in text:
        left, right = text.split(" -> ")
        assert left in old, f"{path} has no {left}"
        path.write_text(old.replace(left, right))
    else:
        path.write_text(old + text)


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("vectors", "golden", "manifest_corpus", "__pycache__"))
        code, text = run(tree)
        if code != 0:
            wrong.append(f"the tree as it is: exit {code}\n{text}")
        for file, planted, _ in BREACHES:
            plant(tree / file, planted)
        code, text = run(tree)
        if code != 1:
            wrong.append(f"the planted tree: exit {code}")
        for file, planted, words in BREACHES:
            # A breach of the link lists names the module, not the list.
            if not any(words in line and (file.startswith("cmake/") or line.startswith(file)) for line in text.splitlines()):
                wrong.append(f"{file} with {planted.strip()[:70]!r}: expected '{words}', got\n{text}")
    for line in wrong:
        print(line)
    print(f"check_layers_test: {len(BREACHES)} breaches, {len(wrong)} not found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
