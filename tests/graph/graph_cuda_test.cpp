// CUDA graphs on a GPU: replays against eager calls, pools, random numbers, and the state after a failed capture.
#include <ATen/detail/CUDAHooksInterface.h>

#include "device/device.h"
#include "graph/cuda_graph.h"
#include "graph/graphed_callable.h"
#include "kernels/dropout_norm.h"
#include "kernels/twins.h"
#include "support/gpu.h"

namespace metroplex::graph::graph_cuda_test {
namespace {

using kernels::data;

constexpr int64_t kRows = 64, kWidth = 256;

// Dropout, residual and norm by our kernels, then a libtorch matmul; with temporaries.
struct Chain {
  at::Tensor x = kernels::values<float>({kRows, kWidth}, 0.3).to(at::kCUDA), residual = x * 0.5,
             weight = kernels::values<float>({kWidth}, 0.2).to(at::kCUDA),
             matrix = kernels::values<float>({kWidth, kWidth}, 0.7).to(at::kCUDA),
             counter = at::full({1}, 7, at::TensorOptions().dtype(at::kLong).device(at::kCUDA));

  at::Tensor operator()() const {
    const kernels::DropoutShape dropout{{data<int64_t>(counter)}, kRows, kWidth, 0x1234567ull, 0.5};
    const kernels::NormShape norm{kRows, kWidth, 1e-5, true};
    const at::Tensor sum = at::empty_like(x), out = at::empty_like(x), rstd = at::empty({kRows}, x.options());
    kernels::dropout_norm_forward_cuda<float, float>(
        {data<float>(x), nullptr, data<float>(residual), data<float>(sum)},
        {data<float>(sum), data<float>(weight), nullptr, data<float>(out), nullptr, data<float>(rstd)},
        {dropout, norm}, device::current_stream());
    return at::mm(out, matrix) + sum;
  }
};

TEST(GraphOnGpu, AReplayHasTheBitsOfTheCallsAndDropoutFollowsItsCounter) {
  MPX_NEED_GPU_KERNELS();
  const auto device = make_cuda_graph_device();
  const auto graph = device->make_graph(device->make_pool());
  const Chain chain;
  device->run_on_capture_stream([&] { chain(); });
  at::Tensor out;
  capture(*graph, [&] { out = chain(); });
  EXPECT_TRUE(at::equal(out, chain())) << "a capture has the effect of one run";
  EXPECT_GE(graph->size().nodes, 3);
  at::Tensor last;
  for (int64_t step = 0; step < 3; ++step) {
    chain.counter.fill_(100 + step);
    graph->replay();
    EXPECT_TRUE(at::equal(out, chain())) << step;
    if (last.defined()) { EXPECT_FALSE(at::equal(out, last)) << "another counter, another mask"; }
    last = out.clone();
  }
  chain.x.mul_(2);
  graph->replay();
  EXPECT_TRUE(at::equal(out, chain())) << "other values at the same place";
}

TEST(GraphOnGpu, TwoGraphsShareAPool) {
  MPX_NEED_GPU();
  const auto device = make_cuda_graph_device();
  const auto pool = device->make_pool();
  const auto first = device->make_graph(pool), second = device->make_graph(pool);
  constexpr int64_t kMany = 16 << 20;
  const at::Tensor x = at::arange(kMany, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA));
  at::Tensor y, z;
  capture(*first, [&] { y = (x * 3).sin().mean(0, true); });
  const int64_t after_first = pool->bytes().reserved;
  EXPECT_GE(after_first, 4 * kMany);
  capture(*second, [&] { z = (x * 5).cos().mean(0, true) + y; });
  EXPECT_LT(pool->bytes().reserved, after_first + 4 * kMany) << "what the first has given back is taken again";
  EXPECT_GE(pool->bytes().peak, 8 * kMany);
  EXPECT_LT(pool->bytes().live, 4 * kMany);
  x.mul_(0.25);
  first->replay();
  second->replay();
  EXPECT_TRUE(at::equal(z, (x * 5).cos().mean(0, true) + (x * 3).sin().mean(0, true)));
}

TEST(GraphOnGpu, AGraphIsCapturedAgainIntoItsPoolAfterAReset) {
  MPX_NEED_GPU();
  const auto device = make_cuda_graph_device();
  const auto graph = device->make_graph(device->make_pool());
  for (const int64_t n : {1000, 3000}) {
    const at::Tensor x = at::arange(n, at::TensorOptions().dtype(at::kDouble).device(at::kCUDA));
    at::Tensor y;
    capture(*graph, [&] { y = x * 2 + 1; });
    x.add_(1);
    graph->replay();
    EXPECT_TRUE(at::equal(y, x * 2 + 1));
    graph->reset();
    EXPECT_FALSE(graph->captured());
  }
}

// Otherwise the allocator, the generator and the stream would remain in capture mode.
TEST(GraphOnGpu, AfterAFailedCaptureTheGpuIsAsBefore) {
  MPX_NEED_GPU();
  const auto device = make_cuda_graph_device();
  const auto pool = device->make_pool();
  const auto graph = device->make_graph(pool);
  const at::Tensor x = at::ones({1000}, at::TensorOptions().device(at::kCUDA));
  EXPECT_ANY_THROW(capture(*graph, [&] {
    const at::Tensor y = at::bernoulli(x * 0.5);
    EXPECT_GT(y.sum().item<float>(), 0);  // the host read makes CUDA invalidate the capture
  }));
  EXPECT_ANY_THROW(capture(*graph, [&] {
    const at::Tensor y = x * 2;
    throw std::runtime_error("between");
  }));
  EXPECT_FALSE(graph->captured());
  const at::Tensor drawn = at::bernoulli(x * 0.5);
  EXPECT_GT(drawn.sum().item<float>(), 0);
  const int64_t reserved = pool->bytes().reserved;
  const at::Tensor outside = at::zeros({1 << 20}, x.options());
  EXPECT_EQ(pool->bytes().reserved, reserved) << "outside of captures the pool gives nothing";
  at::Tensor y;
  capture(*graph, [&] { y = x * 3; });
  EXPECT_TRUE(at::equal(y, x * 3));
}

TEST(GraphOnGpu, AGraphedCallableIsTheCallableAndRunsOnceACall) {
  MPX_NEED_GPU();
  const auto device = make_cuda_graph_device();
  const auto options = at::TensorOptions().dtype(at::kDouble).device(at::kCUDA);
  const at::Tensor w = at::arange(64, options).view({8, 8}).sin(), runs = at::zeros({1}, options);
  const auto plain = [&](const at::Tensor& x) { return at::mm(x, w).tanh(); };
  GraphedCallable graphed(*device,
                          [&](const GraphedCallable::Tensors& in) -> GraphedCallable::Tensors {
                            runs.add_(1);
                            return {plain(in[0])};
                          },
                          {at::zeros({4, 8}, options)}, {2, nullptr, [] { device::synchronize(); }});
  for (int call = 1; call <= 6; ++call) {
    const at::Tensor x = at::full({4, 8}, 0.1 * call, options);
    EXPECT_TRUE(at::equal(graphed({x})[0], plain(x))) << call;
    EXPECT_EQ(runs.item<double>(), call);
    EXPECT_EQ(graphed.captured(), call > 2);
  }
}

}  // namespace
}  // namespace metroplex::graph::graph_cuda_test
