// Local experts on the GPU against the CPU reference implementation: the matmuls of all experts in one launch, and
// the kernels between them.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <string>
#include <vector>

#include "moe/experts.h"
#include "moe/grouped_product.h"
#include "nn/tools.h"
#include "nn/wide.h"
#include "support/gpu.h"

namespace metroplex::experts_cuda_test {
namespace {

using kernels::GroupedOp;

std::vector<at::Tensor> run_on(const at::Device& device, const config::Model& model, at::ScalarType type) {
  const std::vector<int64_t> rows{5, 0, 130, 64};
  constexpr int64_t kValid = 199, kAll = 210;
  nn::LayerContext context = test::layer_context({}, false, type);
  context.target.device = device;
  moe::Experts experts("mlp.experts", model, context, {});
  std::vector<nn::Param*> params;
  experts.collect_params(params);
  for (nn::Param* param : params) param->data.copy_(test::sample(param->data.sizes().vec(), 4).mul(0.4).to(type));
  test::give_main_grad(params);
  const auto poisoned = [&](std::vector<int64_t> sizes, uint64_t seed, at::ScalarType of) {
    at::Tensor x = test::sample(std::move(sizes), seed, of);
    x.narrow(0, kValid, kAll - kValid).fill_(std::numeric_limits<double>::quiet_NaN());
    return x.to(device);
  };
  const at::Tensor x = poisoned({kAll, model.hidden_size}, 1, type).requires_grad_(),
                   probs = poisoned({kAll}, 2, nn::acc_type(type)).requires_grad_(),
                   dy = poisoned({kAll, model.hidden_size}, 3, type);
  const at::Tensor y = experts.forward({x, probs, at::tensor(rows, at::kLong).to(device)});
  torch::autograd::backward({y}, {dy});
  std::vector<at::Tensor> results;
  for (const at::Tensor& result : {y.detach(), x.grad(), probs.grad()})
    results.push_back(result.narrow(0, 0, kValid).cpu());
  for (const nn::Param* param : params) results.push_back(param->main_grad.cpu());
  return results;
}

TEST(ExpertsOnGpu, EqualTheCpu) {
  MPX_NEED_GPU();
  config::Model model;
  model.num_moe_experts = 4;
  model.hidden_size = 72;
  model.moe_ffn_hidden_size = 100;
  model.activation = config::Activation::silu;
  for (const bool gated : {true, false}) {
    for (const bool on_input : {true, false}) {
      model.gated_linear_unit = gated;
      model.add_bias_linear = true;
      model.moe_apply_probs_on_input = on_input;
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
        const auto cpu = run_on(at::kCPU, model, type), gpu = run_on(at::Device(at::kCUDA, 0), model, type);
        ASSERT_EQ(gpu.size(), cpu.size());
        // Sums of up to 199 products in another order; the CPU's exp in fp32 is good to 2 ulp. Half types round two
        // intermediate values, and a sum rounded the other way differs by a unit.
        const double tolerance = type == at::kDouble     ? 200 * 0x1p-52
                                 : type == at::kFloat    ? 200 * 0x1p-23
                                 : type == at::kBFloat16 ? 4 * 0x1p-7
                                                         : 4 * 0x1p-10;
        for (size_t i = 0; i < cpu.size(); ++i) {
          const double difference = test::relative_difference(gpu[i], cpu[i]);
          EXPECT_TRUE(difference <= tolerance) << at::toString(type) << ", result " << i << ": " << difference;
        }
      }
    }
  }
}

// The last two of six experts are replicas, one of them without rows; NaN follows the rows and fills that replica.
// With many rows libtorch computes the matmuls on sm_90.
TEST(ExpertsOnGpu, MultiplyClonesBesideHomeExperts) {
  MPX_NEED_GPU();
  constexpr int64_t kHome = 4, kReplicas = 2, kIn = 64, kOut = 96;
  for (const int64_t mean : {16, 512}) {
    const std::vector<int64_t> rows{2 * mean, mean / 2, 0, mean + 1, mean, 0};
    const int64_t valid = 4 * mean + mean / 2 + 1, all = 6 * mean;
    const auto results = [&](const at::Device& device) {
      device::Target target;
      target.device = device;
      const auto made = [&](std::vector<int64_t> sizes, uint64_t seed) {
        return test::sample(std::move(sizes), seed, at::kBFloat16);
      };
      at::Tensor x = made({all, kIn}, 1), dy = made({all, kOut}, 2), replicas = made({kReplicas, kOut, kIn}, 4);
      for (const at::Tensor& of : {x, dy}) of.narrow(0, valid, all - valid).fill_(NAN);
      replicas.select(0, 1).fill_(NAN);
      const moe::GroupedWeights weights(made({kHome, kOut, kIn}, 3).to(device), replicas.to(device));
      const moe::GroupedWeights gradients(test::sample({kHome, kOut, kIn}, 5, at::kFloat).to(device),
                                          at::full({kReplicas, kOut, kIn}, NAN, device));
      x = x.to(device), dy = dy.to(device);
      const at::Tensor counts = at::tensor(rows, at::kLong).to(device);
      const moe::GroupedProduct product(target, kHome + kReplicas);
      const at::Tensor y = product.rows(GroupedOp::forward, x, weights, counts),
                       dx = product.rows(GroupedOp::input_gradient, dy, weights, counts);
      product.run(GroupedOp::weight_gradient, dy, x, gradients, counts);
      return std::vector<at::Tensor>{y.narrow(0, 0, valid).cpu(), dx.narrow(0, 0, valid).cpu(), gradients.home.cpu(),
                                     gradients.replicas.cpu()};
    };
    const auto cpu = results(at::kCPU), gpu = results(at::Device(at::kCUDA, 0));
    // Both round a sum to bf16 once, by 2^-9 of the largest; as much again for sums in another order.
    for (size_t i = 0; i < cpu.size(); ++i) EXPECT_LE(test::relative_difference(gpu[i], cpu[i]), 0x1p-7) << i;
  }
}

}  // namespace
}  // namespace metroplex::experts_cuda_test
