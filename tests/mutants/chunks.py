"""Mutants of attention inside chunks, norms without weights, scaled queries and the family llama4_text: rows as in drawn.py."""

FAMILY = "hf/families/llama4.cpp"
PARITY = "metroplex_hf_parity llama4_text"
CHUNKS = "run_test AnyLayoutEqualsOneRank.Chunks*"

MUTANTS = [
    ("chunk_begins_at_its_query", "kernels/attention_shape.h", "chunk > 0 ? place % chunk : reach", "chunk > 0 ? chunk - 1 : reach", "nn_test BlockedAttention*", "expr"),
    ("tile_hides_no_other_chunk", "kernels/attention_tile.h", "seen.last - of_keys.first > shape_.reach_from(seen.last)", "false", "nn_test BlockedAttention*", "expr"),
    ("tile_trims_keys_by_its_last_query", "kernels/attention_tile.h", "of_queries.first - key_place_[j] > shape_.reach_from(of_queries.first)", "of_queries.last - key_place_[j] > shape_.reach_from(of_queries.last)", "nn_test BlockedAttention*", "expr"),
    ("products_count_chunks_from_their_first_row", "nn/attention_by_products.cpp", "shape.reach_from(shape.query_rows.first + chunk.first_query)", "shape.reach_from(chunk.first_query)", "nn_test AttentionByProducts*", "expr"),
    ("chunk_blocks_take_the_first_keys", "nn/attention_blocks.cpp", "block.keys.first += seen.rows_before;", "", "nn_test AttentionBlocks*", "stmt"),
    ("chunk_of_one_range_is_one_call", "nn/library_attention.cpp", "!is_same_range || call.spec.chunk > 0", "!is_same_range", "nn_test ContextAttention.IsBy*", "expr"),
    ("chunk_in_every_layer", "nn/attention.cpp", "core.chunk = windows[layer] ? model.attention_chunk_size : 0;", "core.chunk = model.attention_chunk_size;", PARITY, "stmt"),
    ("l2_norm_in_every_layer", "nn/attention.cpp", "model.qk_l2_norm && config::rope_layers(model)[layer_in_pattern(spec, model)]", "model.qk_l2_norm", PARITY, "expr"),
    ("l2_norm_has_a_parameter", "nn/norm.cpp", "if (spec_.has_weight) params.push_back(&weight_);", "params.push_back(&weight_);", PARITY, "stmt"),
    ("query_scale_from_position_zero", "nn/rope.cpp", "at::arange(table.cos.size(0), at::kDouble) + spec_.query_offset", "at::arange(table.cos.size(0), at::kDouble)", PARITY, "expr"),
    ("query_scale_rotates", "nn/rope.cpp", "if (!spec_.rotates) angles = at::zeros_like(angles);", "", PARITY, "stmt"),
    ("query_scale_in_rotated_layers", "models/block.cpp", "model.yarn() && !local && model.query_scaling_floor == 0", "model.yarn() && !local", "models_test QueryScaling*", "expr"),
    ("chunks_allow_padding", "run/generate.cpp", "model.attention_chunk_size == 0 || shortest == longest", "true", "run_test Generate*", "expr"),
    ("llama4_chunks_follow_their_default", FAMILY, 'typed_layers(config, "chunked_attention", rotated)', "rotated", "hf_test HfConfig*", "expr"),
    ("llama4_experts_from_the_first_layer", FAMILY, "(i + 1) % step == 0", "i % step == 0", "hf_test HfConfig*", "expr"),
    ("llama4_dense_width_of_experts", FAMILY, 'config.integer("intermediate_size_mlp", 16384)', 'config.integer("intermediate_size")', "hf_test HfConfig*", "expr"),
    ("llama4_experts_scale_their_outputs", FAMILY, 'set(settings, "moe_apply_probs_on_input", true);', "", PARITY, "stmt"),
    ("llama4_columns_alternate", "hf/decoder.cpp", "interleaved ? 2 : 1", "2", PARITY, "expr"),
    ("llama4_scale_is_not_written", FAMILY, 'json["attn_scale"] = m.query_scaling_beta, json["floor_scale"] = m.query_scaling_floor;', 'json["floor_scale"] = m.query_scaling_floor;', "hf_test HfConfig*", "stmt"),
]
