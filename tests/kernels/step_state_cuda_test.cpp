// The kernels of the step decision: a GPU has the bits of the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "device/device.h"
#include "kernels/step_state_case.h"
#include "support/gpu.h"

namespace metroplex::kernels::test::step_state_cuda_test {
namespace {

at::Tensor make_tensor(const void* numbers, size_t bytes) {
  return at::from_blob(const_cast<void*>(numbers), {static_cast<int64_t>(bytes / sizeof(double))}, at::kDouble);
}
template <class T>
at::Tensor on_gpu(const T& numbers) {
  return make_tensor(&numbers, sizeof(T)).to(at::kCUDA);
}
template <class T>
T* at_gpu(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

void check_judgements() {
  uint64_t random = 1;
  const auto draw = [&] {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(random >> 40) / static_cast<double>(1 << 24);
  };
  for (int i = 0; i < 500; ++i) {
    Case test_case;
    test_case.rules.scale = {i % 2 == 0, i % 4 == 0, 1.5F, 2.1F, 0.3F, 3, 2};
    test_case.rules.per_token = i % 3 == 0;
    test_case.rules.max_norm = draw();
    test_case.rules.skip_threshold = 4 * draw();
    test_case.values.loss_scale = static_cast<float>(1 + 100 * draw());
    test_case.values.growth_tracker = i % 4;
    test_case.values.hysteresis_tracker = 2 - i % 3;
    test_case.sums.tokens = 100 * draw();
    test_case.numbers[0] = i % 10 == 9 ? kInf : draw();
    const at::Tensor values = on_gpu(test_case.values), rates = on_gpu(test_case.rates),
                     sums = on_gpu(test_case.sums), numbers = on_gpu(test_case.numbers),
                     verdict = on_gpu(test_case.verdict),
                     table = at::tensor(test_case.table, at::kDouble).to(at::kCUDA);
    judge_step_cuda(test_case.rules,
                    {at_gpu<StepValues>(values), at_gpu<GroupRates>(rates), at_gpu<double>(table),
                     at_gpu<StepSums>(sums), at_gpu<double>(numbers), at_gpu<StepVerdict>(verdict)},
                    device::current_stream());
    test_case.judged();
    ASSERT_TRUE(at::equal(values.cpu(), make_tensor(&test_case.values, sizeof(test_case.values)))) << i;
    ASSERT_TRUE(at::equal(rates.cpu(), make_tensor(&test_case.rates, sizeof(test_case.rates)))) << i;
    ASSERT_TRUE(at::equal(verdict.cpu(), make_tensor(&test_case.verdict, sizeof(test_case.verdict)))) << i;
  }
}

void check_copies() {
  for (const int64_t bytes : {1, 3, 4, 7, 1001, 4000003}) {
    for (const bool updates : {false, true}) {
      const StepValues values{.updates = updates ? 1.0 : 0.0};
      const at::Tensor there = on_gpu(values), from = at::randint(1, 100, {bytes + 1}, at::kChar).to(at::kCUDA),
                       to = at::zeros_like(from);
      copy_if_updates_cuda(at_gpu<StepValues>(there), false, from.const_data_ptr(), to.mutable_data_ptr(), bytes,
                           device::current_stream());
      EXPECT_EQ(to.narrow(0, 0, bytes).equal(from.narrow(0, 0, bytes)), !updates) << bytes;
      EXPECT_EQ(to[bytes].item<int>(), 0);
    }
  }
}

void check_sums_and_factors() {
  const int64_t n = 1000;
  const at::Tensor losses = at::arange(n, at::kDouble).sin(), tokens = at::arange(n, at::kDouble).cos().abs() * 9;
  const at::Tensor stop = at::ones({1}, at::kDouble), reported = at::ones({1}, at::kLong),
                   flags = at::ones({kStepFlags}, at::kInt);
  const StepValues values{.loss_scale = 3};
  const LossFactorShape shape{n, 3, false};
  const auto run = [&](at::Device device, auto&& sums, auto&& factors) {
    const auto there = [&](const at::Tensor& x) { return x.to(device); };
    const at::Tensor l = there(losses), t = there(tokens), s = there(stop), p = there(reported),
                     raised = there(flags), v = there(make_tensor(&values, sizeof(values)));
    constexpr int64_t kSums = sizeof(StepSums) / sizeof(double);
    const at::Tensor out = at::zeros({kSums + 2 + n}, v.options()), f = at::zeros({n}, v.options());
    auto* const place = at_gpu<StepSums>(out);
    auto* const terms = at_gpu<double>(out) + kSums;
    sums(OwnLosses{n, at_gpu<double>(l), at_gpu<double>(t), at_gpu<double>(s), 1, at_gpu<double>(l),
                   at_gpu<int64_t>(p), false, true, true, true, at_gpu<int32_t>(raised)},
         SumsPlace{place, terms, 2, terms + 2});
    factors(at_gpu<StepValues>(v), at_gpu<double>(t), at_gpu<double>(f));
    return at::cat({out, f}).cpu();
  };
  const at::Tensor right = run(
      at::kCPU, [](const OwnLosses& own, const SumsPlace& place) { own_sums(own, place); },
      [&](const StepValues* values, const double* t, double* f) { loss_factors(values, t, f, shape); });
  const at::Tensor got = run(
      at::kCUDA,
      [](const OwnLosses& own, const SumsPlace& place) { own_sums_cuda(own, place, device::current_stream()); },
      [&](const StepValues* values, const double* t, double* f) {
        loss_factors_cuda(values, t, f, shape, device::current_stream());
      });
  EXPECT_TRUE(at::equal(got, right));
}

TEST(StepStateCuda, TheGpuHasTheBitsOfTheCpuTwinAndWithoutOneTheCallsSaySo) {
  if (const char* why = expected_refusal()) {
    const std::string said[] = {refusal([] { judge_step_cuda({}, {}, nullptr); }),
                                refusal([] { own_sums_cuda({}, {}, nullptr); }),
                                refusal([] { loss_factors_cuda(nullptr, nullptr, nullptr, {}, nullptr); })};
    const std::string names[] = {"judge_step", "own_sums", "loss_factors"};
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NE(said[i].find("[cuda] kernel " + names[i] + why), std::string::npos) << said[i];
  }
  MPX_NEED_GPU_KERNELS();
  check_judgements();
  check_sums_and_factors();
  check_copies();
}

}  // namespace
}  // namespace metroplex::kernels::test::step_state_cuda_test
