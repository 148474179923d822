"""Draws the rounding of operands to 8 and 4 bits."""


class LowPrecision:
    """Mixin of Drawing."""

    def low_precision(self):
        self.maybe("train.log_rounding_interval", 1, 2)
        self.maybe("precision.keep_rounded_weights", "false", odds=0.2)
        if self.chance(0.3):
            return self.four_bits()
        self.put("precision.fp8_format", self.one("e4m3", "hybrid"))
        self.maybe("precision.fp8_wgrad", "false", odds=0.2)
        self.maybe("precision.fp8_output_proj", "true", odds=0.2 if self.tp == 1 else 0)
        # Shards of these small models are seldom whole blocks.
        recipes = ("delayed", "tensorwise") if self.tp > 1 else ("delayed", "tensorwise", "blockwise", "mxfp8")
        recipe = self.one(*recipes)
        self.put("precision.fp8_recipe", recipe)
        if recipe != "mxfp8" and self.sharding != "no_shard" and "model.moe_enable_echo" not in self.keys:
            self.maybe("precision.fp8_param_gather", "true", odds=0.5)
        if recipe == "delayed":
            self.maybe("precision.fp8_margin", 1, odds=0.3)
            self.maybe("precision.fp8_amax_history_len", 2, 16, odds=0.5)
            self.maybe("precision.fp8_amax_compute_algo", "max", odds=0.5)
        self.other_layers()

    def four_bits(self):
        self.put("precision.fp4_format", "e2m1")
        if self.tp > 1:
            # Shards of these small models are seldom whole blocks.
            return self.put("precision.recipe_pattern", ".*=tensorwise")
        for key in ("hadamard", "stochastic_rounding", "square_weights"):
            self.maybe(f"precision.fp4_{key}", "false", odds=0.3)
        self.maybe("precision.recipe_pattern", "layers.0.*=none", "layers.0.*=mxfp8", odds=0.3)
        self.other_layers()

    def other_layers(self):
        if int(self.keys["model.num_layers"]) > 3 and self.chance(0.3):
            self.put("precision.first_last_layers_bf16", "true")
            self.maybe("precision.num_layers_at_start_in_bf16", 0, 2, odds=0.5)
            self.maybe("precision.num_layers_at_end_in_bf16", 0, odds=0.5)
