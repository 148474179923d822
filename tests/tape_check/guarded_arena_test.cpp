// Memory accesses outside of recorded operations, detected by a protected arena.
#include "tape_check/guarded_arena.h"

#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/launch_point.h"
#include "support/record_tape.h"

namespace metroplex::tape_check::guarded_arena_test {
namespace {

using test::expect_finding;
using Kind = FindingKind;

void add_one(double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += 1;
}

struct Work {
  graph::TapeRecorder recorder;
  GuardedArena arena{recorder};
  at::Tensor weight, input, state;

  Work() {
    const graph::TapeHooks hooks(nullptr, arena.outside());
    weight = at::full({3, 3}, 0.5, at::kDouble);
    input = at::ones({2000, 3}, at::kDouble);  // several pages
    state = at::zeros({2000, 3}, at::kDouble);
  }
  void kernel(const at::Tensor& x) {
    device::launch({at::kCPU, &recorder, false}, {"add_one", {&x}, {&x}}, add_one, device::CpuOnly{},
                   static_cast<double*>(x.mutable_data_ptr()), x.numel());
  }
  graph::Tape record(const std::function<void(const at::Tensor&)>& second_layer) {
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

// ThreadSanitizer does not forward every fault.
class GuardedArenaTest : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer keeps faults to itself";
#endif
  }
};

TEST_F(GuardedArenaTest, OperationsKernelsAndConstantsOfLibtorchAreNoFinding) {
  Work work;
  const graph::Tape tape = work.record([](const at::Tensor& x) { at::softmax(x, -1).add_(3.0).pow_(2.5); });
  EXPECT_EQ(report(work.arena.findings()), "");
  EXPECT_EQ(report(check_tape({tape, *work.arena.inside()})), "");
  EXPECT_GT(tape.operations.size(), 6u);
  // All pages are accessible again and hold an eager run's values.
  EXPECT_TRUE(at::equal(work.state, at::full({2000, 3}, 0.5, at::kDouble)));
}

TEST_F(GuardedArenaTest, AReadThroughAPointerIsNamedAndGoesThrough) {
  Work work;
  double seen = 0;
  work.record([&](const at::Tensor& x) { seen = x.const_data_ptr<double>()[4000]; });
  EXPECT_EQ(seen, 2.5);
  expect_finding(work.arena.findings(), Kind::host_access, "add_one", "layer 1",
                 "after this operation the host reads through a pointer at 0x");
  EXPECT_EQ(work.arena.findings().size(), 1u);
  EXPECT_NE(report(work.arena.findings()).find("tape_check_test+0x"), std::string::npos)
      << report(work.arena.findings());
}

TEST_F(GuardedArenaTest, AReadOfWhatWasThereBeforeIsNamed) {
  Work work;
  double seen = 0;
  work.record([&](const at::Tensor&) { seen = *work.weight.const_data_ptr<double>(); });
  EXPECT_EQ(seen, 0.5);
  work.record([&](const at::Tensor&) { seen = *work.state.const_data_ptr<double>(); });  // outside of any operation
                                                                                         // so far
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
  const graph::Tape tape = work.record([&](const at::Tensor& x) {
    EXPECT_EQ(x.max().item<double>(), 2.5);
    device::read_on_host({at::kCPU, &work.recorder, false}, x);
  });
  EXPECT_EQ(report(work.arena.findings()), "");
  EXPECT_EQ(check_tape({tape, *work.arena.inside()}).size(), 2u);
}

TEST_F(GuardedArenaTest, AKernelThatTouchesWhatItsLaunchDoesNotNameIsNamed) {
  Work work;
  work.record([&](const at::Tensor& x) {
    device::launch(
        {at::kCPU, &work.recorder, false}, {"copies", {}, {&x}},
        [](const double* from, double* to) { to[0] = from[0]; }, device::CpuOnly{},
        work.input.const_data_ptr<double>(), x.mutable_data_ptr<double>());
  });
  expect_finding(work.arena.findings(), Kind::undeclared, "copies", "layer 1", "it reads through a pointer");
}

#if defined(__x86_64__)
// As in sgemm kernels whose stack pointer is a heap workspace while they read a matrix.
double load_with_stack_at(void* stack, const double* from) {
  double value = 0;
  asm volatile(
      "mov %%rsp, %%r12\n"
      "mov %1, %%rsp\n"
      "movsd (%2), %0\n"
      "mov %%r12, %%rsp\n"
      : "=&x"(value)
      : "r"(stack), "r"(from)
      : "r12", "memory");
  return value;
}

TEST_F(GuardedArenaTest, NothingIsWrittenBelowAStackPointerThatIsNone) {
  Work work;
  constexpr size_t kHalf = size_t{256} << 10;
  std::vector<std::byte> heap(2 * kHalf, std::byte{0x5a});
  std::byte* const middle = heap.data() + kHalf;
  at::Tensor out;
  double beside = 0;
  work.record([&](const at::Tensor& x) {
    const auto* from = work.input.const_data_ptr<double>();
    device::launch(
        {at::kCPU, &work.recorder, false}, {"copies", {}, {&x}},
        [](void* stack, const double* source, double* to) { to[0] = load_with_stack_at(stack, source); },
        device::CpuOnly{}, static_cast<void*>(middle), from, x.mutable_data_ptr<double>());
    beside = load_with_stack_at(middle, from);
    out = x;
  });
  EXPECT_EQ(*out.const_data_ptr<double>(), 1);
  EXPECT_EQ(beside, 1);
  EXPECT_EQ(std::count(heap.begin(), heap.end(), std::byte{0x5a}), static_cast<std::ptrdiff_t>(heap.size()));
  const std::vector<Finding> found = work.arena.findings();
  ASSERT_EQ(found.size(), 2u) << report(found);
  EXPECT_EQ(found[0].kind, Kind::undeclared);
  EXPECT_EQ(found[1].kind, Kind::host_access);
  // The message has the instruction but not its caller.
  for (const Finding& finding : found) {
    EXPECT_NE(finding.text.find("; in tape_check_test+0x"), std::string::npos) << finding.text;
    EXPECT_EQ(finding.text.find(" < "), std::string::npos) << finding.text;
  }
}
#endif

TEST_F(GuardedArenaTest, AnOperationIsComputedByTheThreadThatRecords) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  Work work;
  at::Tensor wide;
  {
    const graph::TapeHooks hooks(nullptr, work.arena.outside());
    wide = at::ones({400, 400}, at::kFloat);  // enough for several threads
  }
  int inside = 0;
  work.record([&](const at::Tensor&) {
    inside = at::get_num_threads();
    at::mm(wide, wide).add_(wide).sum();
  });
  EXPECT_EQ(inside, 1);
  EXPECT_EQ(at::get_num_threads(), 4);
  EXPECT_EQ(report(work.arena.findings()), "");
  at::set_num_threads(before);
}

TEST_F(GuardedArenaTest, HandlerAndSignalStackAreGivenBack) {
  stack_t stack_before{}, stack_after{};
  struct sigaction before {
  }, after{};
  sigaltstack(nullptr, &stack_before);
  sigaction(SIGSEGV, nullptr, &before);
  Work work;
  stack_t inside{};
  work.record([&](const at::Tensor&) { sigaltstack(nullptr, &inside); });
  sigaltstack(nullptr, &stack_after);
  sigaction(SIGSEGV, nullptr, &after);
  EXPECT_NE(inside.ss_sp, stack_before.ss_sp);
  EXPECT_EQ(stack_after.ss_sp, stack_before.ss_sp);
  EXPECT_EQ(stack_after.ss_flags, stack_before.ss_flags);
  EXPECT_EQ(after.sa_sigaction, before.sa_sigaction);
}

TEST_F(GuardedArenaTest, AnOperationThatOpensManyBlocksLeavesNoneOpen) {
  Work work;
  std::vector<at::Tensor> many;
  {
    const graph::TapeHooks hooks(nullptr, work.arena.outside());
    for (int i = 0; i < 600; ++i) many.push_back(at::ones({1}, at::kDouble));
  }
  double seen = 0;
  work.record([&](const at::Tensor&) {
    const at::Tensor sum = at::stack(many);
    seen = *many.front().const_data_ptr<double>() + *many.back().const_data_ptr<double>();
  });
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(work.arena.findings().size(), 2u);
}

TEST_F(GuardedArenaTest, AccessesBeyondTheRoomForThemAreCounted) {
  AccessLog log(2);
  for (int i = 0; i < 5; ++i) {
    if (Access* access = log.add()) access->operation.set(std::string(500, 'x'));
  }
  ASSERT_EQ(log.findings().size(), 2u);
  EXPECT_EQ(log.findings()[0].operation, std::string(120, 'x'));
  EXPECT_NE(log.findings()[1].text.find("; and 3 more accesses"), std::string::npos);
}

// Each death test starts a new process: a forked one has no OpenMP threads.
class GuardedArenaDeathTest : public GuardedArenaTest {
  void SetUp() override {
    GuardedArenaTest::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }

 public:
  static void write_to_closed() {
    auto* closed = static_cast<volatile int*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    Work work;
    work.record([&](const at::Tensor&) { *closed = 1; });
  }
};

TEST_F(GuardedArenaDeathTest, WhatIsNotOfTheArenaStillEndsTheProcess) { EXPECT_DEATH(write_to_closed(), ""); }

TEST_F(GuardedArenaDeathTest, WhatIsNotOfTheArenaGoesToWhoeverHadTheSignal) {
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, [](int) { _exit(42); });
        write_to_closed();
      },
      testing::ExitedWithCode(42), "");
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
}  // namespace metroplex::tape_check::guarded_arena_test
