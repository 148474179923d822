"""The key tables metroplex/core/config/*_keys.inc: all configuration keys of the program."""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ENTRY = re.compile(r"^KEY\((?P<type>.+?), (?P<name>\w+), (?P<default>.+?), (?P<limits>\w+\(.*?\)\)?),", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Key:
    name: str  # section.key
    type: str  # int64_t, double, bool, std::string, std::vector<std::string>, Choice<...>
    default: str  # as written in the table
    limits: str  # "between(0, 1e9)", "any()"

    @property
    def is_choice(self):
        return self.type.startswith("Choice")

    @property
    def bounds(self):
        """Returns (function, numbers) of the limits; no numbers if any value is valid."""
        function, arguments = re.fullmatch(r"(\w+)\((.*)\)", self.limits).groups()
        if function == "or_infinite":
            function, arguments = re.fullmatch(r"(\w+)\((.*)\)", arguments).groups()
        numbers = [float(part) for part in re.findall(r"-?\d+(?:\.\d+)?(?:e\d+)?", arguments)] if function != "one_of" else []
        return function, numbers


def read_keys(folder=ROOT / "metroplex" / "core" / "config"):
    keys = {}
    for path in sorted(folder.glob("*_keys.inc")):
        section = "model" if path.name == "moe_keys.inc" else path.name.removesuffix("_keys.inc")
        text = path.read_text()
        for entry in ENTRY.finditer(text):
            key = Key(f"{section}.{entry['name']}", entry["type"], entry["default"], entry["limits"])
            keys[key.name] = key
        if text.count("\nKEY(") != sum(1 for _ in ENTRY.finditer(text)):
            raise SystemExit(f"{path} has entries that {__file__} cannot read")
    return keys
