"""Lets code that asks for CUDA run on the CPU: devices, streams and generators of CUDA become those of the CPU.

It covers the calls that megatron.core makes in training, with experts or without. Call install() before megatron is imported."""
import contextlib
import functools

import torch

FACTORIES = ("tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "linspace", "eye", "as_tensor")


def is_cuda(device):
    return device is not None and not isinstance(device, int) and str(device).startswith("cuda")


def on_cpu(factory):
    @functools.wraps(factory)
    def made(*args, **kwargs):
        if isinstance(kwargs.get("device"), int) or is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return made


def with_lists(exchange):
    """Megatron copies split sizes from a GPU into numpy arrays. On the CPU they stay tensors, which torch refuses."""

    @functools.wraps(exchange)
    def exchanged(*args, **kwargs):
        for key in ("output_split_sizes", "input_split_sizes"):
            if torch.is_tensor(kwargs.get(key)):
                kwargs[key] = kwargs[key].tolist()
        return exchange(*args, **kwargs)

    return exchanged


class Stream:
    """One stream in which everything is done at once."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def record_event(self, event=None):
        return event or Stream()


def install():
    for name in FACTORIES:
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.compile = lambda function=None, **kwargs: function or (lambda given: given)
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    torch.distributed.all_to_all_single = with_lists(torch.distributed.all_to_all_single)
    plain_type, plain_to = torch.Tensor.type, torch.Tensor.to

    def type_of(self, *args, **kwargs):
        # Megatron distinguishes its parameters by names like "torch.cuda.HalfTensor".
        return plain_type(self, *args, **kwargs) if args or kwargs else plain_type(self).replace("torch.", "torch.cuda.")

    def to(self, *args, **kwargs):
        args = tuple("cpu" if isinstance(a, (str, torch.device)) and is_cuda(a) else a for a in args)
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return plain_to(self, *args, **kwargs)

    torch.Tensor.type, torch.Tensor.to = type_of, to
    cuda = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    for name in ("synchronize", "empty_cache", "set_device", "_lazy_init", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda._lazy_call = lambda call, **kwargs: call()
    cuda.is_current_stream_capturing = lambda: False
    cuda.Stream = cuda.Event = Stream
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: Stream()
    cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, lambda *args, **kwargs: None)
    # One generator for both kinds of numbers.
    cuda.default_generators = {None: torch.default_generator, torch.device("cpu"): torch.default_generator}
    for where in (cuda, cuda.random):
        where.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
        where.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
        where.manual_seed = where.manual_seed_all = lambda seed: torch.default_generator.manual_seed(seed) and None
        where.initial_seed = torch.initial_seed
