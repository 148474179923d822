"""One rank of a training run of megatron.core, as golden_index.json describes it."""
import contextlib
import functools

import torch

import recipe
from megatron_options import MODEL_ARGUMENTS, Options


def mixed_types(norm, forward, x):
    dtype = norm.weight.dtype
    if x.dtype == dtype:
        return forward(x)
    wide = {name: parameter.to(x.dtype) for name, parameter in norm.named_parameters()}
    return torch.func.functional_call(norm, wide, (x,)).to(dtype)


def adapt_norms():
    """Adapts torch's norms to replace FusedLayerNorm, which needs a GPU, by adding two features that they lack. Sequence parallelism: marks the
    parameters as FusedLayerNorm does, so that Megatron sums their gradients across tensor-parallel ranks. fp32 input with half-precision parameters
    (fp32_residual_connection): computes in fp32 and casts the output to the parameter dtype."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    plain = WrappedTorchNorm.__new__

    def made(cls, config, *args, **kwargs):
        asked, config.sequence_parallel = config.sequence_parallel, False
        try:
            norm = plain(cls, config, *args, **kwargs)
        finally:
            config.sequence_parallel = asked
        for parameter in norm.parameters():
            parameter.sequence_parallel = asked
        norm.forward = functools.partial(mixed_types, norm, norm.forward)
        return norm

    WrappedTorchNorm.__new__ = made


class NoFp8:
    @staticmethod
    def is_fp8_enabled():
        return False


def stand_in_for_transformer_engine():
    """Recompute that discards outputs asks TransformerEngine whether fp8 is on, even where it is not installed."""
    from megatron.core.tensor_parallel import random

    if not random.HAVE_TE:
        random.FP8GlobalStateManager = NoFp8
        random.activation_recompute_forward = random.fp8_autocast = lambda **kwargs: contextlib.nullcontext()


def build_chunks(config, transformer, ddp, options):
    """The model chunks of this rank, with the recipe's weights."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    model = config["model"]
    spec = get_gpt_layer_local_spec(
        num_experts=transformer.num_moe_experts,
        qk_layernorm=transformer.qk_layernorm,
        normalization=transformer.normalization,
    )
    arguments = {key: model[key] for key in MODEL_ARGUMENTS if key in model} | options.taken(*MODEL_ARGUMENTS)
    chunks = []
    for stage in range(config.get("vpp") or 1):
        vp = stage if config.get("vpp") else None
        whole = vp is None
        chunk = GPTModel(
            config=transformer,
            transformer_layer_spec=spec,
            vocab_size=config["vocab"],
            max_sequence_length=model.get("max_position_embeddings", config["seq"]),
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=whole, vp_stage=vp),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=whole, vp_stage=vp),
            share_embeddings_and_output_weights=model.get("tied", True),
            vp_stage=vp,
            **arguments,
        )
        set_weights(chunk)
        if transformer.fp16 or transformer.bf16:
            chunk = Float16Module(transformer, chunk)
        chunks.append(chunk)
    return [DistributedDataParallel(transformer, ddp, chunk, disable_bucketing=i > 0) for i, chunk in enumerate(chunks)]


def named(chunk):
    """(golden name, parameter) of a chunk. Layer and expert numbers are global; a tied output layer gets the name of the embedding weight."""
    from megatron.core import parallel_state

    model = chunk
    while hasattr(model, "module"):
        model = model.module
    for name, parameter in model.named_parameters():
        if name.startswith("decoder.layers."):
            local, rest = name.removeprefix("decoder.layers.").split(".", 1)
            name = f"decoder.layers.{model.decoder.layers[int(local)].layer_number - 1}.{rest}"
        if ".local_experts." in name:
            before, after = name.split(".local_experts.")
            local, rest = after.split(".", 1)
            count = model.config.num_moe_experts // model.config.expert_model_parallel_size
            first = parallel_state.get_expert_model_parallel_rank() * count
            name = f"{before}.local_experts.{first + int(local)}.{rest}"
        if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            name = "embedding.word_embeddings.weight"
        yield name, parameter


def halves(name, model):
    """A gated fc1 is [gate; up] on every rank."""
    return 2 if "linear_fc1" in name and model.config.gated_linear_unit else 1


def is_cut(parameter):
    return getattr(parameter, "tensor_model_parallel", False)


def is_distributed_expert(parameter):
    return not getattr(parameter, "allreduce", True)


def set_weights(model):
    from megatron.core import parallel_state

    tp, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in named(model):
        shape = list(parameter.shape)
        if is_cut(parameter):
            shape[parameter.partition_dim] *= tp
        whole = recipe.weight(name, shape)
        if is_cut(parameter):
            parts = whole.chunk(halves(name, model), parameter.partition_dim)
            whole = torch.cat([part.chunk(tp, parameter.partition_dim)[rank] for part in parts], parameter.partition_dim)
        parameter.data.copy_(whole)


def joined(shards):
    """Joins [(value, dim of the cut, halves)], in the order of the tensor-parallel ranks, into the whole tensor."""
    value, cut, pieces = shards[0]
    if cut is None:
        return value
    parts = [shard[0].chunk(pieces, cut) for shard in shards]
    return torch.cat([part[i] for i in range(pieces) for part in parts], cut)


def gather(chunks, value_of):
    """Gathers the first data-parallel replica and returns {name: whole tensor} on every rank."""
    from megatron.core import parallel_state

    dense, expert = parallel_state.get_data_parallel_rank(), parallel_state.get_expert_data_parallel_rank()
    at = (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank())
    mine = {}
    for chunk in chunks:
        for name, parameter in named(chunk):
            if (expert if is_distributed_expert(parameter) else dense) == 0:
                cut = parameter.partition_dim if is_cut(parameter) else None
                mine[name] = (value_of(parameter).detach().float().clone(), cut, halves(name, chunk.module))
    gathered = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, (at, mine))
    found = {}
    for (stage, _), tensors in sorted(gathered, key=lambda entry: entry[0]):
        for name, shard in tensors.items():
            found.setdefault(name, {}).setdefault(stage, []).append(shard)
    return {name: joined(stages[min(stages)]) for name, stages in found.items()}


def forward_step(batches, model):
    tokens, labels, mask, positions = next(batches)
    losses = model(tokens, positions, None, labels=labels)

    def reduce(output):
        total, count = (output.float() * mask).sum(), mask.sum()
        return total, count.int(), (total.detach().item(), count.item())

    return losses, reduce


def mean_loss(reports, per_token):
    """Returns the mean loss over the microbatches of all data-parallel ranks. Only last pipeline stages have reports."""
    gathered = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, reports)
    pairs = [pair for part in gathered for pair in part]
    if per_token:
        return sum(total for total, _ in pairs) / sum(count for _, count in pairs)
    return sum(total / count for total, count in pairs) / len(pairs)


def initialise(config, transformer, ddp):
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.get("tp", 1),
        pipeline_model_parallel_size=config.get("pp", 1),
        virtual_pipeline_model_parallel_size=config.get("vpp"),
        expert_model_parallel_size=config.get("ep", 1),
        num_distributed_optimizer_instances=ddp.num_distributed_optimizer_instances,
    )
    model_parallel_cuda_manual_seed(1234)


def hook_up(transformer, ddp, chunks, optimizer):
    """Sets the config fields that Megatron's train() sets before the first step."""
    from megatron.core.distributed import finalize_model_grads

    def per_chunk(method):
        calls = [getattr(chunk, method) for chunk in chunks]
        return calls[0] if len(calls) == 1 else calls

    transformer.grad_scale_func = optimizer.scale_loss
    transformer.finalize_model_grads_func = finalize_model_grads
    if ddp.overlap_grad_reduce:
        transformer.no_sync_func = per_chunk("no_sync")
        if ddp.align_param_gather or len(chunks) > 1:
            transformer.grad_sync_func = per_chunk("start_grad_sync")
    if ddp.overlap_param_gather and ddp.align_param_gather:
        transformer.param_sync_func = per_chunk("start_param_sync")


def run(config):
    """Returns {"history", "final_params", optionally "grads_iter1"}, identical on every rank. The process group must be initialized."""
    from megatron.core import parallel_state
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.pipeline_parallel import get_forward_backward_func

    options = Options(config)
    transformer, ddp = options.transformer(), options.data_parallel()
    initialise(config, transformer, ddp)
    adapt_norms()
    stand_in_for_transformer_engine()
    chunks = build_chunks(config, transformer, ddp, options)
    optimizer = get_megatron_optimizer(options.optimizer(), chunks)
    scheduler = OptimizerParamScheduler(optimizer, **options.schedule())
    options.refuse_unused()
    hook_up(transformer, ddp, chunks, optimizer)
    dp, dp_rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    count = config["gbs"] // (config["mbs"] * dp)
    step = functools.partial(
        get_forward_backward_func(), forward_step_func=forward_step, num_microbatches=count, seq_length=config["seq"],
        micro_batch_size=config["mbs"], forward_only=False,
    )  # fmt: skip
    history, first_grads = [], None
    for iteration in range(config["iters"]):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        data = [iter([recipe.microbatch(config, iteration, m, dp_rank, dp) for m in range(count)]) for _ in chunks]
        reports = step(data_iterator=data if len(data) > 1 else data[0], model=chunks if len(chunks) > 1 else chunks[0])
        line = {
            "iter": iteration + 1,
            "loss": mean_loss(reports, transformer.calculate_per_token_loss),
            "lr_used": max(group["lr"] for group in optimizer.param_groups),
        }
        scale = optimizer.get_loss_scale().item()
        # With the distributed optimizer, each rank has reduced gradients only for its own shard.
        if iteration == 0 and not config.get("dist_opt"):
            first_grads = gather(chunks, lambda parameter: parameter.main_grad.float() / scale)
        updated, norm, zeros = optimizer.step()
        if updated:
            scheduler.step(config["gbs"])
        norm, zeros = (None, None) if not updated else (float(norm), int(zeros))
        history.append(line | {"grad_norm": norm, "num_zeros": zeros, "update_ok": updated, "loss_scale_used": scale})
    if ddp.overlap_param_gather:  # else the next forward would gather what the last step updated
        for chunk in chunks:
            chunk.start_param_sync(force_sync=True)
    result = {"history": history, "final_params": recipe.summaries(gather(chunks, lambda parameter: parameter))}
    if first_grads is not None and history[0]["update_ok"]:
        result["grads_iter1"] = recipe.summaries(first_grads)
    return result
