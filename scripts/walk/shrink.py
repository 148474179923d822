"""Reduces a failing case: removes keys, and lowers ranks and numbers, as long as the same kind of failure remains."""
import random
import time

from walk import checks
from walk.case import Case

LIMIT = 240  # seconds
KEPT = {"model.vocab_size", "train.train_iters", "train.train_samples"}
SMALLER = {"model.num_layers": (1, 2), "model.num_attention_heads": (1, 2), "model.hidden_size": (8, 16), "model.ffn_hidden_size": (8, 16),
           "model.vocab_size": (16, 32), "train.seq_length": (2, 4, 8), "train.micro_batch_size": (1,), "train.train_iters": (2, 3, 4)}


def ask(options, case, check, salt, verbose=False):
    """Returns the problem that `check` finds with the case, or None; also None for a refused case."""
    with checks.Scratch() as folder:
        base = checks.Base(checks.Bench(options.binary, folder, options.limit), case)
        if verbose and base.refused:
            return f"refused: {base.outcome.err}"
        if base.refused:
            return None
        problem = checks.finite(base)
        return problem if problem or check == "run" else checks.check_named(check)(base, random.Random(salt))


def kind(problem):
    return problem.split(":")[0] if problem else None


def smaller(case):
    """Returns cases one step smaller, the largest reductions first."""
    for axis in ("tensor", "pipeline"):
        key = f"parallel.{axis}_model_parallel_size"
        size = case.number(key, 1)
        if size > 1:
            yield Case(case.ranks // size, case.without(key).without("parallel.sequence_parallel").keys if axis == "tensor" else case.without(key).keys)
    if case.data_parallel() > 1:
        yield Case(case.ranks // case.data_parallel(), case.keys)
    for section in ("moe_", "optim.", "memory.", "precision.", "data.", "parallel."):
        kept = {key: value for key, value in case.keys.items() if section not in key or key in KEPT}
        if len(kept) < len(case.keys) - 1:
            yield Case(case.ranks, kept)
    for key in sorted(case.keys):
        if key not in KEPT:
            yield case.without(key)
    for key, sizes in SMALLER.items():
        for size in sizes:
            if case.number(key, 0) > size:
                yield Case(case.ranks, {**case.keys, key: str(size)})


def shrink(options, result):
    """Returns (case, problem, tries)."""
    case, problem, wanted, tries, end = result.case, result.problem, kind(result.problem), 0, time.monotonic() + LIMIT
    salt, again = f"{options.seed}:{result.number}:{result.check}", True
    while again and time.monotonic() < end:
        again = False
        seen = set()
        for step in range(200):  # per pass; `smaller` restarts after an accepted reduction
            candidate = next((c for c in smaller(case) if c.line() not in seen), None)
            if candidate is None or time.monotonic() > end:
                break
            seen.add(candidate.line())
            tries += 1
            found = ask(options, candidate, result.check, salt)
            if kind(found) == wanted:
                case, problem, again = candidate, found, True
    return case, problem, tries
