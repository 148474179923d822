// exchange_rows on symmetric memory: the plan of the row transfers, and the whole exchange over a fake. Its members
// read each other's memory as in NVSHMEM, without waiting for slower readers.
#include "comm/backends/symmetric_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "support/exchange_checks.h"
#include "support/forwarding_backend.h"
#include "support/run_ranks.h"

namespace metroplex::test::symmetric_rows_ranks_test {
namespace {

// Tensors of every member, for each exchange in turn.
struct Board {
  struct Place {
    at::Tensor in, in_splits, out_splits;
  };
  std::mutex mutex;
  std::map<std::pair<int64_t, int>, Place> places;  // by number of the exchange and member
};

class SymmetricBackend final : public ForwardingBackend {
 public:
  SymmetricBackend(const comm::Group& group, Board& board)
      : ForwardingBackend(group.backend()),
        group_(group),
        board_(board),
        rows_(calls(), group.index(), group.size(), at::kCPU, 256) {}
  comm::PendingPtr exchange_rows(comm::CountedRows out, comm::CountedRows in, int64_t capacity,
                                 at::Tensor overflow) override {
    return rows_.exchange(std::move(out), in, capacity, std::move(overflow));
  }

 private:
  comm::SymmetricRows::Calls calls() {
    return {[this](const at::Tensor& x) { return comm::all_gather(x, 0, group_); },
            [this](int64_t number) {
              const at::Tensor most = at::full({1}, number, at::kLong);
              comm::all_reduce(most, group_, comm::ReduceOp::max);
              return most.item<int64_t>();
            },
            [](at::IntArrayRef shape, at::ScalarType dtype) { return at::zeros(shape, dtype); },
            [this](at::Tensor& in, at::Tensor& out, at::Tensor& in_splits, at::Tensor& out_splits) {
              exchange(in, out, in_splits, out_splits);
            }};
  }

  void exchange(at::Tensor& in, at::Tensor& out, at::Tensor& in_splits, at::Tensor& out_splits) {
    const int64_t number = ++exchanges_;
    {
      const std::lock_guard lock(board_.mutex);
      board_.places[{number, group_.index()}] = {in, in_splits, out_splits};
    }
    comm::barrier(group_);
    const int n = group_.size(), me = group_.index();
    // The last member reads late, when the others are already in the next exchange.
    if (me == n - 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    int64_t at = 0;
    for (int from = 0; from < n; ++from) {
      Board::Place place;
      {
        const std::lock_guard lock(board_.mutex);
        place = board_.places.at({number, from});
      }
      const auto rows = place.in_splits[0][me].item<int64_t>(), begin = place.in_splits[1][me].item<int64_t>();
      out.narrow(0, at, rows).copy_(place.in.narrow(0, begin, rows));
      out_splits[0][from] = rows;
      out_splits[1][from] = at;
      at += rows;
    }
  }

  comm::Group group_;
  Board& board_;
  comm::SymmetricRows rows_;
  int64_t exchanges_ = 0;
};

comm::Group on_symmetric_memory(const comm::Group& group, Board& board) {
  return comm::Group({group.name(), group.purpose(), group.ranks()}, group.index(),
                     std::make_shared<SymmetricBackend>(group, board));
}

TEST(SymmetricRows, MoveAsEveryBackendsExchangeDoes) {
  for (const int ranks : {2, 3, 5}) {
    Board board;
    run_ranks(ranks, {.tp = ranks},
              [&](const comm::World& world) { check_exchange_rows(on_symmetric_memory(world.groups().tp, board)); });
  }
}

// Back-to-back exchanges; returns the number of wrong rows over all members.
int64_t wrong_rows() {
  constexpr int kRanks = 3, kTimes = 12;
  Board board;
  std::atomic<int64_t> wrong{0};
  run_ranks(kRanks, {.tp = kRanks}, [&](const comm::World& world) {
    const comm::Group group = on_symmetric_memory(world.groups().tp, board);
    const at::Tensor counts = at::full({kRanks}, 2, at::kLong);
    for (int time = 0; time < kTimes; ++time) {
      ExchangedRows out(2 * kRanks, kRanks);
      const at::Tensor in = at::full({2 * kRanks, 3}, 100.0 * time + group.index(), at::kDouble);
      comm::exchange_rows_async(out.place(), {in, counts}, 2, out.overflow, group).wait();
      for (int from = 0; from < kRanks; ++from)
        wrong += out.rows.narrow(0, 2L * from, 2).ne(100.0 * time + from).sum().item<int64_t>();
    }
  });
  return wrong;
}

TEST(SymmetricRows, AreNotOverwrittenWhileAMemberStillReads) { EXPECT_EQ(wrong_rows(), 0); }

TEST(SymmetricRows, OfThePlanAreThoseForWhichThereIsRoom) {
  // Member 1 should receive 3 and 4 rows, at most 3 per member, with capacity 5. [sent, requested, capacity]
  const at::Tensor told = at::tensor({0, 3, 0, 3, 9, 2, 4, 2, 5, 5}, at::kLong).view({2, 5});
  const comm::RowsPlan first = comm::plan_rows(told, 0, 3), second = comm::plan_rows(told, 1, 3);
  EXPECT_TRUE(at::equal(first.splits, at::tensor({0, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(first.received, at::tensor({0, 2}, at::kLong)));
  EXPECT_FALSE(first.overflow.item<bool>());
  EXPECT_TRUE(at::equal(second.splits, at::tensor({2, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(second.offsets, at::tensor({0, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(second.received, at::tensor({3, 2}, at::kLong)));
  EXPECT_TRUE(second.overflow.item<bool>());
}

}  // namespace
}  // namespace metroplex::test::symmetric_rows_ranks_test
