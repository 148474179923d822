// Operations on bf16 and fp16 tensors against float64 ones on the same numbers. All internal arithmetic is fp32. A
// result differs from the exact one by its one rounding to the half type, and by the fp32 error: `slack`, relative to
// the largest values involved.
#include "nn/autograd_node.h"
#include "nn/activation.h"
#include "nn/bias_activation.h"
#include "nn/core_attention.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/norm.h"
#include "nn/rope.h"
#include "nn/tools.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::kernels_half_test {
namespace {

const auto kHalfTypes = {at::kBFloat16, at::kHalf};

// Half the distance between neighboring numbers: relative, and in fp16 absolute below 2^-14.
double unit(at::ScalarType type) {
  return type == at::kBFloat16 ? std::ldexp(1, -8) : type == at::kHalf ? std::ldexp(1, -11) : std::ldexp(1, -24);
}

void expect_rounded(const at::Tensor& got, const at::Tensor& exact, double slack, const char* what) {
  const at::Tensor wanted = exact.detach().to(at::kDouble);
  const at::Tensor bound = wanted.abs() * unit(got.scalar_type()) + slack * std::max(1e-3, largest(wanted)) +
                           (got.scalar_type() == at::kHalf ? std::ldexp(1, -25) : 0.0);
  const at::Tensor error = (got.to(at::kDouble) - wanted).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << what << " in " << got.scalar_type() << ": off by up to " << largest(error / bound) << " of what is allowed";
}

// fp32 inside: a dozen roundings, elementary functions good to 2e-7, and sums of up to 50 terms.
constexpr double kSlack = 4e-6;

// Param::accumulate passes the gradient of an fp16 parameter through fp16.
double through_fp16(at::ScalarType type) { return type == at::kHalf ? unit(type) : 0; }

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }
at::Tensor exact(const at::Tensor& x) { return leaf(x.to(at::kDouble)); }

// A new tensor that passes its gradient to `x`.
at::Tensor make_temporary(const at::Tensor& x) {
  return nn::attach(x.detach().clone(), {x}, [](const at::Tensor& d) -> nn::Gradients { return {d}; });
}

at::Tensor plain_activation(const at::Tensor& x, const std::string& name) {
  if (name == "gelu") return at::gelu(x);
  if (name == "gelu_tanh") return at::gelu(x, "tanh");
  if (name == "quick_gelu") return x * at::sigmoid(1.702 * x);
  if (name == "silu") return at::silu(x);
  return name == "relu" ? at::relu(x) : at::relu(x).square();
}

void check_activation(const std::string& name, bool gated, bool with_bias, at::ScalarType dtype) {
  nn::Param bias = nn::make_param({"b", {34}, {}, nn::Init::normal}, layer_context({}, false, dtype));
  give_main_grad({&bias});
  nn::Param* const added = with_bias ? &bias : nullptr;
  const nn::ActivationSpec spec{nn::activation_kind(name), gated, {}};
  const at::Tensor x = leaf((sample({3, 5, 34}, 3) * 6).to(dtype)), same = exact(x), b = exact(bias.data);
  const at::Tensor dy = sample({3, 5, gated ? 17 : 34}, 4, dtype), z = with_bias ? same + b : same;
  const at::Tensor expected =
      gated ? plain_activation(z.narrow(-1, 0, 17), name) * z.narrow(-1, 17, 17) : plain_activation(z, name);
  const at::Tensor got = bias_activation(make_temporary(x), added, spec);
  expect_rounded(got, expected, kSlack, name.c_str());
  EXPECT_TRUE(at::equal(nn::recomputed_activation(x.detach(), added, spec), got)) << name;
  const at::Tensor right = torch::autograd::grad({expected}, {same}, {dy.to(at::kDouble)})[0];
  const at::Tensor dx = torch::autograd::grad({got}, {x}, {dy})[0];
  expect_rounded(dx, right, kSlack, name.c_str());
  // 15 rows in fp32 of the rounded gradient.
  const at::Tensor sums = with_bias ? dx.to(at::kDouble).sum(at::IntArrayRef{0, 1}) : bias.main_grad;
  EXPECT_LT(relative_difference(bias.main_grad, sums), 2e-6 + through_fp16(dtype));
}

TEST(HalfActivation, ForwardAndGradientAreRoundedOnce) {
  for (const auto dtype : kHalfTypes) {
    for (const std::string name : {"gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "squared_relu"}) {
      for (const bool gated : {false, true}) {
        check_activation(name, gated, true, dtype);
        check_activation(name, gated, false, dtype);
      }
    }
  }
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool rms) {
  if (rms) return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * weight;
  return at::layer_norm(x, {x.size(-1)}, weight, bias, 1e-5);
}

void check_norm(const nn::NormSpec& spec, at::ScalarType stream, at::ScalarType dtype) {
  const int64_t width = spec.width;
  const bool rms = spec.rms;
  nn::Norm norm(spec, layer_context({}, false, dtype));
  std::vector<nn::Param*> params;
  norm.collect_params(params);
  give_main_grad(params);
  for (size_t i = 0; i < params.size(); ++i) params[i]->data.copy_(sample({width}, i + 5) + 0.5);
  const at::Tensor x = leaf(sample({9, 5, width}, 1, stream)), same = exact(x), dy = sample({9, 5, width}, 2, dtype);
  std::vector<at::Tensor> wanted{same, exact(params[0]->data)};
  if (!rms) wanted.push_back(exact(params[1]->data));
  const at::Tensor expected =
      plain_norm(same, spec.one_plus ? wanted[1] + 1 : wanted[1], rms ? at::Tensor() : wanted[2], rms);
  const at::Tensor got = norm.forward(x);
  EXPECT_EQ(got.scalar_type(), dtype);
  expect_rounded(got, expected, kSlack, "norm");
  const auto right = torch::autograd::grad({expected}, wanted, {dy.to(at::kDouble)});
  const at::Tensor dx = torch::autograd::grad({got}, {x}, {dy})[0];
  EXPECT_EQ(dx.scalar_type(), stream);
  expect_rounded(dx, right[0], kSlack, "dx of norm");
  for (size_t i = 0; i < params.size(); ++i)
    expect_rounded(params[i]->main_grad, right[i + 1], kSlack + through_fp16(dtype), "dweight");
}

TEST(HalfNorm, ForwardAndGradientsAreRoundedOnceAlsoFromAnFp32Stream) {
  for (const auto dtype : kHalfTypes) {
    for (const bool rms : {false, true}) {
      for (const int64_t width : {7, 16, 50}) {
        nn::NormSpec spec{"n", width, rms};
        for (const bool one_plus : {false, true}) {
          spec.one_plus = one_plus;
          check_norm(spec, dtype, dtype);
          check_norm(spec, at::kFloat, dtype);
        }
      }
    }
  }
}

// The probabilities are half numbers in the product with the values; the sums are fp32. This gives one rounding of
// each probability and one of the result. Scores are near 30 and near each other: rounded to bf16 before the softmax
// they would change a probability by a tenth.
void check_attention(bool blocked, at::ScalarType dtype) {
  const int64_t s = 11, b = 2, heads = 4, d = 16;
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(0, at::arange(b, at::kLong));
  if (blocked) batch.documents.ids = at::zeros({b, s}, at::kLong);
  std::vector<at::Tensor> qkv;
  for (const int seed : {6, 7, 8}) qkv.push_back((sample({s, b, heads, d}, seed) + (seed < 8 ? 2.8 : 0.0)).to(dtype));
  const nn::CoreAttention core({heads, heads, d, d, 0.25, {}, 0, {}}, {});
  const at::Tensor got = core.forward(qkv[0], qkv[1], qkv[2], {}, batch, nullptr).x;
  const auto heads_first = [](const at::Tensor& x) { return x.to(at::kDouble).permute({1, 2, 0, 3}); };
  const at::Tensor scores = at::matmul(heads_first(qkv[0]), heads_first(qkv[1]).transpose(2, 3)) / 4.0;
  EXPECT_GT(largest(scores), 20.0);
  const at::Tensor later = at::ones({s, s}, at::kBool).triu(1);
  const at::Tensor p = at::softmax(scores.masked_fill(later, -1e300), -1), v = heads_first(qkv[2]);
  const auto sequence_first = [&](const at::Tensor& x) { return x.permute({2, 0, 1, 3}).reshape({s, b, -1}); };
  const at::Tensor expected = sequence_first(at::matmul(p, v)), of_values = sequence_first(at::matmul(p, v.abs()));
  const at::Tensor bound = unit(dtype) * (expected.abs() + of_values) + kSlack * largest(scores) * of_values;
  const at::Tensor error = (got.to(at::kDouble).view({s, b, -1}) - expected).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << (blocked ? "blocked" : "fused") << " attention in " << dtype << ": off by up to " << largest(error / bound)
      << " of what is allowed";
}

TEST(HalfCoreAttention, ScoresAndSoftmaxAreNotRounded) {
  for (const auto dtype : kHalfTypes) {
    for (const bool blocked : {false, true}) check_attention(blocked, dtype);
  }
}

TEST(HalfRope, TurnsAreRoundedOnce) {
  for (const auto dtype : kHalfTypes) {
    for (const int64_t rotary : {8, 4}) {
      const at::Tensor x = sample({40, 2, 3, 8}, 5, dtype);
      at::Tensor turned = x.clone(), wanted = x.to(at::kDouble);
      nn::RopeTable(rotary, 100.0, {}).rotate(turned, {2, {}, 0}, 1);
      nn::RopeTable(rotary, 100.0, {}).rotate(wanted, {2, {}, 0}, 1);
      expect_rounded(turned, wanted, kSlack, "rope");
    }
  }
}

void check_dropout(double probability, at::ScalarType stream, at::ScalarType dtype) {
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(0, at::tensor({7, 8, 9}, at::kLong));
  nn::Param bias = nn::make_param({"b", {20}, {}, nn::Init::normal}, layer_context({}, false, dtype));
  give_main_grad({&bias});
  const nn::DropoutKey key{5, 2, nn::RandomSite::attention_output, probability, {}};
  const at::Tensor mask = nn::bias_dropout_add(at::ones({4, 3, 20}, at::kDouble), {}, {key, nullptr, {0}}, batch);
  const at::Tensor x = leaf(sample({4, 3, 20}, 1, dtype)), residual = leaf(sample({4, 3, 20}, 2, stream)),
                   dy = sample({4, 3, 20}, 3, stream);
  const at::Tensor y = nn::bias_dropout_add(make_temporary(x), residual, {key, &bias, {0}}, batch);
  EXPECT_EQ(y.scalar_type(), stream);
  expect_rounded(y, residual.to(at::kDouble) + mask * (x.to(at::kDouble) + bias.data.to(at::kDouble)), kSlack, "y");
  const auto got = torch::autograd::grad({y}, {x, residual}, {dy});
  EXPECT_EQ(got[0].scalar_type(), dtype);
  expect_rounded(got[0], dy.to(at::kDouble) * mask, kSlack, "dx");
  EXPECT_TRUE(at::equal(got[1], dy));
  EXPECT_LT(relative_difference(bias.main_grad, got[0].to(at::kDouble).sum(at::IntArrayRef{0, 1})),
            2e-6 + through_fp16(dtype));
}

TEST(HalfDropout, SumAndGradientsAreRoundedOnceAlsoOntoAnFp32Stream) {
  for (const auto dtype : kHalfTypes) {
    for (const double probability : {0.0, 0.4}) {
      check_dropout(probability, dtype, dtype);
      check_dropout(probability, at::kFloat, dtype);
    }
  }
}

TEST(HalfCrossEntropy, LossIsFp32AndTheGradientLiesInTheLogits) {
  for (const auto dtype : kHalfTypes) {
    for (const double smoothing : {0.0, 0.2}) {
      const at::Tensor x = leaf((sample({3, 4, 40}, 1) * 8).to(dtype)), same = exact(x),
                       targets = at::arange(12, at::kLong).view({3, 4}) * 3, dy = sample({3, 4}, 2, at::kFloat);
      const at::Tensor log_p = at::log_softmax(same.narrow(2, 0, 37), -1);
      const double s = smoothing * 37 / 36;
      const at::Tensor expected = -(1 - s) * log_p.gather(2, targets.unsqueeze(2)).squeeze(2) - s * log_p.mean(-1);
      const at::Tensor logits = make_temporary(x);
      const at::Tensor got = nn::vocab_parallel_cross_entropy(
          logits, targets, {{}, nn::make_vocabulary_shard(37, 40, 1, 0), 37, smoothing, {}});
      EXPECT_EQ(got.scalar_type(), at::kFloat);
      expect_rounded(got, expected, kSlack, "loss");
      const at::Tensor right = torch::autograd::grad({expected}, {same}, {dy.to(at::kDouble)})[0];
      const at::Tensor dx = torch::autograd::grad({got}, {x}, {dy})[0];
      expect_rounded(dx, right, kSlack, "gradient of the logits");
      EXPECT_EQ(dx.const_data_ptr(), logits.const_data_ptr());
    }
  }
}

TEST(HalfEmbedding, RowsAreExactAndTheirGradientsAreSummedInFp32) {
  for (const auto dtype : kHalfTypes) {
    nn::ReplicatedEmbedding table("e", 11, 20, topology::Role::embedding, layer_context({}, false, dtype));
    give_main_grad({&table.weight()});
    const at::Tensor indices = (at::arange(64, at::kLong) % 11).view({4, 16});
    const at::Tensor rows = table.weight().data.to(at::kDouble).index_select(0, indices.t().reshape(-1));
    EXPECT_TRUE(at::equal(table.forward(indices).to(at::kDouble).view({64, 20}), rows));
    at::Tensor sum = sample({16, 4, 20}, 2, dtype);
    const at::Tensor before = sum.to(at::kDouble);
    table.add_to(sum, indices);
    expect_rounded(sum, before + rows.view({16, 4, 20}), 1e-6, "sum");
    for (const auto stream : {dtype, at::kFloat}) {
      table.weight().main_grad.zero_();
      const at::Tensor dout = sample({16, 4, 20}, 3, stream);
      table.add_gradient(dout, indices);
      const at::Tensor exact_sum =
          at::zeros({11, 20}, at::kDouble).index_add(0, indices.t().reshape(-1), dout.to(at::kDouble).view({64, 20}));
      EXPECT_LT(relative_difference(table.weight().main_grad, exact_sum),
                1e-6 + through_fp16(dtype));  // 6 terms in fp32
    }
  }
}

TEST(HalfLinear, TheBiasGradientSumsHalfRowsInFp32) {
  for (const auto dtype : kHalfTypes) {
    for (const int64_t rows : {1, 7, 300}) {
      nn::Param bias = nn::make_param({"b", {70}, {}, nn::Init::zeros}, layer_context({}, false, dtype));
      give_main_grad({&bias});
      bias.main_grad.fill_(0.25);
      const at::Tensor dy = sample({rows, 70}, 3, dtype);
      nn::accumulate_bias_gradient({}, bias, dy);
      // Up to 300 roundings of sums below 300 / 2; they grow like a random walk.
      EXPECT_LT(relative_difference(bias.main_grad, dy.to(at::kDouble).sum(0) + 0.25), 5e-6 + through_fp16(dtype))
          << dtype << rows;
    }
  }
}

}  // namespace
}  // namespace metroplex::test::kernels_half_test
