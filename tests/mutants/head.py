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
]
