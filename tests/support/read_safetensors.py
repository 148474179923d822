"""The tensors of .safetensors files, for tests; needs nothing but Python."""
import json
import pathlib
import struct


def tensors(*paths):
    """{name: (dtype, shape, bytes)} of all files; of a folder, of those in it. A name must be there once."""
    found = {}
    for path in map(pathlib.Path, paths):
        for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
            data = file.read_bytes()
            (size,) = struct.unpack_from("<Q", data)
            for name, entry in json.loads(data[8 : 8 + size]).items():
                if name == "__metadata__":
                    continue
                assert name not in found, f"{file}: {name} is there twice"
                begin, end = (8 + size + at for at in entry["data_offsets"])
                assert begin <= end <= len(data), f"{file}: {name} ends behind the file"
                found[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return found
