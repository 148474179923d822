#!/usr/bin/env python3
"""Prints the size and shape of the code base: words of the docs, lines by layer, files without a header, and the width
of central types.
   code_numbers.py [--list headerless | essays]     --list: the files behind a number"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import check_language  # noqa: E402
import check_layers  # noqa: E402

CODE = {".h", ".cpp", ".cu", ".inc"}
LAYERS = ("core", "lab", "formats", "run")
ASSEMBLY = re.compile(r"(\w+)\((?:const )?(?:step::)?Assembly& ")


def files(folder, suffixes):
    return [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes and "vectors" not in path.parts]


def lines(paths):
    return sum(path.read_text().count("\n") for path in paths)


def words(paths):
    return sum(len(path.read_text().split()) for path in paths)


def headerless():
    """Sources of metroplex/ that belong to no header by their name (check_layers.py has the rule and the reasons)."""
    return [path for path in files("metroplex", {".cpp", ".cu"}) if not check_layers.has_header(path)]


def essays():
    """Headers with a free-standing comment of three or more lines below the opening one: a second idea in the file."""
    found = []
    for path in files("metroplex", {".h"}):
        blocks = path.read_text().split("\n\n")[1:]
        if any(len(block.splitlines()) >= 3 and all(line.startswith("//") for line in block.splitlines()) for block in blocks):
            found.append(path)
    return found


def fields(path, name):
    body = re.search(rf"struct {name} \{{(.*?)\n\}};", (ROOT / path).read_text(), re.DOTALL).group(1)
    statements = re.sub(r"//[^\n]*", "", body).split(";")
    return sum(1 + statement.count(",") * ("<" not in statement and "{" not in statement)
               for statement in statements if statement.strip() and "(" not in statement)


def main():
    if sys.argv[1:2] == ["--list"]:
        for path in {"headerless": headerless, "essays": essays}[sys.argv[2]]():
            print(path.relative_to(ROOT))
        return
    by_layer = {layer: lines(files(f"metroplex/{layer}", CODE)) for layer in LAYERS}
    apps = lines(files("apps", CODE))
    counts = check_language.read_counts()
    assembly = {name for path in files("metroplex", CODE) for name in ASSEMBLY.findall(path.read_text())}
    rows = [
        ("README words", words([ROOT / "README.md"])),
        ("docs words", words(files("docs", {".md"}))),
        *((f"{kind} (check_language.py)", sum(count for (_, k), count in counts.items() if k == kind)) for kind in check_language.KINDS),
        (".cpp and .cu without a header", len(headerless())),
        ("headers with an essay", len(essays())),
        ("product and apps lines", sum(by_layer.values()) + apps),
        *((f"  {layer}/", count) for layer, count in by_layer.items()),
        ("  apps/", apps),
        ("test lines", lines(files("tests", {".h", ".cpp", ".cu", ".sh", ".py", ".txt"}))),
        ("functions that take an Assembly&", len(assembly)),
        ("fields of nn::Microbatch", fields("metroplex/core/nn/microbatch.h", "Microbatch")),
    ]
    for name, value in rows:
        print(f"{name:32} {value:7,}")


if __name__ == "__main__":
    main()
