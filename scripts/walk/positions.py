"""Positions, norms of queries and keys, and latents of a sampled configuration."""


class Positions:
    """Mixin of Drawing."""

    def norms_and_positions(self, rope):
        latent = "model.multi_latent_attention" in self.keys
        rms = self.family in ("llama", "mixtral", "qwen3_moe") or self.keys.get("model.normalization") == "RMSNorm"
        if not rms:
            self.maybe("model.add_norm_bias", "false")
        if (self.keys.get("model.qk_layernorm") == "true" or self.family == "qwen3_moe") and not latent:
            if rms:
                self.maybe("model.qk_layernorm_all_heads", "true", odds=0.4)
            if rope and "model.query_scaling_beta" not in self.keys:
                self.maybe("model.qk_layernorm_after_rope", "true", odds=0.4)
        if rope and not latent:
            self.maybe("model.no_rope_freq", 2, 3, "[%s]" % ",".join(["1"] + ["0"] * (self.layers - 1)))
            self.scaled_layers()

    def scaled_layers(self):
        """Norms without weights in layers with rotary positions, scaled queries in the others."""
        plain = self.keys.get("model.rope_type", "rope") == "rope"
        if plain and self.keys.get("model.qk_layernorm") != "true" and self.family != "qwen3_moe":
            self.maybe("model.qk_l2_norm", "true")
        rotates_later = "model.qk_layernorm_after_rope" in self.keys or "model.rotary_percent" in self.keys
        if "model.no_rope_freq" in self.keys and not rotates_later and self.chance(0.5):
            self.put("model.query_scaling_beta", self.one(0.1, 1))
            self.put("model.query_scaling_floor", self.one(1, 3, 8))

    def frequencies(self):
        self.maybe("model.rotary_interleaved", "true")
        self.maybe("model.rotary_seq_len_interpolation_factor", 0.5, 4, odds=0.06)
        if "model.use_rope_scaling" in self.keys or not self.chance():
            return
        self.maybe("model.original_max_position_embeddings", 4, 16, odds=0.7)
        if self.chance(0.3):
            return self.longrope()
        self.put("model.rope_type", "yarn")
        if "model.rotary_percent" not in self.keys:
            self.maybe("model.query_scaling_beta", 0.1, 1, odds=0.3)
        self.put("model.rotary_scaling_factor", self.one(1.5, 4, 40))
        self.maybe("model.beta_fast", 2, 4, odds=0.5)
        self.maybe("model.beta_slow", 0.5, odds=0.3)
        self.maybe("model.yarn_correction_range_round_to_int", "false", odds=0.3)
        self.maybe("model.mscale", 0.5, 1.5, odds=0.3)
        self.maybe("model.mscale_all_dim", 0.5, 1, odds=0.3)
        self.maybe("model.yarn_attention_factor", 0.5, 1.2, odds=0.2)

    def longrope(self):
        self.put("model.rope_type", "longrope")
        self.keys.setdefault("model.original_max_position_embeddings", 8)
        width = int(self.keys.get("model.kv_channels", self.hidden // int(self.keys["model.num_attention_heads"])))
        pairs = int(width * float(self.keys.get("model.rotary_percent", 1))) // 2
        for name in ("short", "long"):
            self.put(f"model.longrope_{name}_factor", ",".join(str(self.one(1, 1.5, 4, 30)) for _ in range(pairs)))

    def latents(self):
        for key in ("kv_channels", "num_query_groups", "rotary_percent", "query_scaling_beta"):
            self.keys.pop(f"model.{key}", None)
        if "model.use_rope_scaling" in self.keys:
            self.put("model.rope_type", "rope")
        self.put("model.multi_latent_attention", True)
        self.maybe("model.q_lora_rank", 3, 8, 17, odds=0.5)
        self.put("model.kv_lora_rank", self.one(2, 5, 16))
        self.put("model.qk_head_dim", self.one(1, 4, 7, 16))
        self.put("model.qk_pos_emb_head_dim", self.one(2, 4, 10))
        self.put("model.v_head_dim", self.one(1, 4, 6, 16))
        self.maybe("model.latent_layernorm_epsilon", 1e-6, 1e-3)
