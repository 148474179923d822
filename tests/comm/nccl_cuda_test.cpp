// The NCCL backend with one process and one GPU: the checks that need no second GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/backends/backend.h"
#include "comm/backends/nccl.h"
#include "graph/cuda_graph.h"
#include "support/gpu.h"

namespace metroplex::comm::nccl_cuda_test {
namespace {

TEST(Nccl, AnOperationIsUnderWayUntilItIsWaitedFor) {
  MPX_NEED_GPU();
  GlooContext control({});
  const auto nccl = make_nccl_context(control, 0, std::chrono::seconds(30));
  const std::shared_ptr<GroupBackend> backend = nccl->backend({"world", Purpose::run, {0}});
  const auto options = at::TensorOptions().dtype(at::kDouble).device(at::kCUDA);
  const at::Tensor x = at::arange(1 << 20, options), out = at::zeros_like(x), expected = x.clone();
  const auto finish = [&](const PendingPtr& pending) {
    ASSERT_NE(pending, nullptr);
    const at::Tensor beside = expected * 2;
    pending->wait();
    EXPECT_EQ(beside[3].item<double>(), 6.0);
  };
  finish(backend->all_reduce(x, ReduceOp::sum));
  EXPECT_TRUE(at::equal(x, expected));
  finish(backend->broadcast(x, 0));
  EXPECT_TRUE(at::equal(x, expected));
  finish(backend->all_gather(out, x));
  EXPECT_TRUE(at::equal(out, expected));
  out.zero_();
  finish(backend->reduce_scatter(out, x, ReduceOp::max));
  EXPECT_TRUE(at::equal(out, expected));
  out.zero_();
  finish(backend->all_to_all(out, x, {1 << 20}, {1 << 20}));
  EXPECT_TRUE(at::equal(out, expected));
  at::Tensor host = at::ones({3});
  backend->broadcast(host, 0);  // goes through gloo
  EXPECT_TRUE(at::equal(host, at::ones({3})));
  nccl->shutdown();
}

TEST(Nccl, CollectivesAreCapturedOnceTheirCommunicatorIsThere) {
  MPX_NEED_GPU();
  GlooContext control({});
  const auto nccl = make_nccl_context(control, 0, std::chrono::seconds(30));
  const std::shared_ptr<GroupBackend> backend = nccl->backend({"world", Purpose::run, {0}});
  const auto device = graph::make_cuda_graph_device();
  const auto graph = device->make_graph(device->make_pool());
  const auto options = at::TensorOptions().dtype(at::kDouble).device(at::kCUDA);
  const at::Tensor x = at::arange(1 << 16, options), first = x.clone();
  at::Tensor gathered;
  const auto step = [&] {
    x.mul_(2);
    const PendingPtr reduced = backend->all_reduce(x, ReduceOp::sum);
    const at::Tensor beside = at::ones_like(x);
    reduced->wait();
    gathered = at::empty_like(x);
    backend->all_gather(gathered, x + beside)->wait();
  };
  device->run_on_capture_stream(step);
  graph::capture(*graph, step);
  EXPECT_GE(graph->size().nodes, 4);
  for (int replay = 0; replay < 3; ++replay) graph->replay();
  EXPECT_TRUE(at::equal(x, first * 32)) << "five runs";
  EXPECT_TRUE(at::equal(gathered, first * 32 + 1));
  graph->reset();
  nccl->shutdown();
}

}  // namespace
}  // namespace metroplex::comm::nccl_cuda_test
