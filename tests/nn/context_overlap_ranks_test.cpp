// Overlap of key exchange with attention on a virtual clock. CPU time increases by kWork with each attention kernel,
// so all times are exact.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "clock/virtual_clock.h"
#include "nn/core_attention.h"
#include "nn/plain_attention.h"
#include "support/run_ranks.h"

namespace metroplex::test::context_overlap_ranks_test {
namespace {

using config::CpCommType;

constexpr double kWork = 1;  // seconds per kernel

class CountsWork final : public device::Recorder {
 public:
  explicit CountsWork(double& seconds) : seconds_(seconds) {}
  void run(device::Operation operation) override {
    operation.run();
    seconds_ += kWork;
  }

 private:
  double& seconds_;
};

struct Ends {
  double forward = 0, backward = 0;
};

// End times of every rank. The messages of its four rows take `hop` seconds, and their gradients too.
std::vector<Ends> run_exchange(int cp, CpCommType exchange, double hop, const std::vector<int64_t>& documents = {}) {
  const int64_t rows = 4, whole = cp * rows, bytes = rows * 2 * (8 + 8) * 8;
  std::vector<double> cpu(static_cast<size_t>(cp), 0);
  const auto clock = std::make_shared<clock::VirtualClock>(cp, price::LinkCost{0, static_cast<double>(bytes) / hop},
                                                           [&](int rank) { return cpu[static_cast<size_t>(rank)]; });
  std::vector<Ends> ends(static_cast<size_t>(cp));
  const auto body = [&](const comm::World& world) {
    const at::NoGradGuard no_grad;
    const comm::Group& group = world.groups().cp;
    nn::Microbatch batch;
    batch.sequence.all_rows = at::arange(whole, at::kLong).view({cp, rows});
    batch.sequence.rows = batch.sequence.all_rows[group.index()];
    batch.sequence.length = whole;
    if (!documents.empty()) {  // on whole ranks, which attend to the previous ranks of their document
      batch.documents.ids = at::tensor(documents, at::kLong).repeat_interleave(rows).view({1, whole});
      const auto runs = [&](int reader, int owner) {
        const bool seen =
            owner < reader && documents[static_cast<size_t>(owner)] == documents[static_cast<size_t>(reader)];
        return seen ? std::vector<nn::IndexRange>{{0, rows}} : std::vector<nn::IndexRange>{};
      };
      for (int other = 0; other < cp; ++other) {
        batch.sequence.keys.sent.push_back(runs(other, group.index()));
        batch.sequence.keys.received.push_back(runs(group.index(), other));
      }
    }
    const nn::CoreInputs in{at::ones({rows, 1, 2, 8}, at::kDouble), at::ones({rows, 1, 2, 8}, at::kDouble),
                            at::ones({rows, 1, 2, 8}, at::kDouble)};
    CountsWork work(cpu[static_cast<size_t>(world.rank())]);
    nn::CoreSpec spec = core_spec(in);
    spec.cp = group, spec.exchange = exchange, spec.target.recorder = &work;
    const nn::CoreAttention core(spec, {});
    const nn::Positions positions{0, batch.sequence.rows, whole};
    nn::CoreSaved saved;
    Ends& mine = ends[static_cast<size_t>(world.rank())];
    const at::Tensor out = core.forward(in.q, in.k, in.v, {positions, positions}, batch, &saved).x;
    comm::barrier(group);
    mine.forward = clock->now(world.rank());
    core.backward(out, saved);
    comm::barrier(group);
    mine.backward = clock->now(world.rank()) - mine.forward;
  };
  RunOptions options;
  options.observer = clock;
  run_ranks(cp, {.cp = cp}, body, options);
  return ends;
}

// In forward a rank computes once per block while it receives the next one: a hop takes the maximum of both. In
// backward the gradients of a block are in flight together with those of the next one; nothing overlaps the last
// ones.
TEST(ContextOverlap, TheRingHidesItsExchangeBehindTheWork) {
  for (const int cp : {2, 4, 8}) {
    for (const double hop : {0.25, 1.0, 4.0}) {
      const double step = std::max(kWork, hop);
      for (const Ends& ends : run_exchange(cp, CpCommType::p2p, hop)) {
        EXPECT_DOUBLE_EQ(ends.forward, (cp - 1) * step + kWork) << "cp " << cp << " hop " << hop;
        EXPECT_DOUBLE_EQ(ends.backward, (cp - 1) * step + kWork + hop) << "cp " << cp << " hop " << hop;
      }
      for (const Ends& ends : run_exchange(cp, CpCommType::all_gather, hop))
        EXPECT_DOUBLE_EQ(ends.forward, (cp - 1) * hop + kWork) << "keys and values at once, and then the work";
    }
  }
}

// Two documents of two ranks each: a rank waits for at most one exchange, from the previous rank.
TEST(ContextOverlap, OnlyKeysThatAreSeenAreWaitedFor) {
  for (const double hop : {0.25, 4.0}) {
    for (const Ends& ends : run_exchange(4, CpCommType::p2p, hop, {0, 0, 1, 1})) {
      EXPECT_DOUBLE_EQ(ends.forward, std::max(kWork, hop) + kWork);
      EXPECT_DOUBLE_EQ(ends.backward, std::max(kWork, hop) + kWork + hop);
    }
    for (const Ends& ends : run_exchange(4, CpCommType::p2p, hop, {0, 1, 2, 3})) {
      EXPECT_DOUBLE_EQ(ends.forward, kWork);
      EXPECT_DOUBLE_EQ(ends.backward, kWork);
    }
  }
}

}  // namespace
}  // namespace metroplex::test::context_overlap_ranks_test
