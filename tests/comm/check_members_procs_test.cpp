// Members of a gloo mesh authenticate each other with the run's secret. Not part of comm_test: ThreadSanitizer
// reports c10d's statics.
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <thread>

#include "comm/backends/gloo_state.h"
#include "support/error_of.h"

namespace metroplex::comm::check_members_procs_test {
namespace {

// Returns the error of each of three members, or "".
std::array<std::string, 3> outcomes(const std::array<std::string, 3>& secrets,
                                    const std::array<std::string, 3>& keys) {
  prepare_c10d();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::array<std::string, 3> errors;
  std::vector<std::thread> threads;
  for (int index = 0; index < 3; ++index) {
    threads.emplace_back([&, index] {
      auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
      options->threads = 1;
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      const auto mesh = c10::make_intrusive<c10d::ProcessGroupGloo>(store, index, 3, options);
      const auto i = static_cast<size_t>(index);
      errors[i] = test::catch_error([&] { check_members(mesh, secrets[i], keys[i], index, 3); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(CheckMembers, OnlyMembersWithTheSecretOfTheRunPass) {
  for (const std::string& error : outcomes({"one", "one", "one"}, {"a", "a", "a"})) EXPECT_EQ(error, "");
  const auto errors = outcomes({"one", "one", "another"}, {"a", "a", "a"});
  for (const size_t index : {0, 1})
    EXPECT_NE(errors[index].find("member 2 of the ranks of a does not have the run's secret"), std::string::npos)
        << errors[index];
  EXPECT_NE(errors[2].find("member 0"), std::string::npos) << errors[2];
  for (const std::string& error : outcomes({"one", "one", "one"}, {"a", "b", "c"})) EXPECT_NE(error, "");
}

}  // namespace
}  // namespace metroplex::comm::check_members_procs_test
