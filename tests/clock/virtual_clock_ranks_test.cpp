// Virtual time with thread ranks: each rank sets its CPU clock, so all times are exact. Latency, bandwidth and sizes
// are powers of two or short sums of them, which doubles represent exactly.
#include "clock/virtual_clock.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "comm/collectives.h"
#include "support/error_of.h"
#include "support/forwarding_backend.h"
#include "support/run_ranks.h"

namespace metroplex::test::virtual_clock_ranks_test {
namespace {

using clock::VirtualClock;
using comm::Group;
using comm::World;

constexpr price::LinkCost kLink{.latency_s = 0.5, .bytes_per_s = 64};

// Manual CPU time. Each rank changes only its own.
struct Ranks {
  std::vector<double> cpu_s;
  std::shared_ptr<VirtualClock> clock;
  explicit Ranks(int n, const price::LinkCost& link = kLink)
      : cpu_s(static_cast<size_t>(n), 100.0),  // earlier CPU time of a thread does not count
        clock(
            std::make_shared<VirtualClock>(n, link, [this](int rank) { return cpu_s[static_cast<size_t>(rank)]; })) {}
  void work(const World& world, double seconds) { cpu_s[static_cast<size_t>(world.rank())] += seconds; }
  double now(const World& world) const { return clock->now(world.rank()); }
  void run(const Layout& layout, const comm::RankBody& body, bool rendezvous = false) const {
    run_ranks(static_cast<int>(cpu_s.size()), layout, body, {.rendezvous = rendezvous, .observer = clock});
  }
};

at::Tensor doubles(int64_t n) { return at::ones({n}, at::kDouble); }

// Virtual time of each rank after `operation` on tp; rank r works r seconds before it.
std::vector<double> ends(int n, const std::function<void(const Group&)>& operation) {
  Ranks ranks(n);
  std::vector<double> times(static_cast<size_t>(n));
  ranks.run({.tp = n}, [&](const World& world) {
    ranks.work(world, world.rank());
    operation(world.groups().tp);
    times[static_cast<size_t>(world.rank())] = ranks.now(world);
  });
  return times;
}
std::vector<double> all_at(double time, int n) { return std::vector<double>(static_cast<size_t>(n), time); }

TEST(VirtualClock, ACollectiveEndsForAllMembersWhenTheLastHasComeAndTheLinkHasCarriedItsBytes) {
  const auto gather = [](const Group& tp) { comm::all_gather(doubles(4), 0, tp); };
  const auto scatter = [](const Group& tp) { comm::reduce_scatter(doubles(16), 0, tp); };
  // 16 doubles are 128 bytes: 3/4 of them take 1.5 s, all 2 s.
  EXPECT_EQ(ends(4, gather), all_at(3 + 0.5 + 1.5, 4));
  EXPECT_EQ(ends(4, scatter), all_at(3 + 0.5 + 1.5, 4));
  EXPECT_EQ(ends(4, [](const Group& tp) { comm::all_reduce(doubles(16), tp); }), all_at(3 + 0.5 + 3, 4));
  EXPECT_EQ(ends(4, [](const Group& tp) { comm::broadcast(doubles(16), 2, tp); }), all_at(3 + 0.5 + 2, 4));
  EXPECT_EQ(ends(4, [](const Group& tp) { comm::barrier(tp); }), all_at(3 + 0.5, 4));
}

// Rows of 8 bytes from member i to member j.
const std::vector<std::vector<int64_t>> kRows{{9, 1, 1}, {8, 0, 1}, {16, 2, 3}};

TEST(VirtualClock, AnAllToAllEndsWhenItsMostLoadedMemberHasSentAndReceived) {
  const auto exchange = [](const std::vector<std::vector<int64_t>>& rows) {
    return ends(3, [&](const Group& tp) {
      const auto me = static_cast<size_t>(tp.index());
      std::vector<int64_t> from;
      for (const auto& sent : rows) from.push_back(sent[me]);
      const std::vector<int64_t>& to = rows[me];
      comm::all_to_all(doubles(std::accumulate(to.begin(), to.end(), int64_t{0})), from, to, tp);
    });
  };
  EXPECT_EQ(exchange(kRows), all_at(2 + 0.5 + 3, 3));  // member 0 receives 8 + 16 rows of others, 192 bytes
  EXPECT_EQ(exchange({{5, 20, 12}, {1, 0, 1}, {1, 2, 3}}), all_at(2 + 0.5 + 4, 3));  // member 0 sends 20 + 12
}

TEST(VirtualClock, ExchangedRowsCostWhatTheirCountsSayUpToTheCapacity) {
  const auto exchange = [](int64_t capacity, int64_t missing) {
    return ends(3, [&](const Group& tp) {
      const std::vector<int64_t>& counts = kRows[static_cast<size_t>(tp.index())];
      const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0}) - missing;
      const comm::CountedRows in{at::ones({rows, 1}, at::kDouble), at::tensor(counts)};
      const comm::CountedRows out{at::empty({64, 1}, at::kDouble), at::empty({3}, at::kLong)};
      comm::exchange_rows_async(out, in, capacity, at::zeros({1}, at::kInt), tp).wait();
    });
  };
  EXPECT_EQ(exchange(32, 0), all_at(2 + 0.5 + 3, 3));
  EXPECT_EQ(exchange(12, 0), all_at(2 + 0.5 + 2.5, 3));  // 12 of the 16 rows are sent: 8 + 12 reach member 0
  // Counted rows that do not exist are the last ones; the rows for member 0 are the first.
  EXPECT_EQ(exchange(32, 1), all_at(2 + 0.5 + 3, 3));
  EXPECT_EQ(exchange(32, 9), all_at(2 + 0.5 + 1.5, 3));  // 12 of member 2's 21 rows and none of member 1's 9
}

// One row of 64 bytes at member 0, which all others fetch: 0 -> 1, then 0 -> 2 and 1 -> 3.
const at::Tensor kOfOne = at::tensor({-1, 0, 0, 0}, at::kInt);
at::Tensor one_row() { return at::ones({1, 8}, at::kDouble); }

TEST(VirtualClock, RowsAreRelayedWithoutTheirMembersWaitingForAnybodyElse) {
  const auto fetch = [](const Group& tp) {
    const at::Tensor slot = one_row(), row = one_row();
    comm::fetch_rows_async(slot, row, kOfOne, tp).wait();
  };
  // 1 arrives at 1; its row is there at 2.5, and the sender is free at 2; 2 arrives at 2; 3 arrives at 3 and gets the
  // row from 1.
  EXPECT_EQ(ends(4, fetch), (std::vector<double>{0, 2.5, 3.5, 4.5}));
  const auto give_back = [](const Group& tp) {
    const at::Tensor sum = one_row(), row = one_row();
    comm::return_rows_async(sum, row, kOfOne, tp).wait();
  };
  EXPECT_EQ(ends(4, give_back), (std::vector<double>{4.5, 1, 2, 3}));  // one after the other, in order of arrival
}

TEST(VirtualClock, ARowIsPassedOnWhileItsMemberWorks) {
  Ranks ranks(4);
  std::vector<double> times(4);
  ranks.run({.tp = 4}, [&](const World& world) {
    const at::Tensor slot = one_row(), row = one_row();
    comm::Handle handle = comm::fetch_rows_async(slot, row, kOfOne, world.groups().tp);
    if (world.rank() == 1) ranks.work(world, 100);
    handle.wait();
    times[static_cast<size_t>(world.rank())] = ranks.now(world);
  });
  EXPECT_EQ(times, (std::vector<double>{0, 100, 2.5, 3}));
  EXPECT_EQ(ranks.clock->report()[1].waiting_s(), 0);
}

TEST(VirtualClock, RowsThatTravelAtOnceShareTheLinksAndCollectivesComeAfterThem) {
  for (const bool rendezvous : {false, true}) {
    Ranks ranks(2);
    ranks.run(
        {.tp = 2},
        [&](const World& world) {
          const Group& tp = world.groups().tp;
          const at::Tensor owners = at::tensor({-1, 0}, at::kInt), nobody = at::tensor({-1, -1}, at::kInt);
          const at::Tensor a = one_row(), b = one_row(), c = one_row(), row = one_row();
          comm::Handle first = comm::fetch_rows_async(a, row, owners, tp),
                       second = comm::fetch_rows_async(b, row, owners, tp),
                       third = comm::fetch_rows_async(c, row, nobody, tp);
          first.wait();
          EXPECT_EQ(ranks.now(world), world.rank() == 1 || rendezvous ? 1.5 : 0);
          third.wait();
          EXPECT_EQ(ranks.now(world), world.rank() == 1 || rendezvous ? 1.5 : 0);
          second.wait();
          EXPECT_EQ(ranks.now(world), world.rank() == 1 || rendezvous ? 2.5 : 0);
          comm::barrier(tp);
          EXPECT_EQ(ranks.now(world), 3);
        },
        rendezvous);
  }
}

TEST(VirtualClock, AGatherCostsMemberZeroTheRowsOfAllOthers) {
  const std::vector<double> times = ends(3, [](const Group& tp) {
    const at::Tensor out = tp.first() ? at::empty({3, 16}, at::kDouble) : at::Tensor();
    comm::Handle(tp.backend().gather(out, doubles(16), tp.index(), tp.size())).wait();
  });
  EXPECT_EQ(times, (std::vector<double>{2 + 0.5 + 4, 1, 2}));
}

TEST(VirtualClock, TheReportSaysHowLongEachRankComputedAndWaitedAndForWhat) {
  Ranks ranks(4);
  ranks.run({.tp = 2, .dp = 2}, [&](const World& world) {
    ranks.work(world, world.rank());
    comm::all_reduce(doubles(16), world.groups().tp);  // two ranks: 128 bytes in all, 2.5 s
    ranks.work(world, 1);
    comm::barrier(world.groups().dp);
  });
  const std::vector<clock::RankTime> report = ranks.clock->report();
  const std::vector<double> waits_in_dp{2.5, 2.5, 0.5, 0.5};  // ranks 0 and 1 arrive at 4.5, 2 and 3 at 6.5
  for (size_t rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const clock::RankTime& time = report[rank];
    EXPECT_EQ(time.compute_s, static_cast<double>(rank) + 1);
    ASSERT_EQ(time.waits.size(), 2);
    const clock::WaitTime& layers = time.waits.at({"tp", comm::Purpose::layers});
    EXPECT_EQ(layers.waits, 1);
    EXPECT_EQ(layers.seconds, rank % 2 == 0 ? 3.5 : 2.5);
    EXPECT_EQ(layers.link_seconds, 2.5);
    const clock::WaitTime& gradients = time.waits.at({"dp", comm::Purpose::gradients});
    EXPECT_EQ(gradients.seconds, waits_in_dp[rank]);
    EXPECT_EQ(gradients.link_seconds, 0.5);
    EXPECT_EQ(time.total_s(), 7);
  }
}

TEST(VirtualClock, WhatPassesBetweenTwoMomentsIsTheirDifference) {
  Ranks ranks(2);
  ranks.run({.tp = 2}, [&](const World& world) {
    ranks.work(world, 1);
    comm::barrier(world.groups().tp);
    const clock::RankTime before = ranks.clock->of(world.rank());
    EXPECT_EQ(before.total_s(), 1.5);
    ranks.work(world, 4 * world.rank());
    comm::barrier(world.groups().tp);
    comm::broadcast(doubles(8), 0, world.groups().tp_gradients);
    const clock::RankTime between = ranks.clock->of(world.rank()) - before;
    EXPECT_EQ(between.compute_s, 4 * world.rank());
    EXPECT_EQ(between.waits.at({"tp", comm::Purpose::layers}).waits, 1);
    EXPECT_EQ(between.waits.at({"tp", comm::Purpose::layers}).seconds, world.rank() == 0 ? 4.5 : 0.5);
    EXPECT_EQ(between.waits.at({"tp-pp", comm::Purpose::gradients}).seconds, 1.5);
    EXPECT_EQ(between.total_s(), 6);
  });
}

TEST(VirtualClock, ComputationHidesAnOperationUnderWay) {
  Ranks ranks(2);
  ranks.run({.tp = 2}, [&](const World& world) {
    const at::Tensor x = doubles(16);
    comm::Handle handle = comm::all_reduce_async(x, world.groups().tp);  // until 2.5
    ranks.work(world, world.rank() == 0 ? 1.5 : 4);
    handle.wait();
    EXPECT_EQ(ranks.now(world), world.rank() == 0 ? 2.5 : 4);
    handle.wait();  // no more time
    EXPECT_EQ(ranks.now(world), world.rank() == 0 ? 2.5 : 4);
  });
  const auto report = ranks.clock->report();
  EXPECT_EQ(report[0].waiting_s(), 1);
  EXPECT_EQ(report[1].waiting_s(), 0);
  EXPECT_EQ(report[1].waits.at({"tp", comm::Purpose::layers}).waits, 1);
}

TEST(VirtualClock, OperationsOfOneCommunicatorFollowEachOtherAndOfTwoDoNot) {
  for (const bool same : {true, false}) {
    SCOPED_TRACE(same ? "one communicator" : "two");
    Ranks ranks(2);
    ranks.run({.tp = 2}, [&](const World& world) {
      const at::Tensor x = doubles(16), y = doubles(16);
      comm::Handle first = comm::all_reduce_async(x, world.groups().tp);
      comm::Handle second = comm::all_reduce_async(y, same ? world.groups().tp : world.groups().tp_gradients);
      first.wait();
      EXPECT_EQ(ranks.now(world), 2.5);
      second.wait();
      EXPECT_EQ(ranks.now(world), same ? 5 : 2.5);
    });
  }
}

// A group that starts late because of another group ends late: 0 and 1 first, then 1 and 3.
TEST(VirtualClock, LatenessPassesFromGroupToGroup) {
  Ranks ranks(4);
  ranks.run({.tp = 2, .dp = 2}, [&](const World& world) {
    if (world.rank() == 0) ranks.work(world, 8);
    comm::barrier(world.groups().tp);
    comm::barrier(world.groups().dp);
    EXPECT_EQ(ranks.now(world), 9);
  });
}

TEST(VirtualClock, AMessageArrivesWhenItWasSentAndExpectedAndTheLinkHasCarriedIt) {
  for (const bool rendezvous : {false, true}) {
    SCOPED_TRACE(rendezvous ? "sends wait" : "sends do not wait");
    Ranks ranks(4);
    const std::vector<double> at{1, 1 + 1.5 + 1, 3.5 + 1.5 + 1, 7.5};  // 64 bytes take 1.5 s
    ranks.run(
        {.pp = 4},
        [&](const World& world) {
          const Group& pp = world.groups().pp;
          const at::Tensor x = doubles(8);
          const int me = pp.index();
          if (!pp.first()) comm::batch_p2p({{false, x, me - 1, comm::kForwardChannel}}, pp).wait();
          if (!pp.last()) {
            ranks.work(world, 1);
            comm::batch_p2p({{true, x, me + 1, comm::kForwardChannel}}, pp).wait();
          }
          EXPECT_EQ(ranks.now(world), at[static_cast<size_t>(me)] + (rendezvous && !pp.last() ? 1.5 : 0));
        },
        rendezvous);
  }
}

TEST(VirtualClock, AMessageStartsNoSoonerThanItsReceiveIsIssued) {
  Ranks ranks(2);
  ranks.run({.pp = 2}, [&](const World& world) {
    const Group& pp = world.groups().pp;
    const at::Tensor x = doubles(8);
    if (pp.first()) comm::batch_p2p({{true, x, 1, 0}}, pp).wait();
    if (pp.first()) return;
    ranks.work(world, 4);
    comm::batch_p2p({{false, x, 0, 0}}, pp).wait();
    EXPECT_EQ(ranks.now(world), 5.5);
  });
}

TEST(VirtualClock, MessagesOfOneWayFollowEachOtherThoseOfABatchShareTheLinkAndChannelsDoNot) {
  const auto end_of = [](const std::vector<int>& channels, bool batched) {
    Ranks ranks(2);
    std::optional<double> end;
    ranks.run({.pp = 2}, [&](const World& world) {
      const Group& pp = world.groups().pp;
      std::vector<at::Tensor> x;
      std::vector<comm::P2pOp> batch;
      std::vector<comm::Handle> in_flight;
      for (const int channel : channels) {
        x.push_back(doubles(8));
        const comm::P2pOp op{pp.first(), x.back(), 1 - pp.index(), channel};
        if (batched) batch.push_back(op);
        else in_flight.push_back(comm::batch_p2p({op}, pp));
      }
      in_flight.push_back(comm::batch_p2p(batch, pp));
      for (comm::Handle& handle : in_flight) handle.wait();
      if (pp.last()) end = ranks.now(world);
    });
    return end.value_or(-1);
  };
  EXPECT_EQ(end_of({0, 0}, false), 3);
  EXPECT_EQ(end_of({0, 1}, false), 1.5);
  EXPECT_EQ(end_of({0, 1}, true), 2.5);  // one latency, 128 bytes
}

TEST(VirtualClock, AGroupOfOneTakesNoTime) {
  Ranks ranks(2);
  ranks.run({.dp = 2}, [&](const World& world) {
    ranks.work(world, 3);
    comm::all_reduce(doubles(16), world.groups().tp);
    comm::barrier(world.groups().tp);
    EXPECT_EQ(ranks.now(world), 3);
  });
  for (const clock::RankTime& time : ranks.clock->report()) {
    EXPECT_EQ(time.total_s(), 3);
    EXPECT_TRUE(time.waits.empty());
  }
}

TEST(VirtualClock, GroupsThatShareACommunicatorShareItsLinkAndItsName) {
  Ranks ranks(2);
  ranks.run({.dp = 2}, [&](const World& world) {
    const at::Tensor x = doubles(16), y = doubles(16);
    comm::Handle first = comm::all_reduce_async(x, world.groups().dp);
    comm::Handle second = comm::all_reduce_async(y, world.groups().dp_cp);
    first.wait();
    second.wait();
    EXPECT_EQ(ranks.now(world), 5);
  });
  EXPECT_EQ(ranks.clock->report()[0].waits.at({"dp", comm::Purpose::gradients}).waits, 2);
}

// Uses CPU time of the calling rank in every call and wait, as threads do that spin and copy for others.
class BurningBackend final : public ForwardingBackend {
 public:
  BurningBackend(comm::GroupBackend& inner, double& cpu_s) : ForwardingBackend(inner), cpu_s_(cpu_s) {}
  comm::PendingPtr all_reduce(at::Tensor tensor, comm::ReduceOp op) override {
    cpu_s_ += 16;
    return std::make_shared<Wait>(ForwardingBackend::all_reduce(std::move(tensor), op), cpu_s_);
  }
  void barrier() override {
    cpu_s_ += 64;
    ForwardingBackend::barrier();
  }

 private:
  struct Wait final : comm::Pending {
    Wait(comm::PendingPtr pending, double& cpu) : inner(std::move(pending)), cpu_s(cpu) {}
    void wait() override {
      cpu_s += 32;
      inner->wait();
    }
    comm::PendingPtr inner;
    double& cpu_s;
  };
  double& cpu_s_;
};

TEST(VirtualClock, CpuTimeInsideABackendDoesNotCount) {
  Ranks ranks(2);
  run_ranks(2, [&](const World& world) {  // a clock without run_threads, around a backend of this test
    const Group& tp = world.groups().tp;
    const comm::GroupSpec spec{"tp", tp.purpose(), tp.ranks()};
    auto burning = std::make_shared<BurningBackend>(tp.backend(), ranks.cpu_s[static_cast<size_t>(world.rank())]);
    const Group timed(spec, tp.index(), clock::make_clocked_backend({spec, world.rank()}, ranks.clock, burning));
    ranks.clock->start(world.rank());
    ranks.work(world, 1);
    const at::Tensor x = doubles(16);
    comm::Handle handle = comm::all_reduce_async(x, timed);
    ranks.work(world, 0.25);
    handle.wait();
    EXPECT_EQ(ranks.now(world), 1 + 2.5);
    comm::barrier(timed);
    EXPECT_EQ(ranks.now(world), 4);
    ranks.work(world, 2);
    ranks.clock->stop(world.rank());
    ranks.work(world, 1000);
  });
  EXPECT_EQ(ranks.clock->report()[1].compute_s, 3.25);
  EXPECT_EQ(ranks.clock->report()[1].total_s(), 6);
}

TEST(VirtualClock, TheOrderInWhichThreadsRunDoesNotMatter) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    Ranks ranks(6);
    ranks.run({.tp = 2, .pp = 3}, [&](const World& world) {
      const Group& pp = world.groups().pp;
      for (int step = 0; step < 3; ++step) {
        if ((repetition + step + world.rank()) % 3 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(100 * repetition));
        const at::Tensor x = doubles(8);
        if (!pp.first()) comm::batch_p2p({{false, x, pp.index() - 1, 0}}, pp).wait();
        ranks.work(world, 1 + world.rank() % 2);
        comm::all_reduce(doubles(8), world.groups().tp);
        if (!pp.last()) comm::batch_p2p({{true, x, pp.index() + 1, 0}}, pp).wait();
      }
    });
    // A stage takes 2 s and 1.5 for the sum; a message takes 1.5 from when it was sent and expected. Messages leave
    // the first stage at 3.5, 7 and 10.5. The second stage has its first message at 5, and finishes it when it
    // expects the next one.
    const std::vector<double> done{10.5, 10.5, 5 + 3.5 + 2 * 5, 5 + 3.5 + 2 * 5, 10 + 3.5 + 2 * 5, 10 + 3.5 + 2 * 5};
    const auto report = ranks.clock->report();
    for (size_t rank = 0; rank < 6; ++rank)
      EXPECT_EQ(report[rank].total_s(), done[rank]) << repetition << " " << rank;
  }
}

TEST(VirtualClock, CpuTimeIsThatOfTheCallingThread) {
  const auto burn = [](double seconds) {
    const double start = device::thread_cpu_seconds();
    while (device::thread_cpu_seconds() - start < seconds) continue;
  };
  VirtualClock clock(1);
  clock.start(0);
  burn(0.001);
  const double mine = clock.now(0);
  EXPECT_GE(mine, 0.001);
  std::thread(burn, 0.05).join();
  EXPECT_LT(clock.now(0) - mine, 0.05);  // time to start a thread and sleep
}

// libtorch does this for CPU tensors regardless of prepare_rank_thread; otherwise the CPU time would be missing.
TEST(VirtualClock, BackwardRunsInTheThreadOfItsRank) {
  run_ranks(2, [](const World&) {
    const at::Tensor x = doubles(4).requires_grad_();
    std::optional<std::thread::id> in;
    x.register_hook([&](const at::Tensor& gradient) {
      in = std::this_thread::get_id();
      return gradient;
    });
    x.mul(x).sum().backward();
    EXPECT_EQ(in, std::this_thread::get_id());
  });
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(VirtualClock, RefusesWhatItCannotMeasure) {
  const topology::RankGrid grid = make_grid(2, {.tp = 2});
  const auto run = [&](
                       comm::ThreadsOptions options, int ranks, const comm::RankBody& body = [](const World&) {}) {
    options.observer = std::make_shared<VirtualClock>(ranks);
    return catch_error([&] { comm::run_threads(2, grid, options, body); });
  };
  expect_contains(run({}, 3), "a virtual clock for 3 ranks, but 2 were started");
  expect_contains(run({.threads_per_rank = 2}, 2), "ranks have 2 threads; set threads_per_rank to 1");
  expect_contains(run({.gpu = 0}, 2), "ranks have 1 threads and a GPU");
  EXPECT_EQ(run({}, 2), "");
  const auto helper = [](const World& world) {
    std::string why;
    std::thread([&] { why = catch_error([&] { comm::barrier(world.groups().tp); }); }).join();
    MPX_CHECK(why.empty(), "comm", why);
  };
  expect_contains(run({}, 2, helper), "a second thread communicates for rank");
  const auto used = std::make_shared<VirtualClock>(2);
  comm::run_threads(2, grid, {.observer = used}, [](const World&) {});
  expect_contains(catch_error([&] { comm::run_threads(2, grid, {.observer = used}, [](const World&) {}); }),
                  "has run before; make one for each call of run_threads");
  expect_contains(catch_error([] { VirtualClock(1, {.latency_s = -1}); }), "a latency is 0 or more");
  expect_contains(catch_error([] { VirtualClock(1, {.bytes_per_s = 0}); }), "a bandwidth above 0");
}

}  // namespace
}  // namespace metroplex::test::virtual_clock_ranks_test
