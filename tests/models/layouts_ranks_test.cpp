// Compares every model on a tensor-parallel group, with and without sequence parallelism, to a single rank in
// float64.
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "models/tools.h"
#include "nn/kv_cache.h"
#include "support/run_ranks.h"

namespace metroplex::test::layouts_ranks_test {
namespace {

struct Variant {
  std::string name;
  config::Model model;
  double label_smoothing = 0;
  bool documents = false;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  all.push_back({"gpt", gpt_model()});
  all.push_back({"llama", llama_model()});
  Variant dropout{"gpt with dropout and smoothing", gpt_model(), 0.1};
  dropout.model.attention_dropout = 0.2;
  dropout.model.hidden_dropout = 0.3;
  dropout.model.activation = "gelu_tanh";
  all.push_back(dropout);
  Variant rich{"llama with qk norm, dropout and documents", llama_model(), 0.05, true};
  rich.model.qk_layernorm = true;
  rich.model.attention_dropout = 0.15;
  rich.model.add_qkv_bias = true;
  rich.model.rotary_percent = 0.5;
  rich.model.untie_embeddings_and_output_weights = false;
  all.push_back(rich);
  Variant codegeex{"codegeex with dropout", gpt_model(), 0, false};
  codegeex.model.family = "codegeex";
  codegeex.model.hidden_dropout = 0.1;
  all.push_back(codegeex);
  Variant squared{"gpt with squared relu and head size 16", gpt_model(), 0, true};
  squared.model.kv_channels = 16;
  squared.model.activation = "squared_relu";
  squared.model.position_embedding_type = "none";
  all.push_back(squared);
  // Latent attention with all options, and with none.
  Variant latent{"latent attention, yarn, norms of latents, biases, dropout, documents", llama_model(), 0, true};
  latent.model.num_query_groups = 0;
  latent.model.multi_latent_attention = latent.model.qk_layernorm = latent.model.rotary_interleaved = true;
  latent.model.q_lora_rank = 12, latent.model.kv_lora_rank = 10;
  latent.model.qk_head_dim = 6, latent.model.qk_pos_emb_head_dim = 4, latent.model.v_head_dim = 5;
  latent.model.latent_layernorm_epsilon = 1e-3;
  latent.model.rotary_scaling_factor = 4, latent.model.original_max_position_embeddings = 8;
  latent.model.beta_fast = 4, latent.model.mscale = 0.7, latent.model.mscale_all_dim = 0.5;
  latent.model.attention_dropout = 0.15;
  latent.model.add_qkv_bias = latent.model.add_attention_output_bias = latent.model.add_mlp_bias = true;
  all.push_back(latent);
  Variant gemma{"windows, caps, output norms, scaled embeddings", llama_model()};
  gemma.model.window_size = 2, gemma.model.window_attn_skip_freq = "2";
  gemma.model.rotary_base_local = 100, gemma.model.rotary_seq_len_interpolation_factor = 2;
  gemma.model.attn_logit_softcapping = 0.5, gemma.model.final_logit_softcapping = 0.7;
  gemma.model.softmax_scale = 0.4;
  gemma.model.scale_embeddings = gemma.model.apply_layernorm_1p = gemma.model.sandwich_norm = true;
  gemma.model.qk_layernorm = gemma.model.add_qkv_bias = gemma.model.add_attention_output_bias = true;
  gemma.model.hidden_dropout = 0.1;
  gemma.model.untie_embeddings_and_output_weights = false;
  all.push_back(gemma);
  Variant sinks{"sinks, windows, limited units, documents", llama_model(), 0, true};
  sinks.model.softmax_type = config::SoftmaxType::learnable;
  sinks.model.window_size = 3, sinks.model.window_attn_skip_freq = "[1,0]";
  sinks.model.activation = "quick_gelu";
  sinks.model.activation_func_clamp_value = 0.05, sinks.model.glu_linear_offset = 1;
  sinks.model.attention_dropout = 0.15;
  sinks.model.add_mlp_bias = true;
  all.push_back(sinks);
  Variant olmo{"norms after layers and over all heads, layers without rotary positions, multipliers", llama_model()};
  olmo.model.pre_norm = false;
  olmo.model.sandwich_norm = olmo.model.qk_layernorm = olmo.model.qk_layernorm_all_heads = true;
  olmo.model.no_rope_freq = "2", olmo.model.rotary_percent = 0.5;
  olmo.model.embedding_multiplier = 3, olmo.model.residual_multiplier = 0.4, olmo.model.logits_scaling = 2;
  olmo.model.add_qkv_bias = olmo.model.add_attention_output_bias = olmo.model.add_mlp_bias = true;
  olmo.model.hidden_dropout = 0.1;
  all.push_back(olmo);
  Variant parallel{"parallel attention and mlp, LayerNorm without bias, layers without rotary positions",
                   llama_model()};
  parallel.model.family = "gpt";
  parallel.model.normalization = "LayerNorm", parallel.model.add_norm_bias = false;
  parallel.model.parallel_attention_mlp = parallel.model.rotary_interleaved = true;
  parallel.model.no_rope_freq = "2", parallel.model.logits_scaling = 2, parallel.model.hidden_dropout = 0.1;
  parallel.model.add_attention_output_bias = parallel.model.add_mlp_bias = true;
  all.push_back(parallel);
  Variant longrope{"longrope of a long sequence, partial rotation, documents", llama_model(), 0, true};
  longrope.model.rope_type = config::RopeType::longrope, longrope.model.rotary_percent = 0.5;
  longrope.model.longrope_short_factor = "1", longrope.model.longrope_long_factor = "3";
  longrope.model.original_max_position_embeddings = 5, longrope.model.rotary_scaling_factor = 4;
  all.push_back(longrope);
  Variant scaled{"queries scaled by position, norms", llama_model()};
  scaled.model.rope_type = config::RopeType::yarn, scaled.model.query_scaling_beta = 0.5;
  scaled.model.original_max_position_embeddings = 3, scaled.model.rotary_scaling_factor = 4;
  scaled.model.qk_layernorm = true;
  all.push_back(scaled);
  Variant rotated{"norms of rotated queries and keys, multipliers, documents", llama_model(), 0, true};
  rotated.model.qk_layernorm = rotated.model.qk_layernorm_after_rope = rotated.model.apply_layernorm_1p = true;
  rotated.model.rotary_percent = 0.5, rotated.model.residual_multiplier = 0.4;
  rotated.model.add_attention_output_bias = rotated.model.add_mlp_bias = true;
  all.push_back(rotated);
  for (const bool documents : {false, true}) {
    Variant chunks{documents ? "chunks, norms without weights, scaled queries, documents"
                             : "chunks, norms without weights, scaled queries",
                   llama_model(), 0, documents};
    chunks.model.attention_chunk_size = 3, chunks.model.window_attn_skip_freq = "[1,0]";
    chunks.model.no_rope_freq = "[0,1]", chunks.model.rotary_interleaved = chunks.model.qk_l2_norm = true;
    chunks.model.query_scaling_beta = 0.5, chunks.model.query_scaling_floor = 2;
    all.push_back(chunks);
  }
  for (const bool documents : {false, true}) {
    Variant delta{documents ? "gated delta net, gated attention, documents" : "gated delta net, gated attention",
                  llama_model(), 0, documents};
    delta.model.experimental_attention_variant = config::AttentionVariant::gated_delta_net;
    delta.model.linear_attention_freq = "[1,0]", delta.model.linear_conv_kernel_dim = 3;
    delta.model.linear_num_key_heads = 4, delta.model.linear_key_head_dim = 5;
    delta.model.linear_num_value_heads = 8, delta.model.linear_value_head_dim = 3;
    delta.model.attention_output_gate = delta.model.qk_layernorm = delta.model.apply_layernorm_1p = true;
    delta.model.rotary_percent = 0.5;
    all.push_back(delta);
  }
  for (const bool documents : {false, true}) {
    Variant lightning{documents ? "lightning attention, residual of norms with factors, documents"
                                : "lightning attention, residual of norms with factors",
                      llama_model(), 0, documents};
    lightning.model.experimental_attention_variant = config::AttentionVariant::lightning_attention;
    lightning.model.linear_attention_freq = "[1,0]", lightning.model.lightning_chunk_size = 3;
    lightning.model.apply_residual_connection_post_layernorm = true;
    lightning.model.residual_stream_multiplier = 1.7, lightning.model.residual_multiplier = 0.8;
    lightning.model.residual_stream_multiplier_linear = 1.3, lightning.model.residual_multiplier_linear = 0.9;
    lightning.model.residual_stream_multiplier_mlp = 0.7, lightning.model.residual_multiplier_mlp = 1.2;
    lightning.model.add_attention_output_bias = lightning.model.add_mlp_bias = true;
    lightning.model.hidden_dropout = documents ? 0 : 0.1;
    all.push_back(lightning);
  }
  Variant bare{"latent attention alone", llama_model()};
  bare.model.num_query_groups = 0;
  bare.model.multi_latent_attention = true;
  bare.model.kv_lora_rank = 7, bare.model.qk_head_dim = 3, bare.model.qk_pos_emb_head_dim = 6;
  bare.model.v_head_dim = 9;
  all.push_back(bare);
  Variant ahead{"two layers that predict further tokens, dropout", llama_model()};
  ahead.model.mtp_num_layers = 2;
  ahead.model.hidden_dropout = 0.1;
  all.push_back(ahead);
  Variant hybrid{"Mamba-2 with biases and limits, then an MLP, documents, dropout", gpt_model(), 0, true};
  hybrid.model.hybrid_layer_pattern = "M-";
  hybrid.model.mamba_num_groups = 4, hybrid.model.mamba_num_heads = 8, hybrid.model.mamba_head_dim = 4;
  hybrid.model.mamba_state_dim = 3, hybrid.model.mamba_conv_kernel_dim = 3, hybrid.model.mamba_chunk_size = 3;
  hybrid.model.mamba_proj_bias = true, hybrid.model.mamba_dt_min = 0.01, hybrid.model.mamba_dt_max = 0.05;
  hybrid.model.position_embedding_type = "none", hybrid.model.hidden_dropout = 0.1;
  all.push_back(hybrid);
  return all;
}

// The padded size is 56 with tp 1 and 64 with tp 2 or 4; with tp 4, only 5 of the last rank's 16 rows are real.
constexpr int64_t kVocab = 53;

nn::Microbatch make_batch(const Variant& variant) {
  nn::Microbatch batch = small_batch(3, 8, kVocab);
  if (variant.documents)
    batch.documents.ids = at::tensor({0, 0, 0, 1, 1, 1, 1, 2}, at::kLong).expand({3, 8}).contiguous();
  return batch;
}

models::ModelContext make_context(const Variant& variant, const comm::Group& tp, bool sequence_parallel) {
  models::ModelContext context(variant.model);
  context.vocab_size = kVocab;
  context.label_smoothing = variant.label_smoothing;
  context.dtype = at::kDouble;
  nn::set_tensor_parallel(context, tp, sequence_parallel);
  return context;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> weights, gradients;
  at::Tensor logits;
};

Outcome run_model(const Variant& variant, const comm::Group& tp, bool sequence_parallel) {
  const nn::Blocks blocks =
      models::build_stage(make_context(variant, tp, sequence_parallel), {0, variant.model.num_layers, true, true});
  const auto params = nn::list_params(blocks);
  give_main_grad(params);
  Outcome outcome;
  nn::Microbatch batch = make_batch(variant);
  outcome.loss = train_step(blocks, batch, 0.25);
  for (nn::Param* param : params) {
    outcome.weights[param->name] = whole(*param, param->data, tp);
    outcome.gradients[param->name] = whole_gradient(*param, tp);
  }
  batch.labels = at::Tensor();
  batch.training = false;
  outcome.logits = evaluate(blocks, batch);
  return outcome;
}

TEST(LayoutsRanks, LossGradientsAndLogitsAreThoseOfOneRank) {
  for (const Variant& variant : variants()) {
    const Outcome one = run_model(variant, {}, false);
    EXPECT_GT(one.loss, 0);
    for (const int tp : {2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(variant.name + ", tp " + std::to_string(tp) + (sequence_parallel ? " sp" : ""));
        run_ranks(tp, [&](const comm::World& world) {
          const Outcome got = run_model(variant, world.groups().tp, sequence_parallel);
          EXPECT_NEAR(got.loss, one.loss, 1e-12 * one.loss);
          EXPECT_LT(relative_difference(got.logits, one.logits), 1e-12);
          ASSERT_EQ(got.gradients.size(), one.gradients.size());
          for (const auto& [name, gradient] : one.gradients) {
            EXPECT_TRUE(at::equal(got.weights.at(name), one.weights.at(name))) << name;
            EXPECT_LT(relative_difference(got.gradients.at(name), gradient), 1e-11) << name;
            // Key biases shift all scores of a row equally: their gradient is zero except for rounding.
            EXPECT_GT(largest(gradient), 0) << name;
          }
        });
      }
    }
  }
}

TEST(LayoutsRanks, AChainOfStagesIsTheWholeModel) {
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const Outcome one = run_model(variant, {}, false);
    const models::ModelContext context = make_context(variant, {}, false);
    nn::Blocks chain = models::build_stage(context, {0, 1, true, false});
    for (const models::StageSpec& slice :
         {models::StageSpec{1, 0, false, false}, models::StageSpec{1, 1, false, false},
          models::StageSpec{2, 0, false, false, true}, models::StageSpec{2, 0, false, true, false}}) {
      for (nn::Block& block : models::build_stage(context, slice)) chain.push_back(std::move(block));
    }
    const auto params = nn::list_params(chain);
    give_main_grad(params);
    EXPECT_DOUBLE_EQ(train_step(chain, make_batch(variant), 0.25), one.loss);
    at::Tensor tied;
    for (nn::Param* param : params) {
      EXPECT_TRUE(at::equal(param->data.narrow(0, 0, param->global_shape[0]), one.weights.at(param->name)))
          << param->name;
      if (param->placement.shared.empty()) {
        EXPECT_LT(
            relative_difference(param->main_grad.narrow(0, 0, param->global_shape[0]), one.gradients.at(param->name)),
            1e-13)
            << param->name;
      } else {
        EXPECT_EQ(param->placement.shared, param->name);
        tied = tied.defined() ? tied + param->main_grad : param->main_grad;
      }
    }
    EXPECT_EQ(tied.defined(), variant.model.tied() || variant.model.mtp_num_layers > 0);
    if (tied.defined()) {
      EXPECT_LT(relative_difference(tied.narrow(0, 0, kVocab), one.gradients.at("embedding.word_embeddings.weight")),
                1e-13);
    }
  }
}

// Rotary positions of a document are relative to each other, so a document has the same logits at any offset. The
// tokens of a document are in another chunk: the rounding of nn_test DeltaRule (1e-13 a layer) in two layers. The
// logits of tokens that see other documents differ by far more.
TEST(LinearAttention, PackedDocumentsEqualEachAlone) {
  for (const Variant& variant : variants()) {
    if (!variant.model.has_linear_attention() || !variant.documents) continue;
    SCOPED_TRACE(variant.name);
    const nn::Blocks blocks = models::build_stage(make_context(variant, {}, false), {0, 2, true, true});
    nn::Microbatch batch = make_batch(variant);
    batch.labels = batch.position_ids = at::Tensor();
    batch.training = false;
    const at::Tensor together = evaluate(blocks, batch), tokens = batch.tokens;
    batch.documents = {};
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 4}, {7, 1}}) {
      batch.tokens = tokens.narrow(1, first, count).contiguous();
      EXPECT_LT(relative_difference(together.narrow(0, first, count), evaluate(blocks, batch)), 1e-12) << first;
    }
    batch.tokens = tokens;
    EXPECT_GT(relative_difference(together, evaluate(blocks, batch)), 1e-3);
  }
}

// Megatron's formula: (0.1 mscale_all_dim ln(rotary_scaling_factor) + 1)^2 / sqrt(qk_head_dim + qk_pos_emb_head_dim).
TEST(LatentAttention, MscaleScalesSoftmaxWithoutYarn) {
  Variant scaled{"latent attention", llama_model()};
  config::Model& model = scaled.model;
  model.num_query_groups = 0;
  model.multi_latent_attention = true;
  model.rope_type = config::RopeType::rope;
  model.kv_lora_rank = 7, model.qk_head_dim = 3, model.qk_pos_emb_head_dim = 6, model.v_head_dim = 9;
  Variant formula = scaled;
  model.mscale_all_dim = 0.7, model.rotary_scaling_factor = 40;
  const double mscale = 0.1 * 0.7 * std::log(40.0) + 1;
  formula.model.softmax_scale = mscale * mscale / std::sqrt(9.0);
  const Outcome ours = run_model(scaled, {}, false), expected = run_model(formula, {}, false);
  EXPECT_LT(relative_difference(ours.logits, expected.logits), 1e-14);
  EXPECT_NEAR(ours.loss, expected.loss, 1e-14 * expected.loss);
  model.mscale_all_dim = 0;
  EXPECT_GT(relative_difference(run_model(scaled, {}, false).logits, expected.logits), 1e-4);
}

// A floor above the length gives the factor 1 in layers without rotary positions, so nothing is scaled.
TEST(QueryScaling, WithAFloorLeavesRotatedLayers) {
  Variant variant{"queries scaled by position", llama_model()};
  variant.model.rope_type = config::RopeType::yarn, variant.model.no_rope_freq = "[0,1]";
  variant.model.original_max_position_embeddings = 3, variant.model.rotary_scaling_factor = 4;
  const at::Tensor plain = run_model(variant, {}, false).logits;
  variant.model.query_scaling_beta = 0.5, variant.model.query_scaling_floor = 1000;
  EXPECT_EQ(relative_difference(run_model(variant, {}, false).logits, plain), 0);
  variant.model.query_scaling_floor = 2;
  EXPECT_GT(relative_difference(run_model(variant, {}, false).logits, plain), 1e-4);
}

// As in Gemma 3, where the interpolation factor applies only to global layers.
TEST(LocalRope, IgnoresTheInterpolationFactor) {
  for (const bool global : {false, true}) {
    Variant variant{"windows with their own rotary base", llama_model()};
    variant.model.window_size = 2, variant.model.rotary_base_local = 100;
    variant.model.window_attn_skip_freq = global ? "2" : "";
    const at::Tensor logits = run_model(variant, {}, false).logits;
    variant.model.rotary_seq_len_interpolation_factor = 2;
    EXPECT_EQ(at::equal(run_model(variant, {}, false).logits, logits), !global);
  }
}

// RMSNorm(4 x) = RMSNorm(x) without epsilon, so scaling weight and bias of a projection by 4 changes nothing if the
// norm follows the bias. The factor is a power of two, so float64 scales exactly. The only difference comes from
// epsilon: it is 1e-30 and the mean squares exceed 1e-6, so its relative effect is below 1e-24.
TEST(SandwichNorm, NormalizesOutputBiases) {
  Variant variant{"norms after attention and mlp, biases", llama_model()};
  variant.model.sandwich_norm = variant.model.add_attention_output_bias = variant.model.add_mlp_bias = true;
  variant.model.layernorm_epsilon = 1e-30;
  const nn::Blocks blocks = models::build_stage(make_context(variant, {}, false), {0, 2, true, true});
  const auto params = nn::list_params(blocks);
  shake_vectors(params);
  nn::Microbatch batch = make_batch(variant);
  batch.labels = at::Tensor();
  batch.training = false;
  const at::Tensor logits = evaluate(blocks, batch);
  for (const std::string layer : {".linear_proj.", ".linear_fc2."}) {
    int scaled = 0;
    for (nn::Param* param : params) {
      if (param->name.find(layer) == std::string::npos) continue;
      param->data.mul_(4);
      ++scaled;
    }
    EXPECT_EQ(scaled, 4) << "weight and bias of two layers";
    EXPECT_LT(relative_difference(evaluate(blocks, batch), logits), 1e-12) << layer;
  }
}

TEST(Uses, EveryParameterIsUsedAsOftenAsItSays) {
  for (const Variant& variant : variants()) {
    const nn::Blocks blocks =
        models::build_stage(make_context(variant, {}, false), {0, variant.model.num_layers, true, true});
    const auto params = nn::list_params(blocks);
    give_main_grad(params);
    std::map<std::string, int> uses;
    nn::count_uses({&blocks});
    for (nn::Param* param : params) param->on_use.add("test", [&uses, param] { ++uses[param->name]; });
    train_step(blocks, make_batch(variant), 1.0);
    for (nn::Param* param : params)
      EXPECT_EQ(uses[param->name], param->uses_per_microbatch) << variant.name << ": " << param->name;
  }
}

TEST(Dropout, StepAndSampleChooseTheMaskAndEvaluationHasNone) {
  Variant variant = variants()[2];
  const nn::Blocks blocks = models::build_stage(make_context(variant, {}, false), {0, 2, true, true});
  give_main_grad(nn::list_params(blocks));
  nn::Microbatch batch = make_batch(variant);
  const double loss = train_step(blocks, batch, 1.0);
  EXPECT_EQ(train_step(blocks, batch, 1.0), loss);
  const at::Tensor samples = at::arange(batch.tokens.size(0), at::kLong) + 40;
  batch.counters.samples = nn::make_sample_counters(4, samples);
  EXPECT_NE(train_step(blocks, batch, 1.0), loss);
  batch.counters.samples = nn::make_sample_counters(3, samples + 1);
  EXPECT_NE(train_step(blocks, batch, 1.0), loss);
  batch.counters.samples = nn::make_sample_counters(3, samples);
  EXPECT_EQ(train_step(blocks, batch, 1.0), loss);
  batch.training = false;
  const double quiet = train_step(blocks, batch, 1.0);
  variant.model.attention_dropout = variant.model.hidden_dropout = 0;
  const nn::Blocks without = models::build_stage(make_context(variant, {}, false), {0, 2, true, true});
  give_main_grad(nn::list_params(without));
  batch.training = true;
  EXPECT_DOUBLE_EQ(train_step(without, batch, 1.0), quiet);
}

// As in PyTorch, all elements are 0 and so are their gradients. Hidden states of 0 give equal logits.
TEST(Dropout, OneGivesZeros) {
  Variant variant = variants()[2];
  variant.model.attention_dropout = variant.model.hidden_dropout = 1;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    models::ModelContext context = make_context(variant, {}, false);
    context.dtype = dtype;
    const nn::Blocks blocks = models::build_stage(context, {0, 2, true, true});
    const auto params = nn::list_params(blocks);
    give_main_grad(params);
    const nn::Microbatch batch = make_batch(variant);
    const double expected = batch.mask_sum * std::log(static_cast<double>(kVocab));
    // In fp32 the logarithm and the sum of up to 24 tokens are rounded.
    EXPECT_NEAR(train_step(blocks, batch, 1.0), expected, 25 * 0x1p-24 * expected);
    for (const nn::Param* param : params) {
      const bool head = param->name == "embedding.word_embeddings.weight" || param->name.starts_with("decoder.final");
      EXPECT_TRUE(at::isfinite(param->main_grad).all().item<bool>()) << param->name;
      if (!head) { EXPECT_EQ(largest(param->main_grad), 0) << param->name; }
    }
  }
}

TEST(Dropout, OneInAttentionLeavesTheResidual) {
  Variant variant = variants()[2];
  variant.model.attention_dropout = 1, variant.model.hidden_dropout = 0;
  const Outcome got = run_model(variant, {}, false);
  for (const auto& [name, gradient] : got.gradients) {
    EXPECT_TRUE(at::isfinite(gradient).all().item<bool>()) << name;
    if (name.find("linear_qkv") != std::string::npos) { EXPECT_EQ(largest(gradient), 0) << name; }
    if (name.find("linear_fc1.weight") != std::string::npos) { EXPECT_GT(largest(gradient), 0) << name; }
  }
}

TEST(Generation, TokenByTokenWithACacheGivesTheLogitsOfTheWholeText) {
  for (const Variant& variant : variants()) {
    if (variant.documents) continue;
    for (const int tp : {1, 2}) {
      SCOPED_TRACE(variant.name);
      run_ranks(tp, [&](const comm::World& world) {
        const nn::Blocks blocks =
            models::build_stage(make_context(variant, world.groups().tp, false), {0, 2, true, true});
        nn::Microbatch batch = small_batch(2, 9, kVocab);
        batch.labels = batch.position_ids = at::Tensor();
        batch.training = false;
        const at::Tensor tokens = batch.tokens, expected = evaluate(blocks, batch);
        nn::KvCache cache;
        batch.cache = &cache;
        for (const int64_t count : {int64_t{4}, int64_t{1}, int64_t{3}, int64_t{1}}) {
          batch.tokens = tokens.narrow(1, cache.length, count).contiguous();
          EXPECT_LT(relative_difference(evaluate(blocks, batch), expected.narrow(0, cache.length, count)), 1e-12);
          cache.length += count;
        }
      });
    }
  }
}

TEST(Registry, UnknownFamiliesAndUnfitModelsAreRefusedWithTheWayOut) {
  models::ModelContext context = make_context({"", gpt_model()}, {}, false);
  context.model.family = "gtp";
  try {
    models::build_stage(context, {0, 2, true, true});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'gpt'"), std::string::npos) << error.what();
  }
  const auto refusal = [&](const char* family) {
    context.model.family = family;
    try {
      models::build_stage(context, {0, 2, true, true});
    } catch (const base::Error& error) { return std::string(error.what()); }
    return std::string("accepted");
  };
  const std::string llama =
      "[models] model.family = llama requires normalization RMSNorm, position_embedding_type rope, gated_linear_unit "
      "true, "
      "add_bias_linear false; set them, or use family gpt for other combinations";
  EXPECT_EQ(refusal("llama"), llama);
  context.model.normalization = "RMSNorm";
  context.model.position_embedding_type = "rope";
  context.model.gated_linear_unit = true;
  EXPECT_EQ(refusal("llama"), llama);
  context.model.add_bias_linear = false;
  EXPECT_EQ(refusal("llama"), "accepted");
  EXPECT_NE(refusal("mixtral").find("add_bias_linear false, num_moe_experts above 0; set"), std::string::npos);
  EXPECT_NE(refusal("qwen3_moe").find("num_moe_experts above 0, qk_layernorm true; set"), std::string::npos);
  context.model.family = "gpt";
  EXPECT_THROW(models::build_stage(context, {1, 2, true, true}), base::Error);
  EXPECT_THROW(context.model.activation = "tanh", base::Error);
}

// Matches the GPU, where the host cannot check ids. Out-of-range ids are normally rejected earlier, when the
// microbatch is built (step/batch.h).
TEST(Embedding, TokensAndPositionsOutsideTheirTablesAreRowsOfZeros) {
  models::ModelContext context = make_context({"", gpt_model()}, {}, false);
  const nn::Blocks blocks = models::build_stage(context, {0, 2, true, false});
  const auto params = nn::list_params(blocks);
  give_main_grad(params);
  const auto rows_of = [&](int64_t token, int64_t position) {
    nn::Microbatch batch = small_batch(1, 8, kVocab);
    batch.training = false;
    batch.tokens[0][3] = token;
    batch.position_ids[0][3] = position;
    nn::RegionRun run;
    const nn::Region region = nn::make_region(blocks[0]);
    const at::Tensor out = nn::run_forward(region, {}, {batch}, &run).tensor(nn::kHiddenStates);
    nn::run_backward(std::move(run), {at::ones_like(out)}, {});
    return out.select(0, 3).select(0, 0);
  };
  const at::Tensor word = params[0]->data, place = params[1]->data;
  for (const int64_t outside : {int64_t{-1}, context.vocab_size + 100, int64_t{1} << 40}) {
    EXPECT_TRUE(at::equal(rows_of(outside, 2), place[2]));
    EXPECT_TRUE(at::equal(rows_of(7, outside), word[7]));
  }
}

TEST(HalfTypes, ABf16ModelComesNearTheFp64OneAndKeepsFp32Gradients) {
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const Outcome exact = run_model(variant, {}, false);
    models::ModelContext context = make_context(variant, {}, false);
    context.dtype = at::kBFloat16;
    const nn::Blocks blocks = models::build_stage(context, {0, 2, true, true});
    const auto params = nn::list_params(blocks);
    give_main_grad(params);
    // bf16 has 8 significant bits, so each rounding has a relative error of up to 2^-8. Initial logits are small, so
    // the loss changes less than that.
    EXPECT_NEAR(train_step(blocks, make_batch(variant), 0.25), exact.loss, 4e-3 * exact.loss);
    for (nn::Param* param : params) {
      const at::Tensor expected = exact.gradients.at(param->name);
      EXPECT_EQ(param->main_grad.scalar_type(), at::kFloat);
      if (largest(expected) < 1e-4) continue;  // zero except for rounding: key biases
      const at::Tensor got = whole_gradient(*param, {});
      EXPECT_LT((got - expected).norm().item<double>(), 0.08 * expected.norm().item<double>()) << param->name;
    }
  }
}

TEST(ShardedInitialisation, DiffersPerRankForShardsAndAgreesForTheRest) {
  run_ranks(2, [&](const comm::World& world) {
    models::ModelContext context = make_context({"", gpt_model()}, world.groups().tp, false);
    context.model.sharded_initialization = true;
    context.streams = nn::make_init_streams(nn::rng_seeds(1234, {world.groups().tp.index(), 0, 0, 0}));
    const nn::Blocks blocks = models::build_stage(context, {0, 2, true, true});
    for (nn::Param* param : nn::list_params(blocks)) {
      if (param->data.dim() < 2) continue;
      const at::Tensor both = comm::all_gather(param->data.unsqueeze(0), 0, world.groups().tp);
      EXPECT_EQ(at::equal(both[0], both[1]), !param->is_sharded()) << param->name;
      EXPECT_NEAR(param->data.std().item<double>(), param->init == nn::Init::normal ? 0.02 : 0.01, 0.004)
          << param->name;
    }
  });
}

}  // namespace
}  // namespace metroplex::test::layouts_ranks_test
