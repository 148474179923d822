// Runs the calling test's body on N ranks as processes over gloo. The test program starts one copy of itself per rank
// with only this test. The parent gets the launcher's result; a rank runs the body and never returns.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "comm/launch.h"
#include "comm/spawn.h"
#include "support/run_ranks.h"

namespace metroplex::test {

struct ProcessesOptions {
  comm::ProcessOptions process{};
  std::chrono::milliseconds grace{800};
};

inline std::optional<comm::SpawnResult> run_processes(int num_ranks, const Layout& layout, const comm::RankBody& body,
                                                      const ProcessesOptions& options = {}) {
  const topology::RankGrid grid = make_grid(num_ranks, layout);
  if (const auto launch = comm::launch_from_environment()) {
    try {
      comm::run_process(*launch, grid, options.process, [&](const comm::World& world) {
        body(world);
        if (testing::Test::HasFailure()) throw base::Error("test", "an expectation failed");
      });
    } catch (...) {
      // The static destructors of libtorch would take longer than the test.
      const std::string cause = comm::failure_cause(std::current_exception()) + "\n";
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, cause.data(), cause.size());
      ::_exit(3);
    }
    return std::nullopt;
  }
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  comm::SpawnOptions spawn;
  spawn.command = {"/proc/self/exe", std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name(),
                   "--gtest_brief=1"};
  spawn.num_processes = num_ranks;
  spawn.grace = options.grace;
  spawn.rank_name = comm::rank_formatter(grid);
  return comm::spawn_processes(spawn);
}

inline void run_processes_well(int num_ranks, const Layout& layout, const comm::RankBody& body) {
  const auto result = run_processes(num_ranks, layout, body);
  if (result) { EXPECT_EQ(result->rank, -1) << result->message; }
}

}  // namespace metroplex::test
