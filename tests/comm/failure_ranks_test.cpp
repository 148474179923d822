// If a rank fails, is missing, or makes another call, every other rank stops and the message names the rank and the
// reason.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "comm/collectives.h"
#include "support/run_ranks.h"

namespace metroplex::comm::failure_ranks_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::string catch_failure(int num_ranks, const test::Layout& layout, const ThreadsOptions& options,
                          const RankBody& body) {
  try {
    run_threads(num_ranks, test::make_grid(num_ranks, layout), options, body);
  } catch (...) { return failure_cause(std::current_exception()); }
  return "";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(ThreadFailure, ARankThatThrowsStopsAllWaitsAtOnceWithItsCause) {
  std::atomic<int> num_stopped{0};
  const auto start = Clock::now();
  const std::string message = catch_failure(8, {.tp = 2, .pp = 2, .dp = 2}, {}, [&](const World& world) {
    try {
      if (world.rank() == 5) {
        std::this_thread::sleep_for(50ms);
        throw base::Error("data", "the file ran out");
      }
      const Groups& groups = world.groups();
      // Waits of all kinds, on groups with and without the failing rank.
      if (world.rank() % 2 == 0) barrier(groups.world);
      else if (groups.pp.first()) batch_p2p({{false, at::empty({1}), 1}}, groups.pp).wait();
      else all_reduce(at::ones({2}), groups.tp);
      while (true) all_reduce(at::ones({2}), groups.world);
    } catch (const PeerFailure& failure) {
      expect_contains(failure.what(), "rank 5 (tp 1 pp 1 dp 0) failed: [data] the file ran out");
      ++num_stopped;
      throw;
    }
  });
  EXPECT_EQ(message, "[data] rank 5 (tp 1 pp 1 dp 0) failed: the file ran out");
  EXPECT_EQ(num_stopped, 7);
  EXPECT_LT(Clock::now() - start, 1s);
}

TEST(ThreadFailure, OwnFailuresReplaceReceivedOnes) {
  const std::string message = catch_failure(2, {.tp = 2}, {}, [](const World& world) {
    if (world.rank() == 0) throw PeerFailure("rank 7 failed");
    try {
      barrier(world.groups().tp);  // fails after the failure of rank 0 has been added
    } catch (const PeerFailure&) { throw base::Error("data", "the file ran out"); }
  });
  EXPECT_EQ(message, "[data] rank 1 (tp 1 pp 0 dp 0) failed: the file ran out");
}

TEST(ThreadFailure, AnErrorOfLibtorchIsOneLineAndKeepsItsBacktraceForWhoAsks) {
  try {
    run_threads(2, test::make_grid(2, {.tp = 2}), {}, [](const World& world) {
      if (world.rank() == 1) at::ones({2}).view({3});
    });
    ADD_FAILURE() << "two elements were viewed as three";
  } catch (const TorchFailure& failure) {
    const std::string message = failure.what(), trace = failure.trace();
    EXPECT_EQ(message.rfind("[internal] rank 1 (tp 1 pp 0 dp 0) failed: shape '[3]' is invalid", 0), 0u) << message;
    EXPECT_EQ(message.find("libtorch"), std::string::npos) << message;
    EXPECT_EQ(trace.rfind(message, 0), 0u) << trace;
    expect_contains(trace, "frame #0");
  }
}

TEST(ThreadFailure, MemoryThatIsNotThereIsNoMistakeOfThisProgram) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::vector<bool> ways{false};  // these sanitizers' allocators end the process instead
#else
  const std::vector<bool> ways{false, true};
#endif
  for (const bool of_libtorch : ways) {
    try {
      run_threads(2, test::make_grid(2, {.tp = 2}), {}, [&](const World& world) {
        if (world.rank() != 1) return;
        if (of_libtorch) at::empty({int64_t{1} << 60}, at::kByte);
        else throw std::bad_alloc();
      });
      ADD_FAILURE() << "2^60 bytes were found";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.room(), "memory");
      expect_contains(error.what(), "rank 1 (tp 1 pp 0 dp 0) failed: out of memory: ");
      if (of_libtorch) expect_contains(error.what(), "1152921504606846976 bytes");
    }
  }
}

TEST(ThreadFailure, ATimeoutNamesTheOperationTheGroupAndWhoDidNotCome) {
  const std::string message = catch_failure(4, {.tp = 2, .dp = 2}, {.timeout = 100ms}, [](const World& world) {
    if (world.rank() == 3) std::this_thread::sleep_for(400ms);
    all_reduce(at::ones({2}), world.groups().dp, ReduceOp::max);
  });
  expect_contains(message, "rank 1 (tp 1 pp 0 dp 0) failed: all_reduce(max) number 0 of group dp");
  expect_contains(message, "0.1 s; missing: rank 3 (tp 1 pp 0 dp 1)");
}

TEST(ThreadFailure, WaitingForARankThatHasFinishedFailsWithoutATimeout) {
  const std::string message = catch_failure(2, {.tp = 2}, {}, [](const World& world) {
    if (world.rank() == 0) return;
    barrier(world.groups().tp);
  });
  expect_contains(message, "barrier number 0 of group tp");
  expect_contains(message, "rank 0 (tp 0 pp 0 dp 0) has finished its work without taking part");
}

TEST(ThreadFailure, DifferentOperationsInOneGroupAreNamed) {
  const std::string message = catch_failure(2, {.tp = 2}, {}, [](const World& world) {
    if (world.rank() == 0) all_reduce(at::ones({2}), world.groups().tp);
    else broadcast(at::ones({2}), 0, world.groups().tp);
  });
  expect_contains(message, "all_reduce on rank");
  expect_contains(message, "broadcast from member 0 on rank");
}

TEST(ThreadFailure, DifferentSizesAndTypesAreNamed) {
  expect_contains(
      catch_failure(2, {.tp = 2}, {},
                    [](const World& world) { all_reduce(at::ones({2 + world.rank()}), world.groups().tp); }),
      "passes 3 elements");
  expect_contains(catch_failure(2, {.tp = 2}, {},
                                [](const World& world) {
                                  all_reduce(at::ones({2}, world.rank() == 0 ? at::kFloat : at::kDouble),
                                             world.groups().tp);
                                }),
                  "passes Double on cpu");
  expect_contains(catch_failure(2, {.tp = 2}, {},
                                [](const World& world) {
                                  all_to_all(
                                      at::ones({4, 2}), {2, 2},
                                      world.rank() == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 2},
                                      world.groups().tp);
                                }),
                  "expects 2");
  expect_contains(catch_failure(2, {.tp = 2}, {},
                                [](const World& world) {
                                  batch_p2p({{world.rank() == 0, at::ones({2 + world.rank()}), 1 - world.rank()}},
                                            world.groups().tp)
                                      .wait();
                                }),
                  "receives 3 x Float");
}

TEST(ThreadFailure, TwoRanksThatSendToEachOtherFirstDeadlockUnderRendezvousOnly) {
  const auto both_send_first = [](const World& world) {
    const Group& tp = world.groups().tp;
    const at::Tensor x = at::full({1}, tp.index(), at::kLong);
    const at::Tensor y = at::empty({1}, at::kLong);
    batch_p2p({{true, x, 1 - tp.index()}}, tp).wait();
    batch_p2p({{false, y, 1 - tp.index()}}, tp).wait();
    EXPECT_EQ(y.item<int64_t>(), 1 - tp.index());
  };
  EXPECT_EQ(catch_failure(2, {.tp = 2}, {.timeout = 100ms}, both_send_first), "");
  expect_contains(catch_failure(2, {.tp = 2}, {.timeout = 100ms, .rendezvous = true}, both_send_first),
                  "a send of rank");
}

TEST(ThreadFailure, AWorldThatDoesNotFitTheLayoutIsRefused) {
  try {
    run_threads(3, test::make_grid(2, {.tp = 2}), {}, [](const World&) { ADD_FAILURE() << "a rank was started"; });
    ADD_FAILURE() << "three ranks were taken for a layout of two";
  } catch (const base::Error& error) {
    expect_contains(error.what(), "3 ranks were started for a layout of 2 ranks");
  }
}

TEST(ThreadFailure, ASizeThatTheGroupDoesNotDivideIsRefused) {
  expect_contains(catch_failure(2, {.tp = 2}, {},
                                [](const World& world) { reduce_scatter(at::ones({3}), 0, world.groups().tp); }),
                  "size 3 of dim 0 is not a multiple of the 2 ranks of group tp");
}

}  // namespace
}  // namespace metroplex::comm::failure_ranks_test
