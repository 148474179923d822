#include <memory>

#include "kernels/block8.h"
#include "kernels/optimizer_step.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::optimizer_test {
namespace {

// One step over n elements; the arrays are raw bytes of any format.
struct Range {
  Number grad = Number::f32, main = Number::f32, moment = Number::f32;
  bool split = false, stochastic = false;
  int64_t n = 0;
};
size_t number_bytes(Number number) {
  return number == Number::f64 ? 8 : number == Number::f32 ? 4 : number == Number::block8 ? 1 : 2;
}

using Bytes = std::vector<uint8_t>;
Bytes numbers(Number number, int64_t n, double step, bool positive) {
  Bytes bytes(static_cast<size_t>(n) * number_bytes(number));
  const auto put = [&]<class T>(T) {
    std::vector<T> values = make_values<T>(n, step);
    for (T& value : values) value = store<T>(load(value) * Wide<T>(0.01));
    if (positive) {
      for (T& value : values) value = store<T>(std::fabs(load(value)));
    }
    if (n > 0) memcpy(bytes.data(), values.data(), bytes.size());
  };
  if (number == Number::f64) put(double{});
  if (number == Number::f32) put(float{});
  if (number == Number::bf16) put(Bf16{});
  if (number == Number::f16) put(F16{});
  if (number == Number::block8) {  // any codes of the lower half
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 128);
  }
  return bytes;
}

struct Arrays {
  Bytes grad, main, param, remainder, first, second;
  std::vector<float> first_scales, second_scales;

  explicit Arrays(const Range& range)
      : grad(numbers(range.grad, range.n, 0.7, false)),
        main(range.split ? Bytes() : numbers(range.main, range.n, 0.3, false)),
        param(numbers(Number::bf16, range.n, 0.3, false)),
        remainder(range.split ? numbers(Number::bf16, range.n, 0.9, false) : Bytes()),
        first(numbers(range.moment, range.n, 0.2, false)),
        second(numbers(range.moment, range.n, 0.5, true)),
        first_scales(range.moment == Number::block8 ? static_cast<size_t>(block8_scales(range.n)) : 0, 0x1p-7F),
        second_scales(first_scales) {}
};

template <class Place>
OptimizerRange make_range(const Range& r, const Place& at) {
  OptimizerRange range;
  range.n = r.n;
  range.grad = at.grad;
  range.grad_number = r.grad;
  range.main = r.split ? nullptr : at.main;
  range.main_number = r.main;
  range.param = r.main == Number::f64 ? nullptr : at.param;
  range.remainder = r.split ? static_cast<uint16_t*>(at.remainder) : nullptr;
  range.first = {at.first, r.moment, at.first_scales};
  range.second = {at.second, r.moment, at.second_scales};
  range.stochastic = r.stochastic;
  range.noise_key = 77;
  range.noise_start = 5;
  return range;
}
struct Place {
  void *grad, *main, *param, *remainder, *first, *second;
  float *first_scales, *second_scales;
};

const StepValues kValues{.steps = 3, .updates = 1, .number = 3, .grad_factor = 0.37};
const GroupRates kRates{1e-2, 0.1, 1 - 1e-3, 1e-2 / 0.271, 1.0 / std::sqrt(0.002997001)};

std::vector<double> decoded(Number number, const Bytes& bytes, const std::vector<float>& scales, bool is_signed) {
  const auto n = static_cast<int64_t>(bytes.size() / number_bytes(number));
  std::vector<double> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    const void* const from = bytes.data() + at * number_bytes(number);
    uint16_t half = 0;
    if (number_bytes(number) == 2) memcpy(&half, from, 2);
    float single = 0;
    if (number == Number::f64) memcpy(&out[at], from, 8);
    if (number == Number::f32) memcpy(&single, from, 4), out[at] = double{single};
    if (number == Number::bf16) out[at] = bf16_to_float(half);
    if (number == Number::f16) out[at] = f16_to_float(half);
    if (number == Number::block8) {
      const float scale = scales[at / kBlock8];
      out[at] = is_signed ? block8_decode<true>(bytes[at], scale) : block8_decode<false>(bytes[at], scale);
    }
  }
  return out;
}

double rounding_unit(Number number) {
  return number == Number::bf16 ? 0x1p-7 : number == Number::f16 ? 0x1p-10 : number == Number::block8 ? 0x1p-3 : 0;
}

// A step has fewer than 16 roundings (Adam: three per moment, and ten from them to the parameter) of numbers up to
// the largest. A value stored in fewer bits may go to the neighbor if its unrounded value differs in its last bits.
void expect_near(const std::vector<double>& got, const std::vector<double>& want, const Range& range, Number stored,
                 const char* what) {
  ASSERT_EQ(got.size(), want.size());
  const double rounding = range.main == Number::f64 ? 0x1p-53 : 0x1p-24;
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], rounding_unit(stored) * std::fabs(want[i]) + 16 * rounding * largest)
        << what << " at " << i;
}

template <class Cpu, class Gpu>
void check_step(const Range& range, const Cpu& cpu, const Gpu& gpu) {
  const Arrays start(range);
  Arrays host(range);
  cpu(make_range(range,
                 Place{host.grad.data(), host.main.data(), host.param.data(), host.remainder.data(),
                       host.first.data(), host.second.data(), host.first_scales.data(), host.second_scales.data()}),
      StepPlace{&kValues, &kRates});
  const size_t shift = range.n == 257 ? 1 : 0;  // elements by which arrays begin after a multiple of 64 bytes
  const auto got = run_all_orders([&] {
    const size_t grads = shift * number_bytes(range.grad), mains = shift * number_bytes(range.main),
                 halves = shift * 2, moments = shift * number_bytes(range.moment);
    const DeviceArray<uint8_t> grad(start.grad, Use::in, "grad", grads), main(start.main, Use::both, "main", mains),
        param(start.param, Use::both, "param", halves), remainder(start.remainder, Use::both, "remainder", halves),
        first(start.first, Use::both, "first", moments), second(start.second, Use::both, "second", moments);
    const DeviceArray<float> first_scales(start.first_scales, Use::both, "first scales", shift),
        second_scales(start.second_scales, Use::both, "second scales", shift);
    const DeviceArray<StepValues> values({kValues}, Use::in, "values");
    const DeviceArray<GroupRates> rates({kRates}, Use::in, "rates");
    gpu(make_range(range, Place{grad.data(), main.data(), param.data(), remainder.data(), first.data(), second.data(),
                                first_scales.data(), second_scales.data()}),
        StepPlace{values.data(), rates.data()});
    return std::tuple{main.values(),   param.values(),        remainder.values(),    first.values(),
                      second.values(), first_scales.values(), second_scales.values()};
  });
  expect_near(decoded(range.main, std::get<0>(got), {}, true), decoded(range.main, host.main, {}, true), range,
              range.main, "main");
  expect_near(decoded(Number::bf16, std::get<1>(got), {}, true), decoded(Number::bf16, host.param, {}, true), range,
              Number::bf16, "param");
  expect_near(decoded(range.moment, std::get<3>(got), std::get<5>(got), true),
              decoded(range.moment, host.first, host.first_scales, true), range, range.moment, "first moment");
  expect_near(decoded(range.moment, std::get<4>(got), std::get<6>(got), false),
              decoded(range.moment, host.second, host.second_scales, false), range, range.moment, "second moment");
}

void check_optimizers(const Range& range) {
  SCOPED_TRACE(testing::Message() << "grad " << static_cast<int>(range.grad) << " main "
                                  << static_cast<int>(range.main) << " moment " << static_cast<int>(range.moment)
                                  << " split " << range.split << " n " << range.n);
  check_step(
      range, [](const OptimizerRange& x, const StepPlace& place) { adam_step(x, {}, place); },
      [](const OptimizerRange& x, const StepPlace& place) {
        adam_step_cuda({{x, place.rates}}, {}, place.values, nullptr);
      });
  check_step(
      range, [](const OptimizerRange& x, const StepPlace& place) { sgd_step(x, {0.9}, place); },
      [](const OptimizerRange& x, const StepPlace& place) {
        sgd_step_cuda({{x, place.rates}}, {0.9}, place.values, nullptr);
      });
  check_step(
      range, [](const OptimizerRange& x, const StepPlace& place) { sgd_step(x, {0}, place); },
      [](const OptimizerRange& x, const StepPlace& place) {
        sgd_step_cuda({{x, place.rates}}, {0}, place.values, nullptr);
      });
  check_step(
      range, [](const OptimizerRange& x, const StepPlace& place) { lion_step(x, {}, place); },
      [](const OptimizerRange& x, const StepPlace& place) {
        lion_step_cuda({{x, place.rates}}, {}, place.values, nullptr);
      });
}

TEST(OptimizerOnHost, StepsAreAsTheirCpuTwinsInEveryStorage) {
  for (const int64_t n : {0, 1, 257, 603}) {
    check_optimizers({Number::f64, Number::f64, Number::f64, false, false, n});
    for (const Number grad : {Number::f32, Number::bf16, Number::f16}) {
      for (const Number moment : {Number::f32, Number::bf16, Number::block8}) {
        for (const bool stochastic : {false, true}) {
          check_optimizers({grad, Number::f32, moment, false, stochastic, n});
          check_optimizers({grad, Number::bf16, moment, false, stochastic, n});
          check_optimizers({grad, Number::f32, moment, true, stochastic, n});
        }
      }
    }
  }
}

TEST(OptimizerOnHost, SumsOfGradientsAreThoseOfTheCpuInAnotherOrder) {
  for (const Number number : {Number::f64, Number::f32, Number::bf16, Number::f16}) {
    for (const int64_t n : {0, 1, 257, 16385, 40003}) {
      const Bytes grad = numbers(number, n, 0.7, false);
      const GradientSums want = gradient_sums(grad.data(), number, n);
      const auto got = run_all_orders([&] {
        const DeviceArray<uint8_t> there(grad, Use::in, "grad", n == 16385 ? number_bytes(number) : 0);
        const DeviceArray<double> sums(std::vector<double>(3), Use::both, "sums"),
            workspace(std::vector<double>(static_cast<size_t>(3 * gradient_sums_blocks(n))), Use::out, "workspace");
        gradient_sums_cuda(
            {{there.data(), number, n}},
            {reinterpret_cast<GradientSums*>(sums.data()), reinterpret_cast<GradientSums*>(workspace.data())},
            nullptr);
        return std::tuple{sums.values()};
      });
      const auto& sums = *reinterpret_cast<const GradientSums*>(std::get<0>(got).data());
      // Each of two sums of n positive numbers is off by less than n roundings.
      const double roundings = 2 * static_cast<double>(n) * 0x1p-53;
      EXPECT_NEAR(sums.sum_of_squares, want.sum_of_squares, roundings * want.sum_of_squares);
      EXPECT_EQ(sums.num_zeros, want.num_zeros);
      EXPECT_EQ(sums.num_nonfinite, want.num_nonfinite);
    }
  }
}

// More ranges than one pair of launches handles, of various lengths, types and alignments, some of them empty.
TEST(OptimizerOnHost, SumsOfManyRangesAreThoseOfEach) {
  constexpr Number kNumbers[] = {Number::f32, Number::bf16, Number::f16, Number::f64};
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> there;
  std::vector<GradientRange> ranges, here;
  std::vector<Bytes> values;
  int64_t blocks = 0, elements = 0;
  for (int64_t i = 0; i < 2 * kSumsOfLaunch + 7; ++i) {
    const Number number = kNumbers[i % 4];
    const int64_t n = i == 77 ? 40003 : i % 9 == 4 ? 0 : i * 37 % 301;
    values.push_back(numbers(number, n, 0.7 + 0.01 * static_cast<double>(i), false));
    const bool counts = i % 5 != 2;
    if (!counts && number == Number::f32 && n > 0) std::memset(values.back().data(), 0xff, sizeof(float));  // NaN
    there.push_back(std::make_unique<DeviceArray<uint8_t>>(values.back(), Use::in, "grad",
                                                           i % 3 == 1 ? number_bytes(number) : 0));
    ranges.push_back({there.back()->data(), number, n, counts});
    blocks += gradient_sums_blocks(n), elements += n;
  }
  GradientSums want{1.5, 2, 3}, on_host = want;
  for (size_t i = 0; i < values.size(); ++i) {
    here.push_back({values[i].data(), ranges[i].number, ranges[i].n, ranges[i].counts});
    const GradientSums one = gradient_sums(values[i].data(), ranges[i].number, ranges[i].n);
    want.num_nonfinite += one.num_nonfinite;
    if (!ranges[i].counts) continue;
    want.sum_of_squares += one.sum_of_squares;
    want.num_zeros += one.num_zeros;
  }
  EXPECT_GT(want.num_nonfinite, 5);
  add_gradient_sums(here, {&on_host, nullptr});
  EXPECT_EQ(on_host.sum_of_squares, want.sum_of_squares);
  EXPECT_EQ(on_host.num_zeros, want.num_zeros);
  EXPECT_EQ(on_host.num_nonfinite, want.num_nonfinite);
  const DeviceArray<double> workspace(std::vector<double>(static_cast<size_t>(3 * blocks)), Use::out, "workspace");
  const DeviceArray<GradientSums> place({GradientSums{1.5, 2, 3}}, Use::both, "sums");
  gradient_sums_cuda(ranges, {place.data(), reinterpret_cast<GradientSums*>(workspace.data())}, nullptr);
  const GradientSums got = place.values()[0];
  // As above; `elements` includes excluded elements too.
  const double roundings = 2 * static_cast<double>(elements) * 0x1p-53;
  EXPECT_NEAR(got.sum_of_squares, want.sum_of_squares, roundings * want.sum_of_squares);
  EXPECT_EQ(got.num_zeros, want.num_zeros);
  EXPECT_EQ(got.num_nonfinite, want.num_nonfinite);
}

TEST(OptimizerOnHost, EightBitsAndSplitFloatsHaveTheBitsOfTheCpu) {
  for (const int64_t n : {0, 1, 255, 257, 1000}) {
    const size_t shift = n == 257 ? 1 : 0;
    std::vector<float> x = make_values<float>(n, 0.37);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i % 40) - 30.0F);
    for (const bool is_signed : {false, true}) {
      std::vector<float> from = x, scales(static_cast<size_t>(block8_scales(n))), back(from.size());
      for (float& value : from) value = is_signed ? value : std::fabs(value);
      Bytes codes(from.size());
      block8_encode(from.data(), n, is_signed, codes.data(), scales.data());
      block8_decode(codes.data(), scales.data(), n, is_signed, back.data());
      const auto got = run_all_orders([&] {
        const DeviceArray<float> values(from, Use::in, "values", shift), gscales(scales, Use::out, "scales", shift),
            gback(back, Use::out, "back", shift);
        const DeviceArray<uint8_t> gcodes(codes, Use::out, "codes", shift);
        block8_encode_cuda(values.data(), n, is_signed, gcodes.data(), gscales.data(), nullptr);
        block8_decode_cuda(gcodes.data(), gscales.data(), n, is_signed, gback.data(), nullptr);
        return std::tuple{gcodes.values(), gscales.values(), gback.values()};
      });
      EXPECT_EQ(std::get<0>(got), codes);
      EXPECT_EQ(std::get<1>(got), scales);
      EXPECT_EQ(std::get<2>(got), back);
    }
    std::vector<uint16_t> param(x.size()), rest(x.size());
    split_floats(x.data(), n, param.data(), rest.data());
    const auto got = run_all_orders([&] {
      const DeviceArray<float> values(x, Use::in, "values", shift), back(x, Use::out, "back", shift);
      const DeviceArray<uint16_t> gparam(param, Use::out, "param", shift), grest(rest, Use::out, "remainder", shift);
      split_floats_cuda(values.data(), n, gparam.data(), grest.data(), nullptr);
      join_floats_cuda(gparam.data(), grest.data(), n, back.data(), nullptr);
      return std::tuple{gparam.values(), grest.values(), back.values()};
    });
    EXPECT_EQ(std::get<0>(got), param);
    EXPECT_EQ(std::get<1>(got), rest);
    EXPECT_EQ(std::get<2>(got), x);
  }
}

// More ranges than one launch handles, of various lengths, rates and types, some of them empty: each as if alone.
TEST(OptimizerOnHost, ManyRangesAreSteppedAsEachAlone) {
  std::vector<Range> forms;
  for (int64_t i = 0; i < 2 * kRangesOfLaunch + 3; ++i) {
    const int64_t n = i % 7 == 3 ? 0 : i == 9 ? 4503 : i * 97 % 700;
    const bool wide = i % 11 == 5;
    const Number number = wide ? Number::f64 : Number::f32;
    forms.push_back(
        {number, number, i % 4 == 1 && !wide ? Number::block8 : number, i % 5 == 2 && !wide, i % 2 == 0, n});
  }
  const DeviceArray<StepValues> values({kValues}, Use::in, "values");
  GroupRates other = kRates;
  other.step_size *= 3;
  const DeviceArray<GroupRates> rates({kRates, other}, Use::in, "rates");
  struct OnDevice {
    DeviceArray<uint8_t> grad, main, param, remainder, first, second;
    DeviceArray<float> first_scales, second_scales;
    explicit OnDevice(const Arrays& arrays)
        : grad(arrays.grad, Use::in, "grad"),
          main(arrays.main, Use::both, "main"),
          param(arrays.param, Use::both, "param"),
          remainder(arrays.remainder, Use::both, "remainder"),
          first(arrays.first, Use::both, "first"),
          second(arrays.second, Use::both, "second"),
          first_scales(arrays.first_scales, Use::both, "first scales"),
          second_scales(arrays.second_scales, Use::both, "second scales") {}
    Place place() const {
      return {grad.data(),  main.data(),   param.data(),        remainder.data(),
              first.data(), second.data(), first_scales.data(), second_scales.data()};
    }
    auto all() const {
      return std::tuple{main.values(), param.values(), remainder.values(), first.values(), second.values()};
    }
  };
  std::vector<std::unique_ptr<OnDevice>> together, alone;
  std::vector<RatedRange> ranges;
  for (size_t i = 0; i < forms.size(); ++i) {
    together.push_back(std::make_unique<OnDevice>(Arrays(forms[i])));
    alone.push_back(std::make_unique<OnDevice>(Arrays(forms[i])));
    ranges.push_back({make_range(forms[i], together[i]->place()), rates.data() + i % 2});
    adam_step_cuda({{make_range(forms[i], alone[i]->place()), rates.data() + i % 2}}, {}, values.data(), nullptr);
  }
  adam_step_cuda(ranges, {}, values.data(), nullptr);
  for (size_t i = 0; i < forms.size(); ++i) {
    EXPECT_EQ(together[i]->all(), alone[i]->all()) << "range " << i << " of " << forms[i].n;
    EXPECT_TRUE(forms[i].n == 0 || forms[i].split || together[i]->main.values() != Arrays(forms[i]).main) << i;
  }
}

}  // namespace
}  // namespace metroplex::kernels_on_host::optimizer_test
