// A working folder for tests of launch scripts that no test case may change.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

#include "base/error.h"
#include "megatron/launch_script.h"
#include "support/error_of.h"

namespace metroplex::test {

class LaunchScripts : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  LaunchScripts() : home_(std::filesystem::current_path()) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("metroplex_") + test->name() + std::to_string(getpid()));
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "PET_NNODES", "PET_NPROC_PER_NODE", "WORLD_SIZE"})
      unsetenv(name);
    std::filesystem::create_directories(folder_);
    std::filesystem::current_path(folder_);
  }
  ~LaunchScripts() override {
    std::filesystem::current_path(home_);
    std::filesystem::remove_all(folder_);
  }
  void write(const std::string& text, const std::string& name = "run.sh") { std::ofstream(name) << text; }
  megatron::LaunchScript read(const std::string& text, const Words& arguments = {}) {
    write(text);
    return megatron::read_launch_script("run.sh", arguments);
  }
  std::string refused(const std::string& text, const Words& arguments = {}) {
    return catch_error([&] { read(text, arguments); });
  }
  Words files() const {
    Words names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator("."))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::filesystem::path folder_, home_;
};

}  // namespace metroplex::test
