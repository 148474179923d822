// Thread ranks that share a GPU: collectives of its tensors after pending work, with one stream per rank or a shared
// one; and messages.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "support/gpu.h"
#include "support/collective_checks.h"
#include "support/run_ranks.h"

namespace metroplex::test::threads_cuda_test {
namespace {

void run_on_gpu(int ranks, const comm::RankBody& body) {
  comm::ThreadsOptions options;
  options.timeout = std::chrono::seconds(60);
  options.gpu = 0;
  comm::run_threads(ranks, make_grid(ranks, {.tp = ranks}), options, body);
}

// The values of a member, after a few milliseconds of work on the current stream.
at::Tensor late_values(int member, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor busy = at::ones({2048, 2048}, at::TensorOptions().device(at::kCUDA));
  for (int i = 0; i < 8; ++i) busy = at::mm(busy, busy).mul_(1e-4);
  const at::Tensor zero = busy[0][0].mul(0).nan_to_num();
  return member_values(member, shape, type).to(at::kCUDA).add(zero.to(type));
}

void check_on_gpu(const comm::Group& group, at::ScalarType type) {
  SCOPED_TRACE(c10::toString(type));
  const int size = group.size();
  const std::vector<int64_t> shape{2 * size, 3, size};
  const at::Tensor sum = sum_of_members(size, shape, type);
  std::vector<at::Tensor> parts;
  for (int i = 0; i < size; ++i) parts.push_back(member_values(i, shape, type));
  const auto mine = [&] { return late_values(group.index(), shape, type); };

  at::Tensor x = mine();
  comm::all_reduce(x, group);
  EXPECT_TRUE(at::equal(x.cpu(), sum));
  EXPECT_TRUE(at::equal(comm::all_gather(mine(), -1, group).cpu(), at::cat(parts, -1)));
  EXPECT_TRUE(at::equal(comm::reduce_scatter(mine(), 0, group).cpu(), comm::select_shard(sum, 0, group)));
  x = mine();
  comm::broadcast(x, size - 1, group);
  EXPECT_TRUE(at::equal(x.cpu(), parts.back()));
  const std::vector<int64_t> two(static_cast<size_t>(size), 2);
  const at::Tensor rows = comm::all_to_all(mine(), two, two, group).cpu();
  for (int i = 0; i < size; ++i)
    EXPECT_TRUE(at::equal(rows.narrow(0, 2 * i, 2), parts[i].narrow(0, 2 * group.index(), 2)));
}

TEST(ThreadsOnGpu, CollectivesWaitForWhatTheirTensorsWaitFor) {
  MPX_NEED_GPU();
  for (const bool own_streams : {false, true}) {
    SCOPED_TRACE(own_streams ? "a stream a rank" : "one stream");
    run_on_gpu(4, [&](const comm::World& world) {
      std::optional<c10::Stream> stream;
      if (own_streams)
        stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(at::Device(at::kCUDA, 0));
      const c10::OptionalStreamGuard guard(stream);
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong})
        check_on_gpu(world.groups().tp, type);
    });
  }
}

TEST(ThreadsOnGpu, MessagesArriveAsTheyWereSent) {
  MPX_NEED_GPU();
  run_on_gpu(4, [&](const comm::World& world) {
    const comm::Group& ring = world.groups().tp;
    const int next = (ring.index() + 1) % 4, prev = (ring.index() + 3) % 4;
    const std::vector<int64_t> shape{5, 7};
    for (int round = 0; round < 3; ++round) {
      at::Tensor sent = late_values(ring.index() + round, shape, at::kFloat), got = at::empty_like(sent);
      comm::Handle handle = comm::batch_p2p({{true, sent, next, 0}, {false, got, prev, 0}}, ring);
      handle.wait();
      sent.zero_();  // the message is sent
      EXPECT_TRUE(at::equal(got.cpu(), member_values(prev + round, shape, at::kFloat)));
    }
  });
}

}  // namespace
}  // namespace metroplex::test::threads_cuda_test
