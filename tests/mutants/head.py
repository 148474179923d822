"""Mutants of the output layer, its loss, and sums of half gradients: rows as in drawn.py."""

CHUNKS = "nn_test LossChunks*"
SUMS = "distributed_test Fp32Sums*"

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
    ("sums_lack_the_first_rank", "distributed/grad_buffer.cpp", "                    rank > 0);", "                    rank > 1);", SUMS),
    ("sums_of_one_shard", "distributed/grad_buffer.cpp", "pending_.received.narrow(0, rank * own.numel(), own.numel())", "pending_.received.narrow(0, 0, own.numel())", SUMS, "expr"),
    ("last_sums_are_not_awaited", "distributed/grad_buffer.cpp", "bucket.handle.wait();\n  finish_reduce();", "bucket.handle.wait();", SUMS),
    ("sums_of_two_buckets_at_a_time", "distributed/grad_buffer.cpp", "  if (options_.fp32_sums) {\n    finish_reduce();\n", "  if (options_.fp32_sums) {\n", SUMS),
    ("families_sum_in_half", "distributed/families.cpp", "parallel.reduce_scatter_with_fp32_accumulation && half", "false && half", "run_test Fp32Sums*; forecast_test TracedRun*"),
    ("buffers_of_sums_are_not_predicted", "forecast/trace.cpp", "      if (options.fp32_sums)\n        transient.buffers", "      if (false)\n        transient.buffers", "run_test MemoryRanks*:PeakMemoryRanks*"),
    ("sums_after_the_last_action_take_nothing", "replay/rank_trace_replay.cpp", "peaks_.most = std::max(peaks_.most, now() + buckets_.at_end());", "", "replay_test TraceReplay*", "stmt"),
    ("sums_leave_with_their_bucket", "replay/rank_trace_replay.cpp", "family.trace.bytes[*full] + buffers", "family.trace.bytes[*full]", "replay_test TraceReplay*", "expr"),
    ("sums_without_sharding", "config/rules_memory.cpp", "rules.require(config.parallel.sharding().any(), kKey", "rules.require(true, kKey", "config_test Refusals*"),
    ("flag_of_sums_with_fp32_gradients", "megatron/translator_flags.cpp", "if (whole_ && !half) return ignore", "if (false) return ignore", "megatron_test MegatronFlags*"),
]
