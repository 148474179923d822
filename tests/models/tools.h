// Runs whole models on one group, segment by segment, as a stage does.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/registry.h"
#include "nn/region.h"
#include "nn/tools.h"

namespace metroplex::test {

// One autograd region (`Region`) per block, as in a stage.
inline std::vector<nn::Region> make_regions(const nn::Blocks& blocks) {
  std::vector<nn::Region> regions;
  for (const nn::Block& block : blocks) regions.push_back(nn::make_region(block));
  return regions;
}

// Forward and backward of one microbatch. Backward scales the loss and its terms (returned in `terms`) by `factor`.
// Returns the summed loss.
inline double train_step(const nn::Blocks& blocks, const nn::Microbatch& batch, double factor,
                         nn::LossTerms* terms = nullptr) {
  const std::vector<nn::Region> regions = make_regions(blocks);
  std::vector<nn::RegionRun> runs(regions.size());
  nn::Values x;
  for (size_t i = 0; i < regions.size(); ++i)
    x = nn::run_forward(regions[i], x, {.batch = batch, .terms = terms}, &runs[i]);
  const at::Tensor loss = x.tensor(nn::kLoss);
  nn::Gradients dy{at::full({}, factor, loss.options())};
  const at::Tensor term_factor = dy[0];
  for (size_t i = regions.size(); i-- > 0;) dy = nn::run_backward(std::move(runs[i]), dy, term_factor);
  EXPECT_TRUE(dy.empty());
  return loss.item<double>();
}

inline at::Tensor evaluate(const nn::Blocks& blocks, const nn::Microbatch& batch, nn::LossTerms* terms = nullptr) {
  nn::Values x;
  for (const nn::Block& block : blocks)
    x = nn::run_forward(nn::make_region(block), x, {.batch = batch, .terms = terms}, nullptr);
  return x.begin()->value.tensor();
}

// Zero biases and unit norm weights would hide omissions.
inline void shake_vectors(const std::vector<nn::Param*>& params) {
  for (nn::Param* param : params) {
    if (param->global_shape.size() != 1) continue;
    const double first = param->init == nn::Init::ones ? 1 : 0;
    nn::fill(*param, [first](int64_t i) { return first + 0.3 * std::sin(static_cast<double>(i)); });
  }
}

inline config::Model gpt_model() {
  config::Model model;
  model.num_layers = 2;
  model.hidden_size = 32;
  model.num_attention_heads = 4;
  model.max_position_embeddings = 16;
  model.make_vocab_size_divisible_by = 8;
  return model;
}

inline config::Model llama_model() {
  config::Model model = gpt_model();
  model.family = "llama";
  model.num_attention_heads = 8;
  model.num_query_groups = 4;
  model.ffn_hidden_size = 48;
  model.position_embedding_type = "rope";
  model.normalization = "RMSNorm";
  model.activation = "silu";
  model.gated_linear_unit = true;
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = true;
  return model;
}

inline nn::Microbatch small_batch(int64_t b, int64_t s, int64_t vocab) {
  nn::Microbatch batch;
  const at::Tensor n = at::arange(b * (s + 1), at::kLong).view({b, s + 1});
  const at::Tensor text = (n * 37 + n * n % 11 + 5) % vocab;
  batch.tokens = text.narrow(1, 0, s).contiguous();
  batch.labels = text.narrow(1, 1, s).contiguous();
  batch.loss_mask = ((n.narrow(1, 0, s) % 7) != 3).to(at::kDouble);
  batch.position_ids = at::arange(s, at::kLong).expand({b, s}).contiguous();
  batch.mask_sum = batch.loss_mask.sum().item<double>();
  batch.counters.samples = nn::make_sample_counters(3, at::arange(b, at::kLong) + 40);
  return batch;
}

}  // namespace metroplex::test
