// Descriptions of what is trained and how it is cut: model, parallel, optim, precision.
#include "config/section_fields.h"

namespace metroplex::config {

static void visit_shape(Model& m, FieldList& field) {
  field(
      "family", m.family,
      "Which network is built. llama presets RMSNorm, rotary positions, gated SiLU, no biases and an untied head for "
      "the keys that you leave out; what you write yourself always wins.",
      one_of({"gpt", "codegeex", "llama"}));
  field("num_layers", m.num_layers, "Transformer layers, over all pipeline stages.", between(1, 100000));
  field("hidden_size", m.hidden_size, "Width of the residual stream.", between(1, 16777216));
  field("num_attention_heads", m.num_attention_heads, "Query heads; a multiple of the tensor-parallel size.",
        between(1, 65536));
  field(
      "num_query_groups", m.num_query_groups,
      "Key/value heads (grouped-query attention). Every group serves the same number of query heads. 0: one group a "
      "head.",
      between(0, 65536));
  field("kv_channels", m.kv_channels, "Width of one head. 0: hidden_size / num_attention_heads.",
        between(0, 1048576));
  field(
      "ffn_hidden_size", m.ffn_hidden_size,
      "Inner width of the MLP. 0: 4 * hidden_size, or int(8/3 * hidden_size / 64) * 64 with gated_linear_unit, which "
      "keeps the number of parameters about the same.",
      between(0, 134217728));
  field("vocab_size", m.vocab_size, "Tokens the model knows, before padding. 0: as many as the tokenizer has.",
        between(0, 2147483647));
  field("make_vocab_size_divisible_by", m.make_vocab_size_divisible_by,
        "The embedding table is padded to a multiple of this times the tensor-parallel size. Padded rows are masked "
        "out "
        "of the softmax.",
        between(1, 1048576));
  field("max_position_embeddings", m.max_position_embeddings,
        "Longest sequence that has positions. 0: train.seq_length.", between(0, 2147483647));
  field("num_tokentypes", m.num_tokentypes, "Rows of the token-type embedding. 0: the model has none.",
        between(0, 65536));
  field("position_embedding_type", m.position_embedding_type,
        "Where positions come from: a learned table, rotation of queries and keys, or nowhere.",
        one_of({"learned_absolute", "rope", "none"}));
  field("rotary_base", m.rotary_base, "Base of the rotary frequencies.", above(0));
  field("rotary_percent", m.rotary_percent, "Share of each head that is rotated.", Limits{{}, 0, 1, true, false});
}

static void visit_details(Model& m, FieldList& field) {
  field("normalization", m.normalization, "Norm before attention, before the MLP and at the end.",
        one_of({"LayerNorm", "RMSNorm"}));
  field("layernorm_epsilon", m.layernorm_epsilon, "Added to the variance inside a norm.", above(0));
  field("activation", m.activation,
        "Non-linearity of the MLP. gelu is the exact (erf) form, gelu_tanh its usual approximation.",
        one_of({"gelu", "gelu_tanh", "silu", "relu", "squared_relu"}));
  field("gated_linear_unit", m.gated_linear_unit,
        "The MLP multiplies its activation with a second projection. With activation silu this is SwiGLU.");
  field("add_bias_linear", m.add_bias_linear, "Linear layers have biases.");
  field("add_qkv_bias", m.add_qkv_bias,
        "The query/key/value projection has a bias even where add_bias_linear is off.");
  field("qk_layernorm", m.qk_layernorm, "Normalise queries and keys, head by head, before attention.");
  field("untie_embeddings_and_output_weights", m.untie_embeddings_and_output_weights,
        "The output head has weights of its own instead of sharing the word embedding.");
  field("attention_dropout", m.attention_dropout, "Probability of dropping an attention weight.",
        from_to_below(0, 1));
  field("hidden_dropout", m.hidden_dropout, "Probability of dropping an element of the residual stream's inputs.",
        from_to_below(0, 1));
  field("init_method_std", m.init_method_std,
        "Standard deviation of the initial weights; output projections use it divided by sqrt(2 * num_layers).",
        above(0));
  field(
      "sharded_initialization", m.sharded_initialization,
      "false: every layout starts from the same weights. true: each rank draws its own shard with Megatron's seeds, "
      "cheaper for large models, and different for every layout.");
}

void visit(Model& model, FieldList& field) {
  visit_shape(model, field);
  visit_details(model, field);
}

static void visit_degrees(Parallel& p, FieldList& field) {
  field("tensor_model_parallel_size", p.tensor_model_parallel_size,
        "Ranks that share each layer's matrices (tp). Keep it inside a node: it talks twice a layer.",
        between(1, 65536));
  field("pipeline_model_parallel_size", p.pipeline_model_parallel_size,
        "Stages the layers are cut into (pp). It talks least, so it may cross nodes.", between(1, 65536));
  field("virtual_pipeline_model_parallel_size", p.virtual_pipeline_model_parallel_size,
        "Model chunks each pipeline rank holds (vpp): the interleaved schedule, with a smaller bubble for more "
        "messages.",
        between(1, 65536));
  field("context_parallel_size", p.context_parallel_size, "Ranks that share each sequence (cp).", between(1, 65536));
  field("expert_model_parallel_size", p.expert_model_parallel_size, "Ranks that share the experts (ep).",
        between(1, 65536));
  field("expert_tensor_parallel_size", p.expert_tensor_parallel_size,
        "Ranks that share each expert's matrices. 0: tensor_model_parallel_size.", between(0, 65536));
  field("sequence_parallel", p.sequence_parallel,
        "Norms, dropout and residual are cut along the sequence over the tensor-parallel ranks. Saves activation "
        "memory "
        "at the same traffic. Without effect (and turned off) when tp is 1.");
  field("order", p.order,
        "How the rank number runs through the axes, fastest first. The usual other choice is tp-cp-ep-pp-dp.");
  field("num_distributed_optimizer_instances", p.num_distributed_optimizer_instances,
        "Copies of the sharded optimizer state inside the data-parallel ranks.", between(1, 65536));
}

static void visit_pipeline(Parallel& p, FieldList& field) {
  field("pipeline_schedule", p.pipeline_schedule,
        "Order of forward and backward passes. auto: none for one stage, 1f1b, or interleaved with virtual stages.",
        one_of({"auto", "none", "gpipe", "1f1b", "interleaved"}));
  field("microbatch_group_size_per_vp_stage", p.microbatch_group_size_per_vp_stage,
        "Microbatches that pass one virtual stage before the next one starts. 0: pipeline_model_parallel_size.",
        between(0, 1000000));
  field("decoder_first_pipeline_num_layers", p.decoder_first_pipeline_num_layers,
        "Layers of the first stage, when it should hold other than its even share. 0: even.", between(0, 100000));
  field("decoder_last_pipeline_num_layers", p.decoder_last_pipeline_num_layers,
        "Layers of the last stage, when it should hold other than its even share. 0: even.", between(0, 100000));
  field("account_for_embedding_in_pipeline_split", p.account_for_embedding_in_pipeline_split,
        "Count the embedding as one layer when layers are dealt out: the first stage gets one less.");
  field("account_for_loss_in_pipeline_split", p.account_for_loss_in_pipeline_split,
        "Count the head and loss as one layer: the last stage gets one less.");
  field("pipeline_model_parallel_layout", p.pipeline_model_parallel_layout,
        "Every stage spelled out: E embedding, t layer, L loss, | next stage, x*3 and (tt|)*4 repeat, commas for the "
        "eye. "
        "Stage s is virtual stage s / pp of rank s % pp. Replaces the four keys above and gives vpp.");
  field("variable_seq_lengths", p.variable_seq_lengths, "Stages send a tensor's shape before the tensor.");
  field("overlap_p2p_comm", p.overlap_p2p_comm,
        "Pipeline messages run beside computation (interleaved schedule only).");
  field("overlap_grad_reduce", p.overlap_grad_reduce,
        "Gradient buckets are reduced while the backward pass still runs.");
  field("ddp_bucket_size", p.ddp_bucket_size,
        "Elements of a gradient bucket. 0: the larger of 40 million and 1 million times dp.", at_least(0));
}

void visit(Parallel& parallel, FieldList& field) {
  visit_degrees(parallel, field);
  visit_pipeline(parallel, field);
}

static void visit_learning_rate(Optim& o, FieldList& field) {
  field("lr", o.lr, "Highest learning rate.", at_least(0));
  field("min_lr", o.min_lr, "Lowest learning rate of the decay.", at_least(0));
  field("lr_decay_style", o.lr_decay_style,
        "How the learning rate falls after warm-up. WSD: warm up, stay, then fall over lr_wsd_decay_iters.",
        one_of({"constant", "linear", "cosine", "inverse-square-root", "WSD"}));
  field("lr_decay_iters", o.lr_decay_iters, "Iterations until min_lr is reached. 0: train.train_iters.",
        between(0, 1e9));
  field("lr_decay_samples", o.lr_decay_samples, "The same in samples. 0: train.train_samples.", between(0, 1e15));
  field("lr_warmup_iters", o.lr_warmup_iters, "Iterations over which the rate rises from lr_warmup_init to lr.",
        between(0, 1e9));
  field("lr_warmup_samples", o.lr_warmup_samples, "The same in samples.", between(0, 1e15));
  field("lr_warmup_fraction", o.lr_warmup_fraction,
        "Warm-up as a share of the decay length; instead of lr_warmup_iters or lr_warmup_samples.",
        from_to_below(0, 1));
  field("lr_warmup_init", o.lr_warmup_init, "Learning rate that warm-up starts from.", at_least(0));
  field("lr_wsd_decay_style", o.lr_wsd_decay_style, "Shape of the last part of a WSD schedule.",
        one_of({"linear", "cosine", "exponential", "minus_sqrt"}));
  field("lr_wsd_decay_iters", o.lr_wsd_decay_iters, "Length of the last part of a WSD schedule.", between(0, 1e9));
  field("lr_wsd_decay_samples", o.lr_wsd_decay_samples, "The same in samples.", between(0, 1e15));
}

void visit(Optim& o, FieldList& field) {
  field("optimizer", o.optimizer, "adam is AdamW (decoupled weight decay).", one_of({"adam", "sgd"}));
  visit_learning_rate(o, field);
  field("weight_decay", o.weight_decay, "Weight decay of matrices; biases and norms have none.", at_least(0));
  field("start_weight_decay", o.start_weight_decay,
        "Weight decay at the start of a linear or cosine weight_decay_incr_style. -1: weight_decay.", at_least(-1));
  field("end_weight_decay", o.end_weight_decay, "Weight decay at its end. -1: weight_decay.", at_least(-1));
  field("weight_decay_incr_style", o.weight_decay_incr_style, "How weight decay moves over training.",
        one_of({"constant", "linear", "cosine"}));
  field("adam_beta1", o.adam_beta1, "Decay of Adam's mean of gradients.", from_to_below(0, 1));
  field("adam_beta2", o.adam_beta2, "Decay of Adam's mean of squared gradients.", from_to_below(0, 1));
  field("adam_eps", o.adam_eps, "Added to the root of Adam's second moment.", above(0));
  field("sgd_momentum", o.sgd_momentum, "Momentum of sgd.", from_to_below(0, 1));
  field("clip_grad", o.clip_grad, "Largest norm of the whole gradient; longer ones are scaled down. 0: off.",
        at_least(0));
  field("override_opt_param_scheduler", o.override_opt_param_scheduler,
        "On resume, take the schedule from this configuration and not from the checkpoint.");
  field("use_checkpoint_opt_param_scheduler", o.use_checkpoint_opt_param_scheduler,
        "On resume, take the schedule from the checkpoint and not from this configuration.");
}

void visit(Precision& precision, FieldList& field) {
  field("params_dtype", precision.params_dtype,
        "Number format of parameters, activations and gradients. fp64 is for comparing layouts to the last digits.",
        one_of({"fp32", "fp64"}));
}

}  // namespace metroplex::config
