// The device and backend of ranks for every combination of run.device, run.backend and machine.
#include "config/device_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/support.h"
#include "config/validate.h"

namespace metroplex::config::device_choice_test {
namespace {

Run run_with(const std::string& device, const std::string& backend) {
  Run run;
  run.device = device;
  run.backend = backend;
  return run;
}

// Ranks of our own launcher, or one rank of an external launcher.
Machine own(int64_t gpus, int64_t ranks) {
  Machine machine;
  machine.num_gpus = gpus;
  machine.local_ranks = ranks;
  return machine;
}
Machine launched(const std::string& launcher, int64_t gpus, int64_t ranks, int64_t rank) {
  Machine machine = own(gpus, ranks);
  machine.launcher = launcher;
  machine.local_rank = rank;
  return machine;
}

Machine sharing(Machine machine) {
  machine.shares_gpus = true;
  return machine;
}

struct Case {
  const char *device, *backend;
  Machine machine;
  const char* wanted_backend;
  int64_t wanted_gpu;
};

TEST(DeviceChoice, TakesAGpuWhereEveryRankHasOneUnlessToldOtherwise) {
  const Case cases[] = {
      {"auto", "auto", own(0, 1), "threads", -1},
      {"auto", "auto", own(0, 8), "threads", -1},
      {"auto", "auto", own(1, 1), "threads", 0},
      {"auto", "auto", own(8, 8), "nccl", 0},
      {"auto", "auto", own(4, 8), "threads", -1},
      {"auto", "threads", own(8, 1), "threads", 0},
      {"auto", "threads", own(8, 8), "threads", -1},
      {"auto", "gloo", own(8, 8), "gloo", -1},
      {"cpu", "auto", own(8, 8), "threads", -1},
      {"cuda", "threads", own(1, 8), "threads", 0},
      {"cuda", "auto", own(1, 1), "threads", 0},
      {"cuda", "auto", own(2, 2), "nccl", 0},
      {"auto", "nccl", own(2, 1), "nccl", 0},
      {"auto", "auto", launched("torchrun", 8, 8, 5), "nccl", 5},
      {"auto", "auto", launched("torchrun", 8, 4, 3), "nccl", 3},
      {"auto", "auto", launched("metroplex", 8, 8, 7), "nccl", 7},
      {"auto", "auto", launched("torchrun", 1, 8, 5), "gloo", -1},
      {"auto", "auto", launched("torchrun", 0, 8, 5), "gloo", -1},
      {"cpu", "auto", launched("torchrun", 8, 8, 5), "gloo", -1},
      {"auto", "gloo", launched("torchrun", 8, 8, 5), "gloo", -1},
      {"auto", "auto", launched("Slurm", 1, 8, 5), "nccl", 0},
      {"cuda", "nccl", launched("Open MPI", 1, 2, 1), "nccl", 0},
      {"cuda", "auto", launched("torchrun", 8, 8, 5), "nccl", 5},
      {"cuda", "nccl", sharing(launched("metroplex", 1, 4, 3)), "nccl", 0},
      {"cuda", "nccl", sharing(launched("metroplex", 2, 4, 3)), "nccl", 1},
      {"auto", "nccl", sharing(own(1, 2)), "nccl", 0},
      {"auto", "auto", sharing(own(0, 2)), "threads", -1},
  };
  for (const Case& test_case : cases) {
    SCOPED_TRACE(base::concat(test_case.device, " ", test_case.backend, ", ", test_case.machine.local_ranks,
                              " ranks of ", test_case.machine.launcher, " on ", test_case.machine.num_gpus, " GPUs"));
    const DeviceChoice got = choose_device(run_with(test_case.device, test_case.backend), test_case.machine);
    EXPECT_STREQ(text_of(got.backend), test_case.wanted_backend);
    EXPECT_EQ(got.gpu, test_case.wanted_gpu);
  }
}

std::string refusal(const Run& run, const Machine& machine) {
  return catch_error([&] { choose_device(run, machine); });
}

TEST(DeviceChoice, WhoAsksForGpusNeverGetsTheCpu) {
  const auto expect_words = [](const std::string& text, const std::vector<const char*>& words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  expect_words(refusal(run_with("cuda", "auto"), own(0, 1)),
               {"run.device = cuda", "no GPU was found", "run.device = cpu"});
  expect_words(refusal(run_with("auto", "nccl"), own(0, 1)), {"run.backend = nccl", "no GPU was found"});
  Machine without_kernels = own(0, 1);
  without_kernels.no_gpu = "this program was built without nvcc";
  expect_words(refusal(run_with("cuda", "auto"), without_kernels), {"built without nvcc"});
  expect_words(refusal(run_with("cuda", "auto"), own(4, 8)), {"each of the 8 ranks", "there are 4", "at most 4"});
  expect_words(refusal(run_with("cuda", "nccl"), launched("torchrun", 1, 2, 0)), {"each of the 2 ranks"});
}

TEST(DeviceChoice, DeviceAndBackendThatExcludeEachOtherAreRefusedBeforeAMachineIsAsked) {
  const auto found = [](const std::string& device, const std::string& backend) {
    return described(violations(good({"run.device=" + device, "run.backend=" + backend}), kWorld));
  };
  EXPECT_NE(found("cpu", "nccl").find("run.device = cpu: excludes run.backend = nccl"), std::string::npos);
  EXPECT_NE(found("cuda", "gloo").find("run.device = cuda: excludes run.backend = gloo"), std::string::npos);
  for (const auto& [device, backend] : {std::pair("cuda", "nccl"), std::pair("cuda", "threads"),
                                        std::pair("auto", "nccl"), std::pair("cpu", "gloo")}) {
    EXPECT_EQ(found(device, backend).find("run.device"), std::string::npos) << device << " " << backend;
  }
}

}  // namespace
}  // namespace metroplex::config::device_choice_test
