"""Mistakes of the kind one makes, to be planted one at a time: name, file (below metroplex/, whose first folder is the
room), the exact text that it stands in for, the text, and the suites that should notice, "SUITE [FILTER]"."""

FLAGS = "megatron/flag_table.cpp"
WALK = "train_test *StateWalk*"


def neighbour(flag, key, other):
    return (f"flag_{flag}", FLAGS, f'{{"--{flag}", kOne, "{key}=$"}}', f'{{"--{flag}", kOne, "{other}=$"}}', "megatron_test")


MUTANTS = [
    # A flag that sets its neighbour's key.
    neighbour("rotary-base", "model.rotary_base", "model.rotary_percent"),
    neighbour("rotary-percent", "model.rotary_percent", "model.rotary_base"),
    neighbour("norm-epsilon", "model.layernorm_epsilon", "optim.adam_eps"),
    neighbour("attention-dropout", "model.attention_dropout", "model.hidden_dropout"),
    neighbour("hidden-dropout", "model.hidden_dropout", "model.attention_dropout"),
    neighbour("init-method-std", "model.init_method_std", "model.layernorm_epsilon"),
    neighbour("make-vocab-size-divisible-by", "model.make_vocab_size_divisible_by", "model.vocab_size"),
    neighbour("moe-ffn-hidden-size", "model.moe_ffn_hidden_size", "model.ffn_hidden_size"),
    neighbour("moe-router-topk", "model.moe_router_topk", "model.moe_router_group_topk"),
    neighbour("moe-router-num-groups", "model.moe_router_num_groups", "model.moe_router_group_topk"),
    neighbour("moe-router-group-topk", "model.moe_router_group_topk", "model.moe_router_topk"),
    neighbour("moe-router-topk-scaling-factor", "model.moe_router_topk_scaling_factor", "model.moe_expert_capacity_factor"),
    neighbour("moe-router-bias-update-rate", "model.moe_router_bias_update_rate", "model.moe_input_jitter_eps"),
    neighbour("moe-z-loss-coeff", "model.moe_z_loss_coeff", "model.moe_aux_loss_coeff"),
    neighbour("moe-input-jitter-eps", "model.moe_input_jitter_eps", "model.moe_z_loss_coeff"),
    neighbour("moe-router-dtype", "model.moe_router_dtype", "precision.params_dtype"),
    neighbour("moe-token-drop-policy", "model.moe_token_drop_policy", "model.moe_token_dispatcher_type"),
    ("flag_quick_geglu_plain", FLAGS, '"model.activation=quick_gelu;model.gated_linear_unit=true"', '"model.activation=quick_gelu"', "megatron_test"),
    ("flag_swiglu_gelu", FLAGS, '"model.activation=silu;model.gated_linear_unit=true"', '"model.activation=gelu;model.gated_linear_unit=true"', "megatron_test"),
    ("flag_disable_bias_kept", FLAGS, '{"--disable-bias-linear", kNone, "model.add_bias_linear=false"}', '{"--disable-bias-linear", kNone, "model.add_qkv_bias=false"}', "megatron_test"),
    # The second of two.
    ("end_wd_into_start", "config/param_groups.cpp", 'key == "end_wd"   ? &rule.end_wd', 'key == "end_wd"   ? &rule.start_wd', "config_test"),
    ("wd_mult_into_start", "config/param_groups.cpp", 'key == "wd_mult"  ? &rule.wd_mult', 'key == "wd_mult"  ? &rule.start_wd', "config_test"),
    ("last_rule_counts", "config/param_groups.cpp", "if (rule.match(name)) return &rule;", "if (rules.back().match(name)) return &rules.back();", "config_test"),
    ("pattern_tail", "config/param_groups.cpp", "return p == pattern.size();", "return p <= pattern.size();", "config_test"),
    ("group_may_be_said_twice", "config/param_groups.cpp", "if (member == nullptr || !value || *member) {", "if (member == nullptr || !value) {", "config_test"),
    ("shorter_added_token", "text/added_tokens.cpp", "        best_end = i + 1;\n", "        best_end = i + 1;\n        break;\n", "text_test"),
    ("added_token_word_behind", "text/added_tokens.cpp", "return end == text.size() || !is_word(next_code_point(text, end));", "return true;", "text_test"),
    ("added_token_word_before", "text/added_tokens.cpp", "if (begin > 0 && is_word(code_point_before(text, begin))) return false;", "", "text_test"),
    ("second_step_unsorted", "config/batch_schedule.cpp", "return a.first_sample < b.first_sample; }", "return a.global_batch_size < b.global_batch_size; }", "config_test"),
    ("steps_equal_thresholds", "config/batch_schedule.cpp", "if (steps[i - 1].first_sample == steps[i].first_sample) {", "if (steps[0].first_sample == steps[i].first_sample) {", "config_test"),
    # Sizes that are derived, and limits.
    ("count_of_kilo", "config/batch_schedule.cpp", "return 1e3;", "return 1024;", "config_test"),
    ("count_of_tera", "config/batch_schedule.cpp", "return 1e12;", "return 1e9;", "config_test"),
    ("threshold_in_tokens", "config/batch_schedule.cpp", "step.first_sample /= std::max<int64_t>(seq_length, 1);", "step.first_sample /= std::max<int64_t>(seq_length, 1) * 0 + 1;", "config_test; plan_test"),
    ("ramp_must_arrive", "config/batch_schedule.cpp", "if (grow < 1 || grow % r.increment != 0) {", "if (grow < 1) {", "config_test"),
    ("gated_width", "config/derived.cpp", "8 * model.hidden_size / 3 / 64 * 64", "8 * model.hidden_size / 3", "config_test; metroplex_vectors"),
    ("bucket_by_dp", "config/derived.cpp", "1'000'000 * dp", "1'000'000", "config_test; plan_test"),
    ("layout_gives_vpp", "config/derived.cpp", "return count >= parallel.pp() && count % parallel.pp() == 0 ? count / parallel.pp() : parallel.vpp();", "return parallel.vpp();", "config_test"),
    ("instances_of_experts", "config/rules_experts.cpp", "rules.require(edp % instances == 0,", "rules.require(edp >= instances,", "config_test"),
    ("min_scale_above_first", "config/rules_precision.cpp", "p.min_loss_scale <= p.initial_loss_scale", "p.min_loss_scale >= 0", "config_test"),
    ("remainders_need_bf16", "config/rules_precision.cpp", "rules.require(p.params_dtype == ParamsDtype::bf16, kRemainders,", "rules.require(p.half(), kRemainders,", "config_test"),
    ("sp_length", "config/rules_model.cpp", "tp == 1 || seq % tp == 0,", "tp == 1 || seq >= tp,", "config_test"),
    ("limits_of_degrees", "topology/rank_grid.cpp", "std::numeric_limits<int>::max() / 2", "std::numeric_limits<int64_t>::max() / 2", "topology_test"),
    ("degrees_overflow", "topology/rank_grid.cpp", "product > world ? product : product * degree", "product * degree", "topology_test"),
    # Buckets and memory.
    ("bucket_full_late", "plan/buckets.cpp", "at_ - begin_ >= options_.bucket_size", "at_ - begin_ > options_.bucket_size", "plan_test"),
    ("bucket_end_unpadded", "plan/buckets.cpp", "begin_ = at_ = padded;", "begin_ = at_ = end;", "plan_test"),
    ("bucket_start_unaligned", "plan/buckets.cpp", "round_up(at_, options_.param_start_multiple)", "at_", "plan_test"),
    ("bucket_used_padded", "plan/buckets.cpp", "{begin_, padded, end - begin_,", "{begin_, padded, padded - begin_,", "plan_test"),
    ("peak_without_tables", "plan/memory.cpp", "out.use.total() + out.tables + out.batches + peaks.most", "out.use.total() + out.batches + peaks.most", "plan_test"),
    ("activations_without_borders", "plan/memory.cpp", "peaks.activations + peaks.borders", "peaks.activations", "plan_test"),
    ("batches_of_one_microbatch", "plan/memory.cpp", "table.num_microbatches * trace.batch", "trace.batch", "plan_test"),
    # What changes over time: data, checkpoints.
    ("epoch_never_moves", "data/sampler.cpp", "    ++epoch_;\n", "", "data_test"),
    ("seed_of_the_epoch", "data/sampler.cpp", "const uint64_t seed = o.seed + static_cast<uint64_t>(epoch_);", "const uint64_t seed = o.seed;", "data_test"),
    ("resumed_seed_of_the_epoch", "data/sampler.cpp", "o.seed + static_cast<uint64_t>(epoch_));", "o.seed);", "data_test"),
    ("sharded_resume", "data/sampler.cpp", "position_ = in_epoch / o.dp_size;", "position_ = in_epoch;", "data_test"),
    ("own_share_of_the_rest", "data/sampler.cpp", "order[static_cast<size_t>(in_epoch + o.dp_index + i * o.dp_size)]", "order[static_cast<size_t>(o.dp_index + i * o.dp_size)]", "data_test"),
    ("last_batch_of_a_rank", "data/sampler.cpp", "left < step && o.drop_last", "left < o.micro_batch_size && o.drop_last", "data_test"),
    ("cache_ignores_seed", "data/gpt_dataset.cpp", '"\\nseed ", index.seed,', '"\\nseed ", 0,', "data_test"),
    ("cache_ignores_length", "data/gpt_dataset.cpp", "index.sequence_length,", "0,", "data_test"),
    ("document_numbers", "data/gpt_dataset.cpp", "    ++document;\n", "", "data_test"),
    ("kept_for_good", "checkpoint/retention.cpp", "name.iteration % retention.retain_interval == 0", "name.iteration >= retention.retain_interval", "checkpoint_test"),
    ("one_more_is_kept", "checkpoint/retention.cpp", "for (size_t i = kept; i < history.past.size(); ++i)", "for (size_t i = kept + 1; i < history.past.size(); ++i)", "checkpoint_test"),
    ("branches_stay", "checkpoint/retention.cpp", "for (const CheckpointName& name : history.left) add(name);", "", "checkpoint_test"),
    # Upper floor: state through resume, the rate's schedule.
    ("hysteresis_from_growth", "optim/grad_scaler.cpp", "values.hysteresis_tracker = static_cast<double>(state.hysteresis_tracker);", "values.hysteresis_tracker = static_cast<double>(state.growth_tracker);", "optim_test GradScaler*; train_test *StateWalk*"),
    ("hysteresis_refilled", "optim/grad_scaler.cpp", "std::min(state.hysteresis_tracker, args_.hysteresis)}", "args_.hysteresis}", "optim_test GradScaler*"),
    ("scale_of_a_constant", "optim/grad_scaler.cpp", "if (args_.constant) return start();", "", "optim_test GradScaler*"),
    ("window_is_hysteresis", "optim/grad_scaler.cpp", "args.growth_interval = precision.loss_scale_window;", "args.growth_interval = precision.hysteresis;", "optim_test"),
    ("wd_end_is_start", "optim/lr_schedule.cpp", "std::isnan(group.end_wd) ? args_.end_wd : group.end_wd", "std::isnan(group.end_wd) ? args_.end_wd : group.start_wd", "optim_test"),
    ("warmup_to_the_groups_rate", "optim/lr_schedule.cpp", "(max_lr - args_.init_lr) * done", "(args_.max_lr - args_.init_lr) * done", "optim_test"),
    ("wsd_start", "optim/lr_schedule.cpp", "if (num_steps <= anneal_start) return max_lr;", "if (num_steps < anneal_start) return min_lr;", "optim_test"),
    ("verify_keeps_wsd", "train/verify.cpp", "  config.optim.lr_wsd_decay_iters = config.optim.lr_wsd_decay_samples = 0;\n", "", "metroplex"),
    # A run's state through resume and finetune.
    ("main_left_by_finetune", "train/state.cpp", "if (!main && !moments) continue;", "if (!moments) continue;", WALK),
    ("main_not_from_the_parameter", "optim/elementwise.cpp", "if (!item.in_place) set_main(item, item.slice.values);", "(void)item;", WALK),
    ("scheduled_are_consumed", "train/state.cpp", 'extra.value("scheduled_samples", consumed)', "consumed", WALK),
    ("skipped_steps_move_rates", "train/trainer.cpp", "  if (outcome.updated) {\n    position_.scheduled_samples += global_batch_size_;\n", "  position_.scheduled_samples += global_batch_size_;\n  if (outcome.updated) {\n", WALK),
    ("finetune_keeps_iteration", "train/trainer.cpp", "if (!a_->config.checkpoint.finetune) position_ = outcome.position;", "position_ = outcome.position;", WALK),
    ("finetune_keeps_samples", "train/trainer.cpp", "if (!a_->config.checkpoint.finetune) position_ = outcome.position;", "position_.consumed_train_samples = outcome.position.consumed_train_samples;\n  if (!a_->config.checkpoint.finetune) position_ = outcome.position;", WALK),
    ("parent_across_folders", "train/state.cpp", 'state.parent = same ? files::base_name', 'state.parent = same || true ? files::base_name', WALK),
    ("parent_not_recorded", "train/state.cpp", 'state.parent = same ? files::base_name', 'state.parent = same && false ? files::base_name', WALK),
    ("update_count_lost", "train/state.cpp", "  step.steps = static_cast<double>(steps);\n", "", WALK),
    ("loss_scale_lost", "optim/grad_scaler.cpp", "  values.loss_scale = state.scale;\n", "", WALK),
    # Processes, and who talks to them.
    ("any_secret_will_do", "comm/backends/watch_link.cpp", "return difference == 0;", "return true;", "comm_test WatchPort*"),
    ("strangers_talk_long", "comm/backends/watch_link.cpp", "refused = length > (rank < 0 ? kLongestHello : kLongest);", "refused = length > kLongest;", "comm_test WatchPort*"),
    ("spins_without_files", "comm/backends/watch_tree.cpp", "if (!passing) out_of_files_ = Clock::now() + kPause;", "(void)passing;", "comm_test WatchPort*"),
    ("late_joiner_hears_nothing", "comm/backends/watch_tree.cpp", "if (link.rank >= 0 && cause_) link.put(kCause, *cause_);", "", "comm_test WatchTree*"),
    ("failure_before_joining", "comm/backends/watch_tree.cpp", "if (cause_) link.put(kCause, *cause_);  // of a child", "// of a child", "comm_test WatchTree*"),
    ("second_cause_spreads", "comm/backends/watch_tree.cpp", "if (message.kind == kCause && !cause_) {", "if (message.kind == kCause) {", "comm_test WatchTree*"),
    # Graphs.
    ("strides_not_compared", "cuda/graph/tape_compare.cpp", "!same_form(a[t], b[t]) || a[t].strides() != b[t].strides()", "!same_form(a[t], b[t])", "cuda_test TapeFindings*"),
    ("handler_on_any_stack", "cuda/graph/guarded_arena.cpp", "SA_SIGINFO | SA_NODEFER | SA_ONSTACK", "SA_SIGINFO | SA_NODEFER", "cuda_test GuardedArena*"),
    ("term_out_of_range", "cuda/kernels/step_state_math.h", "own.terms[i] >= 0 && own.terms[i] < place.num_terms", "own.terms[i] >= 0", "cuda_test StepState*"),
    ("gathers_into_the_capture", "train/step_graphs.cpp", "  a_.families.settle();\n  a_.step_inputs", "  a_.step_inputs", "train_test StepGraphs*"),
    ("terms_written_in_the_capture", "train/loss_terms.cpp", "if (!on_device_.defined()) {", "if (true) {", "train_test StepGraphs*"),
    # Experts, and how a run is cut.
    ("capacity_without_limit", "config/experts.cpp", "asked < static_cast<double>(tokens) ? static_cast<int64_t>(asked) : tokens", "static_cast<int64_t>(asked)", "config_test"),
    ("alone_and_sharded", "distributed/families.cpp", "family.key.clones || family.data_parallel.shard.size() == 1 ?", "family.key.clones ?", "distributed_test"),
    ("moe_not_recomputed", "nn/recompute.cpp", 'if (memory.recomputes("moe")) return layers_of_experts(blocks);', "", "train_test ExpertsMemoryRanks*"),
    ("samples_without_a_step", "train/batch.cpp", 'MPX_ASSERT(batch.numbers.step >= 0, "a microbatch has samples and no step");', "", "train_test StackSamples*"),
    ("rate_by_the_last_batch", "train/run_length.cpp", "if (c.train.step_batch_size_schedule.empty() || c.train.train_samples > 0) return c;", "return c;", "train_test RunLength*"),
    # Folders.
    ("lock_of_another_ignored", "checkpoint/folder_lock.cpp", "if (!lock_) return false;", "", "checkpoint_test FolderLock*"),
    ("holder_not_looked_for", "checkpoint/folder_lock.cpp", "return !holder || own || !lives(*holder, me.host);", "return true;", "checkpoint_test FolderLock*"),
    ("link_is_followed", "files/remove_tree.cpp", "::fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW)", "::fstatat(parent, name, &info, 0)", "files_test FileSystem*"),
    ("run_yaml_is_foreign", "train/run_folders.cpp", "name != checkpoint::kRunConfig && ", "", "train_test RunFolders*"),
]
