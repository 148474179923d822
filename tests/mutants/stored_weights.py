"""Mutants of weights that are stored as codes: rows as in table.py."""

MUTANTS = [
    ("codes_saturate", "kernels/weight_codes.h", "return magnitude > scale * most ? 2 * scale : scale;", "return scale;", "nn_test StoredWeight*", "stmt"),
    ("largest_code_decides_the_scale", "kernels/weight_codes.h", "return power_scale(magnitude, kE4m3Limit);", "return power_scale(magnitude, 448);", "nn_test StoredWeight*", "stmt"),
    ("scales_of_blocks_are_subnormal", "kernels/weight_codes.h", "scale < kLeast ? kLeast : scale", "scale < kLeast * 0x1p-3F ? kLeast : scale", "nn_test StoredWeight*", "expr"),
    ("pairs_of_codes_are_swapped", "kernels/weight_codes.h", "static_cast<uint8_t>(low | high << 4)", "static_cast<uint8_t>(high | low << 4)", "nn_test StoredWeight*; run_test StoredWeights*", "expr"),
    ("codes_of_nan_are_numbers", "kernels/small_codes.h", "magnitude > 0x7F800000U", "magnitude > 0xFF800000U", "nn_test StoredWeight*", "expr"),
    ("scale_of_the_first_matrix", "kernels/weight_codes_cpu.cpp", "row / shape.rows * shape.row_blocks() + row % shape.rows / kE4m3Block", "row % shape.rows / kE4m3Block", "nn_test StoredWeight*", "expr"),
    ("codes_on_a_gpu_in_other_blocks", "kernels/weight_codes.cu", "at % shape.columns / kE4m3Block", "int64_t{0}", "kernels_on_host WeightCodes*", "expr"),
    ("wide_codes_in_reverse", "kernels/weight_codes.cu", "all >> (8 * i)", "all >> (56 - 8 * i)", "kernels_on_host WeightCodes*", "expr"),
    ("codes_with_the_scale_of_a_shard", "nn/stored_weight.cpp", "  comm::all_reduce(all, stored.shards, comm::ReduceOp::max);\n", "", "run_test StoredWeights.Shards*", "stmt"),
    ("blocks_in_two_shards", "nn/stored_weight.cpp", "!whole", "whole", "nn_test StoredWeight*", "expr"),
    ("experts_of_the_base_are_not_stored", "moe/experts.cpp", "  for (nn::Param* weight : {&fc1_, &fc2_}) nn::store_as_codes(*weight, context, at.inner);\n", "", "run_test StoredWeights*", "stmt"),
    ("experts_with_codes_without_shards", "moe/context.cpp", "config.precision.has_tensor_factors() || config.peft.stores_codes()", "config.precision.has_tensor_factors()", "run_test StoredWeights.Shards*", "expr"),
    ("loaded_values_are_not_encoded", "run/state.cpp", "      if (state.store) state.store(values);\n", "", "run_test StoredWeights.Checkpoints*", "stmt"),
    ("stored_weights_are_not_compared", "verify/gather.cpp", "param->stored && what == GatherKind::data", "param->stored && what != GatherKind::data", "run_test StoredWeights.E*", "expr"),
    ("codes_take_no_memory", "step/rank_model.cpp", "if (param->stored) bytes += param->stored->bytes();", "bytes += param->stored ? 0 : 0;", "run_test StoredWeights.Base*", "stmt"),
    ("all_replicas_write_the_same_codes", "step/state_tensors.cpp", "sharded ? ranks.replicas.index() : ranks.index()", "ranks.replicas.index()", "run_test StoredWeights.Checkpoints*", "expr"),
    ("codes_in_fp16", "config/rules_peft.cpp", "config.precision.params_dtype != ParamsDtype::fp16", "rules.dp >= 0", "config_test Refusals*", "expr"),
    ("sharded_codes_pass", "config/rules_peft.cpp", "!config.parallel.sharding().parameters", "rules.dp >= 0", "config_test Refusals*", "expr"),
]
