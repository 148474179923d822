// Diagnostics of one tape, or of two tapes of the same work. Each fault is planted into a small callable of libtorch
// operators and kernels, and found with its operator and location.
#include "tape_check/tape_findings.h"

#include <ATen/ScalarOps.h>

#include <thread>

#include "device/launch_point.h"
#include "support/record_tape.h"

namespace metroplex::tape_check::tape_findings_test {
namespace {

using test::expect_finding;
using test::record_tape;
using test::RecordedTape;
using Kind = FindingKind;

struct Scaling {
  const double* in = nullptr;
  double* out = nullptr;
  int count = 0;  // padding follows
  double factor = 1;
};
void scale(const Scaling& scaling) {
  for (int i = 0; i < scaling.count; ++i) scaling.out[i] = scaling.factor * scaling.in[i];
}

// For example a gather of the last step, whose event does not belong to a GPU's capture.
TEST(TapeRecorder, RefusesToWaitForACallThatBeganBeforeTheCapture) {
  int before = 0, inside = 0;
  const auto call = [](const char* name, const void* work) {
    device::Operation operation{name, "dp", {}, {}, {}, [] {}};
    operation.work = work;
    return operation;
  };
  graph::TapeRecorder recorder;
  recorder.run(call("all_gather", &before));
  recorder.begin(std::make_shared<graph::TapePool>());
  recorder.run(call("all_gather", &inside));
  EXPECT_NO_THROW(recorder.run(call("wait", &inside)));
  try {
    recorder.run(call("wait", &before));
    FAIL() << "nothing was thrown";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("waits for a call on dp that began before"), std::string::npos)
        << error.what();
  }
  recorder.abandon();
  EXPECT_NO_THROW(recorder.run(call("wait", &before)));
}

// Two layers on static inputs; tests set the fault.
struct Work {
  graph::TapeRecorder recorder;
  at::Tensor input = at::zeros({4, 3}, at::kDouble), weight = at::full({3, 3}, 0.5, at::kDouble);
  at::Tensor state = at::zeros({4, 3}, at::kDouble);
  std::vector<at::Tensor> kept;

  at::Tensor scaled(const at::Tensor& x, double declared, double undeclared) {
    const at::Tensor out = at::empty_like(x);
    const Scaling scaling{static_cast<const double*>(x.const_data_ptr()),
                          static_cast<double*>(out.mutable_data_ptr()), static_cast<int>(x.numel()),
                          declared * undeclared};
    device::launch({at::kCPU, &recorder, false}, {"scale", {&x}, {&out}, {{"factor", declared}}}, scale,
                   device::CpuOnly{}, scaling);
    return out;
  }
  void set_place(const char* place) { recorder.set_place(place); }

  RecordedTape record(double value, const std::function<void()>& second_layer) {
    input.fill_(value);
    return record_tape(recorder, [&] {
      set_place("layer 0");
      const at::Tensor x = at::mm(input, weight).relu() * 2.0;
      set_place("layer 1");
      second_layer();
      set_place("layer 2");
      state.copy_(scaled(x, 3.0, 1.0) + state);
    });
  }
  // Records twice on different inputs; calls `fault` with the recording number in layer 1.
  std::vector<Finding> twice(const std::function<void(int)>& fault) {
    const RecordedTape first = record(1, [&] { fault(0); }), second = record(2, [&] { fault(1); });
    std::vector<Finding> found;
    for (const auto& more : {check_tape(first.recording()), check_tape(second.recording()),
                             compare(first.recording(), second.recording())})
      found.insert(found.end(), more.begin(), more.end());
    return found;
  }
};

TEST(TapeFindings, WorkThatRepeatsHasNone) {
  Work work;
  EXPECT_EQ(report(work.twice([&](int) {
              const at::Tensor y = at::softmax(work.input, -1).add_(work.state, 0.25);
              work.weight.add_(at::mm(y.t(), y), 0.125);
              work.state.copy_(work.scaled(y, 2.0, 1.0));
              work.state.mul_(at::where(y.sum() > 0, 0.5, 0.25));
            })),
            "");
}

TEST(TapeFindings, AnotherSequenceOfOperatorsIsNamedWithItsNeighbours) {
  Work work;
  expect_finding(work.twice([&](int time) {
    const at::Tensor y = work.state.sigmoid();
    if (time == 1) y.tanh_();
    y.sqrt_();
  }),
                 Kind::other_sequence, "aten::tanh_", "layer 1", "aten::tanh_ (layer 1) aten::sqrt_ (layer 1)");
  expect_finding(work.twice([&](int time) {
    if (time == 0) work.state.sin_();
  }),
                 Kind::other_sequence, "aten::sin_", "layer 1", "after aten::mul.Scalar");
}

TEST(TapeFindings, AnotherShapeIsNamedOnceAndWhatFollowsIsCounted) {
  Work work;
  expect_finding(work.twice([&](int time) { work.state.narrow(0, 0, 3 - time).sin_().cos_(); }), Kind::other_shape,
                 "aten::sin_", "layer 1", "Double [3, 3] with strides [3, 1], and Double [2, 3]");
}

TEST(TapeFindings, AnotherAddressInThePoolIsNamed) {
  Work work;
  expect_finding(work.twice([&](int time) {
    if (time == 1) work.kept.push_back(at::empty({12}, at::kDouble));
    work.kept.push_back(work.state.exp());
  }),
                 Kind::other_address, "aten::exp", "layer 1", "bytes into the pool");
}

TEST(TapeFindings, AStaleNumberOfTheHostIsNamed) {
  Work work;
  const auto changes = [](int time) { return time == 0 ? 0.1 : 0.2; };
  expect_finding(work.twice([&](int time) { work.state.mul_(changes(time)); }), Kind::stale_number,
                 "aten::mul_.Scalar", "layer 1", "other = 0.1, and other = 0.2");
  // A number that libtorch puts into a tensor without its dispatcher.
  expect_finding(work.twice([&](int time) { work.state.mul_(c10::scalar_to_tensor(changes(time))); }),
                 Kind::stale_number, "aten::mul_.Tensor", "layer 1", "constant = 0.1, and constant = 0.2");
  expect_finding(work.twice([&](int time) { work.state.add_(work.input, changes(time)); }), Kind::stale_number,
                 "aten::add_.Tensor", "layer 1", "alpha = 0.1, and alpha = 0.2");
  expect_finding(work.twice([&](int time) { work.state.copy_(work.scaled(work.input, changes(time), 1.0)); }),
                 Kind::stale_number, "scale", "layer 1", "factor = 0.1, and factor = 0.2");
}

// The counts of one expert are one element, which a kernel may fill after the view was taken.
TEST(TapeFindings, AViewOfAnElementThatNothingHasWrittenYetReadsNoNumber) {
  Work work;
  EXPECT_EQ(report(work.twice([&](int time) {
              at::Tensor one = at::empty({1}, at::kDouble);
              *one.mutable_data_ptr<double>() = time == 0 ? 0.1 : 0.2;
              work.kept.push_back(one.detach());
              work.kept.push_back(one.view({1, 1}));
            })),
            "");
}

// The same holds for an element that is written and not read.
TEST(TapeFindings, ACopyIntoAnElementReadsNoNumberOfIt) {
  Work work;
  EXPECT_EQ(report(work.twice([&](int) {
              const at::Tensor count = at::empty({1}, at::kDouble);
              count.copy_(work.state.view(-1).narrow(0, 0, 1));
              work.state.add_(count);
            })),
            "");
}

TEST(TapeFindings, ANumberThatALaunchDoesNotNameIsFoundAmongItsArguments) {
  Work work;
  const auto found =
      work.twice([&](int time) { work.state.copy_(work.scaled(work.input, 1.0, time == 0 ? 0.1 : 0.2)); });
  expect_finding(found, Kind::stale_number, "scale", "layer 1", "bytes 24 to 32");
  expect_finding(found, Kind::stale_number, "scale", "layer 1", "are 0.1, and 0.2");
  EXPECT_EQ(found.size(), 1u);  // pointers into the pools are excluded
}

TEST(TapeFindings, AnInputThatWasNotCopiedInIsNamed) {
  Work work;
  // Still allocated: another address.
  std::vector<at::Tensor> batches{at::ones({4, 3}, at::kDouble), at::zeros({4, 3}, at::kDouble)};
  expect_finding(work.twice([&](int time) { work.state.add_(batches[static_cast<size_t>(time)]); }),
                 Kind::input_not_copied, "aten::add_.Tensor", "layer 1", "elsewhere in the other recording");
  // Already freed: the address may be reused.
  const RecordedTape tape = [&] {
    const at::Tensor batch = at::ones({4, 3}, at::kDouble);
    return work.record(1, [&] { work.state.add_(batch); });
  }();
  expect_finding(check_tape(tape.recording()), Kind::input_not_copied, "aten::add_.Tensor", "layer 1",
                 "96 bytes from outside the pool have been freed since");
}

at::Tensor allocated_elsewhere() {
  at::Tensor scratch;
  std::thread([&] { scratch = at::empty({4, 3}, at::kDouble); }).join();
  return scratch;
}

TEST(TapeFindings, AnAllocationFromOutsideThePoolIsNamed) {
  Work work;
  const auto fault = [&](bool keeps) {
    return [&work, keeps](int) {
      const at::Tensor scratch = allocated_elsewhere();
      at::exp_out(const_cast<at::Tensor&>(scratch), work.input);
      work.state.add_(scratch);
      if (keeps) work.kept.push_back(scratch);
    };
  };
  expect_finding(work.twice(fault(true)), Kind::outside_pool, "aten::exp.out", "layer 1",
                 "elsewhere in the other recording");
  const RecordedTape tape = work.record(1, [&] { fault(false)(0); });
  expect_finding(check_tape(tape.recording()), Kind::outside_pool, "aten::exp.out", "layer 1",
                 "have been freed since");
}

TEST(TapeFindings, AValueReadOnTheHostIsNamed) {
  Work work;
  expect_finding(check_tape(work.record(1, [&] { EXPECT_EQ(work.input.sum().item<double>(), 12); }).recording()),
                 Kind::host_access, "aten::_local_scalar_dense", "layer 1");
  expect_finding(check_tape(work.record(1, [&] { at::nonzero(work.input); }).recording()), Kind::host_access,
                 "aten::nonzero", "layer 1");
  expect_finding(check_tape(work.record(1, [&] { EXPECT_TRUE(work.input.max().is_nonzero()); }).recording()),
                 Kind::host_access, "aten::_local_scalar_dense", "layer 1");
  expect_finding(check_tape(work.record(1,
                                        [&] {
                                          device::read_on_host({at::kCPU, &work.recorder, false}, work.input);
                                        })
                                .recording()),
                 Kind::host_access, "read_on_host", "layer 1");
}

TEST(TapeFindings, TheReportSaysEachOnce) {
  const std::vector<Finding> found{{Kind::host_access, "aten::item", "layer 1", "a"},
                                   {Kind::host_access, "aten::item", "layer 1", "b"},
                                   {Kind::other_shape, "aten::mm", "", "c"}};
  EXPECT_EQ(report(found), "the host reads values: aten::item of layer 1: a\nanother shape: aten::mm: c\n");
}

TEST(TapeFindings, StridesAreComparedWhereAddressAndShapeAreTheSame) {
  graph::TapeRecorder recorder;
  const at::Tensor x = at::ones({3, 3}, at::kDouble), y = at::zeros({3, 3}, at::kDouble);
  const auto recorded = [&](const at::Tensor& from) {
    return test::record_tape(recorder, [&] {
      at::Tensor to = y;
      at::sin_out(to, from);
    });
  };
  const test::RecordedTape first = recorded(x), second = recorded(x.t()), again = recorded(x);
  EXPECT_EQ(report(compare(first.recording(), again.recording())), "");
  const std::vector<Finding> found = compare(first.recording(), second.recording());
  ASSERT_EQ(found.size(), 1u) << report(found);
  EXPECT_EQ(found[0].kind, FindingKind::other_shape);
  EXPECT_NE(found[0].text.find("strides [1, 3]"), std::string::npos) << found[0].text;
}

}  // namespace
}  // namespace metroplex::tape_check::tape_findings_test
