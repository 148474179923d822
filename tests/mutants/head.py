"""Mutants of the output layer, its loss, and sums of half gradients: rows as in drawn.py."""

CHUNKS = "nn_test LossChunks*"

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
]
