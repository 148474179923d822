// GPUs that a build's device code supports.
#include "device/architectures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace metroplex::device::architectures_test {
namespace {

constexpr int kGpus[] = {75, 80, 86, 89, 90, 100, 103, 120};

std::vector<int> runs_on(std::string_view built) {
  std::vector<int> found;
  for (const int gpu : kGpus) {
    if (architectures_run_on(built, gpu)) found.push_back(gpu);
  }
  return found;
}

TEST(Architectures, RunByTheRulesOfCuda) {
  using List = std::vector<int>;
  EXPECT_EQ(runs_on("80-real"), (List{80, 86, 89}));
  EXPECT_EQ(runs_on("86-real"), (List{86, 89}));
  EXPECT_EQ(runs_on("90-real"), (List{90}));
  EXPECT_EQ(runs_on("90a-real"), (List{90}));
  EXPECT_EQ(runs_on("100-real"), (List{100, 103}));
  EXPECT_EQ(runs_on("100a-real"), (List{100}));
  EXPECT_EQ(runs_on("100f-real"), (List{100, 103}));
  EXPECT_EQ(runs_on("90-virtual"), (List{90, 100, 103, 120}));
  EXPECT_EQ(runs_on("90a-virtual"), (List{90}));
  EXPECT_EQ(runs_on("89"), (List{89, 90, 100, 103, 120}));
  EXPECT_EQ(runs_on("90a"), (List{90}));
  EXPECT_EQ(runs_on(""), List{});
  EXPECT_EQ(runs_on("native,sm_90;8 90-real-x"), List{});
  EXPECT_EQ(runs_on("80-real;90a-real"), (List{80, 86, 89, 90}));
}

TEST(Architectures, OfABuildWithoutAChoiceAreAllWithTensorCoresForBf16) {
  std::ifstream file(METROPLEX_SOURCE_DIR "/cmake/WithTorch.cmake");
  const std::string begin = "set(METROPLEX_DEFAULT_ARCHITECTURES ";
  std::string line;
  while (std::getline(file, line) && !line.starts_with(begin)) {}
  ASSERT_TRUE(file.good());
  const std::string list = line.substr(begin.size(), line.find(')') - begin.size());
  EXPECT_EQ(runs_on(list), (std::vector<int>{80, 86, 89, 90, 100, 103, 120})) << list;
}

TEST(Architectures, ToBuildRunsOnTheGpuThatWasAskedFor) {
  for (const int gpu : kGpus) {
    const std::string one = architecture_for(gpu);
    EXPECT_EQ(one.empty(), gpu < 80) << gpu;
    EXPECT_TRUE(one.empty() || architectures_run_on(one, gpu)) << one;
  }
  EXPECT_EQ(architecture_for(90), "90a-real");
  EXPECT_EQ(real_architectures({800, 900}), "80-real,90-real");
  EXPECT_EQ(architecture_for(89), "89-real");
}

}  // namespace
}  // namespace metroplex::device::architectures_test
