#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "comm/backends/gloo.h"
#include "comm/collectives.h"
#include "support/collective_checks.h"
#include "support/exchange_checks.h"
#include "support/owned_rows_checks.h"
#include "support/notes.h"
#include "support/pipeline_p2p.h"
#include "support/run_processes.h"

namespace metroplex::comm::gloo_procs_test {
namespace {

using namespace std::chrono_literals;
using test::Clock;
using test::expect_contains;
using test::Notes;

TEST(GlooProcesses, DoWhatEachOperationPromises) {
  test::run_processes_well(4, {.tp = 2, .dp = 2}, [](const World& world) {
    test::check_collectives(world.groups().world);
    test::check_collectives(world.groups().tp);
    test::check_collectives(world.groups().dp);
    test::check_sum_order(world.groups().world);
    test::check_large(world.groups().world);
    test::check_large(world.groups().dp);
    test::check_in_place(world.groups().world);
  });
}

TEST(GlooProcesses, GroupsOfTwoPurposesAreUnderWayBesideEachOther) {
  test::run_processes_well(2, {.dp = 2}, test::check_two_purposes);
}

TEST(GlooProcesses, ExchangeRowsByCountsOfTheDevice) {
  test::run_processes_well(3, {.tp = 3}, [](const World& world) { test::check_exchange_rows(world.groups().tp); });
}

TEST(GlooProcesses, RowsComeToThoseWhoWantThemAndAreAddedUpAtHome) {
  test::run_processes_well(3, {.tp = 3}, [](const World& world) {
    test::check_owned_rows(world.groups().tp, test::make_owned_rows(world.groups().tp));
  });
}

TEST(GlooProcesses, SeveralTensorsOfRowsAreUnderWayAtOnce) {
  test::run_processes_well(4, {.tp = 4}, [](const World& world) {
    test::check_several_owned_rows(world.groups().tp, test::make_owned_rows(world.groups().tp));
  });
}

// Rank 3 gets the row of rank 0 from rank 1, which waits for rank 3 before it waits for the row.
TEST(GlooProcesses, ARowIsPassedOnBeforeItsRankWaits) {
  test::run_processes_well(4, {.tp = 4}, [](const World& world) {
    const Group& tp = world.groups().tp;
    const at::Tensor owners = at::tensor({-1, 0, 0, 0}, at::kInt), row = at::full({1, 3000}, 7.0 + world.rank());
    const at::Tensor slot = at::zeros({1, 3000}), word = at::zeros({1});
    Handle handle = fetch_rows_async(slot, row, owners, tp);
    if (world.rank() == 1) batch_p2p({{false, word, 3}}, tp).wait();
    handle.wait();
    if (world.rank() == 3) batch_p2p({{true, word, 1}}, tp).wait();
    if (world.rank() > 0) { EXPECT_TRUE(at::equal(slot, at::full({1, 3000}, 7.0))); }
  });
}

TEST(GlooProcesses, PassActivationsAndGradientsBetweenStagesInEveryMode) {
  test::run_processes_well(2, {.pp = 2}, [](const World& world) {
    const Group& pp = world.groups().pp;
    for (const auto mode : {P2pMode::batched, P2pMode::overlapped, P2pMode::plain, P2pMode::ring}) {
      for (const bool variable : {false, true}) {
        const PipelineP2p p2p(pp, {mode, variable, at::kDouble, at::kCPU});
        const Shape shape{4, 3};
        const auto message = [&](int sender, int kind) { return at::full(shape, 10.0 * sender + kind, at::kDouble); };
        const int other = 1 - pp.index();
        for (int round = 0; round < 3; ++round) {
          Transfer transfer{message(pp.index(), 1), message(pp.index(), 2), true, true, shape, shape};
          Received both = p2p.send_forward_backward_recv_forward_backward(transfer);
          both.handle.wait();
          EXPECT_TRUE(at::equal(both.from_prev, message(other, 1)));
          EXPECT_TRUE(at::equal(both.from_next, message(other, 2)));
        }
        const at::Tensor gradient = pp.first() ? p2p.send_forward_recv_backward(message(0, 5), shape, false)
                                               : p2p.send_backward_recv_forward(message(1, 6), shape, false);
        EXPECT_TRUE(at::equal(gradient, pp.first() ? message(1, 6) : message(0, 5)));
      }
    }
  });
}

// Survivors must stop on their own: the launcher waits ten seconds before it kills them.
void expect_all_stop(const std::string& name, const std::string& cause, const std::string& cause_for_peers,
                     const std::function<void()>& fail) {
  const Notes notes(name);
  const auto result = test::run_processes(
      4, {.tp = 2, .dp = 2},
      [&](const World& world) {
        try {
          barrier(world.groups().world);
          if (world.rank() == 3) {
            std::this_thread::sleep_for(100ms);
            notes.write(3, "failed");
            fail();
          }
          if (world.rank() == 0)
            barrier(world.groups().tp);  // waits for a rank that has not failed but waits for the failing one
          else all_reduce(at::ones({4}), world.rank() == 1 ? world.groups().dp : world.groups().tp);
          while (true) barrier(world.groups().world);
        } catch (const PeerFailure& failure) {
          notes.write(world.rank(), failure.what());
          throw;
        }
      },
      {.grace = 10s});
  if (!result) return;
  EXPECT_EQ(result->rank, 3);
  EXPECT_NE(result->exit_code, 0);
  expect_contains(result->message, "rank 3 (tp 1 pp 0 dp 1) failed");
  expect_contains(result->message, cause);
  const Clock::time_point failed_at = notes.read(3).first;
  EXPECT_LT(Clock::now() - failed_at, 1s);
  for (const int rank : {0, 1, 2}) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const auto [stopped_at, said] = notes.read(rank);
    EXPECT_LT(stopped_at - failed_at, 1s);
    expect_contains(said, "rank 3 (tp 1 pp 0 dp 1)");
    expect_contains(said, cause_for_peers);
  }
}

TEST(GlooFailure, ARankThatThrowsStopsTheOthersWithItsCause) {
  expect_all_stop("throws", "[data] the file ran out", "[data] the file ran out",
                  [] { throw base::Error("data", "the file ran out"); });
}

TEST(GlooFailure, ARankThatIsKilledStopsTheOthersWithItsName) {
  expect_all_stop("killed", "killed by signal 9", "died or closed its connection", [] { ::raise(SIGKILL); });
}

void expect_all_stop_relaying(int victim) {
  const Notes notes("relay" + std::to_string(victim));
  const auto result = test::run_processes(4, {.tp = 4},
                                          [&](const World& world) {
                                            const at::Tensor owners = at::tensor({-1, 0, 0, 0}, at::kInt),
                                                             rows = at::ones({1, 64}), slots = at::zeros({1, 64});
                                            const Group& tp = world.groups().tp;
                                            fetch_rows_async(slots, rows, owners, tp).wait();
                                            try {
                                              barrier(world.groups().world);
                                              if (world.rank() == victim) {
                                                std::this_thread::sleep_for(100ms);
                                                ::raise(SIGKILL);
                                              }
                                              while (true) fetch_rows_async(slots, rows, owners, tp).wait();
                                            } catch (const PeerFailure& failure) {
                                              notes.write(world.rank(), failure.what());
                                              throw;
                                            }
                                          },
                                          {.grace = 10s});
  if (!result) return;
  EXPECT_EQ(result->rank, victim);
  EXPECT_EQ(result->exit_code, 128 + SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    SCOPED_TRACE("rank " + std::to_string(rank));
    expect_contains(notes.read(rank).second, "rank " + std::to_string(victim) + " (tp");
    expect_contains(notes.read(rank).second, "died or closed its connection");
  }
}

TEST(GlooFailure, ARankThatIsKilledBeforeItSendsARowIsNamed) { expect_all_stop_relaying(0); }

// Rank 3 waits for a row that rank 1 should have relayed.
TEST(GlooFailure, ARankThatIsKilledBeforeItPassesARowOnIsNamed) { expect_all_stop_relaying(1); }

TEST(GlooFailure, TheRankThatHoldsTheStoreMayDieToo) {
  const Notes notes("rank0");
  const auto result = test::run_processes(2, {.dp = 2},
                                          [&](const World& world) {
                                            try {
                                              barrier(world.groups().world);
                                              if (world.rank() == 0) {
                                                notes.write(0, "failed");
                                                ::raise(SIGKILL);
                                              }
                                              while (true) barrier(world.groups().world);
                                            } catch (const PeerFailure& failure) {
                                              notes.write(1, failure.what());
                                              throw;
                                            }
                                          },
                                          {.grace = 10s});
  if (!result) return;
  EXPECT_EQ(result->rank, 0);
  EXPECT_EQ(result->exit_code, 128 + SIGKILL);
  const auto [stopped_at, said] = notes.read(1);
  EXPECT_LT(stopped_at - notes.read(0).first, 1s);
  expect_contains(said, "rank 0 (tp 0 pp 0 dp 0)");
}

TEST(GlooFailure, AProcessThatComputesIsEndedThroughItsCallback) {
  const Notes notes("stuck");
  test::ProcessesOptions options;
  options.grace = 10s;
  options.process.on_stuck = [&](const std::exception_ptr& failure) {
    notes.write(1, failure_cause(failure));
    ::_exit(7);
  };
  const auto result = test::run_processes(
      2, {.dp = 2},
      [&](const World& world) {
        barrier(world.groups().world);
        if (world.rank() == 0) {
          std::this_thread::sleep_for(100ms);  // the other one has left the barrier and computes
          notes.write(0, "failed");
          throw base::Error("nn", "not a number");
        }
        std::this_thread::sleep_for(20s);
      },
      options);
  if (!result) return;
  EXPECT_EQ(result->rank, 0);
  EXPECT_LT(Clock::now() - notes.read(0).first, 1500ms);
  const auto [stopped_at, said] = notes.read(1);
  EXPECT_LT(stopped_at - notes.read(0).first, 1s);
  expect_contains(said, "rank 0 (tp 0 pp 0 dp 0) failed: [nn] not a number");
}

TEST(GlooFailure, ATimeoutNamesTheOperationAndWhoDidNotCome) {
  test::ProcessesOptions options;
  options.process.timeout = 1s;
  const auto result = test::run_processes(
      2, {.dp = 2},
      [&](const World& world) {
        if (world.rank() == 1) std::this_thread::sleep_for(5s);
        all_reduce(at::ones({4}), world.groups().dp);
      },
      options);
  if (!result) return;
  EXPECT_EQ(result->rank, 0);
  expect_contains(result->message, "all_reduce of group dp");
  expect_contains(result->message, "did not complete within 1 s; missing: rank 1 (tp 0 pp 0 dp 1)");
}

TEST(GlooFailure, APortInUseIsSaidPlainly) {
  if (launch_from_environment()) return;
  GlooOptions options;
  options.timeout = 5s;
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  options.master_port = ntohs(address.sin_port);
  try {
    const GlooContext context(options);
    ADD_FAILURE() << "the port was free";
  } catch (const base::Error& error) { expect_contains(error.what(), "is in use"); }
  SpawnOptions spawn;
  spawn.command = {"/bin/true"};
  spawn.port = options.master_port;
  try {
    spawn_processes(spawn);
    ADD_FAILURE() << "the port was free";
  } catch (const base::Error& error) { expect_contains(error.what(), "cannot be used: Address already in use"); }
  ::close(fd);
}

TEST(Spawn, TellsTheExitCodeAndStopsTheRest) {
  if (launch_from_environment()) return;
  SpawnOptions spawn;
  spawn.num_processes = 3;
  spawn.grace = 200ms;
  spawn.command = {"sh", "-c", "if [ $METROPLEX_RANK = 1 ]; then exit 5; fi; sleep 30"};
  const auto start = Clock::now();
  const SpawnResult result = spawn_processes(spawn);
  EXPECT_LT(Clock::now() - start, 1s);
  EXPECT_EQ(result.rank, 1);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.message, "rank 1 failed: exit code 5");
}

TEST(Spawn, AStopOnRequestIsNoFailureAndLeavesTheOthersTheirTime) {
  if (launch_from_environment()) return;
  SpawnOptions spawn;
  spawn.num_processes = 2;
  spawn.grace = 50ms;
  spawn.stopped_code = 16;
  spawn.command = {"sh", "-c", "[ $METROPLEX_RANK = 1 ] || sleep 0.5; exit 16"};
  const auto start = Clock::now();
  EXPECT_EQ(spawn_processes(spawn).exit_code, 16);
  EXPECT_GE(Clock::now() - start, 500ms);
}

TEST(Spawn, NamesARankThatASignalStopped) {
  if (launch_from_environment()) return;
  SpawnOptions spawn;
  spawn.num_processes = 3;
  spawn.pause_limit = 500ms;
  spawn.pause_code = 4;
  spawn.command = {"sh", "-c", "[ $METROPLEX_RANK != 1 ] || kill -STOP $$; sleep 60"};
  const auto start = Clock::now();
  const SpawnResult result = spawn_processes(spawn);
  EXPECT_LT(Clock::now() - start, 30s);
  EXPECT_EQ(result.rank, 1);
  EXPECT_EQ(result.exit_code, 4);
  expect_contains(result.message, "rank 1 failed: a signal such as SIGSTOP stopped it for 0.5 s");
}

TEST(Spawn, KeepsARankThatContinues) {
  if (launch_from_environment()) return;
  SpawnOptions spawn;
  spawn.pause_limit = 3s;
  spawn.command = {"sh", "-c", "(kill -STOP $$; sleep 0.5; kill -CONT $$) & wait; sleep 5"};
  EXPECT_EQ(spawn_processes(spawn).rank, -1);
}

TEST(Spawn, TellsWhatEveryRankNeedsToKnow) {
  if (launch_from_environment()) return;
  SpawnOptions spawn;
  spawn.num_processes = 2;
  spawn.command = {"sh", "-c",
                   "[ $METROPLEX_WORLD_SIZE = 2 ] && [ $METROPLEX_LOCAL_RANK = $METROPLEX_RANK ] && [ "
                   "$METROPLEX_MASTER_PORT -gt 0 ]"};
  EXPECT_EQ(spawn_processes(spawn).rank, -1);
  spawn.command = {"/no/such/program"};
  const SpawnResult result = spawn_processes(spawn);
  EXPECT_EQ(result.exit_code, 127);
  expect_contains(result.message, "could not be started");
}

}  // namespace
}  // namespace metroplex::comm::gloo_procs_test
