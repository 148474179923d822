// Process ranks report the rank that failed first, in time and with the right exit code.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "comm/backends/gloo.h"
#include "comm/backends/nccl.h"
#include "comm/collectives.h"
#include "comm/report.h"
#include "support/notes.h"
#include "support/run_processes.h"

namespace metroplex::comm::failure_procs_test {
namespace {

using namespace std::chrono_literals;
using test::Clock;
using test::expect_contains;
using test::Notes;

// As in apps/: 4 for a peer failure, 5 for NaN.
int to_exit_code(const std::exception_ptr& failure) { return is_peer_failure(failure) ? 4 : 5; }

// The failure of a peer can end the first barrier too, if this rank is late.
void wait_for_failure_of_peer(const World& world, const Notes& notes) {
  try {
    while (true) barrier(world.groups().world);
  } catch (const PeerFailure& failure) {
    notes.write(world.rank(), failure.what());
    throw;
  }
}

test::ProcessesOptions ended_when_stuck(std::chrono::milliseconds grace) {
  test::ProcessesOptions options;
  options.grace = grace;
  options.process.exit_code = to_exit_code;
  options.process.on_stuck = [](const std::exception_ptr& failure) { ::_exit(to_exit_code(failure)); };
  return options;
}

TEST(Blame, RanksThatCannotStopByThemselvesDoNotTakeTheBlameOfTheOneThatFailed) {
  const auto result = test::run_processes(
      4, {.tp = 2, .dp = 2},
      [](const World& world) {
        barrier(world.groups().world);
        if (world.rank() < 3) std::this_thread::sleep_for(20s);  // as in a kernel: receives no messages
        struct LongTeardown {
          ~LongTeardown() { std::this_thread::sleep_for(1500ms); }  // the others have exited long before
        } teardown;
        throw base::Error("numerics", "the loss is NaN");
      },
      ended_when_stuck(5s));
  if (!result) return;
  EXPECT_EQ(result->rank, 3);
  expect_contains(result->message, "rank 3 (tp 1 pp 0 dp 1) failed: [numerics] the loss is NaN");
}

// Its communicators cannot be destroyed while a collective hangs on a GPU.
class BlockedAbort final : public NcclContext {
 public:
  explicit BlockedAbort(GlooContext& control) : control_(control) {}
  ~BlockedAbort() override { std::this_thread::sleep_for(60s); }
  std::shared_ptr<GroupBackend> backend(const GroupSpec& spec) override { return control_.backend(spec); }
  void shutdown() override {}

 private:
  GlooContext& control_;
};

test::ProcessesOptions with_blocked_abort(std::chrono::milliseconds grace) {
  test::ProcessesOptions options = ended_when_stuck(grace);
  options.process.backend = ProcessBackend::nccl;
  options.process.make_nccl = [](GlooContext& control) { return std::make_shared<BlockedAbort>(control); };
  return options;
}

TEST(Blame, PeersAndLauncherHearOfAFailureBeforeCommunicatorsAreDestroyed) {
  const Notes notes("blocked_abort");
  const auto result = test::run_processes(
      3, {.dp = 3},
      [&](const World& world) {
        if (world.rank() != 2) return wait_for_failure_of_peer(world, notes);
        barrier(world.groups().world);
        notes.write(2, "failed");
        throw base::Error("numerics", "the loss is NaN");
      },
      with_blocked_abort(800ms));
  if (!result) return;
  EXPECT_EQ(result->rank, 2);
  EXPECT_EQ(result->exit_code, 5);  // set before it was killed for taking too long
  expect_contains(result->message, "rank 2 (tp 0 pp 0 dp 2) failed: [numerics] the loss is NaN (exit code 5)");
  for (const int rank : {0, 1}) {
    const auto [stopped_at, said] = notes.read(rank);
    EXPECT_LT(stopped_at - notes.read(2).first, 1s) << "rank " << rank;
    expect_contains(said, "rank 2 (tp 0 pp 0 dp 2) failed: [numerics] the loss is NaN");
  }
}

TEST(Blame, ARankWhoseCommunicatorsCannotBeDestroyedEndsByItselfWithItsOwnCode) {
  const auto result = test::run_processes(
      2, {.dp = 2},
      [](const World& world) {
        barrier(world.groups().world);
        if (world.rank() == 1) throw base::Error("numerics", "the loss is NaN");
        while (true) barrier(world.groups().world);
      },
      with_blocked_abort(30s));
  if (!result) return;
  EXPECT_EQ(result->rank, 1);
  EXPECT_EQ(result->exit_code, 5);
  expect_contains(result->message, "(exit code 5)");
}

// As a replay watch does while its rank waits for a GPU.
TEST(Blame, ABlockedRankIsEndedFromAnotherThread) {
  const Notes notes("end_run");
  const auto result = test::run_processes(
      3, {.dp = 3},
      [&](const World& world) {
        if (world.rank() != 1) return wait_for_failure_of_peer(world, notes);
        barrier(world.groups().world);
        std::thread watch(
            [&] { world.end_run()(std::make_exception_ptr(base::Error("comm", "all_reduce did not complete"))); });
        std::this_thread::sleep_for(60s);
        watch.join();
      },
      ended_when_stuck(30s));
  if (!result) return;
  EXPECT_EQ(result->rank, 1);
  expect_contains(result->message, "rank 1 (tp 0 pp 0 dp 1) failed: [comm] all_reduce did not complete");
  for (const int rank : {0, 2})
    expect_contains(notes.read(rank).second, "rank 1 (tp 0 pp 0 dp 1) failed: [comm] all_reduce did not complete");
}

TEST(Blame, ASilentEndGoesBeforeWhatOthersSuffered) {
  if (launch_from_environment()) return;
  const std::string peer = encode({.own = false, .exit_code = 4, .cause = "rank 2 has exited"});
  SpawnOptions spawn;
  spawn.num_processes = 3;
  spawn.command = {"bash", "-c",
                   "if [ $METROPLEX_RANK = 2 ]; then sleep 0.2; exit 9; fi; printf '%s' '" + peer +
                       "' >&$METROPLEX_CAUSE_FD; exit 4"};
  const SpawnResult result = spawn_processes(spawn);
  EXPECT_EQ(result.message, "rank 2 failed: exit code 9");
  EXPECT_EQ(result.exit_code, 9);
}

TEST(SharedGpu, EveryRankHasItsOwnHostId) {
  struct HostOnly final : NcclContext {
    explicit HostOnly(GlooContext& its_control) : control(its_control) {}
    std::shared_ptr<GroupBackend> backend(const GroupSpec& spec) override { return control.backend(spec); }
    void shutdown() override {}
    GlooContext& control;
  };
  const Notes notes("host_id");
  test::ProcessesOptions options;
  options.process.backend = ProcessBackend::nccl;
  options.process.shares_gpu = true;
  options.process.make_nccl = [](GlooContext& control) { return std::make_shared<HostOnly>(control); };
  const auto write_host_id = [&](const World& world) {
    notes.write(world.rank(), process_environment("NCCL_HOSTID").value_or("none"));
  };
  const auto result = test::run_processes(2, {.dp = 2}, write_host_id, options);
  if (!result) return;
  EXPECT_EQ(result->rank, -1) << result->message;
  EXPECT_EQ(notes.read(0).second, "metroplex-0");
  EXPECT_EQ(notes.read(1).second, "metroplex-1");
}

TEST(SharedGpu, RanksInheritTheRequest) {
  if (launch_from_environment()) return;
  SpawnOptions spawn;
  spawn.command = {"bash", "-c", "[ \"$METROPLEX_SHARE_GPUS\" = 1 ] && [ -z \"$METROPLEX_OTHER\" ]"};
  ::setenv("METROPLEX_SHARE_GPUS", "1", 1);
  ::setenv("METROPLEX_OTHER", "1", 1);
  EXPECT_EQ(spawn_processes(spawn).exit_code, 0);
  ::unsetenv("METROPLEX_SHARE_GPUS");
  ::unsetenv("METROPLEX_OTHER");
}

TEST(Report, IsReadBackOnlyWhenItIsWhole) {
  const std::string text = encode({.own = true, .exit_code = 5, .cause = "one\ntwo"});
  const Report report = decode_report(text + encode({.own = false, .exit_code = 4, .cause = "later"})).value();
  EXPECT_TRUE(report.own);
  EXPECT_EQ(report.exit_code, 5);
  EXPECT_EQ(report.cause, "one\ntwo");
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(decode_report(text.substr(0, size))) << size;
}

}  // namespace
}  // namespace metroplex::comm::failure_procs_test
