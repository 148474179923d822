#include "support/pipeline_p2p.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "device/memory_meter.h"
#include "support/forwarding_backend.h"
#include "support/run_ranks.h"

namespace metroplex::comm::p2p_ranks_test {
namespace {

using test::run_ranks;

const Shape kShape{3, 2};

at::Tensor message(int sender, int kind) { return at::full(kShape, 10.0 * sender + kind, at::kDouble); }
constexpr int kActivation = 1;
constexpr int kGradient = 2;

struct Mode {
  P2pMode mode;
  bool variable_shapes;
};
const Mode kModes[] = {{P2pMode::batched, false},   {P2pMode::batched, true}, {P2pMode::overlapped, false},
                       {P2pMode::overlapped, true}, {P2pMode::plain, false},  {P2pMode::plain, true},
                       {P2pMode::ring, false},      {P2pMode::ring, true}};

// Every mode and ring size, with sends that complete only on receipt.
template <class Body>
void for_all(std::initializer_list<int> sizes, const Body& body) {
  for (const int n : sizes) {
    for (const Mode& mode : kModes) {
      SCOPED_TRACE("stages " + std::to_string(n) + " mode " + std::to_string(static_cast<int>(mode.mode)) +
                   (mode.variable_shapes ? " variable" : ""));
      run_ranks(n, {.pp = n},
                [&](const World& world) {
                  const PipelineP2p p2p(world.groups().pp, {mode.mode, mode.variable_shapes, at::kDouble, at::kCPU});
                  body(p2p, world.groups().pp);
                },
                {.rendezvous = true, .timeout = std::chrono::seconds(20)});
    }
  }
}

TEST(PipelineP2p, PassesActivationsDownAndGradientsUpTheStages) {
  for_all({2, 3, 4}, [](const PipelineP2p& p2p, const Group& pp) {
    const at::Tensor input = p2p.recv_forward(kShape, pp.first());
    ASSERT_EQ(input.defined(), !pp.first());
    if (input.defined()) { EXPECT_TRUE(at::equal(input, message(pp.index() - 1, kActivation))); }
    p2p.send_forward(message(pp.index(), kActivation), pp.last());
    const at::Tensor gradient = p2p.recv_backward(kShape, pp.last());
    ASSERT_EQ(gradient.defined(), !pp.last());
    if (gradient.defined()) { EXPECT_TRUE(at::equal(gradient, message(pp.index() + 1, kGradient))); }
    p2p.send_backward(message(pp.index(), kGradient), pp.first());
  });
}

// The steady state of 1F1B: a stage sends an activation and receives a gradient from its neighbor in the same
// exchange.
TEST(PipelineP2p, ExchangesActivationsForGradientsBetweenNeighbours) {
  for_all({2, 4}, [](const PipelineP2p& p2p, const Group& pp) {
    const auto down = [&] {
      const at::Tensor gradient = p2p.send_forward_recv_backward(message(pp.index(), kActivation), kShape, pp.last());
      if (!pp.last()) { EXPECT_TRUE(at::equal(gradient, message(pp.index() + 1, kGradient))); }
    };
    const auto up = [&] {
      const at::Tensor input = p2p.send_backward_recv_forward(message(pp.index(), kGradient), kShape, pp.first());
      if (!pp.first()) { EXPECT_TRUE(at::equal(input, message(pp.index() - 1, kActivation))); }
    };
    if (pp.index() % 2 == 0) {
      down();
      up();
    } else {
      up();
      down();
    }
  });
}

TEST(PipelineP2p, PassesAroundTheRingForVirtualStages) {
  for_all({2, 3, 4}, [](const PipelineP2p& p2p, const Group& pp) {
    const int n = pp.size();
    const int prev = (pp.index() + n - 1) % n;
    const int next = (pp.index() + 1) % n;
    for (int round = 0; round < 3; ++round) {
      Received forward = p2p.send_forward_recv_forward(message(pp.index(), kActivation), true, kShape);
      forward.handle.wait();
      EXPECT_TRUE(at::equal(forward.from_prev, message(prev, kActivation)));
      Received backward = p2p.send_backward_recv_backward(message(pp.index(), kGradient), true, kShape);
      backward.handle.wait();
      EXPECT_TRUE(at::equal(backward.from_next, message(next, kGradient)));
      Transfer transfer{message(pp.index(), kActivation), message(pp.index(), kGradient), true, true, kShape, kShape};
      Received both = p2p.send_forward_backward_recv_forward_backward(transfer);
      both.handle.wait();
      EXPECT_TRUE(at::equal(both.from_prev, message(prev, kActivation)));
      EXPECT_TRUE(at::equal(both.from_next, message(next, kGradient)));
    }
  });
}

TEST(PipelineP2p, OnlyReceivesWhatIsWantedAndSendsWhatIsThere) {
  for_all({2, 4}, [](const PipelineP2p& p2p, const Group& pp) {
    // Warm-up of virtual stages: the first rank receives nothing from the last one, and the last one sends nothing
    // on.
    Received received = p2p.send_forward_recv_forward(pp.last() ? at::Tensor() : message(pp.index(), kActivation),
                                                      !pp.first(), kShape);
    received.handle.wait();
    EXPECT_EQ(received.from_prev.defined(), !pp.first());
    if (!pp.first()) { EXPECT_TRUE(at::equal(received.from_prev, message(pp.index() - 1, kActivation))); }
  });
}

TEST(PipelineP2p, OverlappedReceivesMayBeIssuedLongBeforeTheirSends) {
  run_ranks(2, {.pp = 2}, [](const World& world) {
    const Group& pp = world.groups().pp;
    const PipelineP2p p2p(pp, {P2pMode::overlapped, false, at::kDouble, at::kCPU});
    Received gradient = p2p.send_backward_recv_backward(at::Tensor(), true, kShape);
    Received input = p2p.send_forward_recv_forward(message(pp.index(), kActivation), true, kShape);
    input.handle.wait();
    EXPECT_TRUE(at::equal(input.from_prev, message(1 - pp.index(), kActivation)));
    p2p.send_backward_recv_backward(message(pp.index(), kGradient), false, kShape).handle.wait();
    gradient.handle.wait();
    EXPECT_TRUE(at::equal(gradient.from_next, message(1 - pp.index(), kGradient)));
  });
}

TEST(PipelineP2p, ShapesUpToEightDimsTravelBeforeTheData) {
  run_ranks(2, {.pp = 2}, [](const World& world) {
    const Group& pp = world.groups().pp;
    const PipelineP2p p2p(pp, {P2pMode::batched, true, at::kDouble, at::kCPU});
    const std::vector<Shape> shapes{{1, 2, 3, 1, 2, 1, 1, 2}, {7}, {}, {0, 5}};
    for (const Shape& shape : shapes) {
      const at::Tensor input = p2p.recv_forward({}, pp.first());
      if (input.defined()) { EXPECT_EQ(input.sizes().vec(), shape); }
      p2p.send_forward(at::ones(shape, at::kDouble), pp.last());
    }
    if (pp.first()) {
      EXPECT_THROW(p2p.send_forward(at::ones({1, 1, 1, 1, 1, 1, 1, 1, 1}, at::kDouble), false), base::Error);
    }
  });
}

TEST(BatchP2p, NoOperationOfABatchWaitsForAnotherOne) {
  run_ranks(4,
            [](const World& world) {
              const Group& group = world.groups().tp;
              std::vector<P2pOp> ops;
              std::vector<at::Tensor> received;
              for (int peer = 0; peer < 4; ++peer) {  // all sends first, although they complete only on receipt
                if (peer != group.index()) ops.push_back({true, at::full({2}, group.index(), at::kLong), peer});
              }
              for (int peer = 0; peer < 4; ++peer) {
                received.push_back(at::full({2}, peer == group.index() ? peer : -1, at::kLong));
                if (peer != group.index()) ops.push_back({false, received.back(), peer});
              }
              batch_p2p(std::move(ops), group).wait();
              for (int peer = 0; peer < 4; ++peer)
                EXPECT_EQ(received[static_cast<size_t>(peer)][0].item<int64_t>(), peer);
            },
            {.rendezvous = true});
}

// As with NCCL: the first call of a group synchronizes all its ranks.
class MeetsFirst final : public test::ForwardingBackend {
 public:
  MeetsFirst(GroupBackend& inner, std::latch& all) : ForwardingBackend(inner), all_(all) {}
  PendingPtr batch_p2p(std::vector<P2pOp> ops) override {
    if (!met_) all_.count_down();
    met_ = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!all_.try_wait()) {
      MPX_CHECK(std::chrono::steady_clock::now() < end, "comm", "not all ranks reached the first call");
      std::this_thread::yield();
    }
    return inner_.batch_p2p(std::move(ops));
  }

 private:
  std::latch& all_;
  bool met_ = false;
};

TEST(BatchP2p, WhoHasNothingToSayComesToTheFirstCallToo) {
  std::latch all(3);
  run_ranks(3, [&](const World& world) {
    const Group& ranks = world.groups().world;
    const Group group({"pairs", Purpose::layers, ranks.ranks()}, ranks.index(),
                      std::make_shared<MeetsFirst>(ranks.backend(), all));
    const at::Tensor x = at::full({2}, ranks.index(), at::kLong);
    std::vector<P2pOp> ops;
    if (ranks.index() < 2) ops.push_back({ranks.index() == 0, x, 1 - ranks.index()});
    batch_p2p(std::move(ops), group).wait();
    EXPECT_EQ(x[1].item<int64_t>(), ranks.index() == 1 ? 0 : ranks.index());
  });
}

TEST(BatchP2p, ABufferedMessageIsNoRanksMemory) {
  std::latch sent(1);
  run_ranks(2, [&](const World& world) {
    const Group& ranks = world.groups().world;
    device::MemoryMeter meter;
    at::Tensor x = at::full({1000}, ranks.index(), at::kLong);
    if (ranks.index() == 1) sent.wait();
    batch_p2p({{ranks.index() == 0, x, 1 - ranks.index()}}, ranks).wait();
    if (ranks.index() == 0) sent.count_down();
    EXPECT_EQ(x[1].item<int64_t>(), 0);
    x.reset();
    EXPECT_EQ(meter.bytes(), 0);
    EXPECT_LT(meter.peak_bytes(), 2 * 8000);
  });
}

TEST(BatchP2p, ABufferedSendMayBeOverwrittenAtOnce) {
  run_ranks(2, [](const World& world) {
    const Group& group = world.groups().tp;
    if (group.first()) {
      for (int i = 0; i < 5; ++i) {
        at::Tensor x = at::full({4}, i, at::kLong);
        batch_p2p({{true, x, 1}}, group).wait();
        x.fill_(-1);
      }
    }
    barrier(group);
    if (group.last()) {
      for (int i = 0; i < 5; ++i) {
        const at::Tensor x = at::empty({4}, at::kLong);
        batch_p2p({{false, x, 0}}, group).wait();
        EXPECT_EQ(x[3].item<int64_t>(), i);
      }
    }
  });
}

}  // namespace
}  // namespace metroplex::comm::p2p_ranks_test
