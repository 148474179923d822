// The optimizer kernels of the GPU against their CPU reference implementations and the formulas.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/optimizer_step.h"
#include "kernels/optimizer_case.h"
#include "support/gpu.h"

namespace metroplex::kernels::test::optimizer_cuda_test {
namespace {

const AdamCase kAdam{1e-2, 0.9, 0.999, 1e-8, 0.1, 0.37, 3};
const SgdCase kSgd{1e-2, 0.9, 0.1, 0.37, false}, kPlainSgd{1e-2, 0, 0.1, 0.37, false};
const LionCase kLion{1e-3, 0.9, 0.99, 0.1, 0.37};

std::vector<Storage> all_storage() {
  std::vector<Storage> all{{Number::f64, Main::f64, {}, Number::f64, Number::f64}};
  for (const Number grad : {Number::f32, Number::bf16, Number::f16}) {
    for (const Main main : {Main::f32, Main::bf16, Main::split}) {
      for (const auto param : {std::optional<Number>(), std::optional{Number::bf16}, std::optional{Number::f16}}) {
        if (main == Main::split && param) continue;
        for (const Number moment : {Number::f32, Number::bf16, Number::block8}) {
          for (const bool stochastic : {false, true})
            all.push_back({grad, main, param, moment, moment, stochastic, 1});
        }
      }
    }
  }
  return all;
}

// The kernel's inputs from the step decision, on the GPU.
struct OnDevice {
  at::Tensor numbers;
  template <class Case>
  OnDevice(const Case& test_case, bool updates) {
    const Judged judged(test_case, updates);
    const auto as_tensor = [](const auto& numbers) {
      return at::from_blob(const_cast<void*>(static_cast<const void*>(&numbers)),
                           {static_cast<int64_t>(sizeof(numbers) / sizeof(double))}, at::kDouble);
    };
    numbers = at::cat({as_tensor(judged.values), as_tensor(judged.rates)}).to(at::kCUDA);
  }
  StepPlace place() const {
    const auto* values = static_cast<const StepValues*>(numbers.const_data_ptr());
    return {values, reinterpret_cast<const GroupRates*>(values + 1)};
  }
};

void step(const OptimizerRange& range, const AdamCase& test_case, bool updates = true) {
  const OnDevice judged(test_case, updates);
  adam_step_cuda({{range, judged.place().rates}}, test_case.hyper(), judged.place().values, device::current_stream());
}
void step(const OptimizerRange& range, const SgdCase& test_case, bool updates = true) {
  const OnDevice judged(test_case, updates);
  sgd_step_cuda({{range, judged.place().rates}}, test_case.hyper(), judged.place().values, device::current_stream());
}
void step(const OptimizerRange& range, const LionCase& test_case, bool updates = true) {
  const OnDevice judged(test_case, updates);
  lion_step_cuda({{range, judged.place().rates}}, test_case.hyper(), judged.place().values, device::current_stream());
}

// The result of one step is within the bounds of the CPU reference: the formula's, of arithmetic and storage.
template <class Hyper>
void check_step(const Hyper& hyper, const Storage& storage, const Contents& before, int moments) {
  const Arrays host(storage, before);
  Arrays device = host.to(at::kCUDA);
  step(device.range(), hyper);
  const Arrays back = device.to(at::kCPU);
  const Contents after = back.contents();
  expect_step(hyper, storage, host.contents(), after, moments);
  if (!storage.param) return;
  const at::Tensor right = at::tensor(after.main, at::kDouble).to(at::kFloat).to(to_dtype(*storage.param));
  EXPECT_TRUE(at::equal(back.param.data.slice(0, storage.offset), right)) << storage.text();
}

void check_steps(const Storage& storage, const Contents& before) {
  check_step(kAdam, storage, before, 2);
  check_step(kSgd, storage, before, 1);
  check_step(kPlainSgd, storage, before, 0);
  check_step(kLion, storage, before, 1);
}

// Ends of thread blocks for every storage format, with and without packed accesses. One storage format in 17 has more
// elements than 16 bits count, over every kind of moments: each element costs the host a microsecond.
void check_steps() {
  std::map<int64_t, Contents> before;
  for (const int64_t n : {1, 255, 256, 257, 2051, 70001}) before[n] = random_contents(n, static_cast<uint32_t>(n));
  const std::vector<Storage> all = all_storage();
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto& [n, contents] : before) {
      if (n < 70000 || i % 17 == 0) check_steps(all[i], contents);
    }
    Storage aligned = all[i];
    aligned.offset = 0;
    check_steps(aligned, before[2051]);
  }
}

void check_held_back() {
  for (const Storage& storage : all_storage()) {
    const Arrays start(storage, random_contents(1000, 4));
    Arrays device = start.to(at::kCUDA);
    step(device.range(), kAdam, false);
    step(device.range(), kSgd, false);
    step(device.range(), kLion, false);
    const auto ours = device.to(at::kCPU).written(), right = start.written();
    for (size_t i = 0; i < right.size(); ++i)
      ASSERT_TRUE(at::equal(ours[i].view(at::kByte), right[i].view(at::kByte))) << i << " of " << storage.text();
  }
}

// Noise and storage are functions of integers: without arithmetic (lr 0, all factors 1 or 0) both implementations
// agree to the bit.
void check_storage_bits() {
  const Contents contents = random_contents(100003, 4);
  for (const Storage& storage : all_storage()) {
    if (storage.wide()) continue;
    const SgdCase keep{0, 1, 0, 0, false};
    const Arrays start(storage, contents);
    Arrays host = start.to(at::kCPU), device = start.to(at::kCUDA);
    sgd_step(host.range(), keep.hyper(), Judged(keep).place());
    step(device.range(), keep);
    const auto ours = device.to(at::kCPU).written(), right = host.written();
    for (size_t i = 0; i < right.size(); ++i)
      ASSERT_TRUE(at::equal(ours[i].view(at::kByte), right[i].view(at::kByte))) << i << " of " << storage.text();
  }
}

// Sums of positive numbers in another order: each of two sums of n numbers is off by less than n roundings.
void check_sums() {
  for (const Number number : {Number::f64, Number::f32, Number::bf16, Number::f16}) {
    at::Tensor sums = at::zeros({static_cast<int64_t>(sizeof(GradientSums))}, at::kByte).to(at::kCUDA);
    GradientSums right;
    for (const int64_t n : {0, 1, 257, 16385, 1000003}) {
      Array host(random_contents(n, 3).grad, number, true, n % 3), device = host.to(at::kCUDA);
      const GradientSums part = gradient_sums(host.pointer(), number, n);
      right.sum_of_squares += part.sum_of_squares;
      right.num_zeros += part.num_zeros;
      at::Tensor workspace = at::empty({gradient_sums_blocks(n) * static_cast<int64_t>(sizeof(GradientSums))},
                                       at::TensorOptions(at::kCUDA).dtype(at::kByte));
      gradient_sums_cuda({{device.pointer(), number, n}},
                         {static_cast<GradientSums*>(sums.mutable_data_ptr()),
                          static_cast<GradientSums*>(workspace.mutable_data_ptr())},
                         device::current_stream());
    }
    const at::Tensor back = sums.to(at::kCPU);
    const auto& got = *static_cast<const GradientSums*>(back.const_data_ptr());
    EXPECT_NEAR(got.sum_of_squares, right.sum_of_squares, 2e6 * 1.2e-16 * right.sum_of_squares);
    EXPECT_EQ(got.num_zeros, right.num_zeros);
    EXPECT_EQ(got.num_nonfinite, 0);
  }
}

// Sums of received shards have the CPU's bits: additions in fp32 in the same order, and the same roundings.
void check_shard_sums() {
  for (const Number number : {Number::bf16, Number::f16}) {
    for (const int ranks : {2, 5}) {
      for (const bool adds : {false, true}) {
        constexpr int64_t kSize = 1000448, kBegin = 64, kCount = 1000003;
        const at::ScalarType type = number == Number::bf16 ? at::kBFloat16 : at::kHalf;
        const at::Tensor wave = at::arange(ranks * kSize, at::kFloat).mul_(0.7).sin_();
        const at::Tensor received = at::ldexp(wave, at::arange(ranks * kSize).mul_(7).remainder(25).sub(12)).to(type),
                         before = wave.narrow(0, 0, kCount).to(type);
        const at::Tensor sums = at::empty({gradient_sums_blocks(kCount), 3}, at::kLong), on_gpu = sums.to(at::kCUDA),
                         out = before.clone(), gpu_out = before.to(at::kCUDA), there = received.to(at::kCUDA);
        const auto place = [](const at::Tensor& to, const at::Tensor& its_sums) {
          return std::vector<ShardSum>{
              {kBegin, kCount, to.mutable_data_ptr(), static_cast<GradientSums*>(its_sums.mutable_data_ptr())}};
        };
        sum_shards(place(out, sums), {received.const_data_ptr(), number, ranks, kSize, adds});
        sum_shards_cuda(place(gpu_out, on_gpu), {there.const_data_ptr(), number, ranks, kSize, adds},
                        device::current_stream());
        EXPECT_TRUE(at::equal(gpu_out.to(at::kCPU), out));
        EXPECT_TRUE(at::equal(on_gpu.to(at::kCPU).narrow(1, 1, 2), sums.narrow(1, 1, 2)));  // counts
      }
    }
  }
}

void expect_refusals(const std::string& why) {
  Arrays arrays({}, random_contents(16, 1));
  const OptimizerRange range = arrays.range();
  GradientSums sums[2];
  const std::string said[] = {refusal([&] { adam_step_cuda({{range}}, kAdam.hyper(), nullptr, nullptr); }),
                              refusal([&] { sgd_step_cuda({{range}}, kSgd.hyper(), nullptr, nullptr); }),
                              refusal([&] { lion_step_cuda({{range}}, kLion.hyper(), nullptr, nullptr); }),
                              refusal([&] {
                                gradient_sums_cuda({{range.grad, Number::f32, 16}}, {sums, sums + 1}, nullptr);
                              }),
                              refusal([&] {
                                sum_shards_cuda({{0, 8, range.param}}, {range.grad, Number::bf16, 2, 8}, nullptr);
                              })};
  const std::string names[] = {"adam_step", "sgd_step", "lion_step", "gradient_sums", "sum_shards"};
  for (size_t i = 0; i < std::size(names); ++i)
    EXPECT_NE(said[i].find("[cuda] kernel " + names[i] + why), std::string::npos) << said[i];
}

TEST(OptimizerCuda, TheGpuGetsWhatTheCpuTwinGetsAndWithoutOneTheCallsSaySo) {
  if (const char* why = expected_refusal()) expect_refusals(why);
  MPX_NEED_GPU_KERNELS();
  check_steps();
  check_held_back();
  check_storage_bits();
  check_sums();
  check_shard_sums();
}

}  // namespace
}  // namespace metroplex::kernels::test::optimizer_cuda_test
