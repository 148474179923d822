// Accesses to memory beside all recorded operations, found by a closed arena.
#include "cuda/graph/guarded_arena.h"

#include <sys/mman.h>

#include "cuda/host_read.h"
#include "support/record_tape.h"

namespace metroplex::cuda::guarded_arena_test {
namespace {

using test::expect_finding;
using Kind = FindingKind;

void add_one(double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += 1;
}

struct Work {
  TapeRecorder recorder;
  GuardedArena arena{recorder};
  at::Tensor weight, input, state;

  Work() {
    const TapeHooks hooks(nullptr, arena.outside());
    weight = at::full({3, 3}, 0.5, at::kDouble);
    input = at::ones({2000, 3}, at::kDouble);  // several pages
    state = at::zeros({2000, 3}, at::kDouble);
  }
  void kernel(const at::Tensor& x) {
    launch({at::kCPU, &recorder, false}, {"add_one", {&x}, {&x}}, add_one, CpuOnly{},
           static_cast<double*>(x.mutable_data_ptr()), x.numel());
  }
  Tape record(const std::function<void(const at::Tensor&)>& second_layer) {
    const c10::NoGradGuard no_grad;
    return arena.record([&] {
      recorder.set_place("layer 0");
      const at::Tensor x = at::mm(input, weight);
      kernel(x);
      recorder.set_place("layer 1");
      second_layer(x);
      recorder.set_place("layer 2");
      state.copy_(at::where(x > 0, 0.5, x) + at::scalar_tensor(2.0, at::kDouble) * state);
    });
  }
};

// The thread sanitizer does not hand every fault on.
class GuardedArenaTest : public testing::Test {
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer keeps faults to itself";
#endif
  }
};

TEST_F(GuardedArenaTest, OperationsKernelsAndConstantsOfLibtorchAreNoFinding) {
  Work work;
  const Tape tape = work.record([](const at::Tensor& x) { at::softmax(x, -1).add_(3.0).pow_(2.5); });
  EXPECT_EQ(report(work.arena.findings()), "");
  EXPECT_EQ(report(check_tape({tape, *work.arena.inside()})), "");
  EXPECT_GT(tape.operations.size(), 6u);
  // All is open again, and holds what an eager run gives.
  EXPECT_TRUE(at::equal(work.state, at::full({2000, 3}, 0.5, at::kDouble)));
}

TEST_F(GuardedArenaTest, AReadThroughAPointerIsNamedAndGoesThrough) {
  Work work;
  double seen = 0;
  work.record([&](const at::Tensor& x) { seen = x.const_data_ptr<double>()[4000]; });
  EXPECT_EQ(seen, 2.5);
  expect_finding(work.arena.findings(), Kind::host_access, "add_one", "layer 1",
                 "behind this operation the host reads through a pointer at 0x");
  EXPECT_EQ(work.arena.findings().size(), 1u);
  EXPECT_NE(report(work.arena.findings()).find("cuda_test+0x"), std::string::npos) << report(work.arena.findings());
}

TEST_F(GuardedArenaTest, AReadOfWhatWasThereBeforeIsNamed) {
  Work work;
  double seen = 0;
  work.record([&](const at::Tensor&) { seen = *work.weight.const_data_ptr<double>(); });
  EXPECT_EQ(seen, 0.5);
  work.record([&](const at::Tensor&) { seen = *work.state.const_data_ptr<double>(); });  // of no operation so far
  EXPECT_EQ(seen, 0.5);
  expect_finding(work.arena.findings(), Kind::host_access, "add_one", "layer 1", "reads");
  EXPECT_EQ(work.arena.findings().size(), 2u);
}

TEST_F(GuardedArenaTest, AWriteThroughAPointerIsNamedButNotWhereNoOperationHasBeen) {
  Work work;
  work.record([&](const at::Tensor& x) {
    at::Tensor fresh = at::empty({3}, at::kDouble);
    for (int i = 0; i < 3; ++i) fresh.mutable_data_ptr<double>()[i] = i;
    EXPECT_EQ(fresh.const_data_ptr<double>()[2], 2);
    x.add_(fresh);
  });
  EXPECT_EQ(report(work.arena.findings()), "");
  work.record([&](const at::Tensor& x) {
    at::Tensor fresh = at::ones({3}, at::kDouble);
    x.add_(fresh);
    fresh.mutable_data_ptr<double>()[1] = 7;
    x.add_(fresh);
  });
  expect_finding(work.arena.findings(), Kind::host_access, "aten::add_.Tensor", "layer 1", "writes");
}

TEST_F(GuardedArenaTest, EveryAccessBehindAnotherOperationIsSeen) {
  Work work;
  work.record([&](const at::Tensor& x) {
    const auto* values = x.const_data_ptr<double>();
    volatile double seen = values[0];
    x.sin_();
    seen = values[0];
    x.cos_();
    seen = values[0];
    (void)seen;
  });
  std::vector<std::string> operations;
  for (const Finding& finding : work.arena.findings()) operations.push_back(finding.operation);
  EXPECT_EQ(operations, (std::vector<std::string>{"add_one", "aten::sin_", "aten::cos_"}));
}

TEST_F(GuardedArenaTest, AReadThatTheRecorderSeesIsNotSeenTwice) {
  Work work;
  const Tape tape = work.record([&](const at::Tensor& x) {
    EXPECT_EQ(x.max().item<double>(), 2.5);
    read_on_host({at::kCPU, &work.recorder, false}, x);
  });
  EXPECT_EQ(report(work.arena.findings()), "");
  EXPECT_EQ(check_tape({tape, *work.arena.inside()}).size(), 2u);
}

TEST_F(GuardedArenaTest, AKernelThatTouchesWhatItsLaunchDoesNotNameIsNamed) {
  Work work;
  work.record([&](const at::Tensor& x) {
    launch(
        {at::kCPU, &work.recorder, false}, {"copies", {}, {&x}},
        [](const double* from, double* to) { to[0] = from[0]; }, CpuOnly{}, work.input.const_data_ptr<double>(),
        x.mutable_data_ptr<double>());
  });
  expect_finding(work.arena.findings(), Kind::undeclared, "copies", "layer 1", "it reads through a pointer");
}

TEST_F(GuardedArenaTest, WhatIsNotOfTheArenaStillEndsTheProcess) {
  void* closed = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(closed, MAP_FAILED);
  EXPECT_DEATH(
      {
        Work work;
        work.record([&](const at::Tensor&) { *static_cast<volatile int*>(closed) = 1; });
      },
      "");
  munmap(closed, 4096);
}

TEST_F(GuardedArenaTest, AfterAnExceptionAllIsOpen) {
  Work work;
  EXPECT_THROW(work.record([](const at::Tensor&) { throw std::runtime_error("planted"); }), std::runtime_error);
  EXPECT_EQ(*work.weight.const_data_ptr<double>(), 0.5);
  EXPECT_FALSE(work.recorder.recording());
  work.record([](const at::Tensor&) {});
  EXPECT_EQ(report(work.arena.findings()), "");
}

}  // namespace
}  // namespace metroplex::cuda::guarded_arena_test
