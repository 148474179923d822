"""A configuration of a sweep: ranks and the keys that differ from the defaults; and its form as one line of words."""
import dataclasses
import shlex

# Settings of every run: synthetic tokens (Bench.train uses a small dataset instead), one thread per rank, a quiet
# console.
FIXED = {
    "data.mock_data": "true",
    "run.device": "cpu",
    "run.threads_per_rank": "1",
    "train.progress": "false",
    "train.log_interval": "1",
    "train.eval_iters": "1",
}


@dataclasses.dataclass
class Case:
    ranks: int
    keys: dict

    def words(self, **more):
        """Returns the arguments of `train` and `verify`; `more` maps keys with __ for the dot, and None removes one."""
        keys = {**FIXED, **self.keys, **{key.replace("__", "."): value for key, value in more.items()}}
        return ["--nproc", str(self.ranks)] + [f"--{key}={value}" for key, value in keys.items() if value is not None]

    def line(self):
        own = {key: value for key, value in self.keys.items() if FIXED.get(key) != value}
        return shlex.join(["--nproc", str(self.ranks)] + [f"--{key}={value}" for key, value in own.items()])

    def get(self, key, default=""):
        return self.keys.get(key, default)

    def number(self, key, default):
        return int(self.keys.get(key, default))

    def has_experts(self):
        return self.get("model.family") in ("mixtral", "qwen3_moe") or self.number("model.num_moe_experts", 0) > 0

    def data_parallel(self):
        model_ranks = self.number("parallel.tensor_model_parallel_size", 1) * self.number("parallel.pipeline_model_parallel_size", 1)
        return self.ranks // model_ranks

    def expert_data_parallel(self):
        tensor = self.number("parallel.expert_tensor_parallel_size", self.number("parallel.tensor_model_parallel_size", 1))
        layer_ranks = tensor * self.number("parallel.expert_model_parallel_size", 1)
        return self.ranks // (layer_ranks * self.number("parallel.pipeline_model_parallel_size", 1))

    def without(self, key):
        return Case(self.ranks, {k: v for k, v in self.keys.items() if k != key})

    def put(self, **more):
        return Case(self.ranks, {**self.keys, **{key.replace("__", "."): value for key, value in more.items()}})


def read_line(line):
    """Parses the output of line()."""
    ranks, keys = 1, {}
    words = shlex.split(line)
    while words:
        word = words.pop(0)
        if word == "--nproc":
            ranks = int(words.pop(0))
        elif word.startswith("--") and "=" in word:
            key, value = word[2:].split("=", 1)
            keys[key] = value
        else:
            raise SystemExit(f"'{word}' is neither --nproc N nor --section.key=value")
    return Case(ranks, keys)
