#include "moe/experts.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "device/memory_meter.h"
#include "moe/grouped_product.h"
#include "nn/tools.h"
#include "nn/wide.h"
#include "support/run_ranks.h"

namespace metroplex::experts_test {
namespace {

constexpr int64_t kHidden = 24, kWidth = 40;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Kind {
  bool gated = true, bias = false, grouped = true, on_input = false;
  config::Activation activation = config::Activation::silu;
};

config::Model make_model(const Kind& kind, int64_t experts) {
  config::Model m;
  m.num_moe_experts = experts;
  m.hidden_size = kHidden;
  m.moe_ffn_hidden_size = kWidth;
  m.gated_linear_unit = kind.gated;
  m.activation = kind.activation;
  m.add_bias_linear = kind.bias;
  m.moe_grouped_gemm = kind.grouped;
  m.moe_apply_probs_on_input = kind.on_input;
  return m;
}

// Rows sorted by expert; NaN after the last one at every readable location.
struct Input {
  std::vector<int64_t> rows;
  at::Tensor x, probs, dy, counts;
  int64_t valid = 0;
};

Input make_input(const std::vector<int64_t>& rows, int64_t padding, at::ScalarType type) {
  Input in;
  in.rows = rows;
  for (const int64_t n : rows) in.valid += n;
  const int64_t all = in.valid + padding;
  in.x = test::sample({all, kHidden}, 1, type);
  in.probs = test::sample({all}, 2, nn::acc_type(type)).abs();
  in.dy = test::sample({all, kHidden}, 3, type);
  for (const at::Tensor& x : {in.x, in.probs, in.dy}) x.narrow(0, in.valid, padding).fill_(kNan);
  in.counts = at::tensor(rows, at::kLong);
  return in;
}

// Results of the valid rows; parameters by the end of their names.
using Results = std::map<std::string, at::Tensor>;

std::string short_name(const nn::Param& param) { return param.name.substr(std::string("mlp.experts.").size()); }

// Adapters of all three layers, with a scale of 1.5 and another rank of down_proj.
nn::LayerContext with_adapters(nn::LayerContext context) {
  context.peft.lora_rank = 2, context.peft.lora_alpha = 3;
  context.peft.lora_target_modules = {"experts.gate_proj", "experts.up_proj", "experts.down_proj"};
  context.peft.rank_pattern = {"down_proj=4"}, context.peft.alpha_pattern = {"down_proj=6"};
  return context;
}
constexpr double kAdapterScale = 1.5;

std::vector<nn::Param*> list_params(moe::Experts& experts) {
  std::vector<nn::Param*> params;
  experts.collect_params(params);
  return params;
}

// Neither small nor equal: biases are initially zero.
void set_values(const std::vector<nn::Param*>& params) {
  for (nn::Param* param : params) {
    nn::fill(*param, [](int64_t i) { return 0.4 * std::sin(0.37 * static_cast<double>(i) + 0.1); });
  }
}

Results run_layer(moe::Experts& experts, const Input& in, const moe::Replicas& replicas = {}) {
  const std::vector<nn::Param*> params = list_params(experts);
  test::give_main_grad(params);
  const at::Tensor x = in.x.clone().requires_grad_(), probs = in.probs.clone().requires_grad_();
  const at::Tensor y = experts.forward({x, probs, in.counts}, replicas);
  torch::autograd::backward({y}, {in.dy});
  Results results{{"y", y.detach().narrow(0, 0, in.valid)},
                  {"dx", x.grad().narrow(0, 0, in.valid)},
                  {"dprobs", probs.grad().narrow(0, 0, in.valid)}};
  for (const nn::Param* param : params) {
    EXPECT_EQ(param->backward_calls, param->frozen ? 0 : 1) << param->name;
    if (!param->frozen) results[short_name(*param)] = param->main_grad;
  }
  return results;
}

// `experts` with the last ones of `all` as replicas. Gradients of replicas follow the local ones and are rounded like
// them: to fp16 (nn::Param::accumulate).
Results run_with_replicas(moe::Experts& experts, moe::Experts& all, const Input& in) {
  const moe::HomeWeights from = all.home(), to = experts.home();
  moe::Replicas replicas;
  std::map<const nn::Param*, at::Tensor> came;
  replicas.bring_home = [&](nn::Param& home, const at::Tensor& gradients) {
    EXPECT_TRUE(came.emplace(&home, gradients).second) << home.name << " twice";
  };
  const auto send = [&](nn::Param* source, nn::Param* home, at::Tensor& replica) {
    if (source == nullptr) return;
    const int64_t n = home->data.size(0);
    home->data.copy_(source->data.narrow(0, 0, n));
    replica = source->data.narrow(0, n, source->data.size(0) - n).clone();
  };
  send(from.fc1, to.fc1, replicas.weights.fc1);
  send(from.fc2, to.fc2, replicas.weights.fc2);
  send(from.bias1, to.bias1, replicas.weights.bias1);
  send(from.bias2, to.bias2, replicas.weights.bias2);
  Results results = run_layer(experts, in, replicas);
  for (const auto& [home, gradients] : came) {
    at::Tensor& main_grad = results.at(short_name(*home));
    const at::Tensor rounded = home->scalar_type() == at::kHalf ? gradients.to(at::kHalf) : gradients;
    main_grad = at::cat({main_grad, rounded.to(gradients.scalar_type())});
  }
  return results;
}

Results run_experts(const Kind& kind, const Input& in, const nn::LayerContext& context) {
  moe::Experts experts("mlp.experts", make_model(kind, static_cast<int64_t>(in.rows.size())), context, {});
  set_values(list_params(experts));
  return run_layer(experts, in);
}

at::Tensor activated(const at::Tensor& x, const Kind& kind) {
  const auto f = [&](const at::Tensor& a) {
    switch (kind.activation) {
      case config::Activation::gelu:
        return at::gelu(a);
      case config::Activation::squared_relu:
        return at::relu(a).square();
      default:
        return at::silu(a);
    }
  };
  if (!kind.gated) return f(x);
  const auto halves = x.chunk(2, -1);
  return f(halves[0]) * halves[1];
}

// The plain formula, expert by expert, in float64 with torch's autograd, from the layer's values.
Results formula(const Kind& kind, const Input& in, const nn::LayerContext& context) {
  moe::Experts experts("mlp.experts", make_model(kind, static_cast<int64_t>(in.rows.size())), context, {});
  const std::vector<nn::Param*> params = list_params(experts);
  set_values(params);
  std::map<std::string, at::Tensor> leaves;
  for (const nn::Param* param : params) leaves[short_name(*param)] = param->data.to(at::kDouble).requires_grad_();
  const at::Tensor x = in.x.narrow(0, 0, in.valid).to(at::kDouble).clone().requires_grad_(),
                   probs = in.probs.narrow(0, 0, in.valid).to(at::kDouble).clone().requires_grad_();
  std::vector<at::Tensor> regions;
  int64_t first = 0;
  for (size_t e = 0; e < in.rows.size(); ++e) {
    const auto of = [&](const std::string& name) { return leaves.at(name).select(0, static_cast<int64_t>(e)); };
    const auto weight = [&](const char* name, const std::vector<std::string>& words) {
      std::vector<at::Tensor> deltas;
      for (const std::string& word : words) {
        if (leaves.contains(word + ".lora_A.weight"))
          deltas.push_back(at::mm(of(word + ".lora_B.weight"), of(word + ".lora_A.weight")));
      }
      return deltas.empty() ? of(name) : of(name) + kAdapterScale * at::cat(deltas);
    };
    const at::Tensor p = probs.narrow(0, first, in.rows[e]).unsqueeze(1);
    at::Tensor rows = x.narrow(0, first, in.rows[e]);
    if (kind.on_input) rows = rows * p;
    at::Tensor inner = at::mm(rows, weight("linear_fc1.weight", {"gate_proj", "up_proj"}).t());
    if (kind.bias) inner = inner + of("linear_fc1.bias");
    at::Tensor out = activated(inner, kind);
    if (!kind.on_input) out = out * p;
    out = at::mm(out, weight("linear_fc2.weight", {"down_proj"}).t());
    if (kind.bias) out = out + (kind.on_input ? of("linear_fc2.bias") : of("linear_fc2.bias") * p);
    regions.push_back(out);
    first += in.rows[e];
  }
  const at::Tensor y = at::cat(regions);
  torch::autograd::backward({y}, {in.dy.narrow(0, 0, in.valid).to(at::kDouble)});
  Results results{{"y", y.detach()}, {"dx", x.grad()}, {"dprobs", probs.grad()}};
  for (auto& [name, leaf] : leaves) {
    results[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf.detach());
  }
  return results;
}

void expect_equal(const Results& got, const Results& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    const double difference = test::relative_difference(got.at(name), tensor);
    EXPECT_TRUE(difference <= tolerance) << what << ": " << name << " differs by " << difference;
  }
}

void expect_same_bits(const Results& got, const Results& expected, const std::string& what) {
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(got.at(name), tensor)) << what << ": " << name;
}

// Relative to the largest element: three successive roundings of values, and sums of up to 64 products, whose errors
// grow with the square root of their number. In half types each value between two products is rounded once more: six
// times on the longest path, and twice that for cancellation in the sums.
double tolerance(at::ScalarType type) {
  const double rounding = type == at::kDouble     ? 0x1p-53
                          : type == at::kFloat    ? 0x1p-24
                          : type == at::kBFloat16 ? 0x1p-8
                                                  : 0x1p-11;
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  return rounding * (half ? 12 : 3 * 64);
}

const std::vector<std::vector<int64_t>> kRows = {{5, 9, 1, 20}, {0, 17, 0, 3}, {0, 0, 40, 0}, {0, 0, 0, 0}, {33}};

const Kind kKinds[] = {{},
                       {.gated = false, .bias = true, .activation = config::Activation::gelu},
                       {.bias = true},
                       {.gated = false, .activation = config::Activation::squared_relu},
                       {.bias = true, .on_input = true}};

TEST(Experts, EqualThePlainFormulaInForwardAndAllGradients) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      for (const auto& rows : kRows) {
        for (const bool grouped : {true, false}) {
          Kind kind = kKinds[k];
          kind.grouped = grouped;
          const Input in = make_input(rows, 7, type);
          const nn::LayerContext context = test::layer_context({}, false, type);
          expect_equal(run_experts(kind, in, context), formula(kind, in, context), tolerance(type),
                       std::string(at::toString(type)) + ", kind " + std::to_string(k) + ", rows of the first " +
                           std::to_string(rows[0]) + (grouped ? ", grouped" : ", one by one"));
        }
      }
    }
  }
}

// With the layer's own weights trained or frozen, and with the activation stored or recomputed. An adapter adds two
// products to each layer, so the sums of tolerance() are twice as many.
TEST(Experts, AdaptersEqualThePlainFormula) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (Kind kind : kKinds) {
      for (const auto& rows : kRows) {
        for (int variant = 0; variant < 8; ++variant) {
          kind.grouped = (variant & 1) != 0;
          const bool frozen = (variant & 2) != 0;
          nn::LayerContext context = with_adapters(test::layer_context({}, false, type));
          if ((variant & 4) != 0) context.saving.recomputed = {nn::SavePoint::expert_activation};
          const Input in = make_input(rows, 7, type);
          Results expected = formula(kind, in, context);
          moe::Experts experts("mlp.experts", make_model(kind, static_cast<int64_t>(rows.size())), context, {});
          set_values(list_params(experts));
          for (nn::Param* param : list_params(experts)) {
            if (!frozen || config::is_adapter(param->name)) continue;
            if (param->name.ends_with(".bias")) continue;
            param->frozen = true;
            expected.erase(short_name(*param));
          }
          expect_equal(run_layer(experts, in), expected, 2 * tolerance(type), "variant " + std::to_string(variant));
        }
      }
    }
  }
}

TEST(Experts, OnlyThoseOneByOneWaitForTheHost) {
  for (const bool grouped : {true, false}) {
    moe::Experts experts("mlp.experts", make_model({.grouped = grouped}, 4), test::layer_context(), {});
    EXPECT_EQ(experts.needs_host(), !grouped);
  }
}

TEST(Experts, HaveTheBitsOfOneThreadOnTwo) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Input in = make_input({2500, 0, 341, 7}, 3, type);  // fewer do not use a second thread
    for (const Kind& kind : kKinds) {
      at::set_num_threads(1);
      const Results one = run_experts(kind, in, test::layer_context({}, false, type));
      at::set_num_threads(2);
      expect_same_bits(run_experts(kind, in, test::layer_context({}, false, type)), one, at::toString(type));
    }
  }
  at::set_num_threads(threads);
}

TEST(Experts, RecomputeChangesNoBit) {
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
    const Input in = make_input({30, 0, 41, 7}, 3, type);
    for (const Kind& kind : kKinds) {
      for (const bool grouped : {true, false}) {
        Kind of = kind;
        of.grouped = grouped;
        nn::LayerContext context = test::layer_context({}, false, type);
        const Results kept = run_experts(of, in, context);
        context.saving.recomputed = {nn::SavePoint::expert_activation};
        expect_same_bits(run_experts(of, in, context), kept, at::toString(type));
      }
    }
  }
}

// Bytes between forward and backward in addition to input and output: fc1's product (2 x kWidth) and the input of
// fc2.
TEST(Experts, RecomputeHoldsLess) {
  const Input in = make_input({60, 40}, 0, at::kFloat);
  const int64_t row = in.valid * kWidth * 4;
  const auto held = [&](const nn::SavePointSet& leaves) {
    nn::LayerContext context = test::layer_context({}, false, at::kFloat);
    context.saving.recomputed = leaves;
    moe::Experts experts("mlp.experts", make_model({}, 2), context, {});
    const at::Tensor x = in.x.clone().requires_grad_(), probs = in.probs.clone().requires_grad_();
    const device::MemoryMeter meter;
    const at::Tensor y = experts.forward({x, probs, in.counts});
    return meter.bytes() - static_cast<int64_t>(y.nbytes());
  };
  EXPECT_EQ(held({}), 3 * row);
  EXPECT_EQ(held({nn::SavePoint::expert_activation}), 2 * row);
}

// Rank i of n has shard i of every expert: the results are summands, and so are the gradients of shared inputs.
TEST(Experts, PartsOverEtpAddUpToTheWhole) {
  for (const int etp : {2, 4}) {
    test::run_ranks(etp, [&](const comm::World& world) {
      moe::ExpertContext at;
      at.experts = world.groups().tp;
      at.etp = etp;
      for (size_t i = 0; i < 2 * std::size(kKinds); ++i) {
        const Kind& kind = kKinds[i / 2];
        const nn::LayerContext context = i % 2 == 0 ? test::layer_context() : with_adapters(test::layer_context());
        const Input in = make_input({5, 0, 30, 2}, 7, at::kDouble);
        moe::Experts experts("mlp.experts", make_model(kind, 4), context, at);
        set_values(list_params(experts));
        Results results = run_layer(experts, in);
        for (const char* name : {"y", "dx", "dprobs"}) {
          results[name] = results[name].contiguous();
          comm::all_reduce(results[name], at.experts);
        }
        for (const nn::Param* param : list_params(experts)) {
          if (param->placement.partial.contains(topology::Axis::etp)) comm::all_reduce(param->main_grad, at.experts);
          if (!topology::sharded_axes(param->placement).contains(topology::Axis::etp)) continue;
          results[short_name(*param)] = test::whole(*param, param->main_grad, at.experts);
        }
        expect_equal(results, formula(kind, in, context), 2 * tolerance(at::kDouble), "etp " + std::to_string(etp));
      }
    });
  }
}

// A layer of two experts with the last two of four as replicas, against the layer of four.
TEST(Experts, ClonesHaveTheBitsOfExpertsAtHome) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& rows : {kRows[0], kRows[1], kRows[2]}) {
      for (Kind kind : kKinds) {
        for (const bool grouped : {true, false}) {
          for (const bool recomputes : {true, false}) {
            kind.grouped = grouped;
            const Input in = make_input(rows, 7, type);
            nn::LayerContext context = test::layer_context({}, false, type);
            if (recomputes) context.saving.recomputed = {nn::SavePoint::expert_activation};
            moe::Experts four("mlp.experts", make_model(kind, 4), context, {});
            set_values(list_params(four));
            const Results expected = run_layer(four, in);
            moe::ExpertContext at;
            at.slots = 2;
            moe::Experts two("mlp.experts", make_model(kind, 2), context, at);
            expect_same_bits(run_with_replicas(two, four, in), expected, at::toString(type));
          }
        }
      }
    }
  }
}

TEST(Experts, OfAnExpertParallelRankAreItsOwn) {
  moe::ExpertContext at;
  const Input in = make_input({5, 0, 30, 2}, 0, at::kDouble);
  moe::Experts all("mlp.experts", make_model({}, 4), test::layer_context(), {});
  test::run_ranks(2, [&](const comm::World& world) {
    moe::ExpertContext part;
    part.experts = world.groups().tp;
    part.ep = 2;
    moe::Experts half("mlp.experts", make_model({}, 4), test::layer_context(), part);
    for (size_t i = 0; i < 2; ++i) {
      const nn::Param &own = *list_params(half)[i], &whole = *list_params(all)[i];
      EXPECT_TRUE(at::equal(own.data, whole.data.narrow(0, 2 * world.rank(), 2))) << own.name;
      ASSERT_EQ(own.placement.regions.size(), 4U);
      EXPECT_EQ(own.placement.regions[3].name, "mlp.experts.local_experts.3." + short_name(own));
    }
  });
}

class Watcher final : public device::Recorder {
 public:
  void run(device::Operation operation) override {
    operation.run();
    if (operation.name != "grouped_product") return;
    for (const at::Tensor& x : operation.reads) {
      if (x.dim() == 3) weights.push_back(x.const_data_ptr());
    }
    flops += operation.flops;
    // Row 1 of the arguments: addresses of the right operands.
    const at::Tensor& arguments = operation.reads.at(0);
    for (int64_t e = 0; e < arguments.size(1); ++e)
      addresses.push_back(reinterpret_cast<const void*>(arguments[1][e].item<int64_t>()));
  }
  std::vector<const void*> weights, addresses;
  double flops = 0;
};

TEST(Experts, ReadTheirWeightsWhereTheyLie) {
  const Input in = make_input({60, 40}, 0, at::kFloat);
  Watcher watcher;
  nn::LayerContext context = test::layer_context({}, false, at::kFloat);
  context.target.recorder = &watcher;
  moe::Experts experts("mlp.experts", make_model({}, 2), context, {});
  const std::vector<nn::Param*> params = list_params(experts);
  int64_t allocated = 0;
  {
    const at::NoGradGuard no_grad;
    const device::MemoryMeter meter;
    experts.forward({in.x, in.probs, in.counts});
    allocated = meter.peak_bytes();
  }
  const void* const fc1 = params[0]->data.const_data_ptr();
  const void* const fc2 = params[1]->data.const_data_ptr();
  EXPECT_EQ(watcher.weights, (std::vector<const void*>{fc1, fc2}));
  const int64_t one1 = 2 * kWidth * kHidden * 4, one2 = kWidth * kHidden * 4;
  const auto at = [](const void* base, int64_t bytes) -> const void* {
    return static_cast<const char*>(base) + bytes;
  };
  EXPECT_EQ(watcher.addresses, (std::vector<const void*>{fc1, at(fc1, one1), fc2, at(fc2, one2)}));
  EXPECT_EQ(watcher.flops, 2.0 * 100 * (3 * kWidth * kHidden));
  // fc1's product, the input of fc2 and the result, but no weight.
  EXPECT_EQ(allocated, in.valid * (3 * kWidth + kHidden) * 4);
}

// The memory prediction uses the bytes and their order.
TEST(Experts, OnTheMetaDeviceHaveShapesAndComputeNothing) {
  for (const bool grouped : {true, false}) {
    nn::LayerContext context = test::layer_context({}, false, at::kBFloat16);
    context.target.meta = true;
    moe::Experts experts("mlp.experts", make_model({.bias = true, .grouped = grouped}, 4), context, {});
    test::give_main_grad(list_params(experts));
    const auto meta = [](std::vector<int64_t> sizes, at::ScalarType type) {
      return at::empty(sizes, at::TensorOptions().dtype(type).device(at::kMeta));
    };
    const at::Tensor x = meta({10, kHidden}, at::kBFloat16).requires_grad_(),
                     probs = meta({10}, at::kFloat).requires_grad_();
    const at::Tensor y = experts.forward({x, probs, meta({4}, at::kLong)});
    EXPECT_EQ(y.sizes(), x.sizes());
    torch::autograd::backward({y}, {meta({10, kHidden}, at::kBFloat16)});
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(probs.grad().scalar_type(), at::kFloat);
  }
}

TEST(Experts, TakeProbabilitiesInAFormatOfTheirOwn) {
  const Input in = make_input({60, 40}, 2, at::kFloat);
  moe::Experts experts("mlp.experts", make_model({}, 2), test::layer_context({}, false, at::kFloat), {});
  set_values(list_params(experts));
  const Results expected = run_layer(experts, in);
  Input wide = in;
  wide.probs = in.probs.to(at::kDouble);
  for (nn::Param* param : list_params(experts)) param->begin_backward();
  const Results got = run_layer(experts, wide);
  EXPECT_EQ(got.at("dprobs").scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(got.at("y"), expected.at("y")));
  EXPECT_TRUE(at::equal(got.at("dprobs"), expected.at("dprobs").to(at::kDouble)));
}

}  // namespace
}  // namespace metroplex::experts_test
