"""Samples configurations that the program should accept: small, unusual, and over all keys of the tables. Simple rules
of metroplex/core/config/rules_*.cpp for several keys are satisfied by construction. The program refuses the other invalid
ones, and the sweep counts them."""
from walk.case import Case
from walk.experts import Experts
from walk.positions import Positions
from walk.precision import LowPrecision

# Keys that no sample sets, each with its reason. tests/apps/wrong_inputs_test.sh checks that samples and this list
# cover the tables.
NOT_DRAWN = {
    "files and folders, which the checks name": [
        "checkpoint.save", "checkpoint.load", "checkpoint.save_interval", "checkpoint.ckpt_step", "data.data_path",
        "data.train_data_path", "data.valid_data_path", "data.test_data_path", "data.data_cache_path", "data.tokenizer_model",
        "data.vocab_file", "data.merge_file", "data.tokenizer_type", "train.metrics_file", "memory.offload_directory",
        "data.allow_other_tokenizer", "data.multiple_validation_sets", "model.moe_router_force_trace",
        "model.moe_echo_dump_dir", "model.from", "peft.from", "checkpoint.export_hf"],
    "it begins with the lengths of loaded weights": ["peft.use_dora"],
    "only exported directories use them, and no run here exports": ["model.special_token_ids", "model.generation_config", "model.hf_model_type"],
    "the checks set the length of a run in iterations and samples": ["train.train_epochs"],
    "such a run trains nothing that the checks could compare": ["train.skip_train"],
    "how a run is resumed, which the checks say": [
        "checkpoint.finetune", "checkpoint.load_only", "checkpoint.load_except", "checkpoint.no_load_optim", "checkpoint.no_load_rng", "checkpoint.exit_on_missing_checkpoint",
        "checkpoint.allow", "checkpoint.resume_with_other_data", "optim.override_opt_param_scheduler",
        "optim.use_checkpoint_opt_param_scheduler"],
    "a run without optimizer state cannot resume exactly": ["checkpoint.no_save_optim"],
    "which checkpoints a run leaves out then depends on the disk": ["checkpoint.async_save"],
    "the same in every run here": [
        "data.mock_data", "run.device", "run.nproc", "run.threads_per_rank", "run.master_port", "run.network_interface",
        "run.distributed_timeout_minutes", "train.progress", "train.log_interval", "train.eval_iters",
        "train.exit_interval", "train.exit_duration_in_mins"],
    "captured by the checks, where it may be": [
        "train.cuda_graph_impl", "train.cuda_graph_modules", "train.cuda_graph_warmup_steps"],
    "traces and reports, which the check twin turns on": [
        "train.trace_file", "train.trace_step_start", "train.trace_step_end", "train.log_slowest_rank", "train.machine"],
    "it needs widths and numbers of tokens that are multiples of 16 or 32": ["precision.fp8_products"],
    "the machine's memory": ["memory.check_fit", "memory.device_memory_gib"],
}

DEFAULT_ODDS = 0.12


class Drawing(Experts, LowPrecision, Positions):
    def __init__(self, rng):
        self.rng, self.keys, self.ranks = rng, {}, 1

    def one(self, *values):
        return self.rng.choice(values)

    def chance(self, odds=DEFAULT_ODDS):
        return self.rng.random() < odds

    def put(self, key, value):
        self.keys[key] = str(value).lower() if isinstance(value, bool) else str(value)

    def maybe(self, key, *values, odds=DEFAULT_ODDS):
        if self.chance(odds):
            self.put(key, self.one(*values))

    def layout(self):
        while True:
            self.tp, self.pp, self.dp = self.one(1, 1, 1, 2, 2, 3, 4), self.one(1, 1, 1, 2, 2, 3, 4), self.one(1, 1, 2, 2, 3, 4)
            self.cp = self.one(1, 1, 1, 2, 3, 4)
            if self.tp * self.cp * self.pp * self.dp <= 8:
                break
        self.ranks = self.tp * self.cp * self.pp * self.dp
        self.vpp = self.one(1, 1, 2) if self.pp > 1 else 1
        self.sp = self.tp > 1 and self.chance(0.6)
        sizes = {"tensor_model_parallel_size": self.tp, "pipeline_model_parallel_size": self.pp,
                 "context_parallel_size": self.cp}
        for key, size in sizes.items():
            if size > 1:
                self.put(f"parallel.{key}", size)
        sharding = self.one("no_shard", "no_shard", "optim", "optim_grads", "optim_grads_params")
        if sharding != "no_shard":
            self.put("parallel.data_parallel_sharding_strategy", sharding)
            if self.dp % 2 == 0 and self.chance(0.25):
                self.put("parallel.num_distributed_optimizer_instances", 2)
            self.maybe("parallel.overlap_param_gather", "false")
            if sharding in ("optim", "optim_grads") and "parallel.overlap_param_gather" not in self.keys:
                self.maybe("parallel.align_param_gather", "true")
        self.sharding = sharding
        self.maybe("parallel.ddp_bucket_size", 1, 100, 1000, 5000, odds=0.35)
        self.maybe("parallel.overlap_grad_reduce", "false")
        self.maybe("parallel.order", "tp-cp-ep-pp-dp", "tp-dp-pp-ep-cp", "pp-dp-tp-cp-ep", odds=0.08)

    def stages(self):
        stages = self.pp * self.vpp
        way = self.one("even", "even", "even", "layout", "count", "ends") if self.pp > 1 else "even"
        layers = stages * self.one(1, 1, 2) if stages < 6 else stages
        if self.pp == 1:
            layers = self.one(1, 2, 2, 3)
        if way == "layout":
            layers = self.rng.randint(max(1, stages - 1), stages + 2)
            counts = [0] * stages
            for _ in range(layers):
                counts[self.rng.randrange(stages)] += 1
            words = ["t" * count for count in counts]
            self.put("parallel.pipeline_model_parallel_layout", "|".join(["E" + words[0], *words[1:-1], words[-1] + "L"]))
        elif self.vpp > 1:
            self.put("parallel.virtual_pipeline_model_parallel_size", self.vpp)
        if way == "count":
            layers = 2 * stages - self.one(1, 2)
            self.put("parallel.account_for_embedding_in_pipeline_split", True)
            if layers == 2 * stages - 2:
                self.put("parallel.account_for_loss_in_pipeline_split", True)
        if way == "ends" and self.vpp == 1:
            first, last, middle = self.one(1, 2), self.one(1, 2), self.one(1, 2)
            layers = first + last + middle * (self.pp - 2)
            self.put("parallel.decoder_first_pipeline_num_layers", first)
            self.put("parallel.decoder_last_pipeline_num_layers", last)
        self.layers = layers
        self.put("model.num_layers", layers)
        if self.vpp == 1 and self.pp > 1:
            self.maybe("parallel.pipeline_schedule", "1f1b", "gpipe", "zb_h1", "zb_h2", "searched", odds=0.5)
        if self.vpp == 2:
            self.maybe("parallel.pipeline_schedule", "zb_v", "dualpipe_v", "searched", odds=0.4)
        if self.get_schedule() in ("zb_h1", "zb_h2", "zb_v", "dualpipe_v", "searched"):
            self.maybe("parallel.defer_embedding_wgrad_compute", "true", odds=0.3)
        if self.get_schedule() == "searched":
            self.maybe("parallel.pipeline_live_microbatches", self.pp, 2 * self.pp, odds=0.5)
            self.maybe("parallel.pipeline_times", "1,1.5,1,0.2", ",".join(["2,2,1,0"] + ["1"] * (self.pp - 1) + ["1.5"]))
        if self.vpp > 1:
            self.maybe("parallel.overlap_p2p_comm", "true", odds=0.3)

    def get_schedule(self):
        return self.keys.get("parallel.pipeline_schedule")

    def excludes_parts(self):
        """Whether weight actions, passes in turns or parallel layers exclude graphs of parts of layers."""
        splits = self.get_schedule() in ("zb_h1", "zb_h2", "zb_v", "dualpipe_v", "searched")
        return (splits or "parallel.overlap_moe_expert_parallel_comm" in self.keys or
                "model.parallel_attention_mlp" in self.keys)

    def model(self):
        self.family = self.one("gpt", "gpt", "llama", "llama", "codegeex", "mixtral", "qwen3_moe")
        self.put("model.family", self.family)
        bare = self.family in ("mixtral", "qwen3_moe", "llama")
        self.experts = self.family in ("mixtral", "qwen3_moe") or (self.family != "codegeex" and self.chance(0.3))
        self.expert_ranks = 1  # ranks that share the experts of a layer
        rope = bare or self.chance(0.3)
        if not bare:
            self.put("model.position_embedding_type", "rope" if rope else self.one("learned_absolute", "learned_absolute", "none"))
            if self.family == "codegeex":
                del self.keys["model.position_embedding_type"]
                rope = False
        heads = self.tp * self.one(1, 1, 2, 3)
        width = self.one(4, 6, 8, 10, 16) if rope else self.one(3, 4, 5, 7, 8, 16)
        self.put("model.num_attention_heads", heads)
        if self.chance(0.2):
            self.put("model.kv_channels", width)
            self.hidden = self.one(8, 12, 15, 17, 32) * self.tp
        else:
            self.hidden = heads * width
        self.put("model.hidden_size", self.hidden)
        groups = [self.tp * d for d in (1, 2, 3) if heads % (self.tp * d) == 0]
        if self.chance(0.5):
            self.put("model.num_query_groups", self.one(*groups))
        self.put("model.ffn_hidden_size", self.tp * self.rng.randint(3, 40))
        self.put("model.vocab_size", int(round(8 * 125 ** self.rng.random())))
        self.put("model.make_vocab_size_divisible_by", self.one(1, 1, 8, 16, 128))
        self.maybe("model.rotary_base", 100, 1e6)
        if rope and width % 4 == 0 and "model.kv_channels" not in self.keys:
            self.maybe("model.rotary_percent", 0.5)
        if rope and self.chance():
            self.put("model.use_rope_scaling", "true")
            self.maybe("model.rope_scaling_factor", 2, 32, odds=0.5)
            self.maybe("model.rope_scaling_low_freq_factor", 0.5, 2, odds=0.3)
            self.maybe("model.rope_scaling_high_freq_factor", 2.5, 8, odds=0.3)
            self.maybe("model.rope_scaling_original_max_position_embeddings", 4, 16, odds=0.7)
        if not bare:
            self.maybe("model.normalization", "RMSNorm", odds=0.25)
            self.maybe("model.activation", "gelu_tanh", "quick_gelu", "silu", "relu", "squared_relu", odds=0.5)
            if self.keys.get("model.activation") != "squared_relu":
                self.maybe("model.gated_linear_unit", "true", odds=0.25)
            self.maybe("model.add_bias_linear", "false", odds=0.6 if self.experts else 0.25)
            self.maybe("model.qk_layernorm", "true", odds=0.2)
            self.maybe("model.untie_embeddings_and_output_weights", "true", odds=0.3)
        self.bare = bare or self.keys.get("model.add_bias_linear") == "false"
        self.maybe("model.add_attention_output_bias", "true")
        self.maybe("model.add_mlp_bias", "true")
        self.attention(rope)
        if rope:
            self.frequencies()
        if rope and self.keys.get("model.rope_type") != "longrope" and self.chance():
            self.latents()
        self.norms_and_positions(rope)
        self.maybe("model.add_qkv_bias", "true")
        self.maybe("model.layernorm_epsilon", 1e-6, 1e-3)
        self.maybe("model.attention_dropout", 0.1, 0.5, odds=0.25)
        self.maybe("model.hidden_dropout", 0.1, 0.5, odds=0.25)
        self.maybe("model.init_method_std", 0.005, 0.1)
        self.maybe("model.sharded_initialization", "true", odds=0.08)

    def attention(self, rope):
        codegeex = self.family == "codegeex"
        if not codegeex and self.chance():
            if self.chance(0.3):
                self.put("model.attention_chunk_size", self.one(2, 3, 10, 100))
            else:
                self.put("model.window_size", self.one(0, 1, 3, 10))
            self.maybe("model.window_attn_skip_freq", 2, 3, "[0]+[1]*%d" % (self.layers - 1), odds=0.5)
            if rope:
                self.maybe("model.rotary_base_local", 50, 10000, odds=0.3)
        self.maybe("model.softmax_type", "off-by-one", "learnable")
        self.maybe("model.softmax_scale", 0.1, 0.5)
        self.maybe("model.attn_logit_softcapping", 0.5, 20)
        self.maybe("model.final_logit_softcapping", 1, 30)
        self.maybe("model.scale_embeddings", "true")
        self.maybe("model.embedding_multiplier", 0.5, 12)
        self.maybe("model.residual_multiplier", 0.2, 2)
        self.maybe("model.residual_stream_multiplier", 0.5, 2)
        self.maybe("model.logits_scaling", 0.25, 16)
        self.maybe("model.apply_layernorm_1p", "true")
        if not codegeex and not self.experts:
            self.maybe("model.sandwich_norm", "true")
            if self.keys.get("model.sandwich_norm") == "true":
                self.maybe("model.pre_norm", "false")
            else:
                self.maybe("model.parallel_attention_mlp", "true")
        if self.keys.get("model.pre_norm") != "false":
            self.maybe("model.apply_residual_connection_post_layernorm", "true")
        if "model.parallel_attention_mlp" not in self.keys:
            self.maybe("model.residual_multiplier_mlp", 0.3, 1.5)
            self.maybe("model.residual_stream_multiplier_mlp", 0.3, 1.5)
        if self.family in ("llama", "mixtral", "qwen3_moe") or self.keys.get("model.gated_linear_unit") == "true":
            self.maybe("model.activation_func_clamp_value", 0.01, 1)
            self.maybe("model.glu_linear_offset", 1, -0.5)

    def exchange(self):
        heads = int(self.keys["model.num_attention_heads"]) // self.tp
        groups = int(self.keys.get("model.num_query_groups", self.keys["model.num_attention_heads"])) // self.tp
        words = ["p2p", "all_gather"] if self.cp > 1 or self.hybrid else []
        sinks = "model.softmax_type" in self.keys
        sizes = [n for n in (2, 4, 8) if self.dp * self.cp % n == 0] if self.hybrid else [self.cp]
        if words and not sinks and groups and all(heads % n == 0 and (groups % n == 0 or n % groups == 0) for n in sizes):
            words.append("a2a")
        levels = [n for n in range(1, self.cp + 1)
                  if self.cp % n == 0 and heads % n == 0 and groups and (groups % n == 0 or n % groups == 0)]
        words += ["a2a+p2p"] if words and levels and not self.hybrid else []
        if words:
            each = self.layers if self.chance(0.3) else 1
            drawn = [self.one(*words) for _ in range(each)]
            self.put("parallel.cp_comm_type", ",".join(drawn))
            if "a2a+p2p" in drawn:
                neighbours = self.one(*levels)
                self.put("parallel.hierarchical_context_parallel_sizes", f"{neighbours},{self.cp // neighbours}")

    def hybrid_sizes(self):
        """Documents of any length on 1, 2, 4, ... ranks each; each sample is on the largest group of its documents."""
        self.put("parallel.hybrid_context_parallel", True)
        ranks = self.dp * self.cp
        largest = max(n for n in (1, 2, 4, 8) if ranks % n == 0)
        unit = self.tp if self.sp else 1
        self.seq = max(largest, self.seq // unit) * unit
        least = -(-self.seq // (largest * unit)) * unit
        self.put("parallel.max_seqlen_per_dp_cp_rank", self.one(least, least + unit, 2 * least, self.seq))

    def batches(self):
        seq = self.rng.randint(2, 40)
        if self.sp:
            self.put("parallel.sequence_parallel", True)
        ranks_fit = self.pp == 1 and self.dp * self.cp % 2 == 0 and self.sharding in ("no_shard", "optim")
        self.hybrid = ranks_fit and not self.experts and self.chance(0.3)
        self.cut = self.one("zigzag", "contiguous", "balanced") if self.cp > 1 else "zigzag"
        if self.hybrid:
            self.cut = self.one("contiguous", "balanced", "balanced")
        unit = (self.tp if self.sp else 1) * (2 * self.cp if self.cut == "zigzag" and self.cp > 1 else self.cp)
        self.seq = max(1, seq // unit) * unit
        if self.hybrid:
            self.hybrid_sizes()
        if self.cut != "zigzag":
            self.put("parallel.context_parallel_cut", self.cut)
        if self.cut == "balanced":
            self.maybe("parallel.context_parallel_area_slack", 0, 0.3, odds=0.4)
        if self.cut == "balanced" and self.token_slack_fits() and not self.hybrid:
            self.maybe("parallel.context_parallel_token_slack", 0.1, 0.5, odds=0.5)
        self.exchange()
        self.put("train.seq_length", self.seq)
        self.maybe("model.max_position_embeddings", self.seq, self.seq + 5)
        micro = 1 if self.hybrid else self.one(1, 1, 2, 3)
        self.put("train.micro_batch_size", micro)
        group = self.pp
        if self.vpp > 1 and self.chance(0.3):
            group = self.pp + self.one(0, 1)
            self.put("parallel.microbatch_group_size_per_vp_stage", group)
        self.unit = micro * self.dp * (group if self.vpp > 1 else 1)
        way = self.one("plain", "plain", "plain", "ramp", "steps", "rounded")
        if way == "ramp":
            self.put("train.global_batch_size", 3 * self.unit)
            self.put("train.rampup_batch_size", f"{self.unit} {self.unit} {self.one(4, 6, 9) * self.unit}")
            self.put("train.train_samples", self.one(12, 15) * self.unit)
        elif way == "steps":
            first, then = self.one((1, 2), (1, 3), (2, 1), (3, 2))
            samples = self.one(2, 3) * first * self.unit
            self.put("train.step_batch_size_schedule", f"0:{first * self.unit} {samples * self.seq}:{then * self.unit}")
        elif way == "rounded" and self.vpp == 1 and self.unit > 1:
            self.put("train.global_batch_size", self.one(2, 3) * self.unit + self.unit // 2)
            self.put("train.decrease_batch_size_if_needed", True)
        else:
            self.put("train.global_batch_size", self.unit * self.one(1, 2, 3))
        self.iterations = self.one(4, 5, 6)
        if way != "ramp":
            self.put("train.train_iters", self.iterations)
        self.by_samples = way == "ramp"

    def loss(self):
        self.maybe("train.calculate_per_token_loss", "true", odds=0.25)
        self.maybe("train.label_smoothing", 0.1, odds=0.15)
        self.maybe("train.check_for_nan_in_loss", "false", odds=0.05)
        self.maybe("train.log_num_zeros_in_grad", "true", odds=0.2)
        self.maybe("train.log_params_norm", "true", odds=0.2)
        self.maybe("train.timing_log_level", 1, 2)
        self.maybe("train.tensorboard_dir", "TB", odds=0.08)
        if "train.tensorboard_dir" in self.keys:
            self.maybe("train.tensorboard_log_interval", 2)
        if self.experts:
            self.maybe("train.expert_trace_file", "TRACE", odds=0.1)
        self.maybe("train.eval_interval", 2, 3, odds=0.25)
        if "train.eval_interval" in self.keys:
            self.put("data.split", self.one("50,30,20", "1,1"))
            self.maybe("train.eval_global_batch_size", self.unit, 2 * self.unit, odds=0.3)
            self.maybe("train.full_validation", "true", odds=0.2)
        for key in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if key == "reset_position_ids" and "model.query_scaling_beta" in self.keys:
                continue
            self.maybe(f"data.{key}", "true", odds=1 if self.hybrid and key == "reset_attention_mask" else 0.08)
        if self.keys.get("data.reset_attention_mask") == "true":
            self.maybe("data.max_documents_per_sample", 1, 3, odds=0.5)
        self.maybe("data.num_workers", 0, 2)
        self.maybe("data.dataloader_type", "cyclic", odds=0 if self.hybrid else 0.15)
        if self.keys.get("data.dataloader_type") == "cyclic":
            self.put("data.data_sharding", False)
        self.maybe("run.seed", 1, 7, 99991, odds=0.3)
        self.maybe("run.name", "walk")
        self.maybe("run.backend", "threads")
        self.maybe("run.deterministic_mode", "true", odds=0.06)
        self.maybe("checkpoint.keep_last", 5, odds=0.05)
        self.maybe("checkpoint.save_retain_interval", 2, odds=0.05)

    def precision(self):
        dtype = self.one("fp32", "fp32", "bf16", "bf16", "fp16", "fp64")
        self.dtype = dtype
        if dtype != "fp32":
            self.put("precision.params_dtype", dtype)
        if dtype in ("bf16", "fp16"):
            self.maybe("precision.fp32_residual_connection", "true", odds=0.25)
            self.maybe("precision.output_logit_dtype", "fp32", odds=0.25)
            self.maybe("precision.main_grads_dtype", "params", "fp32", odds=0.25)
            if self.keys.get("precision.main_grads_dtype") == "params" and self.sharding != "no_shard":
                self.maybe("parallel.reduce_scatter_with_fp32_accumulation", "true", odds=0.5)
        if self.chance(0.15):
            self.low_precision()
        if dtype == "fp16":
            self.put("precision.initial_loss_scale", self.one(1, 65536, 2**24, 2**32))
            self.maybe("precision.loss_scale_window", 1, 2, odds=0.4)
            self.maybe("precision.hysteresis", 1, 3, odds=0.4)
            self.maybe("precision.min_loss_scale", 0.5)
        if dtype in ("bf16", "fp16", "fp32"):
            self.maybe("precision.loss_scale", 1, 128, odds=0.1)
        self.maybe("precision.check_for_nan_in_grad", "false", odds=0.05)
        self.maybe("precision.check_for_large_grads", "true")
        self.maybe("precision.grad_norm_skip_threshold", 1e-3, 0.5, 1e9, odds=0.08)

    def optim(self):
        name = self.one("adam", "adam", "adam", "sgd", "lion", "muon")
        self.put("optim.optimizer", name)
        self.put("optim.lr", self.one(1e-3, 1e-2))
        unit = "samples" if self.by_samples else "iters"
        length = int(self.keys.get("train.train_samples", self.iterations))
        style = self.one("constant", "linear", "cosine", "inverse-square-root", "WSD")
        self.put("optim.lr_decay_style", style)
        if style == "WSD":
            self.put(f"optim.lr_wsd_decay_{unit}", max(1, length // 2))
            self.maybe("optim.lr_wsd_decay_style", "linear", "cosine", "minus_sqrt", odds=0.6)
        self.maybe("optim.min_lr", 1e-4, odds=0.3)
        self.maybe(f"optim.lr_decay_{unit}", length, 2 * length, odds=0.2)
        if self.chance(0.3):
            self.put(f"optim.lr_warmup_{unit}", max(1, length // 3))
        else:
            self.maybe("optim.lr_warmup_fraction", 0.25)
        self.maybe("optim.lr_warmup_init", 1e-5)
        self.maybe("optim.weight_decay", 0, 0.1, odds=0.3)
        if self.chance(0.15):
            self.put("optim.weight_decay_incr_style", self.one("linear", "cosine"))
            self.put("optim.start_weight_decay", 0.01)
            self.put("optim.end_weight_decay", 0.2)
        if self.keys.get("model.qk_layernorm") or self.family == "qwen3_moe":
            self.maybe("optim.apply_wd_to_qk_layernorm", "true", odds=0.3)
        self.maybe("optim.clip_grad", 0, 0.1, odds=0.3)
        if self.chance(0.15):
            self.put("optim.decoupled_lr", 5e-3)
            self.maybe("optim.decoupled_min_lr", 1e-4, odds=0.3)
        self.maybe("optim.param_groups", "*.bias wd_mult=1 lr_mult=2", "*norm* lr_mult=0.5", odds=0.1)
        {"adam": self.adam, "sgd": self.sgd, "lion": self.lion, "muon": self.muon}[name]()

    def adam(self):
        self.maybe("optim.adam_beta1", 0, 0.5)
        self.maybe("optim.adam_beta2", 0.95)
        self.maybe("optim.adam_eps", 1e-5)
        if self.dtype == "bf16":
            way = self.one("", "", "remainders", "bf16")
            if way == "remainders":
                self.put("optim.store_param_remainders", True)
            elif way == "bf16":
                self.put("optim.main_params_dtype", "bf16")
        if self.dtype != "fp64":
            self.maybe("optim.exp_avg_dtype", "bf16", "8bit", odds=0.2)
            self.maybe("optim.exp_avg_sq_dtype", "bf16", "8bit", odds=0.2)
        self.maybe("optim.optimizer_cpu_offload", "true")

    def sgd(self):
        self.maybe("optim.sgd_momentum", 0, 0.5)
        self.maybe("optim.optimizer_cpu_offload", "true")

    def lion(self):
        self.maybe("optim.lion_beta1", 0.9)
        self.maybe("optim.lion_beta2", 0.9)

    def muon(self):
        self.maybe("optim.muon_momentum", 0.9)
        self.maybe("optim.muon_num_ns_steps", 1, 3)
        self.maybe("optim.muon_use_nesterov", "true")
        self.maybe("optim.muon_scale_mode", "unit_rms_norm", "shape_scaling", odds=0.3)
        self.maybe("optim.muon_extra_scale_factor", 0.2)
        self.maybe("optim.muon_coefficient_type", "simple", odds=0.3)
        self.maybe("optim.muon_split_qkv", "false", odds=0.3)

    def part(self):
        """Frozen parameters, or adapters that are trained instead of all parameters."""
        way = self.one("", "", "", "freeze", "trainable", "adapters") if self.family != "codegeex" else ""
        if way == "freeze":
            self.put("train.freeze", self.one("embedding.*", "*.mlp.*", "decoder.layers.0.*", "*linear_proj*,*layernorm*"))
        elif way == "trainable":
            self.put("train.trainable", self.one("embedding.*", "*.self_attention.*", "decoder.layers.*", "*layernorm*"))
        elif way == "adapters":
            self.put("peft.lora_rank", self.one(1, 2, 3, 8))
            self.maybe("peft.lora_alpha", 1, 16, odds=0.5)
            self.maybe("peft.lora_dropout", 0.1, 0.5, odds=0.4)
            self.maybe("peft.use_rslora", "true", odds=0.3)
            self.maybe("peft.rank_pattern", ".*_proj=2", odds=0.2)
            self.maybe("peft.alpha_pattern", "layers.0..*_proj=3", odds=0.2)
            self.maybe("peft.lora_target_modules", "o_proj", odds=0.2)
            self.maybe("peft.modules_to_save", "embed_tokens", odds=0.3)
            if "model.multi_latent_attention" not in self.keys:
                self.maybe("peft.lora_target_modules", "q_proj,v_proj", "k_proj,o_proj", odds=0.3)
            if "model.moe_latent_size" in self.keys:
                self.maybe("peft.lora_target_modules", "fc1_latent_proj,fc2_latent_proj,o_proj", odds=0.3)
            excluded = {"model.moe_enable_echo", "train.log_params_norm"} & set(self.keys) or self.dtype == "fp16"
            if not excluded and self.tp == 1 and self.sharding != "optim_grads_params":  # small shards are parts of blocks
                self.maybe("peft.base_format", "fp8", "fp8", "nvfp4", odds=0.4)
            if self.experts and not {"peft.lora_dropout", "model.moe_enable_echo"} & set(self.keys):
                self.maybe("peft.lora_target_modules", "experts.up_proj,experts.down_proj,o_proj", odds=0.5)

    def memory(self):
        self.maybe("memory.log_memory", "false", odds=0.08)
        way = self.one("none", "none", "full", "selective")
        if way == "full":
            self.put("memory.recompute_granularity", "full")
            self.put("memory.recompute_method", self.one("uniform", "block"))
            self.put("memory.recompute_num_layers", 1)
            slack = self.hybrid or "parallel.context_parallel_token_slack" in self.keys
            cuts = not slack and (self.seq * int(self.keys["train.micro_batch_size"]) * self.hidden) % self.tp == 0
            if self.tp > 1 and not self.sp and cuts:
                self.maybe("memory.distribute_saved_activations", "true", odds=0.4)
        elif way == "selective":
            self.put("memory.recompute_granularity", "selective")
            names = ["core_attn", "mlp", "layernorm", "activation"]
            if "model.multi_latent_attention" in self.keys:
                names.append("mla_up_proj")
            if self.experts:
                names += ["moe"] + (["moe_act"] if "model.moe_grouped_gemm" not in self.keys else [])
                if self.keys.get("model.moe_shared_expert_intermediate_size") and "model.moe_shared_expert_overlap" not in self.keys:
                    names.append("shared_experts")
            self.put("memory.recompute_modules", ",".join(sorted(self.rng.sample(names, self.rng.randint(1, 2)))))
        self.maybe("memory.offload_activations", "file", odds=0.08)
        tokens = self.seq * int(self.keys["train.micro_batch_size"]) // self.cp
        if tokens > 1:
            self.maybe("memory.loss_chunk_tokens", 1, tokens // 2, tokens - 1, odds=0.2)

    def multi_token(self):
        keys = self.keys
        learned = keys.get("model.position_embedding_type", "learned_absolute") == "learned_absolute"
        learned = learned and self.family in ("gpt", "codegeex")
        if (self.cp > 1 or self.hybrid or learned or "model.window_size" in keys or "model.moe_paged_stash" in keys
                or int(keys["train.seq_length"]) < 3 or not self.chance(0.25)):
            return
        self.put("model.mtp_num_layers", self.one(1, 1, 2))
        self.maybe("model.mtp_loss_scaling_factor", 0.3, 1, odds=0.4)
        layout = "parallel.pipeline_model_parallel_layout"
        if layout in keys:
            keys[layout] = keys[layout].replace("L", "m" * int(keys["model.mtp_num_layers"]) + "L")

    def linear_attention(self):
        if self.family == "codegeex" or "model.multi_latent_attention" in self.keys or "peft.lora_rank" in self.keys:
            return
        self.maybe("model.attention_output_gate", "true")
        if self.hybrid or "model.mtp_num_layers" in self.keys or "model.hybrid_layer_pattern" in self.keys or not self.chance(0.2):
            return
        self.put("model.linear_attention_freq", "[1]*%d+[0]" % (self.layers - 1) if self.layers > 1 else "[1]")
        if self.lightning_fits() and self.chance(0.5):
            self.put("model.experimental_attention_variant", "lightning_attention")
            self.maybe("model.lightning_chunk_size", 1, 3, 8, odds=0.6)
        else:
            self.put("model.experimental_attention_variant", "gated_delta_net")
            self.delta_net_sizes()
        if "model.parallel_attention_mlp" not in self.keys:
            self.maybe("model.residual_multiplier_linear", 0.3, 1.5, odds=0.3)
            self.maybe("model.residual_stream_multiplier_linear", 0.3, 1.5, odds=0.3)

    def lightning_fits(self):
        return int(self.keys["model.num_attention_heads"]) % (self.tp * self.cp) == 0

    def delta_net_sizes(self):
        heads = self.tp * self.cp * self.one(1, 1, 2)
        self.put("model.linear_num_key_heads", heads)
        self.put("model.linear_num_value_heads", heads * self.one(1, 2, 3))
        self.put("model.linear_key_head_dim", self.one(1, 4, 7))
        self.put("model.linear_value_head_dim", self.one(1, 3, 8))
        self.maybe("model.linear_conv_kernel_dim", 1, 2, 5, odds=0.5)

    def sublayers(self):
        """Layers with one sublayer each, some of them Mamba-2."""
        excluded = ("model.parallel_attention_mlp", "model.multi_latent_attention", "model.mtp_num_layers")
        if self.hybrid or self.experts or self.family == "codegeex" or any(key in self.keys for key in excluded) or not self.chance(0.15):
            return
        symbols = [self.one("M", "M", "G", "L" if self.lightning_fits() else "G", "*", "-") for _ in range(self.layers)]
        symbols[self.rng.randrange(self.layers)] = "M"
        if "-" not in symbols:
            for key in ("model.residual_multiplier_mlp", "model.residual_stream_multiplier_mlp"):
                self.keys.pop(key, None)
        self.put("model.hybrid_layer_pattern", "".join(symbols))
        if "G" in symbols:
            self.delta_net_sizes()
        groups = self.tp * self.cp * self.one(1, 2)
        self.put("model.mamba_num_groups", groups)
        self.put("model.mamba_num_heads", groups * self.one(1, 2, 3))
        self.put("model.mamba_head_dim", self.one(1, 4, 7))
        self.put("model.mamba_state_dim", self.one(1, 5, 16))
        self.maybe("model.mamba_conv_kernel_dim", 1, 3, odds=0.4)
        self.maybe("model.mamba_conv_bias", "false", odds=0.4)
        self.maybe("model.mamba_proj_bias", "true", odds=0.4)
        self.maybe("model.mamba_dt_min", 0.001, 0.02, odds=0.4)
        self.maybe("model.mamba_dt_max", 0.03, 1, odds=0.4)
        self.maybe("model.mamba_chunk_size", 1, 3, 8, odds=0.6)

    def graphs(self):
        """Settings for capturing the same run; [] if it cannot be captured."""
        ways = []
        if self.hybrid:
            return ways
        uncounted = ("model.moe_pad_expert_input_to_capacity" in self.keys or self.expert_ranks == 1 or
                     self.keys.get("model.moe_token_dispatcher_type") in ("allgather", "static_buffer"))
        stays = "memory.offload_activations" not in self.keys
        whole_experts = uncounted and "model.moe_grouped_gemm" not in self.keys
        if (not self.experts or whole_experts) and stays and "optim.optimizer_cpu_offload" not in self.keys:
            ways.append(("full_iteration", None))
        whole = self.keys.get("memory.recompute_granularity") == "full"
        if stays and not whole and self.sharding in ("no_shard", "optim") and not self.excludes_parts():
            parts = [None, "attn", "mlp", "attn,mlp"]
            if self.experts and "moe" in str(self.keys.get("memory.recompute_modules", "")).split(","):
                parts = ["attn"]
            elif self.experts:
                parts = ["attn", "attn,moe_router,moe_preprocess", "moe_router"] + ([None, "moe", "attn,moe"] if whole_experts else [])
            if "model.hybrid_layer_pattern" in self.keys:
                parts = [None, "mamba", "attn,mamba"]
            ways += [(impl, part) for impl in ("local", "transformer_engine") for part in parts]
        return ways


def draw(rng):
    """Returns (case, its forms of capture)."""
    d = Drawing(rng)
    d.layout()
    d.stages()
    d.model()
    if d.experts:
        d.route()
    d.batches()
    d.loss()
    d.precision()
    d.optim()
    d.memory()
    d.pages()
    d.multi_token()
    d.sublayers()
    d.part()
    d.linear_attention()
    return Case(d.ranks, d.keys), d.graphs()
