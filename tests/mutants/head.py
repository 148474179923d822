"""Mutants of the output layer, its loss, and sums of half gradients: rows as in drawn.py."""

CHUNKS = "nn_test LossChunks*"
SUMS = "distributed_test Fp32Sums*"
SHARDS = "kernels_on_host ShardSums*"

MUTANTS = [
    # The loss by chunks.
    ("loss_chunks_overwrite_the_weight_gradient", "nn/loss.cpp", "dlogits, chunk(x), adds || begin > 0", "dlogits, chunk(x), adds", CHUNKS),
    ("loss_chunks_keep_undivided_gradients", "nn/loss.cpp", "if (divisor != 1) dlogits.div_(divisor);", "", CHUNKS, "stmt"),
    ("loss_chunks_ignore_the_cap_in_backward", "nn/loss.cpp", "if (share.defined()) dlogits = softcap_gradient(dlogits, share);", "", CHUNKS, "stmt"),
    ("deferred_loss_chunks_leave_no_input_gradient", "nn/loss.cpp", "weight_.frozen || weight_.deferred != nullptr", "weight_.frozen", CHUNKS, "expr"),
    ("loss_chunks_of_one_rank", "nn/loss.cpp", "comm::all_reduce(dx, tp_reduce_);", "", CHUNKS, "stmt"),
    ("loss_chunks_have_the_first_rows", "nn/loss.cpp", "rows.maximum.narrow(0, begin, shape.rows)", "rows.maximum.narrow(0, 0, shape.rows)", CHUNKS, "expr"),
    ("heads_ignore_loss_chunks", "models/decoder.cpp", "if (context.loss_chunk_tokens == 0) return;", "if (context.loss_chunk_tokens >= 0) return;", "run_test FlopsRanks*"),
    ("loss_chunks_of_all_tokens", "config/rules_memory.cpp", "tokens == 0 || tokens < most", "tokens == 0 || tokens <= most", "config_test Refusals*", "expr"),
    # fp32 logits of half-precision models.
    ("logits_are_rounded", "nn/linear.cpp", "wide_output_(context.precision.output_logit_dtype == config::OutputLogitDtype::fp32)", "wide_output_(false)", "nn_test WideLogits*"),
    ("logits_of_chunks_are_rounded", "nn/loss.cpp", "wide_logits_(context.precision.output_logit_dtype == config::OutputLogitDtype::fp32)", "wide_logits_(false)", "nn_test WideLogits*"),
    ("blocks_of_logits_repeat", "nn/matmul.cpp", "at::Tensor block = rows.narrow(1, begin, n);", "at::Tensor block = rows.narrow(1, 0, n);", "nn_test WideLogits*", "stmt"),
    ("heads_ignore_the_format_of_logits", "step/assemble.cpp", "context.precision = config.precision;", "", "run_test OutputLogits*", "stmt"),
    ("fp32_models_take_fp32_logits", "config/rules_precision.cpp", "precision.output_logit_dtype == OutputLogitDtype::params || precision.half()", "true", "config_test Refusals*", "expr"),
    ("flag_of_logits_in_their_own_format", "megatron/translator_flags.cpp", 'format == "fp32" ? "fp32" : "params"', '"params"', "megatron_test MegatronFlags*", "expr"),
    # Sums of half gradients in fp32.
    ("sums_lack_the_second_rank", "kernels/optimizer_step_sums_cpu.cpp", "int rank = 1; rank < received.ranks; ++rank", "int rank = 2; rank < received.ranks; ++rank", SUMS),
    ("sums_of_one_shard", "kernels/optimizer_step_sums_cpu.cpp", "rank * received.size + sum.begin + at", "sum.begin + at", SUMS, "expr"),
    ("sums_in_another_order_of_ranks", "kernels/optimizer_step_sums_cpu.cpp", "rank * received.size + sum.begin + at", "(received.ranks - rank) * received.size + sum.begin + at", SHARDS),
    ("sums_on_gpus_in_another_order_of_ranks", "kernels/optimizer_step_sums.cu", "total.add(shard + rank * received.size);", "total.add(shard + (received.ranks - rank) * received.size);", SHARDS, "stmt"),
    ("sums_are_rounded_for_each_rank", "kernels/optimizer_step_sums_cpu.cpp", "          add(n);\n        }\n        if (received.adds) {", "          add(n);\n          uint16_t half[kTile];\n          round(half, n);\n          widened(half, received.number, 0, n, total);\n        }\n        if (received.adds) {", f"{SUMS}; {SHARDS}"),
    ("sums_on_gpus_are_rounded_for_each_rank", "kernels/optimizer_step_sums.cu", "++rank) total.add(shard + rank * received.size);", "++rank) {\n    total.add(shard + rank * received.size);\n    for (float& value : total.values) value = load(store<T>(value));\n  }", SHARDS),
    ("added_sums_are_not_rounded", "kernels/optimizer_step_sums_cpu.cpp", "          widened(rounded, received.number, 0, n, total);\n", "", f"{SUMS}; {SHARDS}"),
    ("added_sums_on_gpus_are_not_rounded", "kernels/optimizer_step_sums.cu", "    for (float& value : total.values) value = load(store<T>(value));\n", "", SHARDS),
    ("sums_overwrite_earlier_microbatches", "distributed/grad_buffer.cpp", "layout.own_size, options_.transient_buckets};", "layout.own_size, false};", SUMS),
    ("norms_of_unrounded_sums", "kernels/optimizer_step_sums.cu", "rounded[l] = load(store<T>(total.values[l]));", "rounded[l] = total.values[l];", SHARDS, "stmt"),
    ("shards_in_packs_unaligned", "kernels/optimizer_step_sums.cu", "shards_align = received.size % kAtOnce == 0;", "shards_align = true;", SHARDS),
    ("ranges_of_shards_in_packs_unaligned", "kernels/optimizer_step_sums.cu", "all[i].begin % kAtOnce == 0", "all[i].begin >= 0", SHARDS, "expr"),
    ("sums_in_packs_unaligned", "kernels/optimizer_step_sums.cu", "aligned_for_packs(all[i].out, received.data)", "true", SHARDS, "expr"),
    ("summed_gradients_are_read", "kernels/optimizer_step_sums_cpu.cpp", "range.summed ? total_sums", "false ? total_sums", f"{SUMS}; optim_test GradientNorm.Sums*", "expr"),
    ("norms_on_gpus_read_summed_gradients", "kernels/optimizer_step_sums.cu", "if (range.summed) {", "if (range.summed && range.n < 0) {", SHARDS),
    ("norms_ignore_sums", "optim/clip.cpp", "family.sums.empty() ? at::Tensor() : family.sums[i]", "at::Tensor()", "optim_test GradientNorm.Sums*; forecast_test TracedRun.CountsSums*", "expr"),
    ("steps_have_no_sums", "step/rank_model.cpp", "family.gradients ? family.gradients->own_sums() : std::vector<at::Tensor>()", "std::vector<at::Tensor>()", "forecast_test TracedRun.CountsSums*", "expr"),
    ("sums_count_padding", "distributed/grad_buffer.cpp", "range.own - layout.own_begin, range.size(),", "range.own - layout.own_begin, (range.size() + 63) / 64 * 64,", "distributed_test Fp32SumsRanks.Gradient*; run_test Fp32Sums*"),
    ("sums_are_defined_within_a_step", "distributed/grad_buffer.cpp", "if (in_step_ || !bucket.has_sums) continue;", "if (!bucket.has_sums) continue;", SUMS),
    ("unused_buckets_have_sums", "distributed/grad_buffer.cpp", "if (in_step_ || !bucket.has_sums) continue;", "if (in_step_) continue;", SUMS),
    ("sums_ignore_replicas", "distributed/grad_buffer.cpp", "is_final = dp_.replicas.size() == 1 &&", "is_final =", f"{SUMS}; run_test Fp32Sums*"),
    ("sums_of_partial_gradients", "distributed/grad_buffer.cpp", "placement.partial.empty() && placement.shared.empty()", "placement.shared.empty()", f"{SUMS}; run_test Fp32Sums*", "expr"),
    ("sums_of_shared_gradients", "distributed/grad_buffer.cpp", "placement.partial.empty() && placement.shared.empty()", "placement.partial.empty()", f"{SUMS}; run_test Fp32Sums*"),
    ("last_sums_are_not_awaited", "distributed/grad_buffer.cpp", "bucket.handle.wait();\n  finish_reduce();", "bucket.handle.wait();", SUMS),
    ("sums_of_two_buckets_at_a_time", "distributed/grad_buffer.cpp", "  if (options_.fp32_sums) {\n    finish_reduce();\n", "  if (options_.fp32_sums) {\n", SUMS),
    ("families_sum_in_half", "distributed/families.cpp", "parallel.reduce_scatter_with_fp32_accumulation && half", "false && half", "run_test Fp32Sums*; forecast_test TracedRun*"),
    ("buffers_of_sums_are_not_predicted", "forecast/trace.cpp", "if (options.fp32_sums) transient.buffers", "if (false) transient.buffers", "run_test MemoryRanks*:PeakMemoryRanks*"),
    ("fp32_sums_are_predicted", "forecast/trace.cpp", "transient.buffers.push_back(recorder.rounded(bytes));", "transient.buffers.push_back(recorder.rounded(bytes) + recorder.rounded(4 * bucket.own_size));", "run_test MemoryRanks*:PeakMemoryRanks*"),
    ("sums_after_the_last_action_take_nothing", "replay/rank_trace_replay.cpp", "peaks_.most = std::max(peaks_.most, now() + buckets_.at_end());", "", "replay_test TraceReplay*", "stmt"),
    ("sums_leave_with_their_bucket", "replay/rank_trace_replay.cpp", "family.trace.bytes[*full] + buffers", "family.trace.bytes[*full]", "replay_test TraceReplay*", "expr"),
    ("sums_without_sharding", "config/rules_memory.cpp", "rules.require(config.parallel.sharding().any(), kKey", "rules.require(true, kKey", "config_test Refusals*"),
    ("flag_of_sums_with_fp32_gradients", "megatron/translator_flags.cpp", "if (whole_ && !half) return ignore", "if (false) return ignore", "megatron_test MegatronFlags*"),
]
