// A layer of lightning attention in float64: its result against the recurrence written out for one row after the
// other, gradients against finite differences, and generation token by token against the whole sequence.
#include "nn/lightning_attention.h"

#include <cmath>
#include <map>
#include <string>

#include "nn/kv_cache.h"
#include "nn/finite_differences.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::lightning_attention_test {
namespace {

constexpr int64_t kRows = 7, kSamples = 2, kHidden = 6, kHeads = 4, kHeadDim = 3, kWidth = kHeads * kHeadDim;

// The layer is the second of three.
config::Model small_model() {
  config::Model model;
  model.num_layers = 3, model.hidden_size = kHidden, model.hybrid_layer_pattern = "*L*";
  model.num_attention_heads = kHeads, model.kv_channels = kHeadDim, model.lightning_chunk_size = 3;
  model.layernorm_epsilon = 0.1;  // not of the norm inside the layer
  return model;
}

struct Layer {
  nn::LightningAttention lightning{{"l", 1}, small_model(), layer_context()};
  std::vector<nn::Param*> params;
  std::map<std::string, nn::Param*> by_name;
  nn::Microbatch batch;

  Layer() {
    lightning.collect_params(params);
    give_main_grad(params);
    for (nn::Param* param : params) {
      by_name[param->name.substr(2)] = param;
      nn::fill(*param, [param](int64_t i) {
        return 0.5 * std::sin(2.3 * static_cast<double>(i) + static_cast<double>(param->name.size()));
      });
    }
    batch.documents.ids = at::tensor({0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 2, 2}, at::kLong).view({kSamples, kRows});
  }
  at::Tensor value(const char* name) const { return by_name.at(name)->data; }
  at::Tensor forward(const at::Tensor& x) { return lightning.forward(x, batch); }
};

// With H heads and L layers: slope 2^(-8 (head + 1) / H) (1 - layer / (L - 1 + 1e-5) + 1e-5).
at::Tensor forward_by_rows(const Layer& layer, const at::Tensor& x) {
  const at::Tensor in = at::matmul(x, layer.value("in_proj.weight").t());
  at::Tensor out = at::zeros({kRows, kSamples, kWidth}, at::kDouble);
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    at::Tensor state = at::zeros({kHeads, kHeadDim, kHeadDim}, at::kDouble);
    for (int64_t row = 0; row < kRows; ++row) {
      const at::Tensor ids = layer.batch.documents.ids[sample];
      if (row > 0 && ids[row].item<int64_t>() != ids[row - 1].item<int64_t>()) state = at::zeros_like(state);
      for (int64_t head = 0; head < kHeads; ++head) {
        const auto part = [&](int64_t which) {
          return at::silu(in[row][sample].narrow(0, (3 * head + which) * kHeadDim, kHeadDim));
        };
        const double slope = std::pow(2.0, -2.0 * static_cast<double>(head + 1)) * (1 - 1 / 2.00001 + 1e-5);
        state[head].copy_(state[head] * std::exp(-slope) + at::outer(part(1), part(2)));
        out[row][sample].narrow(0, head * kHeadDim, kHeadDim).copy_(at::mv(state[head].t(), part(0)));
      }
      const at::Tensor rms = (out[row][sample].square().mean() + 1e-6).sqrt();
      const at::Tensor gates = at::sigmoid(in[row][sample].narrow(0, 3 * kWidth, kWidth));
      out[row][sample].copy_(out[row][sample] / rms * layer.value("out_norm.weight") * gates);
    }
  }
  return at::matmul(out, layer.value("out_proj.weight").t());
}

// Sums of up to 12 terms of size 1, along 7 rows.
TEST(LightningAttention, EqualsItsFormulaRowByRow) {
  Layer layer;
  const at::Tensor x = sample({kRows, kSamples, kHidden}, 1);
  EXPECT_LT(relative_difference(layer.forward(x), forward_by_rows(layer, x)), 1e-13);
}

TEST(LightningAttention, GradientsEqualFiniteDifferences) {
  Layer layer;
  const at::Tensor x = sample({kRows, kSamples, kHidden}, 1), dy = sample({kRows, kSamples, kHidden}, 2);
  const at::Tensor leaf = x.clone().requires_grad_(true);
  const at::Tensor dx = torch::autograd::grad({layer.forward(leaf)}, {leaf}, {dy})[0];
  const auto loss = [&] { return (layer.forward(x) * dy).sum().item<double>(); };
  expect_finite_difference("x", dx, x, loss);
  ASSERT_EQ(layer.by_name.size(), 3u);
  for (const auto& [name, param] : layer.by_name) expect_finite_difference(name, param->main_grad, param->data, loss);
}

// The recurrence of at most 7 rows adds 7 products of size 1, as the chunks do in another order.
TEST(LightningAttention, TokenByTokenEqualsChunks) {
  const at::NoGradGuard no_grad;
  Layer layer;
  layer.batch.documents = {};
  const at::Tensor x = sample({kRows, kSamples, kHidden}, 1), whole = layer.forward(x);
  nn::KvCache cache;
  layer.batch.cache = &cache;
  std::vector<at::Tensor> rows;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 4}, {4, 1}, {5, 2}})
    rows.push_back(layer.forward(x.narrow(0, first, count)));
  EXPECT_LT(relative_difference(at::cat(rows), whole), 1e-12);
}

}  // namespace
}  // namespace metroplex::test::lightning_attention_test
