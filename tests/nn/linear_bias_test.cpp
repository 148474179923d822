// A bias that the linear layer adds itself.
#include <ATen/core/grad_mode.h>

#include "nn/linear.h"
#include "support/operators.h"
#include "nn/tools.h"

namespace metroplex::test::linear_bias_test {
namespace {

struct Products final : device::Recorder {
  std::vector<device::Operation> all;
  void run(device::Operation operation) override { operation.run(); }
  void issued(const device::Operation& product) override { all.push_back(product); }
};

// y of a layer [7 -> 10] for `target`; its tensors are on the CPU or meta tensors.
at::Tensor forward(nn::LinearSplit split, const device::Target& target, at::Device memory, const at::Tensor& x,
                   const at::Tensor& weight, const at::Tensor& bias) {
  nn::LayerContext context = layer_context({}, false, x.scalar_type());
  context.target = target;
  context.deferred = true;
  nn::Linear layer(nn::linear_spec("l", 7, 10, true), split, context);
  std::vector<nn::Param*> params;
  layer.collect_params(params);
  EXPECT_EQ(params.size(), 2u);
  params[0]->data = weight.to(memory);
  params[1]->data = bias.to(memory);
  const at::NoGradGuard no_grad;
  return layer.forward(x.to(memory));
}

// Integers: sums in any order are exact.
void check(nn::LinearSplit split) {
  const auto whole = [](std::vector<int64_t> sizes, uint64_t seed) {
    return sample(std::move(sizes), seed).mul(50).round();
  };
  const at::Tensor x = whole({3, 2, 7}, 1), weight = whole({10, 7}, 2), bias = whole({10}, 3);
  const at::Tensor wanted = (x.unsqueeze(2) * weight).sum(3) + bias;
  Products products;
  for (const bool gpu : {false, true}) {
    const device::Target target{at::Device(gpu ? at::kCUDA : at::kCPU, gpu ? 0 : -1), &products};
    const Operators operators;
    products.all.clear();
    const at::Tensor y = forward(split, target, at::kCPU, x, weight, bias);
    EXPECT_TRUE(y.equal(wanted)) << "gpu " << gpu;
    ASSERT_EQ(products.all.size(), 1u);
    EXPECT_EQ(products.all[0].name, gpu ? "addmm" : "mm");
    EXPECT_EQ(products.all[0].reads.size(), gpu ? 3u : 2u);
    EXPECT_EQ(products.all[0].flops, 2.0 * 6 * 7 * 10);
    EXPECT_EQ(operators.count("aten::addmm"), gpu ? 1 : 0);
    EXPECT_EQ(operators.count("aten::add_"), gpu ? 0 : 1);
  }
  const Operators operators;
  const at::Tensor y = forward(split, {at::Device(at::kCUDA, 0), &products, true}, at::kMeta, x, weight, bias);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 2, 10}));
  EXPECT_EQ(operators.count("aten::add_"), 0) << "without values as with them";
  EXPECT_EQ(products.all.back().name, "addmm");
}

TEST(LinearBias, IsAddedByTheProductItselfOnAGpu) {
  check(nn::LinearSplit::output);
  check(nn::LinearSplit::none);
}

}  // namespace
}  // namespace metroplex::test::linear_bias_test
