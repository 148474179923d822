// Chunks between a GPU and the host: the step sees work enqueued before it, and work enqueued after it sees the new
// values. Also sums over gradients on a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "optim/clip.h"
#include "optim/host_chunks.h"
#include "distributed/tools.h"
#include "support/gpu.h"

namespace metroplex::test::offload_cuda_test {
namespace {

TEST(HostChunksOnGpu, TheStepStandsInTheOrderOfTheStream) {
  MPX_NEED_GPU_KERNELS();
  constexpr int64_t kSize = 1 << 20, kChunks = 7;
  const auto options = at::TensorOptions().device(at::kCUDA).dtype(at::kFloat);
  const at::Tensor values = at::zeros({kChunks * kSize}, options), gradient = at::zeros({kChunks * kSize}, options);
  std::vector<optim::HostChunk> chunks;
  for (int64_t i = 0; i < kChunks; ++i)
    chunks.push_back({values.narrow(0, i * kSize, kSize), gradient.narrow(0, i * kSize, kSize), true});
  optim::HostChunks host(chunks);
  for (int step = 1; step <= 10; ++step) {
    gradient.fill_(step);  // not waited for
    host.run([](size_t, const at::Tensor& v, const at::Tensor& g) {
      EXPECT_TRUE(v.is_pinned() && g.is_pinned());
      v.add_(g);
    });
    const at::Tensor after = values.clone();
    EXPECT_EQ(after.min().item<float>(), step * (step + 1) / 2.0F);
    EXPECT_EQ(after.max().item<float>(), step * (step + 1) / 2.0F);
  }
}

TEST(GradientStatsOnGpu, AreThoseOfTheCpu) {
  MPX_NEED_GPU_KERNELS();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    std::vector<nn::Param> host{make_param("a", values({70, 1000}, 1, dtype)),
                                make_param("b", values({3}, 2, dtype))};
    host[1].main_grad = at::zeros({3}, dtype);
    host[0].main_grad = values({70, 1000}, 3, dtype);
    std::vector<nn::Param> gpu = host;
    for (nn::Param& param : gpu) {
      param.data = param.data.to(at::kCUDA);
      param.main_grad = param.main_grad.to(at::kCUDA);
    }
    for (const bool broken : {false, true}) {
      if (broken) {
        host[1].main_grad.fill_(INFINITY);
        gpu[1].main_grad.fill_(INFINITY);
      }
      const auto here = whole_shards(pointers(host)), there = whole_shards(pointers(gpu));
      const optim::GradientStats wanted = optim::gradient_stats({{here, {}}}),
                                 got = optim::gradient_stats({{there, {{}, {}, {}, {at::kCUDA}}}});
      if (!broken) { EXPECT_NEAR(got.norm, wanted.norm, 1e-12 * wanted.norm); }
      EXPECT_EQ(got.num_zeros, wanted.num_zeros);
      EXPECT_EQ(got.num_nonfinite, wanted.num_nonfinite);
      EXPECT_NEAR(optim::params_norm({{there, {{}, {}, {}, {at::kCUDA}}}}), optim::params_norm({{here, {}}}), 1e-10);
      EXPECT_EQ(optim::first_nonfinite(there, {at::kCUDA}), broken ? &there[1] : nullptr);
    }
  }
}

}  // namespace
}  // namespace metroplex::test::offload_cuda_test
