"""Records the cases of this folder with Megatron's own code (megatron.core 0.16.1, torch 2.11.0, CPU, gloo).
With megatron.core 0.14.0, records only the cases of its flat optimizer state (model_space), which 0.16 cannot write.
   record.py OUT [MODEL...]     needs torch, numpy, safetensors and megatron_core on PYTHONPATH
For each model, one rank creates the weights and logits. Ranks of other layouts load that checkpoint with
megatron.core.dist_checkpointing and save it again, so Megatron itself shards every tensor."""
import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

import numpy
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from cases import CASES, MODELS

SAMPLES, LENGTH, ITERATION, STEPS = 2, 16, 7, 2
RESUMED, BATCH = 10, 4
SCHEDULER = {"max_lr": 1e-3, "lr_decay_style": "linear", "num_steps": 24}  # one step of 4 samples was skipped
KINDS = ("main", "exp_avg", "exp_avg_sq")
HAS_FLAT_STATE = importlib.metadata.version("megatron_core") < "0.16"


def namespace(spec, layout):
    """The arguments that Megatron-LM stores: those of the model as given, values that it derives, and some of other kinds."""
    from megatron.core.transformer.enums import AttnBackend
    values = {
        "group_query_attention": "num_query_groups" in spec, "num_query_groups": 1, "kv_channels": 4, "encoder_num_layers": spec["num_layers"],
        "norm_epsilon": 1e-5, "rotary_base": 10000, "rotary_percent": 1.0, "rotary_interleaved": False, "use_rotary_position_embeddings": False,
        "rotary_seq_len_interpolation_factor": None, "use_rope_scaling": False, "rope_scaling_factor": 8.0, "add_position_embedding": True,
        "squared_relu": False, "quick_geglu": False, "openai_gelu": False, "bias_gelu_fusion": False, "bias_swiglu_fusion": True,
        "add_qkv_bias": False, "qk_layernorm": False, "apply_layernorm_1p": False, "attention_dropout": 0.0, "hidden_dropout": 0.0, "init_method_std": 0.02,
        "make_vocab_size_divisible_by": 8, "padded_vocab_size": spec["vocab_size"], "vocab_size": None, "multi_latent_attention": False,
        "q_lora_rank": None, "kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "rotary_scaling_factor": 1.0,
        "mscale": 1.0, "mscale_all_dim": 0.0, "rope_type": None, "num_experts": None, "moe_layer_freq": 1, "moe_ffn_hidden_size": None, "moe_router_topk": 2,
        "moe_router_score_function": "softmax", "moe_router_pre_softmax": False, "moe_router_num_groups": None, "moe_router_group_topk": None,
        "moe_router_topk_scaling_factor": None, "moe_router_enable_expert_bias": False, "moe_router_bias_update_rate": 1e-3,
        "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.0, "moe_z_loss_coeff": None, "moe_router_dtype": None,
        "moe_shared_expert_intermediate_size": None, "moe_token_dispatcher_type": "allgather", "moe_grouped_gemm": False, "window_size": None,
        "mtp_num_layers": None, "seq_length": LENGTH, "micro_batch_size": 1, "global_batch_size": 4, "iteration": ITERATION, "consumed_train_samples": 28,
        "consumed_valid_samples": 0, "tensor_model_parallel_size": layout.get("tp", 1), "pipeline_model_parallel_size": layout.get("pp", 1),
        "expert_model_parallel_size": layout.get("ep", 1), "virtual_pipeline_model_parallel_size": layout.get("vpp"), "bf16": False, "fp16": False, "seed": 1234, "optimizer": "adam",
        "params_dtype": torch.bfloat16 if "bf16" in spec else torch.float32, "attention_backend": AttnBackend.auto, "data_path": ["1.0", "corpus_text_document"], "tokenizer_type": "NullTokenizer",
        "lr": 1e-3, "adam_beta2": 0.95, "data_cache_path": None, "transformer_impl": "local", "use_distributed_optimizer": "dp" in layout, "data_parallel_size": layout.get("dp", 1),
        "overlap_grad_reduce": "bucket_size" in layout, "ddp_bucket_size": layout.get("bucket_size"), "ddp_num_buckets": None}
    values.update(spec)
    values["vocab_size"] = None
    return argparse.Namespace(**values)


def config(spec, layout):
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    settings = {key: spec[key] for key in ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "normalization", "add_bias_linear")}
    for key in ("num_query_groups", "add_qkv_bias", "qk_layernorm", "moe_ffn_hidden_size", "moe_router_topk", "moe_layer_freq", "moe_router_score_function",
                "moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
                "v_head_dim", "multi_latent_attention", "rope_type"):
        if key in spec:
            settings[key] = spec[key]
    kind = MLATransformerConfig if "multi_latent_attention" in spec else TransformerConfig
    if "multi_latent_attention" in spec:
        settings.update(rotary_scaling_factor=1.0, mscale=1.0, mscale_all_dim=0.0, apply_rope_fusion=False)
    return kind(
        num_moe_experts=spec.get("num_experts"), gated_linear_unit=spec["swiglu"], attention_dropout=0.0, hidden_dropout=0.0,
        activation_func=torch.nn.functional.silu if spec["swiglu"] else torch.nn.functional.gelu, bias_activation_fusion=False, masked_softmax_fusion=False,
        tensor_model_parallel_size=layout.get("tp", 1), pipeline_model_parallel_size=layout.get("pp", 1), pipeline_dtype=torch.float32,
        virtual_pipeline_model_parallel_size=layout.get("vpp"), expert_model_parallel_size=layout.get("ep", 1), moe_aux_loss_coeff=0.0,
        moe_token_dispatcher_type="allgather", use_cpu_initialization=True, gradient_accumulation_fusion=False, **settings)


def build(spec, layout):
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    settings = config(spec, layout)
    chunks = []
    for chunk in range(layout.get("vpp", 1)):
        stage = chunk if "vpp" in layout else None
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
        layers = get_gpt_decoder_block_spec(settings, use_transformer_engine=False, normalization=spec["normalization"], vp_stage=stage)
        chunks.append(GPTModel(
            settings, layers, spec["vocab_size"], spec["max_position_embeddings"], pre_process=first, post_process=last,
            share_embeddings_and_output_weights=not spec["untie_embeddings_and_output_weights"], position_embedding_type=spec["position_embedding_type"],
            rotary_percent=1.0, rotary_base=10000, vp_stage=stage).eval())
    return chunks


def metadata(form):
    state = "fully_sharded_model_space" if form.startswith("model_space") else form if form == "dp_reshardable" else "fully_reshardable"
    stacks = form == "stacked" or state != "fully_reshardable"
    return {"non_homogeneous_layers": not stacks, "singleton_local_shards": form == "single", "distrib_optim_sharding_type": state}


def keep_attributes():
    """torch 2.9 and higher write a copy of Metadata without mcore_data, an attribute that megatron.core adds. Older versions write it."""
    from torch.distributed.checkpoint import filesystem

    def replace(value, **fields):
        copy = dataclasses.replace(value, **fields)
        copy.__dict__.update({name: attribute for name, attribute in value.__dict__.items() if name not in copy.__dict__})
        return copy

    filesystem.dataclasses = types.SimpleNamespace(replace=replace)


class OnCpu(TorchFunctionMode):
    """Creates CUDA tensors on the CPU; their types are those of CUDA, which Megatron's optimizers require."""
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        result = function(*args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if function is torch.Tensor.type and isinstance(result, str) else result


def wrap(chunks, spec, layout):
    """Returns the optimizer of bf16 chunks: that of a single rank, or the distributed one."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    settings, is_distributed = config(spec, layout), "dp" in layout
    settings.bf16, settings.params_dtype = True, torch.bfloat16
    form = DistributedDataParallelConfig(
        use_distributed_optimizer=is_distributed, overlap_grad_reduce="bucket_size" in layout, bucket_size=layout.get("bucket_size"))
    models = [DistributedDataParallel(settings, form, chunk) for chunk in chunks]
    return get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-3, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=is_distributed, clip_grad=0.0), models)


def train(chunk, spec, layout):
    """Two steps of AdamW with random gradients. Returns the optimizer."""
    optimizer = wrap([chunk], spec, layout)
    for step in range(STEPS):
        random = torch.Generator().manual_seed(50 + step)
        for _, param in chunk.named_parameters():
            param.main_grad.copy_(0.1 * torch.randn(param.shape, generator=random))
        optimizer.step()
    return optimizer


def load_state(chunk, directory, form, optimizer=None):
    """Loads a checkpoint as Megatron-LM does. `form`: the metadata of its content."""
    from megatron.core import dist_checkpointing
    state = {"model": chunk.sharded_state_dict(metadata=form)}
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=True, metadata=form)
    loaded = dist_checkpointing.load(state, str(directory))
    chunk.load_state_dict(loaded["model"])
    if optimizer is not None:
        optimizer.load_state_dict(loaded["optimizer"])


def keep_steps():
    """Without Transformer Engine, the distributed optimizer also copies "step", which its checkpoints store in param_groups."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    plain = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states(self, param, values):
        group, _ = self.model_param_group_index_map[param]
        plain(self, param, {**values, "step": torch.tensor(float(self.optimizer.param_groups[group]["step"]))})

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states


def write_corpus(prefix):
    """Documents of random tokens, as an indexed dataset."""
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    random = torch.Generator().manual_seed(40)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(40))
    for _ in range(40):
        length = int(torch.randint(20, 60, (1,), generator=random))
        builder.add_document(torch.randint(40, (length,), generator=random), [length])
    builder.finalize(f"{prefix}.idx")


def read_samples(prefix, cache):
    """The samples that Megatron's GPT dataset gives after ITERATION iterations."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    tokenizer = type("Tokenizer", (), {"eod": 39, "pad": 39, "vocab_size": 40, "unique_identifiers": {"class": "none"}})()
    config = GPTDatasetConfig(
        random_seed=1234, sequence_length=LENGTH, blend=([str(prefix)], None), split="100,0,0", path_to_cache=str(cache), tokenizer=tokenizer,
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False, mid_level_dataset_surplus=0.005)
    total = (ITERATION + RESUMED) * BATCH
    train = BlendedMegatronDatasetBuilder(GPTDataset, [total, 0, 0], lambda: True, config).build()[0]
    return [train[i] for i in range(ITERATION * BATCH, total)]


def resume(task):
    """Loads `trained` into the distributed optimizer, and records the losses of the next steps, in fp32 or bf16."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    spec, half = MODELS[task["model"]], task["half"]
    start({})
    keep_steps()
    samples = read_samples(task["corpus"], task["cache"])
    chunk = build(spec, {})[0]
    OnCpu().__enter__()
    settings = config(spec, {})
    if half:
        chunk.bfloat16()
        settings.bf16, settings.params_dtype = True, torch.bfloat16
    model = DistributedDataParallel(settings, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True), chunk)
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-3, weight_decay=0.1, bf16=half, params_dtype=torch.bfloat16 if half else torch.float32,
        use_distributed_optimizer=True, clip_grad=0.0), [model])
    optimizer.step()  # creates the state, which the checkpoint replaces
    load_state(chunk, task["source"], metadata("stacked"), optimizer)
    for state in optimizer.chained_optimizers[0].optimizer.state.values():
        state["step"] = state["step"].clone()  # loaded as one tensor, which the update of each parameter would increment
    for group in optimizer.param_groups:  # as OptimizerParamScheduler
        group["weight_decay"] = 0.1 * group["wd_mult"]
    mask, losses = torch.triu(torch.ones(LENGTH, LENGTH), 1).bool()[None, None], []
    for step in range(RESUMED):
        model.zero_grad_buffer()
        losses.append(0.0)
        for sample in samples[step * BATCH:(step + 1) * BATCH]:
            loss = model(sample["tokens"][None], sample["position_ids"][None], mask, labels=sample["labels"][None]).mean() / BATCH
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    pathlib.Path(task["folder"]).write_text(json.dumps(losses) + "\n")


def parts(optimizer):
    return getattr(optimizer, "chained_optimizers", [optimizer])


def state_of(optimizer, param):
    """The main parameter and moments of a parameter, and their range of its elements; None if another rank has them."""
    for part in parts(optimizer):
        if hasattr(part, "gbuf_ranges"):
            if param in part.model_param_gbuf_map:
                own = part._get_model_param_range_map(param)["param"]
                tensors = part._get_main_param_and_optimizer_states(param)
                return {"main": tensors["param"], **{kind: tensors[kind] for kind in KINDS[1:]}}, slice(own.start, own.end)
        elif getattr(param, "main_param", None) in part.optimizer.state:
            main = param.main_param
            return {"main": main, **{kind: part.optimizer.state[main][kind] for kind in KINDS[1:]}}, slice(0, main.numel())
    return None


def load_trained(spec, layout, source):
    """Returns bf16 chunks and an optimizer with the recorded state of the single rank, which Megatron shards like weights."""
    values = {kind: build(spec, layout) for kind in KINDS}
    for kind, chunks in values.items():
        load(chunks, source / kind)
    chunks = [chunk.bfloat16() for chunk in build(spec, layout)]
    optimizer = wrap(chunks, spec, layout)
    for _ in range(STEPS):
        for chunk in chunks:
            for param in chunk.parameters():
                param.main_grad.zero_()
        optimizer.step()
    with torch.no_grad():
        for i, chunk in enumerate(chunks):
            stored = {kind: dict(values[kind][i].named_parameters()) for kind in KINDS}
            for name, param in chunk.named_parameters():
                param.copy_(stored["main"][name])
                if (found := state_of(optimizer, param)) is not None:
                    for kind in KINDS:
                        found[0][kind].view(-1).copy_(stored[kind][name].flatten()[found[1]])
    return chunks, optimizer


def sharded(chunks, form):
    state = {}
    for chunk in chunks:
        part = chunk.sharded_state_dict(metadata=metadata(form))
        for name, value in part.items():
            state[getattr(value, "key", name) + ("" if len(chunks) == 1 else f"#{id(value)}")] = value
        if len(chunks) == 1:
            return {"model": part}
    return {"model": state}


def fill(model):
    """Random values of a size that every mistake of a transposition, an order or a missing norm shows in the logits."""
    random = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n.endswith("expert_bias"))]:
            noise = torch.randn(tensor.shape, generator=random)
            tensor.copy_(1 + 0.2 * noise if "norm" in name and name.endswith("weight") else 0.3 * noise)


def start(layout):
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import dot_product_attention, multi_latent_attention as latent
    from megatron.core.transformer.moe import moe_utils
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda: None
    numpy.product = numpy.prod  # of older versions of numpy, for megatron.core 0.14
    moe_utils.te_general_gemm = None
    plain = dot_product_attention.DotProductAttention.__init__  # for latent attention, lacks two arguments with derived values
    dot_product_attention.DotProductAttention.__init__ = lambda *args, k_channels=None, v_channels=None, **kwargs: plain(*args, **kwargs)
    latent.Linear = latent.TELinear = latent.TEColumnParallelLinear = type("Absent", (), {})
    random.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()  # dropout is 0
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        layout.get("tp", 1), layout.get("pp", 1), layout.get("vpp"), expert_model_parallel_size=layout.get("ep", 1))


def save_dist(chunks, spec, layout, form, folder, optimizer=None):
    from megatron.core import dist_checkpointing
    directory = folder / f"iter_{ITERATION:07d}"
    directory.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    state = sharded(chunks, form)
    state.update(args=namespace(spec, layout), checkpoint_version=3.0, iteration=ITERATION, num_floating_point_operations_so_far=1.5e9,
                 opt_param_scheduler=SCHEDULER)
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], metadata=metadata(form))
    strategy = dist_checkpointing.serialization.get_default_save_sharded_strategy("torch_dist", 1)
    strategy.thread_count = 1
    if form == "model_space":
        keep_attributes()
    dist_checkpointing.save(state, directory, strategy, content_metadata=metadata(form))


def save_legacy(chunks, spec, layout, folder, optimizer=None):
    from megatron.core import parallel_state as p
    name = f"mp_rank_{p.get_tensor_model_parallel_rank():02d}"
    if layout.get("pp", 1) > 1:
        name += f"_{p.get_pipeline_model_parallel_rank():03d}"
    if layout.get("ep", 1) > 1:
        name += f"_{p.get_expert_model_parallel_rank():03d}"
    path = folder / f"iter_{ITERATION:07d}" / name / "model_optim_rng.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"args": namespace(spec, layout), "checkpoint_version": 3.0, "iteration": ITERATION, "num_floating_point_operations_so_far": 1.5e9,
             "opt_param_scheduler": SCHEDULER,
             "rng_state": [{"random_rng_state": (3, (1, 2, 624), None), "torch_rng_state": torch.zeros(16, dtype=torch.uint8)}]}
    for i, chunk in enumerate(chunks):
        state["model" if len(chunks) == 1 else f"model{i}"] = chunk.state_dict_for_save_checkpoint()
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    if optimizer is not None and "dp" in layout:
        optimizer.save_parameter_state(str(path.parent / "distrib_optim.pt"))
    if p.get_data_parallel_rank() == 0 or layout.get("ep", 1) > 1:
        torch.save(state, path)


def save_dcp(chunk, spec, layout, form, folder):
    """torch_dcp: torch.distributed.checkpoint of a model that Megatron's TorchFullyShardedDataParallel has sharded with FSDP2. Without
    args: of the tensors alone."""
    if form == "dcp_without_args":
        tensors = {name: value for name, value in chunk.state_dict_for_save_checkpoint().items() if torch.is_tensor(value)}
        write_dcp({"model": tensors}, spec, layout, form, folder)
        return
    from megatron.core.distributed import DistributedDataParallelConfig, TorchFullyShardedDataParallel
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    DeviceMesh.from_group = lambda *_: init_device_mesh("cpu", (layout["dp"],), mesh_dim_names=("dp",))
    settings = config(spec, layout)
    settings.transformer_impl = "local"
    model = TorchFullyShardedDataParallel(settings, DistributedDataParallelConfig(), chunk)
    state = {"model": model.state_dict_for_save_checkpoint()}
    write_dcp(state, spec, layout, form, folder)


def save_fsdp(values, spec, layout, folder):
    """fsdp_dtensor: main parameters and moments as DTensors under the names of megatron/core/transformer/fsdp_dtensor_checkpoint.py.
    Megatron-FSDP itself needs CUDA."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (layout["dp"],))
    model, states = {}, {}
    for name, kinds in values.items():
        halves = {"_w": 0, "_v": 1} if "linear_fc1.weight" in name else {"": None}
        for suffix, half in halves.items():
            own = {kind: distribute_tensor(value.float() if half is None else value.float().chunk(2)[half].contiguous(), mesh, [Shard(0)])
                   for kind, value in kinds.items()}
            model["module." + name + suffix] = own["main"]
            states["module.module." + name + suffix] = {"exp_avg": own["exp_avg"], "exp_avg_sq": own["exp_avg_sq"]}
    groups = {name: {"lr": 1e-3, "step": STEPS} for name in states}
    write_dcp({"model": model, "optimizer": {"state": states, "param_to_group_meta": groups}}, spec, layout, "fsdp", folder)


def write_dcp(state, spec, layout, form, folder):
    from torch.distributed import checkpoint
    if form != "dcp_without_args":
        state = {"args": namespace(spec, layout), "checkpoint_version": 3.0, "iteration": ITERATION, "opt_param_scheduler": SCHEDULER, **state}
    directory = folder / f"iter_{ITERATION:07d}"
    directory.mkdir(parents=True, exist_ok=True)
    if dist.is_initialized():
        dist.barrier()
    with contextlib.chdir(folder):  # the path is stored
        checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(directory.name), no_dist=not dist.is_initialized())


def load(chunks, folder):
    from megatron.core import dist_checkpointing
    for chunk in chunks:
        loaded = dist_checkpointing.load(sharded([chunk], "stacked"), folder / f"iter_{ITERATION:07d}", validate_access_integrity=False)["model"]
        chunk.load_state_dict(loaded)


def worker(task):
    if "half" in task:
        return resume(task)
    layout, spec = task["layout"], MODELS[task["model"]]
    start(layout)
    if "bf16" in spec:
        OnCpu().__enter__()
    chunks = build(spec, layout)
    folder = pathlib.Path(task["folder"])
    if "bf16" in spec:
        if task["first"]:
            fill(chunks[0])
            chunks[0].bfloat16()
            write_trained(chunks[0], train(chunks[0], spec, layout), folder, spec, pathlib.Path(task["source"]))
            return
        if task["form"] == "fsdp":
            values = {}
            for kind in KINDS:
                load(chunks, pathlib.Path(task["source"]) / kind)
                for name, param in chunks[0].named_parameters():
                    values.setdefault(name, {})[kind] = param.detach().clone()
            save_fsdp(values, spec, layout, folder)
            return
        chunks, optimizer = load_trained(spec, layout, pathlib.Path(task["source"]))
        if task["form"] == "legacy":
            save_legacy(chunks, spec, layout, folder, optimizer)
        else:
            save_dist(chunks, spec, layout, task["form"], folder, optimizer)
        return
    if task["first"]:
        fill(chunks[0])
        save_dist(chunks, spec, layout, "stacked", pathlib.Path(task["source"]))
        write_expected(chunks[0], spec, folder)
        return
    load(chunks, pathlib.Path(task["source"]))
    if task["form"] == "legacy":
        save_legacy(chunks, spec, layout, folder)
    elif "dcp" in task["form"]:
        save_dcp(chunks[0], spec, layout, task["form"], folder)
    else:
        save_dist(chunks, spec, layout, task["form"], folder)


def write_trained(model, optimizer, folder, spec, source):
    """Weights by name, and the state of the optimizer as KIND/NAME; in `source`, one checkpoint for each kind."""
    from safetensors.torch import save_file
    state = {name: param.detach() for name, param in model.named_parameters()}
    copies = {kind: build(spec, {})[0] for kind in KINDS}
    for name, param in model.named_parameters():
        for kind, value in state_of(optimizer, param)[0].items():
            state[f"{kind}/{name}"] = value.detach()
            dict(copies[kind].named_parameters())[name].data.copy_(value)
    for kind, copy in copies.items():
        save_dist([copy], spec, {}, "stacked", source / kind)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous().clone() for name, value in state.items()}, folder / "weights.safetensors")


def write_expected(model, spec, folder):
    from safetensors.torch import save_file
    random = torch.Generator().manual_seed(3)
    tokens = torch.randint(spec["vocab_size"], (SAMPLES, LENGTH), generator=random)
    positions = torch.arange(LENGTH).expand(SAMPLES, LENGTH)
    mask = torch.triu(torch.ones(LENGTH, LENGTH), 1).bool()[None, None]
    with torch.no_grad():
        logits = model(tokens, positions, mask)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens.json").write_text(json.dumps(tokens.tolist()) + "\n")
    weights = {name: value for name, value in model.state_dict().items() if value is not None and not name.endswith("_extra_state")}
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "weights.safetensors")
    save_file({"logits": logits.contiguous()}, folder / "logits.safetensors")


# Layers whose modules need CUDA kernels. MIXERS has the tensors of a mixer and the rows that its sharded_state_dict stores
# separately (megatron/core/ssm/mamba_mixer.py and gated_delta_net.py).
IN, CONV = "in_proj.weight", "conv1d.weight"
MIXERS = {
    "mamba": ("mixer.", {IN: [84, 16], CONV: [48, 1, 4], "conv1d.bias": [48], "dt_bias": [4], "A_log": [4], "D": [4], "norm.weight": [32], "out_proj.weight": [16, 32]},
              {IN: {"z": 32, "x": 32, "B": 8, "C": 8, "dt": 4}, CONV: {"x": 32, "B": 8, "C": 8}, "conv1d.bias": {"x": 32, "B": 8, "C": 8}}),
    "delta_net": ("self_attention.", {IN: [104, 16], CONV: [64, 1, 4], "dt_bias": [4], "A_log": [4], "out_norm.weight": [8], "out_proj.weight": [16, 32]},
                  {IN: {"query": 16, "key": 16, "value": 32, "z": 32, "beta": 4, "alpha": 4}, CONV: {"query": 16, "key": 16, "value": 32}}),
}
ATTENTION = {"self_attention.linear_qkv.weight": [32, 16], "self_attention.linear_proj.weight": [16, 16]}
MLP = {"pre_mlp_layernorm.weight": [16], "mlp.linear_fc1.weight": [48, 16], "mlp.linear_fc2.weight": [16, 24]}


def write_mixers(name, out):
    """Random weights of a model with these layers, and torch.distributed.checkpoint of them under the names of Transformer Engine."""
    from safetensors.torch import save_file
    prefix, mixer, rows = MIXERS[name]
    mixer = {prefix + tail: shape for tail, shape in mixer.items()}
    norm = {"norm.weight" if name == "mamba" else "input_layernorm.weight": [16]}
    attention = {"input_layernorm.weight": [16], **ATTENTION}
    layers = [{**norm, **mixer}, attention, MLP, {**norm, **mixer}] if name == "mamba" else [{**norm, **mixer, **MLP}, {**attention, **MLP}]
    shapes = {"embedding.word_embeddings.weight": [40, 16], "decoder.final_layernorm.weight": [16], "output_layer.weight": [40, 16]}
    shapes |= {f"decoder.layers.{i}.{tail}": shape for i, layer in enumerate(layers) for tail, shape in layer.items()}
    random, stored = torch.Generator().manual_seed(7), {}
    weights = {tensor: torch.randn(shape, generator=random) for tensor, shape in shapes.items()}
    for tensor, value in weights.items():
        base = tensor.replace("final_layernorm", "final_norm") if name == "mamba" else tensor
        mixes = any(f"{tensor.rsplit('.', 2)[0]}.{tail}" in weights for tail in mixer)
        base = base.replace(".norm.weight", ".mixer.in_proj.layer_norm_weight") if ".mixer." not in base else base
        base = base.replace("input_layernorm.", f"self_attention.{'in_proj' if mixes else 'linear_qkv'}.layer_norm_")
        base = base.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
        divided = next((parts for tail, parts in rows.items() if tensor.endswith(prefix + tail)), None)
        stored |= {base: value} if divided is None else dict(zip([f"{base}.{part}" for part in divided], value.split(list(divided.values()))))
    folder = pathlib.Path(out) / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "weights.safetensors")
    case = pathlib.Path(out) / f"{name}_dcp_without_args"
    shutil.rmtree(case, ignore_errors=True)
    write_dcp({"model": stored}, {}, {}, "dcp_without_args", case)
    (case / "latest_checkpointed_iteration.txt").write_text(str(ITERATION))


def run(task, ranks, port):
    processes = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        processes.append(subprocess.Popen([sys.executable, *(["-S"] if sys.flags.no_site else []), __file__, "--worker", json.dumps(task)], env=env))
    if any([process.wait() for process in processes]):
        sys.exit(f"failed: {task}")


def main(out, models):
    port = 29811
    for name in models or [*MODELS, *MIXERS]:
        if name in MIXERS:
            write_mixers(name, out)
            continue
        with tempfile.TemporaryDirectory() as source:
            run({"model": name, "layout": {}, "first": True, "source": source, "folder": f"{out}/{name}"}, 1, port)
            for case, (model, layout, form) in CASES.items():
                if model != name or form.startswith("model_space") != HAS_FLAT_STATE:
                    continue
                port += 1
                folder = pathlib.Path(out) / case
                shutil.rmtree(folder, ignore_errors=True)
                task = {"model": model, "layout": layout, "form": form, "first": False, "source": source, "folder": str(folder)}
                run(task, layout.get("tp", 1) * layout.get("pp", 1) * layout.get("ep", 1) * layout.get("dp", 1), port)
                (folder / "latest_checkpointed_iteration.txt").write_text(str(ITERATION))
        port += 1
        if f"{name}_dist_dp2" in CASES and not HAS_FLAT_STATE:
            record_resumed(name, pathlib.Path(out), port)


def record_resumed(name, out, port):
    """The corpus, and the losses of the steps after the checkpoint: resumed_fp32.json, resumed_bf16.json."""
    write_corpus(out / name / "corpus")
    with tempfile.TemporaryDirectory() as cache:
        for half in (False, True):
            task = {"model": name, "half": half, "corpus": str(out / name / "corpus"), "cache": cache,
                    "source": str(out / f"{name}_dist_dp2" / f"iter_{ITERATION:07d}"),
                    "folder": str(out / name / f"resumed_{'bf16' if half else 'fp32'}.json")}
            run(task, 1, port + 1 + half)


if __name__ == "__main__":
    worker(json.loads(sys.argv[2])) if sys.argv[1] == "--worker" else main(sys.argv[1], sys.argv[2:])
