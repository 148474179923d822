// Ranks of an external launcher, which does not report the end of one rank to the others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "comm/backends/gloo.h"
#include "comm/backends/gloo_state.h"
#include "comm/backends/nccl.h"
#include "comm/collectives.h"
#include "comm/network.h"
#include "comm/sockets.h"
#include "support/collective_checks.h"
#include "support/notes.h"
#include "support/run_by_hand.h"
#include "support/run_processes.h"

namespace metroplex::comm::watch_procs_test {
namespace {

using namespace std::chrono_literals;
using test::Clock;
using test::ExitRecord;
using test::expect_contains;
using test::Notes;

// As in apps/: prints the received cause and exits with code 4.
test::ProcessesOptions report_and_exit(const Notes& notes) {
  test::ProcessesOptions options;
  options.process.on_stuck = [&notes](const std::exception_ptr& failure) {
    notes.write(launch_from_environment()->rank, failure_cause(failure));
    ::_exit(4);
  };
  return options;
}

using Launcher = test::Variables (*)(int rank, int num_ranks, int port);

// Kills one of ten ranks (a tree of two levels) while the others block without socket activity.
void expect_death_is_noticed(const std::string& name, int victim, Launcher launcher) {
  constexpr int kRanks = 10;
  const Notes notes(name);
  if (launch_from_environment()) {
    test::run_processes(
        kRanks, {.dp = kRanks},
        [&](const World& world) {
          barrier(world.groups().world);
          if (world.rank() != victim) std::this_thread::sleep_for(30s);
          std::this_thread::sleep_for(200ms);  // all others are asleep
          notes.write(victim, "killed");
          ::raise(SIGKILL);
        },
        report_and_exit(notes));
    return;
  }
  const int port = test::free_port();
  const std::vector<ExitRecord> ended =
      test::run_by_hand(kRanks, [&](int rank) { return launcher(rank, kRanks, port); });
  EXPECT_EQ(ended[static_cast<size_t>(victim)].code, 128 + SIGKILL);
  const Clock::time_point killed_at = notes.read(victim).first;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    SCOPED_TRACE("rank " + std::to_string(rank));
    EXPECT_EQ(ended[static_cast<size_t>(rank)].code, 4);
    EXPECT_LT(ended[static_cast<size_t>(rank)].at - killed_at, 2s);
    expect_contains(notes.read(rank).second,
                    "rank " + std::to_string(victim) + " (tp 0 pp 0 dp " + std::to_string(victim) + ") died");
  }
}

TEST(Watch, ARankKilledUnderTorchrunIsNamedWhileTheOthersTouchNoSocket) {
  expect_death_is_noticed("watch_leaf", 3, test::as_torchrun);
}
TEST(Watch, ARankKilledUnderSlurmThatHasRanksBelowItIsNamedToo) {
  expect_death_is_noticed("watch_inner", 8, test::as_slurm);
}
TEST(Watch, TheDeathOfRankZeroIsNamedToo) { expect_death_is_noticed("watch_root", 0, test::as_torchrun); }

TEST(Watch, RanksThatEndAtDifferentTimesLeaveTogetherAndNobodyIsTakenForDead) {
  constexpr int kRanks = 10;
  if (launch_from_environment()) {
    test::run_processes(kRanks, {.dp = kRanks}, [](const World& world) {
      std::this_thread::sleep_for(50ms * world.rank());
      barrier(world.groups().world);
      if (world.rank() % 3 == 0) std::this_thread::sleep_for(300ms);
    });
    return;
  }
  const int port = test::free_port();
  for (const ExitRecord& rank :
       test::run_by_hand(kRanks, [&](int r) { return test::as_torchrun(r, kRanks, port); })) {
    EXPECT_EQ(rank.code, 0);
  }
}

// torchrun's agent keeps its store over a restart.
TEST(Watch, ASecondAttemptDoesNotReadWhyTheFirstOneEnded) {
  constexpr int kRanks = 2;
  if (launch_from_environment()) {
    test::run_processes(kRanks, {.dp = kRanks}, [](const World& world) {
      barrier(world.groups().world);
      const bool first = std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0";
      if (first && world.rank() == 1) throw base::Error("data", "unreachable for a moment");
      barrier(world.groups().world);
    });
    return;
  }
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  const c10d::TCPStore agent("127.0.0.1", options);
  const auto attempt = [&](int number) {
    return test::run_by_hand(kRanks, [&](int rank) {
      test::Variables variables = test::as_torchrun(rank, kRanks, agent.getPort());
      variables.push_back("TORCHELASTIC_USE_AGENT_STORE=True");
      variables.push_back("TORCHELASTIC_RESTART_COUNT=" + std::to_string(number));
      return variables;
    });
  };
  for (const ExitRecord& rank : attempt(0)) EXPECT_EQ(rank.code, 3);
  for (const ExitRecord& rank : attempt(1)) EXPECT_EQ(rank.code, 0);
}

TEST(Watch, TheEnvironmentChoosesTheInterfaceAndAnUnknownOneIsNamedBesideThoseThatExist) {
  const Notes notes("interface");
  if (const auto launch = launch_from_environment()) {
    try {
      run_process(*launch, test::make_grid(2, {.dp = 2}), {},
                  [](const World& world) { barrier(world.groups().world); });
    } catch (const std::exception& error) {
      notes.write(launch->rank, error.what());
      ::_exit(3);
    }
    return;
  }
  const auto run_on = [&](const std::string& interface) {
    const int port = test::free_port();
    return test::run_by_hand(2, [&](int rank) {
      test::Variables variables = test::as_torchrun(rank, 2, port);
      variables.push_back("GLOO_SOCKET_IFNAME=" + interface);
      return variables;
    });
  };
  for (const ExitRecord& rank : run_on("lo")) EXPECT_EQ(rank.code, 0);
  for (const ExitRecord& rank : run_on("eth77")) EXPECT_EQ(rank.code, 3);
  for (const int rank : {0, 1}) {
    const std::string reported = notes.read(rank).second;
    expect_contains(reported, "[config]");
    expect_contains(reported, "GLOO_SOCKET_IFNAME is 'eth77'");
    expect_contains(reported, "lo (127.0.0.1)");
  }
}

// The control plane next to NCCL: no mesh of the world; groups connect at first use, the large ones as trees.
class HostOnly final : public NcclContext {
 public:
  explicit HostOnly(GlooContext& control) : control_(control) {}
  std::shared_ptr<GroupBackend> backend(const GroupSpec& spec) override { return control_.backend(spec); }
  void shutdown() override {}

 private:
  GlooContext& control_;
};

TEST(HostGroups, DoWithoutAMeshOfTheWorldWhatIsAskedOfThem) {
  test::ProcessesOptions options;
  options.process.backend = ProcessBackend::nccl;
  options.process.make_nccl = [](GlooContext& control) { return std::make_shared<HostOnly>(control); };
  const auto result = test::run_processes(
      10, {.tp = 2, .dp = 5},
      [](const World& world) {
        test::check_collectives(world.groups().tp);
        const Group& all = world.groups().world;
        const at::Tensor sum = at::full({3}, 0.1 * world.rank(), at::kDouble);
        all_reduce(sum, all);
        double expected = 0;
        for (int rank = 0; rank < 10; ++rank) expected += 0.1 * rank;
        EXPECT_EQ(sum[2].item<double>(), expected);
        const auto texts = gather_strings("rank " + std::to_string(world.rank()), all);
        EXPECT_EQ(texts.size(), world.rank() == 0 ? 10u : 0u);
        if (world.rank() == 0) { EXPECT_EQ(texts[9], "rank 9"); }
        EXPECT_EQ(broadcast_string(world.rank() == 0 ? "all of you" : "", all), "all of you");
        barrier(all);
      },
      options);
  if (result) { EXPECT_EQ(result->rank, -1) << result->message; }
}

std::string open_ports() {
  std::string open;
  for (const auto& [inode, fd] : listening_sockets()) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    std::string error;
    const int connected = connect_to("127.0.0.1", ntohs(address.sin_port), 500ms, error);
    if (connected >= 0) open += " " + std::to_string(ntohs(address.sin_port));
    ::close(connected);
  }
  return open;
}

void expect_no_open_port_and_new_groups(const World& world) {
  barrier(world.groups().world);
  EXPECT_EQ(open_ports(), "");
  const Group all = world.make_group({"late", Purpose::run, {0, 1, 2}});
  const at::Tensor sum = at::ones({3});
  all_reduce(sum, all);
  EXPECT_EQ(sum[0].item<float>(), 3);
  EXPECT_EQ(open_ports(), "");
}

TEST(Ports, AcceptNothingOnceTheRanksAreConnected) {
  test::run_processes_well(3, {.dp = 3}, expect_no_open_port_and_new_groups);
}

TEST(Ports, AcceptNothingNextToNcclAfterTheFirstCollective) {
  test::ProcessesOptions options;
  options.process.backend = ProcessBackend::nccl;
  options.process.make_nccl = [](GlooContext& control) { return std::make_shared<HostOnly>(control); };
  const auto result = test::run_processes(3, {.dp = 3}, expect_no_open_port_and_new_groups, options);
  if (result) { EXPECT_EQ(result->rank, -1) << result->message; }
}

// Three ranks, each with its own variables; returns their messages. Each exits with 3.
std::vector<std::string> collect_messages(const Notes& notes, const std::function<test::Variables(int rank)>& own) {
  const int port = test::free_port();
  const std::vector<ExitRecord> ended = test::run_by_hand(3, [&](int rank) {
    test::Variables variables = test::as_torchrun(rank, 3, port);
    for (const std::string& variable : own(rank)) variables.push_back(variable);
    return variables;
  });
  std::vector<std::string> reported;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ended[static_cast<size_t>(rank)].code, 3) << rank;
    reported.push_back(notes.read(rank).second);
  }
  return reported;
}

void write_end_reason(const Notes& notes, const ProcessOptions& options) {
  const LaunchEnvironment launch = *launch_from_environment();
  try {
    run_process(launch, test::make_grid(launch.world_size, {.dp = launch.world_size}), options,
                [](const World& world) { barrier(world.groups().world); });
  } catch (const std::exception& error) {
    notes.write(launch.local_rank, error.what());
    ::_exit(3);
  }
}

TEST(Meeting, AnotherWorldSizeIsNamedOnBothSidesAtOnce) {
  const Notes notes("meeting_world_size");
  if (launch_from_environment()) return write_end_reason(notes, {});
  const auto began = Clock::now();
  for (const auto& [size, other] : {std::pair(3, 4), std::pair(4, 3)}) {
    const auto reported = collect_messages(
        notes, [&](int rank) -> test::Variables { return {base::concat("WORLD_SIZE=", rank == 1 ? other : size)}; });
    for (const std::string& text : reported) {
      expect_contains(text, base::concat(" was started with a world size of "));
      expect_contains(text, base::concat("rank 1 on ", host_name(), ", process "));
      for (const int number : {3, 4}) expect_contains(text, base::concat(" ", number));
      expect_contains(text, "give all processes the same world size");
    }
  }
  EXPECT_LT(Clock::now() - began, 30s);  // of a limit of ten minutes
}

TEST(Meeting, TwoProcessesOfOneRankAreNamedAtOnce) {
  const Notes notes("meeting_duplicate");
  if (launch_from_environment()) return write_end_reason(notes, {});
  const auto began = Clock::now();
  const auto reported =
      collect_messages(notes, [](int rank) -> test::Variables { return {base::concat("RANK=", std::min(rank, 1))}; });
  for (const std::string& text : reported) {
    expect_contains(text, "two processes were started as rank 1 of 3: on " + host_name() + ", process ");
    expect_contains(text, ", and on " + host_name() + ", process ");
  }
  EXPECT_LT(Clock::now() - began, 15s);
}

TEST(Meeting, ARankWithoutItsInterfaceIsHeardOfByTheOthers) {
  const Notes notes("meeting_interface");
  if (launch_from_environment()) return write_end_reason(notes, {});
  const auto reported = collect_messages(notes, [](int rank) -> test::Variables {
    return {rank == 1 ? "GLOO_SOCKET_IFNAME=eth77" : "GLOO_SOCKET_IFNAME=lo"};
  });
  expect_contains(reported[1], "[config]");
  for (const int rank : {0, 2}) {
    expect_contains(reported[rank], "[comm] rank 1 (tp 0 pp 0 dp 1) could not start: [config]");
    expect_contains(reported[rank], "GLOO_SOCKET_IFNAME is 'eth77'");
  }
}

TEST(Meeting, RanksThatTakeOtherBackendsDoNotWaitForEachOther) {
  const Notes notes("meeting_backends");
  if (launch_from_environment()) {
    ProcessOptions options;
    if (launch_from_environment()->rank != 1) options.backend = ProcessBackend::nccl;
    options.make_nccl = [](GlooContext& control) { return std::make_shared<HostOnly>(control); };
    return write_end_reason(notes, options);
  }
  const auto reported = collect_messages(notes, [](int) { return test::Variables{}; });
  for (const std::string& text : reported) expect_contains(text, "this rank uses the backend ");
}

// Rank 0 stops after it has opened its port, or the port belongs to another program.
TEST(Meeting, AStoreThatDoesNotAnswerIsNamed) {
  const Notes notes("meeting_silent");
  if (launch_from_environment()) return write_end_reason(notes, {});
  const auto [fd, port] = listen_at("127.0.0.1");
  const auto began = Clock::now();
  const std::vector<ExitRecord> ended =
      test::run_by_hand(1, [port = port](int) { return test::as_torchrun(1, 2, port); });
  EXPECT_EQ(ended[0].code, 3);
  expect_contains(notes.read(1).second,
                  base::concat("MASTER_PORT = ", port, ": 127.0.0.1:", port,
                               " accepts connections but has not answered as a rendezvous store for 15 s"));
  EXPECT_LT(Clock::now() - began, 25s);  // of a limit of ten minutes
  ::close(fd);
}

// Rank 2 waits longer than rank 0, so only rank 0's decision can end it in time.
TEST(Meeting, WhoDoesNotComeIsNamed) {
  const Notes notes("meeting_missing");
  if (const auto launch = launch_from_environment()) {
    if (launch->rank != 1) return write_end_reason(notes, {.timeout = launch->rank == 0 ? 8s : 60s});
    notes.write(1, "ended by itself");
    ::_exit(3);
  }
  const auto reported = collect_messages(notes, [](int) { return test::Variables{}; });
  for (const int rank : {0, 2}) expect_contains(reported[rank], "rank 1 (tp 0 pp 0 dp 1) did not start within 8 s");
}

GlooOptions two_rank_options(int rank, uint16_t port, std::chrono::milliseconds timeout) {
  GlooOptions options;
  options.rank = rank;
  options.world_size = 2;
  options.master_port = port;
  options.timeout = timeout;
  return options;
}

// A rank that is stopped after it has taken its place counts as one that has come.
TEST(Meeting, ARankThatDoesNotCountItselfHasCome) {
  if (launch_from_environment()) return;
  const auto port = static_cast<uint16_t>(test::free_port());
  const RunStore run = open_store(two_rank_options(0, port, 1s));
  run.store->set("come/1", as_bytes("another machine, process 1"));
  meet(run, two_rank_options(0, port, 1s), "127.0.0.1");
}

TEST(Meeting, RefusedSecretsAreNamedWithTheMissingRank) {
  if (launch_from_environment()) return;
  GlooOptions options = two_rank_options(0, static_cast<uint16_t>(test::free_port()), 1s);
  options.secret = "one";
  const RunStore run = open_store(options);
  GlooOptions other = two_rank_options(1, options.master_port, 10s);
  other.secret = "another";
  EXPECT_THROW(open_store(other), base::Error);
  try {
    meet(run, options, "127.0.0.1");
    ADD_FAILURE() << "rank 1 has not come";
  } catch (const base::Error& error) {
    expect_contains(error.what(),
                    "rank 1 did not start within 1 s; rank 0 refused 1 connections (the last from "
                    "127.0.0.1) because their METROPLEX_SECRET differs");
  }
}

// Rank 1 is stopped after it has joined the watch.
TEST(Meeting, ARankThatDoesNotConnectToTheOthersIsNamed) {
  if (launch_from_environment()) return;
  const auto port = static_cast<uint16_t>(test::free_port());
  std::atomic<bool> over{false};
  std::thread rank_1([&] {
    const GlooOptions options = two_rank_options(1, port, 60s);
    const RunStore run = open_store(options);
    meet(run, options, "127.0.0.1");
    WatchOptions watch;
    watch.rank = 1;
    watch.world_size = 2;
    watch.address = "127.0.0.1";
    watch.host = host_name();
    watch.secret = agree_on_secret(*run.store, options);
    watch.publish = [&](const std::string& key, const std::string& value) { run.store->set(key, as_bytes(value)); };
    watch.look_up = [&](const std::string& key) { return look_up(*run.store, key); };
    watch.on_failure = [](const std::string&) {};
    const WatchTree tree(watch);
    while (!over) std::this_thread::sleep_for(5ms);
  });
  GlooOptions options = two_rank_options(0, port, 4s);
  options.meet_first = true;
  try {
    const GlooContext context(options);
    ADD_FAILURE() << "rank 1 has connected";
  } catch (const base::Error& error) {
    expect_contains(error.what(), "within 4 s: rank 1 has not connected (not running, or stopped); ");
  }
  over = true;
  rank_1.join();
}

// A program at the port of the launcher's agent.
TEST(Meeting, AnotherProgramInPlaceOfTheAgentIsNamedInOneLine) {
  if (launch_from_environment()) return;
  const auto [fd, port] = listen_at("127.0.0.1");
  std::atomic<bool> over{false};
  std::thread program([&over, fd = fd] {
    while (!over) {
      const int peer = ::accept(fd, nullptr, nullptr);
      if (peer >= 0) ::close(peer);
      std::this_thread::sleep_for(5ms);
    }
  });
  GlooOptions options = two_rank_options(1, port, 2s);
  options.agent_store = true;
  testing::internal::CaptureStderr();
  std::string error;
  try {
    open_store(options);
  } catch (const base::Error& refused) { error = refused.what(); }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  expect_contains(error, "another program has the port");
  over = true;
  program.join();
  ::close(fd);
}

}  // namespace
}  // namespace metroplex::comm::watch_procs_test
