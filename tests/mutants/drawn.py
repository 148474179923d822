"""Mutants sampled without a look at the tests: rows of table.py with a sixth field, the kind of scripts/mutant_switch.py.
A row without a kind cannot be switched at run time. Run them with scripts/mutants.py --table drawn."""

HF_KEYS = "hf_test"
HF_WRITES = "hf_test; apps/huggingface_test.sh"
ADAPTERS = "run_test Adapters*; apps/adapters_test.sh"
JINJA = "text_test ChatTemplates*"
SETTINGS = "hf/decoder_settings.cpp"
DECODER = "hf/decoder.cpp"
ROUTING = "hf/decoder_experts.cpp"
FILTERS = "text/jinja/interpreter_filters.cpp"
LISTS = "text/jinja/interpreter_list_filters.cpp"
STEP_MATH = "kernels/step_state_math.h"
CHATS = "text_test Chat*"
SCHEDULES = "optim_test LrSchedule*:ScheduleArgs*; metroplex_vectors lr_schedules"
LAUNCHES = "megatron_test LaunchScripts*"
MEGATRON = "megatron_test Megatron*"
GRAPHS = "pipeline_test ExecutorGraphs*:StageGraphs*:Islands*; run_test PartialGraphs*"
LAYOUTS = "run_test AnyLayoutEqualsOneRank*"


def parity(*directories):
    return f"hf_test; metroplex_hf_parity {' '.join(directories)}"


MUTANTS = [
    # hf: keys of config.json that are read.
    ("drawn_yarn_truncate_default", SETTINGS, "declared.flag(\"truncate\", true)", "declared.flag(\"truncate\", false)", parity("deepseek_v3_yarn", "gpt_oss"), "expr"),
    ("drawn_yarn_beta_slow_default", SETTINGS, "declared.number(\"beta_slow\", 1.0)", "declared.number(\"beta_slow\", 2.0)", parity("deepseek_v3_yarn"), "expr"),
    ("drawn_yarn_positions_of_the_model", SETTINGS, "declared.integer(\"original_max_position_embeddings\", positions)", "positions", parity("deepseek_v3_yarn", "gpt_oss"), "expr"),
    ("drawn_yarn_attention_factor_without_one", SETTINGS, "0.1 * std::log(factor) + 1.0", "0.1 * std::log(factor)", parity("deepseek_v3_yarn", "gpt_oss"), "expr"),
    ("drawn_llama3_positions_of_the_model", SETTINGS, "declared.integer(\"original_max_position_embeddings\", config.integer(\"max_position_embeddings\", 2048))", 'config.integer("max_position_embeddings", 2048)', parity("llama_llama3_rope_tied"), "expr"),
    ("drawn_partial_rotary_in_rope_only", SETTINGS, "declared.number(\"partial_rotary_factor\", config.number(\"partial_rotary_factor\", 1.0))", "declared.number(\"partial_rotary_factor\", 1.0)", HF_KEYS, "expr"),
    ("drawn_window_without_own_position", SETTINGS, "set(settings, \"window_size\", window - 1);", "set(settings, \"window_size\", window);", parity("gemma2", "gpt_oss"), "stmt"),
    ("drawn_max_window_layers_default", SETTINGS, 'config.integer("max_window_layers", 28)', 'config.integer("max_window_layers", 0)', HF_KEYS, "expr"),
    ("drawn_rms_epsilon_default", SETTINGS, 'config.number(epsilon, 1e-6)', 'config.number(epsilon, 1e-5)', HF_KEYS, "expr"),
    ("drawn_attention_dropout_ignored", SETTINGS, 'config.number("attention_dropout", 0.0)', "0.0", HF_KEYS, "expr"),
    ("drawn_null_is_the_default", "hf/config_reader.cpp", "config_.contains(key) ? 0 : otherwise", "otherwise", parity("deepseek_v2_lite"), "expr"),
    ("drawn_gemma_scale_by_head_size", "hf/families/gemma.cpp", 'config.number("query_pre_attn_scalar", 256.0)', 'config.number("head_dim", 256.0)', parity("gemma2", "gemma3"), "expr"),
    ("drawn_gemma3_local_theta_ignored", "hf/families/gemma.cpp", "declared.number(\"rope_theta\", local)", "local", parity("gemma3"), "expr"),
    ("drawn_gemma3_pattern_default", "hf/families/gemma.cpp", "config.integer(pattern, 6)", "config.integer(pattern, 5)", HF_KEYS, "expr"),
    ("drawn_gpt_oss_limit_ignored", "hf/families/gpt_oss.cpp", 'config.number("swiglu_limit", 7.0)', "7.0", parity("gpt_oss"), "expr"),
    ("drawn_gpt_oss_windows_in_odd_layers", "hf/families/gpt_oss.cpp", "i % 2 == 0", "i % 2 == 1", parity("gpt_oss"), "expr"),
    ("drawn_qwen3_moe_step_from_the_first", ROUTING, "(i + 1) % step == 0", "i % step == 0", parity("qwen3_moe_unnormalized"), "expr"),
    ("drawn_mixtral_jitter_ignored", "hf/families/mixtral.cpp", 'config.number("router_jitter_noise", 0)', "0.0", parity("mixtral"), "expr"),
    ("drawn_deepseek_latent_epsilon_of_the_model", "hf/families/deepseek.cpp", "set(settings, \"latent_layernorm_epsilon\", kLatentEpsilon);", "set(settings, \"latent_layernorm_epsilon\", config.number(\"rms_norm_eps\", 1e-6));", parity("deepseek_v2", "deepseek_v3"), "stmt"),
    ("drawn_deepseek_scaling_default", ROUTING, "config.number(\"routed_scaling_factor\", defaults.scaling)", "defaults.scaling", parity("deepseek_v2", "deepseek_v3"), "expr"),
    # hf: keys that are written.
    ("drawn_truncate_written_true", DECODER, 'rope["truncate"] = m.yarn_correction_range_round_to_int;', 'rope["truncate"] = true;', HF_WRITES, "stmt"),
    ("drawn_attention_factor_not_written", DECODER, 'if (m.yarn_attention_factor > 0) rope["attention_factor"] = m.yarn_attention_factor;', "", HF_WRITES, "stmt"),
    ("drawn_switched_window_written_shorter", DECODER, 'json["sliding_window"] = m.window_size + 1', 'json["sliding_window"] = m.window_size', HF_WRITES, "expr"),
    ("drawn_second_multi_token_prefix", DECODER, "multi_token_prefix(model.num_layers + i)", "multi_token_prefix(model.num_layers)", HF_WRITES, "expr"),
    ("drawn_norm_topk_written_true", ROUTING, 'json["norm_topk_prob"] = !m.moe_router_pre_softmax;', 'json["norm_topk_prob"] = true;', HF_WRITES, "stmt"),
    ("hf_unread_keys_are_ignored", "hf/config_reader.cpp", "!read_.contains(key)", "false", HF_KEYS, "expr"),
    ("hf_any_family_represents_a_model", "hf/family_represents.cpp", "!is_equal(one[i], two[i])", "false", HF_WRITES, "expr"),
    ("hf_partial_rope_is_read_by_all", SETTINGS, "partial == PartialRope::read || share == 1", "true", HF_KEYS, "expr"),
    ("hf_fused_mlp_up_first", DECODER, "for (const std::string& layer : {names.mlp_gate, names.mlp_up})", "for (const std::string& layer : {names.mlp_up, names.mlp_gate})", parity("seed_oss", "qwen2_moe")),
    ("hf_norm_bias_is_left_out", DECODER, "model.normalization == config::Normalization::LayerNorm", "false", parity("nemotron", "starcoder2"), "expr"),
    ("drawn_topk_group_written_as_groups", ROUTING, "std::max<int64_t>(1, m.moe_router_group_topk)", "std::max<int64_t>(1, m.moe_router_num_groups)", HF_WRITES, "expr"),
    ("drawn_gemma3_local_theta_written_global", "hf/families/gemma.cpp", "m.has_window() ? base : 10000.0", "m.has_window() ? m.rotary_base : 10000.0", HF_WRITES, "expr"),
    ("drawn_shards_by_one_tensor", "hf/directory_export.cpp", "held + bytes > static_cast<uint64_t>(most)", "bytes > static_cast<uint64_t>(most)", HF_WRITES, "expr"),
    ("drawn_total_size_of_the_last", "hf/directory_export.cpp", "total += theirs.bytes();", "total = theirs.bytes();", HF_WRITES, "stmt"),
    # hf: adapters.
    ("drawn_merged_region_of_first_group", "hf/merged.cpp", "group * box.size + inside", "group * 0 + inside", f"hf_test; {ADAPTERS}", "expr"),
    ("drawn_merged_columns_from_the_first", "hf/merged.cpp", "a.data() + k * columns + region.offset[1] + first", "a.data() + k * columns + first", f"hf_test; {ADAPTERS}", "expr"),
    ("drawn_rslora_not_written", "hf/directory_peft.cpp", "peft.use_rslora", "false", f"hf_test; {ADAPTERS}", "expr"),
    ("drawn_rslora_scale_by_rank", "config/peft.cpp", "use_rslora ? std::sqrt(rank) : rank", "use_rslora ? rank : rank", f"config_test; {ADAPTERS}", "expr"),
    ("drawn_shared_expert_adapter_width", "config/peft.cpp", "shared ? m.moe_shared_expert_intermediate_size : ffn_width(m)", "shared ? ffn_width(m) : ffn_width(m)", f"config_test; {ADAPTERS}", "expr"),
    # text: optional arguments of filters.
    ("drawn_map_default_ignored", LISTS, "found.is_undefined() && fallback != nullptr ? *fallback : found", "found.is_undefined() && fallback != nullptr ? found : found", JINJA, "expr"),
    ("drawn_dictsort_by_anything", LISTS, 'order == "value" ? 1 : 0', 'order != "value" ? 1 : 0', JINJA, "expr"),
    ("drawn_dictsort_reverse_second", LISTS, "has_true_argument(arguments, 2, \"reverse\")", "has_true_argument(arguments, 1, \"reverse\")", JINJA, "expr"),
    ("drawn_sum_start_ignored", LISTS, "start != nullptr ? *start : Value(int64_t{0})", "start != nullptr ? Value(int64_t{0}) : Value(int64_t{0})", JINJA, "expr"),
    ("drawn_extreme_case_ignored", LISTS, "return fold_case(path != nullptr ? resolve_path(run, value, *path) : value, sensitive);", "return fold_case(path != nullptr ? resolve_path(run, value, *path) : value, sensitive && false);", JINJA, "stmt"),
    ("drawn_map_filter_loses_names", LISTS, "rest.named = arguments.named;", "", JINJA, "stmt"),
    ("drawn_first_part_is_no_number", LISTS, "number ? Value(int64_t{std::stol(name)}) : Value(name)", "number && begin > 0 ? Value(int64_t{std::stol(name)}) : Value(name)", JINJA, "expr"),
    ("drawn_int_binary_prefix", FILTERS, "base == of && digits.starts_with(prefix)", "base == of && of > 2 && digits.starts_with(prefix)", JINJA, "expr"),
    ("drawn_float_default_ignored", FILTERS, "fallback != nullptr ? *fallback : Value(0.0)", "fallback != nullptr ? Value(0.0) : Value(0.0)", JINJA, "expr"),
    ("drawn_default_boolean_false", FILTERS, "boolean != nullptr && boolean->truth() && !value.truth()", "boolean != nullptr && !value.truth()", JINJA, "expr"),
    ("drawn_indent_first_false", FILTERS, "first != nullptr && first->truth()", "first != nullptr", JINJA, "expr"),
    ("drawn_indent_blank_ignored", FILTERS, "all || !line.empty()", "(all || true) && !line.empty()", JINJA, "expr"),
    ("drawn_tojson_indent_separator", FILTERS, 'style.item_separator = ",";', "", JINJA, "stmt"),
    ("drawn_round_places_of_method", FILTERS, '(how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale', '(how == "ceil" ? std::ceil(scaled) : std::floor(scaled))', JINJA, "expr"),
    # config.
    ("drawn_hybrid_limit_rounds_down", "config/derived.cpp", "(seq + parallel.cp() - 1) / parallel.cp()", "seq / parallel.cp()", "config_test HybridContextRules*; plan_test; run_test HybridContext*", "expr"),
    ("drawn_hybrid_multiple_rounds_down", "config/derived.cpp", "(most + multiple - 1) / multiple * multiple", "most / multiple * multiple", "config_test; run_test HybridContext*", "expr"),
    ("drawn_context_tokens_any_multiple", "config/derived.cpp", "static_cast<int64_t>(most + 1e-6) / multiple * multiple", "static_cast<int64_t>(most + 1e-6) + multiple * 0", "config_test; plan_test SequenceCut*; run_test SequencePart*", "expr"),
    ("drawn_rank_capacity_without_etp", "config/experts.cpp", "ranks * most_rows_of_pair(model, tokens, ep)", "ep * most_rows_of_pair(model, tokens, ep)", "config_test; moe_test StaticBuffers*", "expr"),
    ("drawn_even_rows_without_etp", "config/experts.cpp", "etp * tokens * model.moe_router_topk", "(etp > 0 ? 1 : 0) * tokens * model.moe_router_topk", "config_test; run_test PagedStash*", "expr"),
    ("drawn_cudnn_any_number_of_keys", "config/attention.cpp", "c.queries % 128 == 0 && c.keys % 128 == 0", "c.queries % 128 == 0", "config_test Attention*", "expr"),
    ("drawn_documents_round_down", "config/attention.cpp", "(config.train.seq_length + kRowsOfADocument - 1) / kRowsOfADocument", "config.train.seq_length / kRowsOfADocument", "config_test Attention*; nn_test BlockDocuments*", "expr"),
    ("drawn_mlp_keeps_its_product", "config/memory.h", '{"mlp", {SavePoint::fc1, SavePoint::activation}}', '{"mlp", {SavePoint::activation}}', "config_test Memory*; nn_test; models_test Recompute*"),
    # data.
    ("drawn_long_sums_in_even_halves", "data/blend.cpp", "n / 2 - n / 2 % 8", "n / 2", "data_test Blend*", "expr"),
    ("drawn_blend_cache_without_size", "data/blend.cpp", 'description << "blend, version 1\\nname " << name << "\\nsize " << (size ? *size : -1) << "\\n";', 'description << "blend, version 1\\nname " << name << "\\n";', "data_test", "stmt"),
    ("drawn_blend_cache_without_sizes", "data/blend.cpp", 'description << weights[d] << " of " << sizes[d] << "\\n";', 'description << weights[d] << "\\n";', "data_test", "stmt"),
    ("drawn_surplus_before_ceil", "data/blend.cpp", "std::ceil(std::ceil(static_cast<double>(sizes[i]) * weight) * (1 + surplus))", "std::ceil(static_cast<double>(sizes[i]) * weight * (1 + surplus))", "data_test; metroplex_vectors blending", "expr"),
    ("drawn_seed_of_32_bits", "data/numpy_random.cpp", "if (seed >> 32 != 0) entropy.push_back(static_cast<uint32_t>(seed >> 32));", "", "data_test NumpyRandom*", "stmt"),
    ("drawn_need_without_last_label", "data/gpt_index.cpp", "static_cast<double>(options.num_samples) * step + 1", "static_cast<double>(options.num_samples) * step", "data_test GptIndex*:TokenCount*", "expr"),
    ("drawn_final_epoch_share", "data/gpt_index.cpp", "constexpr double kFinalEpochThreshold = 0.80;", "constexpr double kFinalEpochThreshold = 0.85;", "data_test GptIndex*; metroplex_vectors gpt_dataset_index"),
    # files.
    ("drawn_replaced_before_sync", "files/file_system.cpp", "    file->sync();\n    file->close();\n    rename(part, path);\n", "    file->close();\n    rename(part, path);\n", "files_test; checkpoint_test", "stmt"),
    ("drawn_folder_name_not_synced", "files/file_system.cpp", "sync_directory(parent);", "", "files_test; checkpoint_test", "stmt"),
    ("drawn_mark_stays_in_the_folder", "files/file_system.cpp", "    remove(mark);\n", "", "files_test FileSystem*; apps/huggingface_test.sh", "stmt"),
    ("drawn_safetensors_not_synced", "files/safetensors.cpp", "  file_->sync();\n", "", "files_test Safetensors*:FaultFileSystem*; checkpoint_test", "stmt"),
    ("drawn_safetensors_header_unaligned", "files/safetensors.cpp", "(text.size() + 7) / 8 * 8", "text.size()", "files_test Safetensors*; hf_test", "expr"),
    ("drawn_npy_header_below_256", "files/npy.cpp", "static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9])", "static_cast<unsigned char>(text[8]) + 0u", "files_test Npy*", "expr"),
    # checkpoint.
    ("drawn_side_file_not_synced", "checkpoint/save.cpp", "    to->sync();\n", "", "checkpoint_test", "stmt"),
    ("drawn_save_folder_not_synced", "checkpoint/save.cpp", "    disk_.sync_directory(root_);\n", "", "checkpoint_test", "stmt"),
    ("drawn_bytes_of_the_last_file", "checkpoint/save.cpp", "result.bytes += file.bytes;", "result.bytes = file.bytes;", "checkpoint_test", "stmt"),
    ("drawn_error_read_as_note", "checkpoint/save.cpp", 'json.at("error")', 'json.at("note")', "checkpoint_test; run_test BackgroundSaves*", "expr"),
    ("drawn_branch_bound_of_the_child", "checkpoint/directory_history.cpp", "named ? std::min(named->iteration + 1, from.iteration) : from.iteration", "named ? from.iteration : from.iteration", "checkpoint_test History*", "expr"),
    ("drawn_interval_alone_keeps_none", "checkpoint/directory_retention.cpp", "std::max<int64_t>(retention.keep_last, 1)", "std::max<int64_t>(retention.keep_last, 0)", "checkpoint_test Retention*", "expr"),
    ("drawn_any_nan_is_equal", "checkpoint/compare.cpp", "std::isnan(x) && std::isnan(y)", "std::isnan(x) || std::isnan(y)", "checkpoint_test Compare*", "expr"),
    ("drawn_norm_of_the_last_difference", "checkpoint/compare.cpp", "difference.norm += counted * counted;", "difference.norm = counted * counted;", "checkpoint_test Compare*", "stmt"),
    ("drawn_rewrite_share_rounds_down", "checkpoint/rewrite.cpp", "total / ranks + (total % ranks != 0 ? 1 : 0)", "total / ranks", "checkpoint_test Rewrite*", "expr"),
    # plan.
    ("drawn_flops_of_multi_token_by_first", "plan/model_flops.cpp", "pattern.back() ? mtp : 0", "pattern.front() ? mtp : 0", "plan_test Flops*; metroplex_vectors flops_memory", "expr"),
    ("drawn_idle_of_multi_token_by_first", "plan/model_flops.cpp", "!expert.layer_is_moe.empty() && expert.layer_is_moe.back() ? shape.mtp_num_layers : 0", "!expert.layer_is_moe.empty() && expert.layer_is_moe.front() ? shape.mtp_num_layers : 0", "plan_test; forecast_test DryRun*", "expr"),
    ("drawn_latent_scores_by_keys", "plan/model_flops.cpp", "squares * heads * (qk + v) / 2", "squares * heads * qk", "plan_test Flops*; metroplex_vectors flops_memory", "expr"),
    ("drawn_bubble_without_chunks", "replay/timeline.cpp", "static_cast<double>(num_chunks) * num_microbatches *", "static_cast<double>(num_microbatches) *", "draw_test Timeline*", "expr"),
    ("drawn_blocking_call_of_the_other", "replay/timeline.cpp", "std::max(now, other->second) + costs_.p2p", "other->second + costs_.p2p", "draw_test Timeline*", "expr"),
    ("drawn_hybrid_load_of_the_last", "plan/hybrid_context.cpp", "plan.load[static_cast<size_t>(rank)] += microbatch.cost;", "plan.load[static_cast<size_t>(rank)] = microbatch.cost;", "plan_test HybridContext*", "stmt"),
    ("drawn_hybrid_mean_by_microbatches", "plan/hybrid_context.cpp", "static_cast<double>(load.size())", "static_cast<double>(microbatches.size())", "plan_test HybridContext*; apps/hybrid_context_test.sh", "expr"),
    ("drawn_hybrid_padding_of_few_units", "plan/hybrid_context.cpp", "std::max<int64_t>(units, bin.ranks) * request_.multiple", "units * request_.multiple", "plan_test HybridContext*", "expr"),
    # topology.
    ("drawn_group_size_of_the_last", "topology/cluster.cpp", "std::max(result.group_size, static_cast<int>(group.size()))", "static_cast<int>(group.size())", "topology_test Cluster*", "expr"),
    ("drawn_nodes_of_the_last_group", "topology/cluster.cpp", "std::max(result.max_nodes, touched)", "touched", "topology_test Cluster*", "expr"),
    ("drawn_rank_text_swaps_experts", "topology/rank_grid.cpp", 'base::concat(" ep ", at.ep, " etp ", at.etp, " edp ", at.edp)', 'base::concat(" ep ", at.etp, " etp ", at.ep, " edp ", at.edp)', "topology_test RankGrid*", "expr"),
    ("drawn_gtp_named_twice", "topology/rank_grid.cpp", "text == name(Axis::tp) && !named", "text == name(Axis::tp) && (!named || gtp > 1)", "topology_test RankGrid*; metroplex_vectors rank_groups", "expr"),
    # nn.
    ("drawn_yarn_no_lower_limit", "nn/rope.cpp", "std::max(first, 0.0)", "first", "nn_test Rope*; metroplex_hf_parity deepseek_v3_yarn gpt_oss", "expr"),
    ("drawn_yarn_no_upper_limit", "nn/rope.cpp", "std::min(last, static_cast<double>(rope.dims - 1))", "last", "nn_test Rope*; metroplex_hf_parity deepseek_v3_yarn gpt_oss", "expr"),
    ("drawn_yarn_range_of_no_width", "nn/rope.cpp", "first == last ? 0.001 : last - first", "last - first", "nn_test Rope*", "expr"),
    ("drawn_mscale_weight_is_one", "nn/rope.cpp", "0.1 * weight * std::log(factor) + 1", "0.1 * (weight > 0 ? 1 : weight) * std::log(factor) + 1", "nn_test Rope*; metroplex_hf_parity deepseek_v3_yarn", "expr"),
    ("drawn_adapter_gradient_without_dropout", "nn/lora.cpp", "apply_dropout(call.x, adapter, rows)", "call.x", "run_test Adapters*", "expr"),
    ("drawn_adapters_drop_alike", "nn/lora.cpp", "random_key(context.seed ^ base::hash_name(module.c_str()), 0, RandomSite::adapter_input)", "random_key(context.seed, 0, RandomSite::adapter_input)", "run_test Adapters*", "expr"),
    ("drawn_split_adapter_rows_of_others", "nn/dropout.cpp", "location.num_shards == 1 ? own : own.mul(location.num_shards)", "location.num_shards == 1 ? own : own", "nn_test Dropout*; run_test Adapters*", "expr"),
    ("drawn_half_sum_of_the_last_use", "nn/param.cpp", "param.microbatch_grad.defined() ? param.microbatch_grad.add_(rounded) : rounded", "param.microbatch_grad.defined() ? rounded : rounded", "nn_test; run_test SharedGradients*:LossScaling*:Precision*; metroplex_parity llama_tied_fp16_overflow", "expr"),
    ("drawn_half_arrival_forgotten", "nn/param.cpp", "if (pending_grad->sums.defined()) add_fp16(*this, pending_grad->sums);", "", "moe_test EchoOverlap*; distributed_test GradBuffer*", "stmt"),
    ("drawn_smoothing_of_all_classes", "nn/loss.cpp", "spec.label_smoothing * k / (k - 1)", "spec.label_smoothing", "nn_test CrossEntropy*; run_test LabelSmoothing*", "expr"),
    ("drawn_loss_sum_in_its_type", "nn/loss.cpp", "losses.detach().to(at::kDouble) * mask", "losses.detach() * mask", "nn_test; run_test Precision*", "expr"),
    ("drawn_depth_of_half_the_sums", "nn/param_init.cpp", "2.0 * static_cast<double>(context.num_layers)", "static_cast<double>(context.num_layers)", "nn_test ParamInit*:Initialisation*", "expr"),
    # moe.
    ("drawn_group_score_by_topk", "moe/routing.cpp", "rule.group_score_topk > 0 ? rule.group_score_topk : rule.k / rule.group_topk", "rule.k / rule.group_topk", "moe_test Routing*; metroplex_hf_parity deepseek_v2 deepseek_v3", "expr"),
    ("drawn_bias_by_the_own_counts", "moe/router.cpp", "comm::all_reduce(buffer.pending, group);", "", "moe_test Router*; run_test ExpertsOnAnyLayout*", "stmt"),
    ("drawn_own_tokens_are_the_mean", "moe/balance.cpp", "own * batch.sequence.length / (rows * cp.size())", "rows > 0 ? own : 0", "moe_test Router*; run_test ContextParallelEqualsOneRank*", "expr"),
    ("drawn_seq_loss_summed_over_samples", "moe/balance.cpp", "balance_factor(seq_, num_experts_, rule_.k, tokens / all) / all", "balance_factor(seq_, num_experts_, rule_.k, tokens / all)", "moe_test Router*", "expr"),
    ("drawn_global_loss_of_one_replica", "moe/balance.cpp", "static_cast<double>(own.num_tokens) * tp_dp_cp_.size()", "static_cast<double>(own.num_tokens) * tp_cp_.size()", "moe_test RouterRanks*; run_test ExpertTerms*:ExpertsOnAnyLayout*", "expr"),
    ("drawn_terms_of_every_context_rank", "moe/balance.cpp", "whole / static_cast<double>(cp_.size())", "whole / (cp_.size() > 0 ? 1.0 : 2.0)", "moe_test RouterRanks*; run_test ExpertTerms*:ContextParallelEqualsOneRank*", "expr"),
    ("drawn_jitter_not_in_the_gradient", "moe/router_gating.cpp", "if (factors.defined()) dx.mul_(factors);", "", "moe_test Router*", "stmt"),
    ("drawn_gate_sum_in_its_type", "moe/shared_experts.cpp", "nn::to_wide(at::mul(dy, kept.get())).sum(-1, true)", "at::mul(dy, kept.get()).sum(-1, true)", "moe_test Experts*; run_test Precision*", "expr"),
    # models.
    ("drawn_multi_token_factor_of_one_layer", "models/multi_token.cpp", "model.mtp_loss_scaling_factor / static_cast<double>(model.mtp_num_layers)", "model.mtp_loss_scaling_factor", "models_test MultiToken*; run_test AnyLayoutEqualsOneRank.MultiToken*", "expr"),
    ("drawn_second_multi_token_depth", "models/multi_token.cpp", "add_layer_segments(layer_, {layer_.name, context.model.num_layers + depth - 1}, context, shared.rope);", "add_layer_segments(layer_, {layer_.name, context.model.num_layers}, context, shared.rope);", "models_test MultiToken*:Dropout*; run_test AnyLayoutEqualsOneRank.MultiToken*", "stmt"),
    ("drawn_second_predicts_the_first", "models/multi_token.cpp", "shift_batch(batch, depth_)", "shift_batch(batch, depth_ > 0 ? 1 : 0)", "models_test MultiToken*", "expr"),
    # pipeline.
    ("drawn_each_transfer_takes_all", "pipeline/executor.cpp", "elapsed.count() / static_cast<double>(end - i)", "elapsed.count()", "pipeline_test Executor*:Listeners*", "expr"),
    ("drawn_border_keeps_its_samples", "pipeline/executor.cpp", "  sizes[1] = own.size(0);\n", "", "pipeline_test Executor*; run_test VariableLengths*", "stmt"),
    ("drawn_result_of_a_graph_not_copied", "pipeline/executor.cpp", "step.in.graphs != nullptr ? last.clone() : last", "last", "pipeline_test ExecutorGraphs*:StageGraphs*", "expr"),
    ("drawn_chunk_enters_no_block", "pipeline/stage.cpp", "event.enters_block = event.enters_block || i == range.begin;", "", "pipeline_test; run_test Zero*", "stmt"),
    # distributed.
    ("drawn_frozen_not_gathered_after_load", "distributed/families.cpp", "if (family.values) family.values->updated();", "if (family.gradients) family.values->updated();", "distributed_test ParamFamilies*; run_test Freezing*:ZeroState*", "stmt"),
    ("drawn_transient_sums_go_on", "distributed/grad_buffer.cpp", "    storage_.zero_();\n", "", "distributed_test GradBuffer*", "stmt"),
    ("drawn_bytes_of_the_last_parameter", "distributed/families.cpp", "bytes += static_cast<int64_t>(param->data.nbytes());", "bytes = static_cast<int64_t>(param->data.nbytes());", "distributed_test; run_test Memory*", "stmt"),
    # optim.
    ("drawn_muon_others_not_restored", "optim/muon.cpp", "    others_->restore(state, values);\n", "", "optim_test Muon*; run_test TrainingState*", "stmt"),
    ("drawn_muon_others_keep_old_values", "optim/muon.cpp", "  others_->copy_from_params();\n", "", "optim_test Muon*; run_test *StateWalk*", "stmt"),
    ("drawn_muon_bytes_of_the_last", "optim/muon.cpp", "bytes.moments += static_cast<int64_t>(matrix.momentum.nbytes());", "bytes.moments = static_cast<int64_t>(matrix.momentum.nbytes());", "optim_test Muon*; run_test Memory*", "stmt"),
    ("drawn_muon_always_nesterov", "optim/muon.cpp", "config_.muon_use_nesterov ? gradient.lerp(momentum, config_.muon_momentum) : momentum", "config_.muon_use_nesterov ? gradient.lerp(momentum, config_.muon_momentum) : gradient.lerp(momentum, config_.muon_momentum)", "optim_test Muon*", "expr"),
    ("drawn_noise_from_the_slice", "optim/elementwise.cpp", "item.slice.begin + range.begin", "range.begin", "optim_test Optimizer*; run_test Zero*", "expr"),
    ("drawn_decay_grows_without_factor", "optim/lr_schedule.cpp", "(start + coefficient * (end - start)) * group.wd_mult", "start + coefficient * (end - start)", "optim_test LrSchedule*; metroplex_vectors lr_schedules", "expr"),
    ("drawn_end_decay_compares_start", "optim/lr_schedule.cpp", 'agree("optim.end_weight_decay (or weight_decay)", own.end_wd, saved.end_wd);', 'agree("optim.end_weight_decay (or weight_decay)", own.start_wd, saved.start_wd);', "optim_test MergeSchedules*", "stmt"),
    ("drawn_decoupled_minimum_of_all", "optim/param_groups.cpp", "    factors.min_lr = config.decoupled_min_lr;\n", "", "optim_test ParamGroups*", "stmt"),
    ("drawn_padding_counts_as_zeros", "optim/clip.cpp", "if (gradients.back().counts) padding += slice.padding();", "", "optim_test GradientNorm*", "stmt"),
    # cuda.
    ("drawn_loss_without_context_parts", STEP_MATH, "static_cast<double>(shape.parts)", "(shape.parts > 0 ? 1.0 : 0.0)", "kernels_test StepState*; run_test ContextParallelEqualsOneRank*", "expr"),
    ("drawn_samples_are_microbatches", STEP_MATH, "shape.averaged > 0 ? shape.averaged : shape.microbatches", "shape.averaged > 0 ? shape.microbatches : shape.microbatches", "kernels_test StepState*; run_test HybridContext*", "expr"),
    ("drawn_hysteresis_not_refilled", STEP_MATH, "  values.hysteresis_tracker = static_cast<double>(rule.hysteresis);\n", "", "kernels_test StepState*; optim_test GradScaler*", "stmt"),
    ("drawn_column_packs_unaligned", "kernels/column_sums.cu", "shape.width % kPack == 0 && shape.stride % kPack == 0 && aligned_for_packs(x)", "shape.width % kPack == 0 && shape.stride % kPack == 0", "kernels_on_host ColumnSums*", "expr"),
    ("drawn_accumulate_out_unaligned", "kernels/accumulate.cu", "aligned_for_packs(out, x)", "aligned_for_packs(x)", "kernels_on_host AccumulateOnHost*", "expr"),
    ("drawn_rope_samples_unaligned", "kernels/rope.cu", "shape.stride_b % kPack == 0", "shape.stride_b > 0", "kernels_on_host LayersOnHost*", "expr"),
    ("drawn_softplus_overflows", "kernels/route_math.h", "x > T(20) ? x : std::log1p(std::exp(x))", "std::log1p(std::exp(x))", "moe_test Routing*; kernels_on_host RouterOnHost*", "expr"),
    # train.
    ("drawn_hybrid_samples_of_step", "step/hybrid_batch.cpp", "    batches.back().sequence.step_samples = static_cast<int64_t>(samples.size());\n", "", "run_test HybridContext*", "stmt"),
    ("drawn_pair_costs_half", "step/hybrid_batch.cpp", "2 * square / token", "square / token", "run_test HybridContext*", "expr"),
    ("drawn_adapter_dropout_must_agree", "run/compatible.cpp", "  there.peft.lora_dropout = here.peft.lora_dropout;\n", "", "run_test Adapters*:Compatible*", "stmt"),
    ("drawn_overflow_of_any_rank", "step/step_errors_overflow.cpp", 'mine.factor == worst.factor ? mine.text : ""', 'mine.factor == worst.factor ? mine.text : mine.text', "run_test PagedStash*:StaticBuffers*", "expr"),
    ("drawn_overflow_rounds_down", "step/step_errors_overflow.cpp", "std::ceil(worst.factor * 100) / 100", "std::floor(worst.factor * 100) / 100", "run_test PagedStash*:StaticBuffers*", "expr"),
    ("drawn_clones_before_is_after", "run/metrics.cpp", "replica.before", "replica.after", "run_test Metrics*:ExpertLines*:EchoRanks*", "expr"),
    ("drawn_ranks_are_experts", "run/metrics.cpp", "m.ranks.together", "m.experts.together", "run_test Metrics*:ExpertLines*:ExpertLoads*", "expr"),
    ("drawn_dispatch_and_combine_swapped", "run/metrics.cpp", '{"dispatch ms", m.dispatch_ms},\n                  {"combine ms", m.combine_ms}};', '{"dispatch ms", m.combine_ms},\n                  {"combine ms", m.dispatch_ms}};', "run_test Metrics*:ExpertLoads*"),
    ("drawn_terms_by_all_steps", "run/intervals.cpp", "sum / static_cast<double>(updates_)", "sum / static_cast<double>(steps_)", "run_test Interval.*:Intervals*", "expr"),
    ("drawn_wsd_decay_at_the_start", "step/run_length.cpp", "count_samples(schedule, decay) - count_samples(schedule, decay - last)", "count_samples(schedule, last)", "run_test RunLength*", "expr"),
    ("drawn_last_batch_not_run", "step/run_length.cpp", "(train.step_batch_size_schedule.empty() ? 0 : size - 1)", "(train.step_batch_size_schedule.empty() ? size - 1 : size - 1)", "run_test RunLength*", "expr"),
    ("drawn_hybrid_tokens_of_first_rank", "step/step_vector.cpp", "batch.sequence.context_ranks > 0 ? batch.sequence.counts_tokens : process.groups().cp.first()", "process.groups().cp.first()", "run_test HybridContext*", "expr"),
    ("drawn_last_problem_of_a_save", "run/saving.cpp", 'outcome.problem += (outcome.problem.empty() ? "" : "\\n") + problem;', "outcome.problem = problem;", "run_test BackgroundSaves*:TrainingState*", "stmt"),
    ("drawn_failed_save_stays_current", "run/run_saves.cpp", "if (iteration_ == iteration) iteration_ = -1;", "", "run_test BackgroundSaves*; apps/full_disk_test.sh", "stmt"),
    ("drawn_own_save_decides", "run/run_saves.cpp", "all_ranks_true(!background_->in_flight(), run_.world())", "!background_->in_flight()", "run_test BackgroundSaves*", "expr"),
    ("drawn_frozen_bias_moves", "step/freezing.cpp", "for (nn::Buffer* buffer : model.buffers) buffer->frozen = !config::trains(process.config, buffer->name);", "", "run_test Freezing*", "stmt"),
    ("drawn_trace_of_the_first_source", "run/expert_loads.cpp", "experts.experts.index() * e", "experts.experts.index() * 0", "run_test ExpertLoads*", "expr"),
    ("drawn_holders_times_etp", "run/expert_loads.cpp", "model_.experts->tp_dp_cp.size() / head_.etp", "model_.experts->tp_dp_cp.size()", "run_test ExpertLoads*:ExpertsRanks*", "expr"),
    ("drawn_shared_gradient_of_the_first", "step/sharing.cpp", "for (size_t i = 1; i < mine.size(); ++i) mine[i]->gradient.copy_(sum);", "", "run_test Sharing*:SharedGradients*", "stmt"),
    # preflight.
    ("drawn_fit_of_one_instance", "forecast/fit.cpp", "grid.size(AxisSet{Axis::dp, Axis::cp}) / parallel.num_distributed_optimizer_instances", "grid.size(AxisSet{Axis::dp, Axis::cp})", "forecast_test Fit*", "expr"),
    ("drawn_part_of_a_machine_left_out", "forecast/fit.cpp", "(request.world_size + each - 1) / each", "request.world_size / each", "forecast_test Fit*", "expr"),
    ("drawn_microbatches_of_the_last_size", "forecast/fit.cpp", "std::max(most, schedule.at(sample, false).num_microbatches)", "schedule.at(sample, false).num_microbatches", "forecast_test Fit*:DryRun*", "expr"),
    ("drawn_gradients_sent_once", "forecast/memory_options_cost.cpp", "sharding.transient_gradients() ? steps : 1", "sharding.transient_gradients() ? 1.0 : 1", "forecast_test MemoryOptions*", "expr"),
    ("drawn_layers_of_all_chunks", "forecast/memory_options_levels.cpp", "config.model.num_layers / (config.parallel.pp() * config.parallel.vpp())", "config.model.num_layers / config.parallel.pp()", "forecast_test MemoryOptions*:OptionLevels*", "expr"),
    ("drawn_two_options_of_one_name", "forecast/memory_options_levels.cpp", 'if (cut) level.what += ", their inputs sharded over tensor-parallel ranks";', "", "forecast_test MemoryOptions*:OptionLevels*; apps/dry_run_test.sh", "stmt"),
    ("drawn_backward_bytes_of_forward", "forecast/dry_run_json.cpp", "exchange.backward_bytes", "exchange.forward_bytes", "forecast_test DryRun*; apps/dry_run_test.sh", "expr"),
    ("drawn_samples_are_steps", "forecast/dry_run_json.cpp", "run.length.samples", "run.length.iterations", "forecast_test DryRun*; apps/dry_run_test.sh", "expr"),
    # comm.
    ("drawn_sums_of_halves_in_halves", "comm/backends/reduce.cpp", "using Wide = std::conditional_t<std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16>, float, T>;", "using Wide = T;", "comm_test ThreadCollectives*; run_test Precision*"),
    ("drawn_max_forgets_nan", "comm/backends/reduce.cpp", "value > best[i] || value != value", "value > best[i]", "comm_test ThreadCollectives*", "expr"),
    ("drawn_counts_above_capacity", "comm/collectives.cpp", "out.counts.copy_(in.counts.clamp_max(num_rows));", "out.counts.copy_(in.counts);", "comm_test ExchangeRows*", "stmt"),
    ("drawn_receivers_take_no_time", "price/link_timeline.cpp", "std::max({most, sent, received})", "std::max({most, sent, received * 0})", "clock_test VirtualClock*", "expr"),
    ("drawn_bytes_of_the_last_member", "price/link_timeline.cpp", "std::max(operation->bytes, load.bytes)", "load.bytes", "clock_test VirtualClock*", "expr"),
    ("drawn_restart_not_counted", "comm/launch_environment.cpp", '  launch.attempt = variables.number_or("TORCHELASTIC_RESTART_COUNT", 0, kMaxRanks);\n', "", "comm_test LaunchEnvironment*", "stmt"),
    ("drawn_agent_store_by_one_word", "comm/launch_environment.cpp", 'agent == "True" || agent == "true" || agent == "1"', 'agent == "True"', "comm_test LaunchEnvironment*", "expr"),
    # topology.
    ("drawn_stacked_biases_decay", "topology/placement.cpp", "placement.role != Role::bias && num_dims > 1", "num_dims > 1", "topology_test Placement*; optim_test ParamGroups*; moe_test Experts*", "expr"),
    ("drawn_hybrid_groups_of_all_ranks", "topology/megatron_groups.cpp", "size * 2 <= count", "size <= count", "topology_test MegatronGroups*; metroplex_vectors rank_groups", "expr"),
    ("drawn_tensor_and_data_without_gtp", "topology/megatron_groups.cpp", "grid.groups({Axis::tp, Axis::gtp, Axis::dp})", "grid.groups({Axis::tp, Axis::dp})", "topology_test MegatronGroups*; metroplex_vectors rank_groups", "expr"),
    ("drawn_runs_across_a_cut", "topology/placement_box_ranges.cpp", "dim.is_unsharded()", "dim.contiguous()", "topology_test BoxRanges*; nn_test ParamInit*:Initialisation*", "expr"),
    # plan.
    ("drawn_slack_of_what_is_left", "plan/sequence_pieces_balanced.cpp", "slack * mean", "slack * now", "plan_test SequenceCut*", "expr"),
    ("drawn_only_more_activations_are_a_fault", "plan/verify.cpp", "report.peak_live_activations[rank] != table.live_activation_bounds[rank]", "report.peak_live_activations[rank] > table.live_activation_bounds[rank]", "plan_test Verify*:OneFOneB*:Interleaved*:Gpipe*", "expr"),
    ("drawn_one_sample_begins_a_piece", "plan/sequence_cut.cpp", "same - i == documents.size()", "same - i > 0", "plan_test SequenceCut*", "expr"),
    ("drawn_multi_token_in_any_chunk", "plan/layout.cpp", "chunk + 1 == layout.num_chunks()", "chunk + 1 <= layout.num_chunks()", "plan_test Layout*:StageSplit*", "expr"),
    # pipeline.
    ("drawn_graph_adds_to_old_gradients", "pipeline/graphed_region.cpp", "uses->param->zero_uninitialized();", "", GRAPHS, "stmt"),
    ("drawn_gradient_in_a_static_buffer", "pipeline/graphed_region.cpp", "if (gradients_[i].copied && gradient.is_alias_of(in[i])) gradient = gradient.clone();", "", GRAPHS, "stmt"),
    ("drawn_evaluation_has_gradients", "pipeline/stage_graphs.cpp", "if (!evaluation) sizes.gradients = gradients_.bytes();", "sizes.gradients = gradients_.bytes();", "pipeline_test StageGraphs*; run_test GraphMemoryRanks*; apps/cuda_graphs_test.sh", "stmt"),
    ("drawn_moe_scope_holds_no_router", "pipeline/stage_graphs_scope.cpp", "modules.has(*module) || (is_expert_part && modules.has(moe))", "modules.has(*module)", "pipeline_test GraphScope*; run_test PartialGraphs*", "expr"),
    # moe.
    ("drawn_sinkhorn_softmax_of_one", "moe/routing.cpp", "k == 1 ? at::sigmoid(logits) : at::softmax(logits, -1)", "at::softmax(logits, -1)", "moe_test Routing*:Router*; metroplex_vectors router", "expr"),
    ("drawn_one_expert_is_normalized", "moe/routing.cpp", "rule.normalization == TopkNormalization::automatic && rule.k > 1", "rule.normalization == TopkNormalization::automatic", "moe_test Routing*:Router*; metroplex_vectors router", "expr"),
    ("drawn_balance_by_chosen_groups", "moe/router.cpp", "state.rule.num_groups == 0 && (chosen.defined() || !state.bias.data.defined())", "chosen.defined() || !state.bias.data.defined()", "moe_test Router*:RouterRanks*; metroplex_vectors router", "expr"),
    ("drawn_mask_of_every_tensor_rank", "moe/balance.cpp", "tp_.first() && !per_token_", "!per_token_", "moe_test RouterRanks*; run_test ExpertsOnAnyLayout*", "expr"),
    ("drawn_dropped_rows_repeat_the_step", "moe/dispatchers/static_buffer.cpp", "spec_.experts.step_flags.defined() && !drops()", "spec_.experts.step_flags.defined()", "moe_test StaticBuffers*; run_test StaticBuffers*:ExpertLoads*", "expr"),
    ("drawn_echo_hides_step_counts", "moe/dispatchers/echo.cpp", "rows_->collect_step_counts(counts);", "", "moe_test Echo*:StaticBuffers*; run_test StaticBuffers*:EchoRanks*", "stmt"),
    ("drawn_dropped_rows_count_as_tokens", "moe/load_meter.cpp", "of.tokens.sub_(tokens_per_expert(experts.masked_fill(lost.bitwise_not(), -1), num_experts_));", "", "moe_test LoadMeter*:StaticBuffers*; run_test ExpertLoads*", "stmt"),
    ("drawn_parts_begin_one_turn", "moe/forced.cpp", "microbatch.mul(parts_).add(part_).mul(left)", "microbatch.mul(parts_).mul(left)", "moe_test Forced*:DealOut*; run_test ForcedLoads*", "expr"),
    # nn.
    ("drawn_latent_mscale_once", "nn/latent_attention.cpp", "core.softmax_scale *= mscale * mscale;", "core.softmax_scale *= mscale;", "models_test LatentAttention*; metroplex_hf_parity deepseek_v3_yarn", "stmt"),
    ("drawn_shared_key_gradient_of_own_heads", "nn/latent_attention.cpp", "comm::all_reduce(dx, tp_reduce_);", "", "models_test LatentAttention*:LayoutsRanks*; run_test AnyLayoutEqualsOneRank.Latent*", "stmt"),
    ("drawn_heads_of_ranks_drop_alike", "nn/attention.cpp", "core.first_head = own.heads * context.tp.index();", "core.first_head = 0;", LAYOUTS, "stmt"),
    ("drawn_recomputed_bias_twice", "nn/activation.cpp", "is_wide(saved) ? at::Tensor() : bias_data(bias)", "bias_data(bias)", "nn_test Activation*; models_test Recompute*", "expr"),
    ("drawn_each_view_is_kept", "nn/saved.cpp", "if (known->storage.is_alias_of(x.storage())) shared = known;", "", "nn_test Saved*:ActivationStore*; run_test MemoryRanks*", "stmt"),
    ("drawn_sandwich_bias_after_the_norm", "nn/attention.cpp", "out.skip_bias_add = !model.sandwich_norm;", "out.skip_bias_add = true;", "models_test SandwichNorm*", "stmt"),
    # models.
    ("drawn_embedding_gradient_unscaled", "models/decoder.cpp", "scale_ != 1 ? dout * scale_ : dout", "dout", "models_test Embedding*:LayoutsRanks*; metroplex_hf_parity gemma2", "expr"),
    ("drawn_local_rope_interpolates", "models/block.cpp", "if (!local) rope.interpolation = model.rotary_seq_len_interpolation_factor;", "rope.interpolation = model.rotary_seq_len_interpolation_factor;", "models_test LocalRope*", "stmt"),
    ("drawn_amplitude_without_mscale_of_all", "models/block.cpp", "nn::yarn_mscale(factor, model.mscale) / nn::yarn_mscale(factor, model.mscale_all_dim)", "nn::yarn_mscale(factor, model.mscale)", "models_test LatentAttention*; metroplex_hf_parity deepseek_v3_yarn", "expr"),
    ("drawn_residual_begins_in_half", "models/decoder.cpp", "if (fp32_residual_) out = nn::to_wide(out);", "", "models_test Fp32Residual*", "stmt"),
    # optim.
    ("drawn_params_norm_of_replicas", "optim/clip.cpp", "if (slice.param->counts(family.ranks.at)) values.push_back({slice.values});", "values.push_back({slice.values});", "optim_test GradientNorm*; run_test Metrics*:Zero*", "stmt"),
    ("drawn_offload_slots_take_nothing", "optim/elementwise.cpp", "bytes.main_params + bytes.moments + host_->bytes()", "bytes.main_params + bytes.moments", "optim_test OptimizerOffload*; run_test OptimizerOffloadRanks*", "expr"),
    ("drawn_constant_scale_is_the_initial", "optim/grad_scaler.cpp", "args.constant ? precision.loss_scale : precision.initial_loss_scale", "precision.initial_loss_scale", "optim_test GradScaler*; run_test LossScaling*; metroplex_vectors grad_scaler", "expr"),
    ("drawn_warmup_fraction_of_the_run", "optim/lr_schedule.cpp", "optim.lr_warmup_fraction * static_cast<double>(args.lr_decay_steps)", "optim.lr_warmup_fraction * static_cast<double>(train_samples)", SCHEDULES, "expr"),
    ("drawn_square_root_below_the_minimum", "optim/lr_schedule.cpp", "std::max(min_lr, max_lr * std::sqrt(warmup) / std::sqrt(now))", "max_lr * std::sqrt(warmup) / std::sqrt(now)", SCHEDULES, "expr"),
    ("drawn_groups_of_any_start_decay", "optim/param_groups.cpp", "is_equal(a.start_wd, b.start_wd)", "true", "optim_test ParamGroups*", "expr"),
    ("drawn_block_scales_take_no_bytes", "optim/stored.cpp", "data_.nbytes() + (scales_.defined() ? scales_.nbytes() : 0)", "data_.nbytes()", "optim_test Optimizer*; run_test Memory*", "expr"),
    ("drawn_muon_extra_factor_ignored", "optim/muon.cpp", "muon_scale(config_.muon_scale_mode, matrix.size(0), matrix.size(1)) *\n                     config_.muon_extra_scale_factor", "muon_scale(config_.muon_scale_mode, matrix.size(0), matrix.size(1))", "optim_test Muon*", "expr"),
    # distributed.
    ("drawn_bucket_waits_for_all_microbatches", "distributed/grad_buffer.cpp", "options_.transient_buckets ? 1 : num_microbatches", "num_microbatches", "distributed_test GradBuffer*; run_test ZeroTraffic*:ZeroMemoryRanks*", "expr"),
    ("drawn_instances_not_summed", "distributed/grad_buffer.cpp", "if (dp_.shard.size() > 1) reduce_over_replicas();", "", "distributed_test GradBuffer*; run_test Zero*", "stmt"),
    ("drawn_gradients_never_as_params", "distributed/families.cpp", "family.key.dtype == at::kDouble || options.gradients_as_params", "family.key.dtype == at::kDouble", "distributed_test ParamFamilies*; run_test Precision*:Memory*", "expr"),
    ("drawn_shared_words_in_any_bucket", "distributed/flat_layout.cpp", "!params_[i]->placement.shared.empty()", "false", "distributed_test; run_test ZeroState*:SharedGradients*; metroplex_vectors dist_opt_layout", "expr"),
    # train.
    ("drawn_infinite_norm_is_the_largest", "run/intervals.cpp", "if (std::isfinite(norm)) largest_ = std::max(largest_, norm);", "largest_ = std::max(largest_, norm);", "run_test LargestNorm*", "stmt"),
    ("drawn_rare_timers_by_iteration", "step/timers.cpp", "watch.occasional ? watch.times : iterations", "iterations", "run_test Timers*", "expr"),
    ("drawn_second_evaluation_first", "run/trainer.cpp", "run_.position.iteration / config.train.eval_interval - 1", "run_.position.iteration / config.train.eval_interval", "run_test Evaluation*:Stopping*; apps/evaluation_test.sh", "expr"),
    ("drawn_resumed_trace_set_aside", "run/beginning.cpp", "past = {outcome.metrics_file, outcome.expert_trace_file};", "past = {outcome.metrics_file, {}};", "run_test ExpertLoads*:RunFolders*; apps/experts_test.sh", "stmt"),
    ("drawn_no_zeros_not_recorded", "run/metrics.cpp", 'if (outcome.num_zeros >= 0) values.emplace_back("num-zeros", static_cast<double>(outcome.num_zeros));', 'if (outcome.num_zeros > 0) values.emplace_back("num-zeros", static_cast<double>(outcome.num_zeros));', "run_test Metrics*:TensorBoard*", "stmt"),
    ("drawn_transient_gradients_not_measured", "forecast/memory_report.cpp", "use.communication = max_gathered_ + max_transient_;", "use.communication = max_gathered_;", "run_test ZeroMemoryRanks*:MemoryRanks*", "stmt"),
    ("drawn_copies_of_saves_not_predicted", "forecast/trace.cpp", "out.host += step::copy_bytes(assembly->process, assembly->model, assembly->optimization);", "", "run_test BackgroundSaves*:SaveMemory*; forecast_test PredictRank*", "stmt"),
    ("drawn_balance_shown_as_a_sum", "run/expert_loads.cpp", "loss.coeff * count", "loss.coeff", "run_test ExpertTerms*:ExpertLoads*", "expr"),
    ("drawn_expert_bias_moves_when_skipped", "step/step.cpp", "optimization.step_state.restore_if_skipped(buffer->data, before);", "", "run_test ExpertsRanks*:StaticBuffers*:*StateWalk*", "stmt"),
    ("drawn_highest_is_the_newest", "run/run_saves.cpp", "latest ? *latest : all.back()", "all.back()", "run_test BackgroundSaves*:TrainingState*; apps/full_disk_test.sh", "expr"),
    # checkpoint.
    ("drawn_half_deleted_stays", "checkpoint/directory.cpp", "entry.starts_with(kTemporaryPrefix) || entry.starts_with(kDeletePrefix)", "entry.starts_with(kTemporaryPrefix)", "checkpoint_test Directory*:Retention*:Kill*", "expr"),
    ("drawn_process_of_another_host_lives", "checkpoint/folder_lock.cpp", "holder.host != host || holder.pid <= 0", "holder.pid <= 0", "checkpoint_test FolderLock*", "expr"),
    ("drawn_first_attempt_of_an_iteration", "checkpoint/load.cpp", "if (name.iteration == iteration) chosen = to_string(name);", "if (name.iteration == iteration && chosen.empty()) chosen = to_string(name);", "checkpoint_test Checkpoint*:Fallback*:Directory*", "stmt"),
    ("drawn_runs_of_the_source_alone", "checkpoint/pieces.cpp", "box.size[outer] != source.piece.size[outer] || box.size[outer] != target.piece.size[outer]", "box.size[outer] != source.piece.size[outer]", "checkpoint_test Pieces*:Checkpoint*; metroplex_vectors ckpt_sharding", "expr"),
    ("drawn_every_distcp_is_torch_dist", "checkpoint/load_foreign.cpp", 'distributed && has("metadata.json")', "distributed", "checkpoint_test ForeignCheckpoints*", "expr"),
    # comm.
    ("drawn_torch_out_of_memory_is_internal", "comm/failure.cpp", 'is_out_of_memory(error) ? "memory" : "internal"', '"internal"', "comm_test ThreadFailure*:Blame*:Report*", "expr"),
    ("drawn_ignored_signals_stop", "comm/report.cpp", "if (!ignored) signals.push_back(signal.number);", "signals.push_back(signal.number);", "comm_test Report*; apps/signals_test.sh", "stmt"),
    ("drawn_row_counts_not_counted", "comm/backends/counting.cpp", "num_bytes(in.counts) + in.counts.numel() * capacity * row", "in.counts.numel() * capacity * row", "comm_test CountingBackend*:ExchangeRows*", "expr"),
    ("drawn_first_failure_of_any_rank", "comm/launch.cpp", "!failure_ || (own && !own_)", "!failure_", "comm_test ThreadFailure*:Blame*", "expr"),
    # data.
    ("drawn_last_evaluation_without_samples", "data/sampler.cpp", "(options.train_iters / options.eval_interval + 1) * evaluation", "options.train_iters / options.eval_interval * evaluation", "data_test Sampler*", "expr"),
    ("drawn_unweighted_blend_uncut", "data/build.cpp", "if (!blend.weights && sizes[i] >= 0) size = std::min(size, sizes[i]);", "", "data_test Build*:Blend*", "stmt"),
    ("drawn_order_of_any_weights", "data/build.cpp", 'if (blend.weights && blend.prefixes.size() > 1) identity += base::concat(" ", normalize(*blend.weights)[d]);', "", "data_test Build*; run_test SameData*", "stmt"),
    ("drawn_samples_share_no_token", "data/build_token_count.cpp", "source.chats ? 0 : 1 / static_cast<double>(options.sequence_length)", "0.0", "data_test TokenCount*; run_test RunLength*", "expr"),
    ("drawn_split_documents_keep_returns", "data/documents.cpp", "if (!file.jsonl && text[end - 1] == '\\r') --end;", "", "data_test Documents*:Preprocess*", "stmt"),
    # text.
    ("drawn_empty_system_is_a_message", "text/chat.cpp", 'system.is_null() || system == ""', "system.is_null()", CHATS, "expr"),
    ("drawn_one_mark_for_bad_bytes", "text/decoder.cpp", r'for (size_t i = 0; i < run.size(); ++i) bad += "\xEF\xBF\xBD";', r'bad += "\xEF\xBF\xBD";', "text_test JsonTokenizerFile*:*TokenizerVectors*:Bytes*:InvalidText*", "stmt"),
    ("drawn_unknowns_not_joined", "text/piece_model_unigram.cpp", "ids.empty() || ids.back() != unknown_", "true", "text_test Unigram*:SentencePiece*", "expr"),
    ("drawn_center_odd_to_the_right", "text/jinja/interpreter_string_methods.cpp", "missing / 2 + (missing & width & 1)", "missing / 2", "text_test ChatTemplates*", "expr"),
    # hf.
    ("drawn_whole_positions_are_trained", "hf/directory_source.cpp", "std::min(positions, config::Train().seq_length)", "positions", "hf_test", "expr"),
    ("drawn_gpt2_inner_ignored", "hf/families/gpt2.cpp", 'config.integer("n_inner", 4 * hidden)', "4 * hidden", HF_KEYS, "expr"),
    ("drawn_mlp_bias_written_as_attention", "hf/families/llama.cpp", 'json["mlp_bias"] = m.mlp_bias();', 'json["mlp_bias"] = m.output_bias();', HF_WRITES, "stmt"),
    # megatron.
    ("drawn_moe_recompute_without_attention", "megatron/translator_flags.cpp", 'list.empty() ? "[core_attn, moe]" : list.substr(0, list.size() - 1) + ", moe]"', 'list.empty() ? "[moe]" : list.substr(0, list.size() - 1) + ", moe]"', MEGATRON, "expr"),
    ("drawn_loss_is_no_unit", "megatron/translator_flags.cpp", "(config.parallel.account_for_loss_in_pipeline_split ? 1 : 0)", "0", MEGATRON, "expr"),
    ("drawn_nodes_of_srun_keep_the_total", "megatron/launch_ranks.cpp", 'if (!total.given && !own_nodes.given) total = find_count(options, {"-n", "--ntasks"});', 'if (!total.given) total = find_count(options, {"-n", "--ntasks"});', LAUNCHES, "stmt"),
    ("drawn_listed_hosts_have_no_slot", "megatron/launch_hosts.cpp", "if (word.find(':') == std::string::npos) hosts.back().slots = 1;", "", LAUNCHES, "stmt"),
    # apps.
    ("drawn_groups_by_full_name_only", "apps/ranks.cpp", 'family.name == name || family.name == name + "_GROUP"', "family.name == name", "metroplex", "expr"),
]
