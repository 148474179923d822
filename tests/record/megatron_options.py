"""A golden run's config as the configurations that Megatron takes."""
import dataclasses

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Arguments of GPTModel itself.
MODEL_ARGUMENTS = (
    "rotary_base", "rotary_percent", "rope_scaling", "rope_scaling_factor", "seq_len_interpolation_factor",
    "fp16_lm_cross_entropy", "position_embedding_type",
)  # fmt: skip
OWN_MODEL_KEYS = ("kind", "tied", "activation", "max_position_embeddings", *MODEL_ARGUMENTS)
# Learning rate and weight decay under the names of Megatron's command line.
SCHEDULE_KEYS = (
    "lr_warmup_init", "lr_decay_iters", "lr_wsd_decay_iters", "lr_wsd_decay_style", "start_weight_decay",
    "end_weight_decay", "weight_decay_incr_style",
)  # fmt: skip
RUN_KEYS = (
    "name", "vocab", "seq", "mbs", "gbs", "iters", "lr", "min_lr", "warmup_iters", "decay_style", "model", "ssd", "nproc",
    "tp", "pp", "vpp", "ep", "sp", "dist_opt",
    "precision", "initial_loss_scale", "loss_scale_window",
    "hysteresis", "min_loss_scale", "optimizer", "wd", "clip",
    "mask_last", "cfg",
)  # fmt: skip


def refuse_unknown(config):
    for key in config:
        if key not in RUN_KEYS:
            raise SystemExit(f"config.{key} is not something this recorder knows")


def activation(name):
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu

    functional = torch.nn.functional
    known = {
        "gelu": functional.gelu, "silu": functional.silu, "relu": functional.relu, "quick_gelu": quick_gelu,
        "squared_relu": squared_relu,
    }  # fmt: skip
    if name not in known:
        raise SystemExit(f"config.model.activation {name} is none of {', '.join(known)}")
    return known[name]


def value_for(field, value):
    is_dtype = "dtype" in field.name and isinstance(value, str)
    return DTYPES[value] if is_dtype else value


class Options:
    """What config.cfg asks for goes to every Megatron configuration that has a field of that name."""

    def __init__(self, config):
        self.config, self.cfg, self.used = config, config.get("cfg", {}), set()

    def made(self, kind, **base):
        for field in dataclasses.fields(kind):
            if field.name in self.cfg:
                base[field.name] = value_for(field, self.cfg[field.name])
                self.used.add(field.name)
        return kind(**base)

    def taken(self, *names):
        """The keys of these names, which are arguments rather than fields."""
        found = {name: self.cfg[name] for name in names if name in self.cfg}
        self.used.update(found)
        return found

    def transformer(self):
        from megatron.core.transformer.transformer_config import TransformerConfig

        c, model = self.config, self.config["model"]
        precision = c.get("precision", "fp32")
        base = {key: value for key, value in model.items() if key not in OWN_MODEL_KEYS}
        base |= dict(
            activation_func=activation(model.get("activation", "gelu")),
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cpu_initialization=True,
            tensor_model_parallel_size=c.get("tp", 1),
            pipeline_model_parallel_size=c.get("pp", 1),
            virtual_pipeline_model_parallel_size=c.get("vpp"),
            expert_model_parallel_size=c.get("ep", 1),
            sequence_parallel=c.get("sp", False),
            params_dtype=DTYPES[precision],
            fp16=precision == "fp16",
            bf16=precision == "bf16",
        )
        if c.get("pp", 1) > 1:
            base["pipeline_dtype"] = DTYPES[precision]
        if c.get("vpp"):
            # As on Megatron's command line; two stages in one batch of sends could not distinguish their directions.
            base |= dict(overlap_p2p_comm=True, batch_p2p_comm=False)
        return self.made(TransformerConfig, **base)

    def data_parallel(self):
        from megatron.core.distributed import DistributedDataParallelConfig

        return self.made(
            DistributedDataParallelConfig,
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=self.config.get("dist_opt", False),
        )

    def optimizer(self):
        from megatron.core.optimizer import OptimizerConfig

        c = self.config
        precision = c.get("precision", "fp32")
        base = dict(
            optimizer=c.get("optimizer", "adam"),
            lr=c["lr"],
            min_lr=c["min_lr"],
            weight_decay=c.get("wd", 0.01),
            clip_grad=c.get("clip", 1.0),
            fp16=precision == "fp16",
            bf16=precision == "bf16",
            params_dtype=DTYPES[precision],
            use_distributed_optimizer=c.get("dist_opt", False),
            log_num_zeros_in_grad=True,
        )
        scaler = ("initial_loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")
        base |= {key: c[key] for key in scaler if key in c}
        return self.made(OptimizerConfig, **base)

    def schedule(self):
        """Arguments of OptimizerParamScheduler; its steps are samples."""
        c, asked = self.config, self.taken(*SCHEDULE_KEYS)
        gbs, wd = c["gbs"], c.get("wd", 0.01)
        arguments = dict(
            init_lr=asked.get("lr_warmup_init", 0.0),
            max_lr=c["lr"],
            min_lr=c["min_lr"],
            lr_warmup_steps=c["warmup_iters"] * gbs,
            lr_decay_steps=asked.get("lr_decay_iters", c["iters"]) * gbs,
            lr_decay_style=c["decay_style"],
            start_wd=asked.get("start_weight_decay", wd),
            end_wd=asked.get("end_weight_decay", wd),
            wd_incr_steps=c["iters"] * gbs,
            wd_incr_style=asked.get("weight_decay_incr_style", "constant"),
        )
        if "lr_wsd_decay_iters" in asked:
            arguments |= dict(wsd_decay_steps=asked["lr_wsd_decay_iters"] * gbs, lr_wsd_decay_style=asked["lr_wsd_decay_style"])
        return arguments

    def refuse_unused(self):
        for key in self.cfg:
            if key not in self.used:
                raise SystemExit(f"config.cfg.{key} is no option of Megatron's that this recorder can pass on")
