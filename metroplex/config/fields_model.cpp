// Descriptions of what is trained and how it is cut: model, parallel.
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
        "Non-linearity of the MLP. gelu is the exact (erf) form, gelu_tanh its usual approximation, "
        "quick_gelu is x * sigmoid(1.702 x).",
        one_of({"gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "squared_relu"}));
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
  field("overlap_p2p_comm", p.overlap_p2p_comm,
        "Pipeline messages run beside computation (interleaved schedule only).");
}

static void visit_data_parallel(Parallel& p, FieldList& field) {
  field("overlap_grad_reduce", p.overlap_grad_reduce,
        "Gradient buckets are reduced while the backward pass still runs.");
  field("ddp_bucket_size", p.ddp_bucket_size,
        "Elements of a gradient bucket. 0: the larger of 40 million and 1 million times dp.", at_least(0));
  field(
      "data_parallel_sharding_strategy", p.data_parallel_sharding_strategy,
      "What data-parallel ranks share instead of each holding all of it (ZeRO). no_shard: nothing. optim (ZeRO-1): "
      "main "
      "parameters and optimizer state, at the same traffic. optim_grads (ZeRO-2): gradients too. optim_grads_params "
      "(ZeRO-3): parameters too, gathered block by block around their use, for half as much traffic again.",
      one_of(sharding_strategies()));
  field("num_distributed_optimizer_instances", p.num_distributed_optimizer_instances,
        "Cut the data-parallel ranks into so many groups: sharded inside a group, replicated across. Keeps gathers "
        "inside a node where the whole is not needed to fit.",
        between(1, 65536));
  field(
      "overlap_param_gather", p.overlap_param_gather,
      "With optim and optim_grads: a bucket of updated parameters is gathered when the next forward pass first needs "
      "it, not before the step ends. The values are the same.");
  field("align_param_gather", p.align_param_gather,
        "All pipeline ranks start their gathers together, at the start of their own steps.");
}

void visit(Parallel& parallel, FieldList& field) {
  visit_degrees(parallel, field);
  visit_pipeline(parallel, field);
  visit_data_parallel(parallel, field);
}

}  // namespace metroplex::config
