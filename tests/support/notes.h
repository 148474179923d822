// Results that the ranks of a test write for the parent process: one file per rank, "<nanoseconds>
// <text>".
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "comm/launch.h"

namespace metroplex::test {

using Clock = std::chrono::steady_clock;  // the same clock in all processes of a machine

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

class Notes {
 public:
  explicit Notes(const std::string& name) : folder_(std::filesystem::temp_directory_path() / ("metroplex_" + name)) {
    if (comm::launch_from_environment()) return;
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Notes() {
    if (!comm::launch_from_environment()) std::filesystem::remove_all(folder_);
  }
  void write(int rank, const std::string& text) const {
    std::ofstream(folder_ / std::to_string(rank)) << Clock::now().time_since_epoch().count() << "\n" << text;
  }
  std::pair<Clock::time_point, std::string> read(int rank) const {
    std::ifstream file(folder_ / std::to_string(rank));
    int64_t ticks = 0;
    std::string text;
    file >> ticks;
    file.get();
    std::getline(file, text, '\0');
    return {Clock::time_point(Clock::duration(ticks)), text};
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace metroplex::test
