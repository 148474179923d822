// Configurations of small models for measuring and predicting memory.
#pragma once

#include <string>
#include <vector>

#include "run/memory_yaml.h"
#include "run/support.h"

namespace metroplex::test {

struct MemoryCase {
  std::string name;
  bool llama = false;
  TestLayout cut;
  std::string yaml = "";  // overrides the small model
  int64_t vocab = 50;
  std::vector<std::string> settings = {};  // override everything
};

inline const std::string kLatent =
    ", position_embedding_type: rope, multi_latent_attention: true, kv_lora_rank: 10, qk_head_dim: 6,"
    " qk_pos_emb_head_dim: 4, v_head_dim: 5";

inline const std::string kWindows =
    ", window_size: 3, window_attn_skip_freq: 2, rotary_base_local: 50, softmax_type: learnable,"
    " attn_logit_softcapping: 2, final_logit_softcapping: 1, scale_embeddings: true, apply_layernorm_1p: true,"
    " sandwich_norm: true, activation_func_clamp_value: 1, glu_linear_offset: 1, add_attention_output_bias: true,"
    " add_mlp_bias: true";

inline const std::string kNorms =
    ", pre_norm: false, sandwich_norm: true, qk_layernorm: true, qk_layernorm_all_heads: true, no_rope_freq: 2,"
    " residual_multiplier: 0.4, logits_scaling: 2, add_attention_output_bias: true, add_mlp_bias: true";

inline const std::string kChunks =
    ", attention_chunk_size: 3, window_attn_skip_freq: 2, no_rope_freq: 2, qk_l2_norm: true,"
    " query_scaling_beta: 0.5, query_scaling_floor: 2";

inline const std::string kDeltaNet =
    ", experimental_attention_variant: gated_delta_net, linear_attention_freq: 2, linear_num_key_heads: 2,"
    " linear_num_value_heads: 4, linear_key_head_dim: 5, linear_value_head_dim: 6, attention_output_gate: true";

inline const std::string kLightning =
    ", experimental_attention_variant: lightning_attention, linear_attention_freq: 2, lightning_chunk_size: 5,"
    " apply_residual_connection_post_layernorm: true, residual_stream_multiplier: 1.7";

inline const std::string kParallel =
    ", position_embedding_type: rope, add_norm_bias: false, parallel_attention_mlp: true, qk_layernorm: true";

inline const std::string kHybrid =
    ", hybrid_layer_pattern: M*M-, mamba_num_groups: 2, mamba_num_heads: 4, mamba_head_dim: 8, mamba_state_dim: 6,"
    " mamba_chunk_size: 5";

// Short sequences, with every option that changes the held memory.
inline config::Config saved_config(const MemoryCase& test_case) {
  const std::string family =
      test_case.llama
          ? "model: {family: llama, num_layers: 4, hidden_size: 32, num_attention_heads: 4, num_query_groups: 2,"
            " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8"
          : "model: {family: gpt, num_layers: 4, hidden_size: 32, num_attention_heads: 4, vocab_size: 50,"
            " make_vocab_size_divisible_by: 8";
  config::Config config =
      config::parse(family + (test_case.yaml.rfind(",", 0) == 0 ? test_case.yaml : "}\n" + test_case.yaml) +
                        "\ntrain: {seq_length: 8, micro_batch_size: 2, global_batch_size: 16, train_iters: 20}\n"
                        "data: {mock_data: true}\n",
                    test_case.settings);
  if (test_case.name == "codegeex") config.model.family = test_case.name;
  return cut(config, test_case.cut);
}

// Multiples of 16 also after a split over two ranks, for blocks of nvfp4.
inline const std::vector<std::string> kSixteens = {"model.hidden_size=64", "model.ffn_hidden_size=160"};
inline const std::string kLossChunks = "memory.loss_chunk_tokens=7";
inline const std::string kEightBits = "precision.fp8_format=hybrid";
inline const std::string kParamGather = "precision.fp8_param_gather=true";
inline const std::vector<std::string> kRowsInEightBits = {"model.moe_dispatch_fwd_dtype=mxfp8",
                                                          "model.moe_combine_bwd_dtype=mxfp8"};
inline const std::string kFp32Sums = "parallel.reduce_scatter_with_fp32_accumulation=true";
inline const std::string kHalfGradients = "precision: {params_dtype: bf16, main_grads_dtype: params}\n";
inline const std::string kFp32Logits = "precision.output_logit_dtype=fp32";

// Partly trained layers, layers with adapters, and other losses.
inline std::vector<MemoryCase> with_parts(std::vector<MemoryCase> cases) {
  const std::vector<MemoryCase> parts = {
      {"frozen", true, {}, "", 50, {"train.freeze=*.mlp.*,embedding.*"}},
      {"frozen bf16 tp 2 sp zero 2",
       false,
       {2, 1, 1, 2, true},
       kBf16 + zero("optim_grads"),
       50,
       {"train.trainable=*.self_attention.*"}},
      {"adapters", true, {}, "peft: {lora_rank: 4}\n"},
      {"adapters bf16 tp 2 pp 2 sp", true, {2, 2, 1, 1, true}, "peft: {lora_rank: 4, lora_dropout: 0.1}\n" + kBf16},
      {"adapters over fp8 bf16 dp 2 zero 2",
       true,
       {1, 1, 1, 2, false},
       "peft: {lora_rank: 4, base_format: fp8}\n" + kBf16 + zero("optim_grads"),
       50,
       kSixteens},
      {"adapters over nvfp4 bf16 tp 2 pp 2 sp",
       true,
       {2, 2, 1, 1, true},
       "peft: {lora_rank: 4, base_format: nvfp4}\n" + kBf16,
       50,
       kSixteens},
      {"adapters of latent attention, zero 3, fc1 recomputed",
       false,
       {1, 1, 1, 2, false},
       kLatent + ", q_lora_rank: 12}\npeft: {lora_rank: 4}\n" + zero("optim_grads_params") +
           selective_recompute("mlp")},
      {"loss by chunks", true, {}, ", final_logit_softcapping: 1, logits_scaling: 2}\n", 50, {kLossChunks}},
      {"loss by chunks bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kBf16, 50, {kLossChunks}},
      {"loss by chunks, deferred head, pp 2",
       false,
       {1, 2, 1, 1, false},
       kBf16 + schedule("zb_h1"),
       50,
       {kLossChunks, "parallel.defer_embedding_wgrad_compute=true"}},
      {"loss by chunks, ahead", true, {2, 1, 1, 1, false}, ", mtp_num_layers: 1}\n" + kBf16, 50, {kLossChunks}},
      {"fp32 logits bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kBf16, 50, {kFp32Logits}},
      {"fp32 logits bf16 capped by chunks",
       true,
       {},
       ", final_logit_softcapping: 1, logits_scaling: 2}\n" + kBf16,
       50,
       {kFp32Logits, kLossChunks}},
      {"fp32 logits fp16 ahead pp 2",
       true,
       {1, 2, 1, 1, false},
       ", mtp_num_layers: 1}\nprecision: {params_dtype: fp16}\n",
       50,
       {kFp32Logits}},
      {"8 bits delayed bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kBf16, 50, {kEightBits}},
      {"8 bits mxfp8 pp 2 zero 2",
       false,
       {1, 2, 1, 2, false},
       kBf16 + zero("optim_grads"),
       50,
       {kEightBits, "precision.fp8_recipe=mxfp8"}},
      {"8 bits rounded for every use", false, {}, kBf16, 50, {kEightBits, "precision.keep_rounded_weights=false"}},
      {"8 bits interleaved zero 3",
       true,
       {1, 2, 2, 2, false},
       kBf16 + zero("optim_grads_params"),
       50,
       {kEightBits, "precision.fp8_recipe=tensorwise"}},
      {"8 bits gathered as codes pp 2 zero 1",
       true,
       {1, 2, 1, 2, false},
       kBf16 + zero("optim"),
       50,
       {kEightBits, "precision.fp8_recipe=tensorwise", kParamGather}},
      {"8 bits gathered as codes zero 3",
       false,
       {1, 1, 1, 2, false},
       kBf16 + zero("optim_grads_params"),
       50,
       {kEightBits, kParamGather}},
      {"blocks of 8 bits gathered as codes zero 1",
       true,
       {1, 1, 1, 2, false},
       kBf16 + zero("optim"),
       50,
       {kEightBits, "precision.fp8_recipe=blockwise", kParamGather}},
      {"blocks of 8 bits gathered as codes zero 3",
       false,
       {1, 1, 1, 2, false},
       kBf16 + zero("optim_grads_params"),
       50,
       {kEightBits, "precision.fp8_recipe=blockwise", kParamGather}},
      {"adapters, 8 bits interleaved recomputed",
       true,
       {1, 2, 2, 1, false},
       "peft: {lora_rank: 4}\n" + kBf16 + full_recompute("recompute_method: uniform, recompute_num_layers: 1"),
       50,
       {kEightBits, "precision.fp8_recipe=mxfp8"}},
      {"products of 8-bit codes", true, {}, kBf16, 50, {kEightBits, "precision.fp8_products=library"}},
      {"products of 8-bit codes with blocks",
       false,
       {},
       kBf16,
       50,
       {kEightBits, "precision.fp8_recipe=blockwise", "precision.fp8_products=library", "train.micro_batch_size=4"}},
      {"products of 4-bit codes",
       true,
       {},
       kBf16,
       50,
       {"precision.fp4_format=e2m1", "precision.fp8_products=library", "train.micro_batch_size=4",
        "model.ffn_hidden_size=96"}},
      {"rows of experts in 8 bits", false, {}, ", num_moe_experts: 4}\n" + kBf16, 50, kRowsInEightBits},
      {"rows of experts in 8 bits ep 2, static buffer",
       false,
       {1, 1, 1, 2, false},
       ", num_moe_experts: 4, moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 2}\n" +
           kBf16 + "parallel: {expert_model_parallel_size: 2}\n",
       50,
       kRowsInEightBits},
      {"4 bits bf16 tp 2 sp, output layer in 8 bits",
       true,
       {2, 1, 1, 1, true},
       kBf16,
       50,
       {"precision.fp4_format=e2m1", "precision.fp8_output_proj=true", "model.ffn_hidden_size=96",
        "precision.recipe_pattern=[output_layer=tensorwise,layers.0.mlp.linear_fc1=none]"}},
      {"4 bits of experts",
       true,
       {1, 1, 1, 2, false},
       ", num_moe_experts: 4}\n" + kBf16,
       50,
       {"precision.fp4_format=e2m1"}},
      {"fp32 sums zero 1 dp 4", false, {1, 1, 1, 4, false}, kHalfGradients + zero("optim"), 50, {kFp32Sums}},
      {"fp32 sums zero 1 dp 2 pp 2, one after another",
       true,
       {1, 2, 1, 2, false},
       kHalfGradients + zero("optim"),
       50,
       {kFp32Sums, "parallel.overlap_grad_reduce=false"}},
      {"fp32 sums zero 2 dp 2 pp 2 vpp 2",
       true,
       {1, 2, 2, 2, false},
       kHalfGradients + zero("optim_grads"),
       50,
       {kFp32Sums}},
      {"fp32 sums zero 2 instances, one after another",
       true,
       {1, 1, 1, 4, false},
       kHalfGradients + zero("optim_grads"),
       50,
       {kFp32Sums, "parallel.overlap_grad_reduce=false", "parallel.num_distributed_optimizer_instances=2"}},
      {"fp32 sums zero 3 dp 4",
       true,
       {1, 1, 1, 4, false},
       kHalfGradients + zero("optim_grads_params"),
       50,
       {kFp32Sums}},
      {"fp32 sums zb_h1 zero 1 dp 2 pp 2",
       false,
       {1, 2, 1, 2, false},
       kHalfGradients + "parallel: {pipeline_schedule: zb_h1, data_parallel_sharding_strategy: optim}\n",
       50,
       {kFp32Sums}},
      {"ahead", true, {}, ", mtp_num_layers: 2}\n"},
      {"ahead bf16 tp 2 pp 2 sp", true, {2, 2, 1, 1, true}, ", mtp_num_layers: 1}\n" + kBf16},
      {"ahead before the stage of the loss, bf16 pp 4",
       true,
       {1, 4, 1, 1, false},
       ", mtp_num_layers: 2}\n" + kBf16,
       50,
       {"parallel.pipeline_model_parallel_layout=Ett|tt|mm|L", "precision.fp32_residual_connection=true"}},
      {"ahead before the stage of the loss, tp 2 sp pp 2 vpp 2",
       true,
       {2, 2, 2, 1, true},
       ", mtp_num_layers: 1}\n",
       50,
       {"parallel.pipeline_model_parallel_layout=Ett|tt|m|L"}},
  };
  cases.insert(cases.end(), parts.begin(), parts.end());
  return cases;
}

inline std::vector<MemoryCase> saved_cases() {
  return with_parts({
      {"gpt", false, {}, ""},
      {"gpt bf16", false, {}, kBf16},
      {"gpt fp64", false, {}, "precision: {params_dtype: fp64}\n"},
      {"gpt fp16", false, {}, "precision: {params_dtype: fp16, main_grads_dtype: params}\n"},
      {"gpt dropout", false, {}, ", attention_dropout: 0.1, hidden_dropout: 0.1}\n"},
      {"llama", true, {}, ""},
      {"llama qk norm", true, {}, ", qk_layernorm: true, add_qkv_bias: true}\n" + kBf16},
      {"latent heads made again tp 2 sp",
       false,
       {2, 1, 1, 1, true},
       kLatent + ", q_lora_rank: 12}\n" + kBf16 + selective_recompute("mla_up_proj, layernorm")},
      {"latent", false, {}, kLatent + "}\n"},
      {"latent norms bf16 tp 2 sp",
       false,
       {2, 1, 1, 1, true},
       kLatent + ", q_lora_rank: 12, qk_layernorm: true}\n" + kBf16},
      {"windows", true, {}, kWindows + "}\n"},
      {"windows bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kWindows + "}\n" + kBf16},
      {"norms after layers", true, {}, kNorms + "}\n"},
      {"chunks bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kChunks + "}\n" + kBf16},
      {"delta net", true, {}, kDeltaNet + "}\n"},
      {"delta net bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kDeltaNet + "}\n" + kBf16},
      {"delta net recomputed core", true, {}, kDeltaNet + "}\n" + selective_recompute("core_attn")},
      {"delta net cp 2",
       true,
       {1, 1, 1, 2, false},
       kDeltaNet + "}\n" + kBf16 + "parallel: {context_parallel_size: 2}\n"},
      {"lightning", true, {}, kLightning + "}\n"},
      {"lightning bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kLightning + "}\n" + kBf16},
      {"lightning recomputed core and norms",
       true,
       {},
       kLightning + "}\n" +
           "memory: {recompute_granularity: selective, recompute_modules: [core_attn, layernorm]}\n"},
      {"parallel attention and mlp", false, {}, kParallel + "}\n"},
      {"parallel attention and mlp bf16 tp 2 sp", false, {2, 1, 1, 1, true}, kParallel + "}\n" + kBf16},
      {"norms after layers bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kNorms + "}\n" + kBf16},
      {"hybrid", true, {}, kHybrid + "}\n"},
      {"hybrid bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kHybrid + "}\n" + kBf16},
      {"codegeex", false, {}, ""},
      {"gpt tp 2", false, {2, 1, 1, 1, false}, ""},
      {"llama tp 2 sp bf16", true, {2, 1, 1, 1, true}, kBf16},
      {"gpt pp 2", false, {1, 2, 1, 1, false}, ""},
      {"gpt pp 4 bf16", false, {1, 4, 1, 1, false}, kBf16},
      {"llama pp 2 vpp 2", true, {1, 2, 2, 1, false}, kBf16},
      {"gpt pp 2 vpp 2 tp 2 sp", false, {2, 2, 2, 1, true}, ""},
      {"gpt zb_h1 pp 2 dropout", false, {1, 2, 1, 1, false}, ", hidden_dropout: 0.1}\n" + schedule("zb_h1")},
      {"llama zb_h2 pp 4 bf16", true, {1, 4, 1, 1, false}, kBf16 + schedule("zb_h2")},
      {"llama zb_v pp 2 tp 2 sp bf16", true, {2, 2, 2, 1, true}, kBf16 + schedule("zb_v")},
      {"gpt dualpipe_v pp 2 recompute",
       false,
       {1, 2, 2, 1, false},
       schedule("dualpipe_v") + full_recompute("recompute_method: uniform, recompute_num_layers: 1")},
      {"llama zb_h1 pp 2 zero 3 dp 2",
       true,
       {1, 2, 1, 2, false},
       "parallel: {pipeline_schedule: zb_h1, data_parallel_sharding_strategy: optim_grads_params}\n"},
      {"gpt zero 0 dp 4", false, {1, 1, 1, 4, false}, kBf16},
      {"gpt zero 1 dp 4", false, {1, 1, 1, 4, false}, kBf16 + zero("optim")},
      {"gpt zero 2 dp 4", false, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads")},
      {"gpt zero 3 dp 4", false, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads_params")},
      {"llama zero 3 dp 2 tp 2", true, {2, 1, 1, 2, true}, zero("optim_grads_params")},
      {"llama zero 3 dp 2 pp 2 recompute",
       true,
       {1, 2, 1, 2, false},
       zero("optim_grads_params") + full_recompute("recompute_method: uniform, recompute_num_layers: 2")},
      {"gpt zero 2 dp 2 pp 2 vpp 2", false, {1, 2, 2, 2, false}, kBf16 + zero("optim_grads")},
      // cp ranks are part of the dp ranks.
      {"gpt ring cp 2", false, {1, 1, 1, 2, false}, kBf16 + "parallel: {context_parallel_size: 2}\n"},
      {"llama gather cp 2 tp 2 sp",
       true,
       {2, 1, 1, 2, true},
       "parallel: {context_parallel_size: 2, cp_comm_type: all_gather}\n"},
      {"llama heads cp 2 pp 2",
       true,
       {1, 2, 1, 2, false},
       kBf16 + "parallel: {context_parallel_size: 2, cp_comm_type: a2a, context_parallel_cut: balanced}\n"},
      {"llama heads and ring cp 4",
       true,
       {1, 1, 1, 4, false},
       "parallel: {context_parallel_size: 4, cp_comm_type: a2a+p2p, hierarchical_context_parallel_sizes: \"2,2\"}\n"},
      {"gpt ring cp 4 zero 1 core_attn",
       false,
       {1, 1, 1, 4, false},
       "parallel: {context_parallel_size: 4, data_parallel_sharding_strategy: optim}\n" +
           selective_recompute("core_attn")},
      {"gpt zero 1 instances",
       false,
       {1, 1, 1, 4, false},
       "parallel: {data_parallel_sharding_strategy: optim, num_distributed_optimizer_instances: 2}\n"},
      {"gpt full uniform 1",
       false,
       {1, 2, 1, 1, false},
       full_recompute("recompute_method: uniform, recompute_num_layers: 1")},
      {"llama full block 1",
       true,
       {1, 2, 1, 1, false},
       kBf16 + full_recompute("recompute_method: block, recompute_num_layers: 1")},
      {"gpt zero-r",
       false,
       {2, 1, 1, 1, false},
       full_recompute("recompute_method: uniform, recompute_num_layers: 2, distribute_saved_activations: true")},
      {"gpt core_attn", false, {}, selective_recompute("core_attn")},
      {"llama mlp layernorm", true, {}, kBf16 + selective_recompute("mlp, layernorm")},
      {"gpt activation", false, {2, 1, 1, 1, true}, selective_recompute("activation, layernorm")},
      {"gpt file", false, {}, "memory: {offload_activations: file}\n"},
      {"llama file and full",
       true,
       {2, 1, 1, 1, false},
       "memory: {offload_activations: file, recompute_granularity: full, recompute_method: block,"
       " recompute_num_layers: 2}\n"},
      {"gpt remainders 8bit",
       false,
       {1, 1, 1, 2, false},
       kBf16 + zero("optim") +
           "optim: {store_param_remainders: true, exp_avg_dtype: 8bit, exp_avg_sq_dtype: 8bit}\n"},
      {"gpt bf16 main and moments", false, {}, kBf16 + "optim: {main_params_dtype: bf16, exp_avg_dtype: bf16}\n"},
      {"gpt optimizer on the host",
       false,
       {1, 1, 1, 2, false},
       kBf16 + zero("optim_grads") + "optim: {optimizer_cpu_offload: true, exp_avg_dtype: 8bit}\n"},
      {"gpt sgd", false, {}, "optim: {optimizer: sgd}\n"},
      {"gpt lion", false, {}, kBf16 + "optim: {optimizer: lion}\n"},
      {"llama muon", true, {2, 1, 1, 1, false}, kBf16 + "optim: {optimizer: muon}\n"},
  });
}

// Longer sequences, so that an activation tensor is larger than the integers of its tokens.
inline config::Config peak_config(const MemoryCase& test_case) {
  config::Config config = config::parse(
      std::string("model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, vocab_size: 50, "
                  "make_vocab_size_divisible_by: 8, ") +
          (test_case.llama ? "family: llama, num_query_groups: 2, ffn_hidden_size: 96" : "family: gpt") +
          (test_case.yaml.rfind(",", 0) == 0 ? test_case.yaml : "}\n" + test_case.yaml) +
          "\ntrain: {seq_length: 32, micro_batch_size: 4, global_batch_size: 16, train_iters: 20}\n"
          "data: {mock_data: true}\n",
      test_case.settings);
  if (test_case.name.rfind("codegeex", 0) == 0) config.model.family = "codegeex";
  if (test_case.cut.pp == 3) {
    config.model.num_layers = 6;
    config.train.global_batch_size = 24;
  }
  config = cut(config, test_case.cut);
  config.parallel.ddp_bucket_size = 10000;
  return config;
}

inline std::vector<MemoryCase> peak_cases() {
  return with_parts({
      {"gpt", false, {}},
      {"gpt bf16", false, {}, kBf16},
      {"gpt fp64", false, {}, "precision: {params_dtype: fp64}\n"},
      {"gpt dropout", false, {}, ", hidden_dropout: 0.1}\n"},
      {"gpt large vocabulary", false, {}, "", 500},
      {"gpt large vocabulary bf16", false, {}, kBf16, 500},
      {"llama", true, {}},
      {"llama bf16", true, {}, kBf16},
      {"llama fp16", true, {}, "precision: {params_dtype: fp16}\n"},
      {"gpt attention dropout", false, {}, ", attention_dropout: 0.1}\n"},
      {"gpt attention dropout bf16", false, {}, ", attention_dropout: 0.1}\n" + kBf16},
      {"llama attention dropout", true, {}, ", attention_dropout: 0.1}\n"},
      {"llama qk norm bf16", true, {}, ", qk_layernorm: true}\n" + kBf16},
      {"gpt fp32 residual", false, {}, "precision: {params_dtype: bf16, fp32_residual_connection: true}\n"},
      {"gpt file", false, {}, "memory: {offload_activations: file}\n"},
      {"gpt zero-r",
       false,
       {2, 1, 1, 1, false},
       full_recompute("recompute_method: uniform, recompute_num_layers: 2, distribute_saved_activations: true")},
      {"latent", false, {}, kLatent + "}\n"},
      {"latent norms bf16 tp 2 sp",
       false,
       {2, 1, 1, 1, true},
       kLatent + ", q_lora_rank: 12, qk_layernorm: true}\n" + kBf16},
      {"windows", true, {}, kWindows + "}\n"},
      {"windows bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kWindows + "}\n" + kBf16},
      {"norms after layers", true, {}, kNorms + "}\n"},
      {"chunks bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kChunks + "}\n" + kBf16},
      {"delta net", true, {}, kDeltaNet + "}\n"},
      {"delta net bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kDeltaNet + "}\n" + kBf16},
      {"delta net recomputed core", true, {}, kDeltaNet + "}\n" + selective_recompute("core_attn")},
      {"lightning", true, {}, kLightning + "}\n"},
      {"lightning bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kLightning + "}\n" + kBf16},
      {"norms after layers bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kNorms + "}\n" + kBf16},
      {"hybrid", true, {}, kHybrid + "}\n"},
      {"hybrid bf16 tp 2 sp", true, {2, 1, 1, 1, true}, kHybrid + "}\n" + kBf16},
      {"latent recomputed core and norms",
       false,
       {1, 2, 1, 1, false},
       kLatent + ", q_lora_rank: 12, qk_layernorm: true}\n" +
           "memory: {recompute_granularity: selective, recompute_modules: [core_attn, layernorm]}\n"},
      {"windows recomputed core and norms",
       true,
       {},
       kWindows + "}\n" + "memory: {recompute_granularity: selective, recompute_modules: [core_attn, layernorm]}\n"},
      {"codegeex", false, {}},
      {"codegeex tp 2 sp bf16", false, {2, 1, 1, 1, true}, kBf16},
      {"codegeex pp 3 vpp 2", false, {1, 3, 2, 1, false}},
      {"gpt tp 2", false, {2, 1, 1, 1, false}},
      {"gpt tp 2 sp", false, {2, 1, 1, 1, true}},
      {"llama tp 2 sp bf16", true, {2, 1, 1, 1, true}, kBf16},
      {"llama tp 2 sp large vocabulary", true, {2, 1, 1, 1, true}, "", 500},
      {"gpt pp 2", false, {1, 2, 1, 1, false}},
      {"gpt pp 2 tp 2 sp", false, {2, 2, 1, 1, true}},
      {"gpt pp 2 tp 2 sp dp 2", false, {2, 2, 1, 2, true}},
      {"gpt pp 4 bf16", false, {1, 4, 1, 1, false}, kBf16},
      {"llama pp 2 vpp 2", true, {1, 2, 2, 1, false}},
      {"gpt zero 0 dp 2", false, {1, 1, 1, 2, false}},
      {"gpt zero 1 dp 2", false, {1, 1, 1, 2, false}, zero("optim")},
      {"gpt zero 1 dp 4 bf16", false, {1, 1, 1, 4, false}, kBf16 + zero("optim")},
      {"gpt zero 2 dp 2", false, {1, 1, 1, 2, false}, zero("optim_grads")},
      {"llama zero 2 dp 4 bf16", true, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads")},
      {"gpt zero 3 dp 2", false, {1, 1, 1, 2, false}, zero("optim_grads_params")},
      {"llama zero 3 dp 4 bf16", true, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads_params")},
      {"llama zero 3 dp 2 tp 2 sp", true, {2, 1, 1, 2, true}, zero("optim_grads_params")},
      {"gpt zero 2 dp 2 pp 2", false, {1, 2, 1, 2, false}, zero("optim_grads")},
      {"gpt full uniform 1", false, {}, full_recompute("recompute_method: uniform, recompute_num_layers: 1")},
      {"llama full uniform 2 bf16",
       true,
       {},
       kBf16 + full_recompute("recompute_method: uniform, recompute_num_layers: 2")},
      {"gpt full block 2 pp 2",
       false,
       {1, 2, 1, 1, false},
       full_recompute("recompute_method: block, recompute_num_layers: 1")},
      {"gpt core_attn", false, {}, selective_recompute("core_attn")},
      {"llama mlp layernorm", true, {}, selective_recompute("mlp, layernorm")},
      {"gpt activation layernorm tp 2 sp", false, {2, 1, 1, 1, true}, selective_recompute("activation, layernorm")},
      {"llama zero 3 dp 2 pp 2 recompute",
       true,
       {1, 2, 1, 2, false},
       zero("optim_grads_params") + full_recompute("recompute_method: uniform, recompute_num_layers: 2")},
  });
}

}  // namespace metroplex::test
