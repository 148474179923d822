"""Mutants of the readers of Megatron-LM's checkpoints: rows as in table.py."""

MUTANTS = [
    ("gate_and_up_are_divided_together", "mcore/contents_torch.cpp", "is_gated ? 2 : 1", "is_gated ? 1 : 1", "mcore_test"),
    ("first_dimension_is_always_divided", "mcore/contents_torch.cpp", 'if (ends({"linear_proj.weight", "linear_fc2.weight"})) return 1;', "", "mcore_test"),
    ("layers_of_stages_are_not_offset", "mcore/contents_torch.cpp", "first_layer += last_layer_ + 1;", "first_layer += last_layer_;", "mcore_test"),
    ("experts_of_ranks_are_not_offset", "mcore/contents_torch.cpp", "rank.ep * local + expert, rest", "0 * rank.ep * local + expert, rest", "mcore_test"),
    ("divided_latents_are_replicas", "mcore/contents_torch.cpp", "is_divided_latent(name, tensor) ? 0 :", "false && is_divided_latent(name, tensor) ? 0 :", "mcore_test"),
    ("first_layer_for_all", "mcore/names.cpp", "whole(group_ + inner_ + name, {number_}, shape)", "whole(group_ + inner_ + name, {0 * number_}, shape)", "mcore_test"),
    ("chunks_begin_at_0", "mcore/source.cpp", "stored_offset.push_back(offset[dim] - part.offset[dim]);", "stored_offset.push_back(offset[dim]);", "mcore_test"),
    ("missing_chunks_pass", "mcore/source.cpp", "MPX_CHECK(copied == theirs.count(),", "MPX_CHECK(copied <= theirs.count(),", "mcore_test"),
    ("unknown_tensors_pass", "mcore/source.cpp", "if (!known.contains(name) && !is_redundant(name))", "if (known.empty() && !is_redundant(name))", "mcore_test"),
    ("latent_halves_are_rotated", "mcore/settings.cpp", 'if (is_true(contents.arguments, "multi_latent_attention")) settings', 'if (is_true(contents.arguments, "latent")) settings', "mcore_test MegatronSettings*"),
    ("false_flags_count", "mcore/settings.cpp", '{"--disable-bias-linear", "add_bias_linear", "False"}', '{"--disable-bias-linear", "add_bias_linear", "True"}', "mcore_test"),
    ("items_have_any_size", "mcore/contents_torch_dist.cpp", "const bool fits = read.dtype == tensor.dtype &&", "const bool fits = read.dtype == tensor.dtype ||", "mcore_test"),
    ("negative_numbers_lose_their_sign", "pickle/value_read.cpp", "if (negative && bytes < 8)", "if (negative && bytes > 8)", "pickle_test"),
    ("names_have_any_length", "pickle/value_read.cpp", "if (module.size() + name.size() > kMaxName)", "if (module.size() > kMaxName && name.empty())", "pickle_test"),
    ("pops_ignore_marks", "pickle/value_read.cpp", "size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }", "size_t floor() const { return 0; }", "pickle_test"),
    ("tensors_exceed_storages", "pickle/torch_file.cpp", "offset > stored - *count", "offset > stored", "pickle_test"),
    ("checksums_are_not_compared", "pickle/torch_file.cpp", "MPX_CHECK(compute_crc32(entry.data) == entry.crc32,", "MPX_CHECK(!entry.data.empty() || entry.crc32 == 0,", "pickle_test"),
]
