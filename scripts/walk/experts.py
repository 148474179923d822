"""Expert settings of a sampled configuration."""


class Experts:
    """Mixin of Drawing."""

    def route(self):
        experts_ranks = self.ranks // self.pp
        ep = self.one(*[e for e in (1, 2, 2, 3, 4) if experts_ranks % e == 0])
        etp = 1 if not self.bare else self.one(*[e for e in (1, 2, self.tp) if experts_ranks % (ep * e) == 0 and self.tp >= e])
        if (experts_ranks // (ep * etp)) % int(self.keys.get("parallel.num_distributed_optimizer_instances", 1)):
            self.keys.pop("parallel.num_distributed_optimizer_instances")
        if etp * ep != self.tp:
            self.keys.pop("parallel.order", None)
        self.sp = self.tp > 1
        self.etp, self.ep = etp, ep
        if ep > 1:
            self.put("parallel.expert_model_parallel_size", ep)
            if self.get_schedule() in (None, "1f1b", "dualpipe_v") and self.chance(0.4):
                self.put("parallel.overlap_moe_expert_parallel_comm", True)
                self.maybe("parallel.delay_wgrad_compute", "true", odds=0.3)
        if etp != self.tp:
            self.put("parallel.expert_tensor_parallel_size", etp)
        count = ep * self.one(1, 2, 2, 3) if ep > 1 else self.one(2, 3, 4, 6, 8)
        self.count = max(2, count)
        self.put("model.num_moe_experts", self.count)
        topk = self.one(*[k for k in (1, 2, 2, 3) if k <= self.count])
        self.put("model.moe_router_topk", topk)
        score = self.one("softmax", "softmax", "sigmoid", "sqrtsoftplus")
        if score != "softmax":
            self.put("model.moe_router_score_function", score)
            self.maybe("model.moe_router_enable_expert_bias", "true", odds=0.5)
            self.maybe("model.moe_router_bias_update_rate", 0.01, 0.1)
        elif topk == 1 or self.chance(0.2):
            self.put("model.moe_router_pre_softmax", True)
        if score != "softmax":
            self.maybe("model.moe_router_topk_normalization", "always", "never")
        if self.count % 2 == 0 and topk <= self.count // 2 and self.chance(0.2):
            self.put("model.moe_router_num_groups", 2)
            self.put("model.moe_router_group_topk", 1)
            self.maybe("model.moe_router_group_score_topk", 1, self.count // 2, odds=0.4)
        if self.family not in ("mixtral", "qwen3_moe") and self.layers > 1:
            self.maybe("model.moe_layer_freq", "2", "[1]*1+[0]*%d" % (self.layers - 1), odds=0.3)
        self.balance()
        self.capacity(etp * ep)
        self.maybe("model.moe_ffn_hidden_size", *[etp * n for n in (3, 8, 21)], odds=0.5)
        if "model.moe_ffn_hidden_size" not in self.keys:
            self.put("model.ffn_hidden_size", self.tp * etp * self.rng.randint(3, 12))
        if self.bare and "model.add_mlp_bias" not in self.keys and self.chance(0.3):
            self.put("model.moe_shared_expert_intermediate_size", self.tp * self.one(3, 8, 13))
            self.maybe("model.moe_shared_expert_gate", "true", odds=0.4)
            if self.keys.get("model.moe_token_dispatcher_type") in (None, "alltoall", "hierarchical", "static_buffer"):
                self.maybe("model.moe_shared_expert_overlap", "true", odds=0.4)
        self.maybe("model.moe_latent_size", 3, 8, self.hidden, odds=0.2)
        if int(self.keys.get("model.moe_latent_size", self.hidden)) % 32 == 0:
            self.maybe("model.moe_dispatch_fwd_dtype", "mxfp8", odds=0.4)
            self.maybe("model.moe_combine_bwd_dtype", "mxfp8", odds=0.4)
        if topk == 1:
            self.maybe("model.moe_apply_probs_on_input", "true", odds=0.3)
        self.maybe("model.moe_grouped_gemm", "false", odds=0.2)
        if self.keys["model.moe_router_load_balancing_type"] != "sinkhorn":
            self.maybe("model.moe_router_topk_scaling_factor", 0.5, 2.5)
        self.maybe("model.moe_router_dtype", "fp64", "fp32")
        self.maybe("model.moe_router_weight_in_fp32", "true")
        self.maybe("train.log_experts_interval", 1, 2)

    def balance(self):
        kind = self.one("aux_loss", "seq_aux_loss", "global_aux_loss", "aux_loss,seq_aux_loss", "none", "sinkhorn")
        if kind == "sinkhorn" and {"model.moe_router_num_groups", "model.moe_router_enable_expert_bias"} & self.keys.keys():
            kind = "aux_loss"
        self.put("model.moe_router_load_balancing_type", kind)
        if kind == "sinkhorn":
            for key in ("pre_softmax", "topk_scaling_factor"):
                self.keys.pop(f"model.moe_router_{key}", None)
        if kind not in ("none", "sinkhorn"):
            self.put("model.moe_aux_loss_coeff", ",".join(["0.01"] * (kind.count(",") + 1)))
        self.maybe("model.moe_z_loss_coeff", 1e-3)
        self.maybe("model.moe_input_jitter_eps", 0.01, 0.2)
        forced = self.rng.random()
        if forced < 0.06:
            self.put("model.moe_router_force_load_balancing", True)
        elif forced < 0.16:
            self.put("model.moe_router_force_skew", self.one(0.5, 1.5))
            self.maybe("model.moe_router_force_skew_period", 1, 2, odds=0.4)
        elif forced < 0.2:
            self.put("model.moe_router_force_even", True)

    def capacity(self, layer_ranks):
        self.expert_ranks = layer_ranks
        if self.keys["model.moe_router_load_balancing_type"] != "sinkhorn" and self.chance(0.35):
            self.put("model.moe_expert_capacity_factor", self.one(0.5, 1, 1.3, 2))
            self.maybe("model.moe_pad_expert_input_to_capacity", "true", odds=0.6)
            self.maybe("model.moe_token_drop_policy", "position", odds=0.3)
        dispatcher = self.one(None, "allgather", "alltoall", "hierarchical", "static_buffer", "static_buffer") if layer_ranks > 1 else self.one(None, "local", "alltoall")
        if dispatcher:
            self.put("model.moe_token_dispatcher_type", dispatcher)
        if dispatcher == "hierarchical" and layer_ranks % 2 == 0:
            self.put("parallel.expert_ranks_per_node", self.one(1, 2, layer_ranks))
        if dispatcher == "static_buffer" and "model.moe_pad_expert_input_to_capacity" in self.keys:
            del self.keys["model.moe_pad_expert_input_to_capacity"]
        if dispatcher == "static_buffer":
            self.put("model.moe_expert_rank_capacity_factor", self.one(1, 1.2, 2, 16))
            self.maybe("model.moe_rank_pair_capacity_factor", 1, 2, odds=0.2)
            self.maybe("model.moe_overflow_policy", "drop", odds=0.2)
        self.clones(dispatcher)

    def pages(self):
        static = self.keys.get("model.moe_token_dispatcher_type") == "static_buffer"
        recomputed = "moe" in str(self.keys.get("memory.recompute_modules", "")).split(",")
        # Block repeats the first layer of every chunk: all layers, if chunks have one.
        block = self.keys.get("memory.recompute_method") == "block" and self.pp == 1 and self.layers > 1
        all_layers = "memory.recompute_method" in self.keys and not block
        excluded = (recomputed or all_layers or "model.moe_overflow_policy" in self.keys or
                    "memory.offload_activations" in self.keys)
        if not static or excluded or not self.chance(0.5):
            return
        self.put("model.moe_paged_stash", True)
        self.maybe("model.moe_paged_stash_page_size", 1, 3, 8, odds=0.7)
        self.maybe("model.moe_paged_stash_buffer_size_factor_cuda", 0.5, 1, 2, 16, odds=0.6)
        self.maybe("model.moe_paged_stash_buffer_size_factor_cpu", 0.5, 16, odds=0.4)

    def clones(self, dispatcher):
        ep, count = self.ep, self.count
        if ep < 2 or dispatcher == "allgather" or "model.moe_expert_capacity_factor" in self.keys or not self.chance(0.4):
            return
        slots = self.rng.randint(1, min(3, count - count // ep))
        planner = self.one("greedy", "capfill", "exact", *(["binpack"] if slots == 1 else []))
        self.put("model.moe_enable_echo", True)
        self.put("model.moe_num_echo_experts", slots * ep)
        self.put("model.moe_echo_planner", planner)
        if planner in ("greedy", "binpack"):
            self.maybe("model.moe_echo_split", "breadth_then_depth", "local_first", odds=0.4)
        if planner == "greedy":
            self.maybe("model.moe_echo_reclaim", 0.1, 0.5, odds=0.3)
        if planner == "capfill":
            self.maybe("model.moe_echo_eps", 0, 0.1, odds=0.3)
            least = 1 + float(self.keys.get("model.moe_echo_eps", 0.01))
            if dispatcher == "static_buffer" and float(self.keys["model.moe_expert_rank_capacity_factor"]) < least:
                self.put("model.moe_expert_rank_capacity_factor", least)
        self.maybe("model.moe_echo_recompute_expert_dispatch", "true", odds=0.3)
        self.maybe("model.moe_echo_expert_dispatch_overlap", "false", odds=0.3)
        self.maybe("model.moe_echo_enable_random_offloading", "true", odds=0.2)

    def token_slack_fits(self):
        """Whether all MoE settings of the layers support different numbers of tokens per rank."""
        keys = self.keys
        return ("model.moe_expert_capacity_factor" not in keys and "model.moe_enable_echo" not in keys
                and keys.get("model.moe_token_dispatcher_type") in (None, "local", "alltoall"))
