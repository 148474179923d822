// Optimizer ranges for tests: every storage format, filled with numbers over many decades. One step of each optimizer
// in long double, with an error bound for the kernel's arithmetic and storage.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/block8.h"
#include "kernels/optimizer_step.h"

namespace metroplex::kernels::test {

using Values = std::vector<double>;
enum class Main { f32, f64, bf16, split };

struct Storage {
  Number grad = Number::f32;
  Main main = Main::f32;
  std::optional<Number> param;  // also written
  Number first = Number::f32, second = Number::f32;
  bool stochastic = false;
  int64_t offset = 0;  // elements before the range: unaligned starts

  bool wide() const { return main == Main::f64; }
  std::string text() const {
    static constexpr const char* kNames[] = {"f64", "f32", "bf16", "f16", "block8"};
    static constexpr const char* kMains[] = {"f32", "f64", "bf16", "split"};
    const auto name = [](Number number) { return std::string(kNames[static_cast<int>(number)]); };
    return "grad " + name(grad) + " main " + kMains[static_cast<int>(main)] + " param " +
           (param ? name(*param) : "none") + " first " + name(first) + " second " + name(second) +
           (stochastic ? " stochastic" : "") + " offset " + std::to_string(offset);
  }
};

inline at::ScalarType to_dtype(Number number) {
  constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kByte};
  return kTypes[static_cast<int>(number)];
}

struct Array {
  at::Tensor data, scales;
  Number number = Number::f32;
  int64_t offset = 0;

  Array() = default;
  Array(const Values& values, Number stored_as, bool is_signed, int64_t before) : number(stored_as), offset(before) {
    const auto n = static_cast<int64_t>(values.size());
    data = at::zeros({n + offset}, to_dtype(number));
    if (number == Number::block8) {
      const std::vector<float> floats(values.begin(), values.end());
      scales = at::zeros({block8_scales(n)});
      block8_encode(floats.data(), n, is_signed, static_cast<uint8_t*>(pointer()), scales.mutable_data_ptr<float>());
    } else {
      data.slice(0, offset).copy_(at::tensor(values, at::kDouble));
    }
  }
  void* pointer() { return static_cast<char*>(data.mutable_data_ptr()) + offset * data.element_size(); }
  float* scale_pointer() { return scales.defined() ? scales.mutable_data_ptr<float>() : nullptr; }
  Values values(bool is_signed) const {
    at::Tensor wide = data.slice(0, offset).to(at::kDouble).contiguous();
    if (number == Number::block8) {
      at::Tensor floats = at::empty_like(wide, at::kFloat);
      block8_decode(data.const_data_ptr<uint8_t>() + offset, scales.const_data_ptr<float>(), floats.numel(),
                    is_signed, floats.mutable_data_ptr<float>());
      wide = floats.to(at::kDouble);
    }
    return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
  }
  Array to(at::Device device) const {
    Array moved = *this;
    if (data.defined()) moved.data = data.to(device, data.scalar_type(), false, /*copy=*/true);
    if (scales.defined()) moved.scales = scales.to(device, at::kFloat, false, /*copy=*/true);
    return moved;
  }
};

// p, m, v of every element.
struct Contents {
  Values grad, main, first, second;
};

inline Contents random_contents(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(-5, 0), sign(-1, 1);
  const auto number = [&] {
    const double size = std::pow(10.0, exponent(random));
    return random() % 32 == 0 ? 0.0 : (sign(random) < 0 ? -size : size);
  };
  Contents contents;
  for (int64_t i = 0; i < n; ++i) {
    contents.grad.push_back(number());
    contents.main.push_back(number());
    contents.first.push_back(number());
    contents.second.push_back(std::pow(number(), 2));
  }
  return contents;
}

struct Arrays {
  Storage storage;
  int64_t n = 0;
  Array grad, main, param, remainder, first, second;

  Arrays(const Storage& how, const Contents& contents)
      : storage(how),
        n(static_cast<int64_t>(contents.grad.size())),
        grad(contents.grad, how.grad, true, how.offset),
        first(contents.first, how.first, true, how.offset),
        second(contents.second, how.second, false, how.offset) {
    if (how.param) param = Array(Values(contents.main.size(), 77), *how.param, true, how.offset);
    if (how.main == Main::split) {
      param = Array(Values(contents.main.size(), 77), Number::bf16, true, how.offset);
      remainder = Array(Values(contents.main.size(), 77), Number::f16, true, how.offset);
      const std::vector<float> floats(contents.main.begin(), contents.main.end());
      split_floats(floats.data(), n, static_cast<uint16_t*>(param.pointer()),
                   static_cast<uint16_t*>(remainder.pointer()));
    } else {
      constexpr Number kNumbers[] = {Number::f32, Number::f64, Number::bf16};
      main = Array(contents.main, kNumbers[static_cast<int>(how.main)], true, how.offset);
    }
  }

  OptimizerRange range() {
    OptimizerRange range;
    range.n = n;
    range.grad = grad.pointer();
    range.grad_number = grad.number;
    if (main.data.defined()) range.main = main.pointer();
    range.main_number = main.number;
    if (param.data.defined()) range.param = param.pointer();
    range.param_number = param.number;
    if (remainder.data.defined()) range.remainder = static_cast<uint16_t*>(remainder.pointer());
    range.first = {first.pointer(), first.number, first.scale_pointer()};
    range.second = {second.pointer(), second.number, second.scale_pointer()};
    range.stochastic = storage.stochastic;
    range.noise_key = 12345;
    range.noise_start = 1000;
    return range;
  }

  Contents contents() const {
    Contents contents{grad.values(true), {}, first.values(true), second.values(false)};
    if (storage.main != Main::split) {
      contents.main = main.values(true);
      return contents;
    }
    std::vector<float> floats(static_cast<size_t>(n));
    join_floats(static_cast<const uint16_t*>(param.data.const_data_ptr()) + param.offset,
                static_cast<const uint16_t*>(remainder.data.const_data_ptr()) + remainder.offset, n, floats.data());
    contents.main.assign(floats.begin(), floats.end());
    return contents;
  }

  Arrays to(at::Device device) const {
    Arrays moved = *this;
    for (Array Arrays::*array :
         {&Arrays::grad, &Arrays::main, &Arrays::param, &Arrays::remainder, &Arrays::first, &Arrays::second})
      moved.*array = (this->*array).to(device);
    return moved;
  }

  std::vector<at::Tensor> written() const {
    std::vector<at::Tensor> all;
    for (const Array* array : {&main, &param, &remainder, &first, &second}) {
      if (array->data.defined()) all.push_back(array->data);
      if (array->scales.defined()) all.push_back(array->scales);
    }
    return all;
  }
};

// All inputs of an update, named by the test.
struct AdamCase {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, grad_factor = 1;
  int64_t step = 1;  // of this update, from 1
  AdamHyper hyper() const { return {beta1, beta2, eps}; }
  GroupRates rates() const { return group_rates(lr, weight_decay, beta1, beta2, step); }
};
struct SgdCase {
  double lr = 0, momentum = 0, weight_decay = 0, grad_factor = 1;
  bool first_step = false;
  int64_t step = first_step ? 1 : 2;
  SgdHyper hyper() const { return {momentum}; }
  GroupRates rates() const { return group_rates(lr, weight_decay, 0, 0, step); }
};
struct LionCase {
  double lr = 0, beta1 = 0.9, beta2 = 0.99, weight_decay = 0, grad_factor = 1;
  int64_t step = 1;
  LionHyper hyper() const { return {beta1, beta2}; }
  GroupRates rates() const { return group_rates(lr, weight_decay, 0, 0, step); }
};

// The kernel's inputs from the step decision, on the host.
template <class Case>
struct Judged {
  StepValues values;
  GroupRates rates;
  explicit Judged(const Case& test_case, bool updates = true) : rates(test_case.rates()) {
    values.updates = updates ? 1 : 0;
    values.number = static_cast<double>(test_case.step);
    values.grad_factor = test_case.grad_factor;
  }
  StepPlace place() const { return {&values, &rates}; }
};

using Long = long double;
// A result in exact arithmetic and the allowed error of the kernel, in units of `u`, the rounding of one operation.
struct Wanted {
  Long value = 0, error = 0;
};
struct WantedElement {
  Wanted main, first, second;
};

// Each bound counts the intermediate roundings, including those of the coefficients. If a rounding decides a sign,
// both signs are accepted.
inline WantedElement wanted(const AdamCase& h, Long g, Long p, Long m, Long v, Long /*u*/) {
  g *= h.grad_factor;
  const Long m2 = h.beta1 * m + (1 - Long(h.beta1)) * g, v2 = h.beta2 * v + (1 - Long(h.beta2)) * g * g;
  const Long denominator = std::sqrt(v2) / std::sqrt(1 - std::pow(Long(h.beta2), h.step)) + h.eps;
  const Long size = h.lr / (1 - std::pow(Long(h.beta1), h.step)) / denominator;
  const Long p2 = p * (1 - Long(h.lr) * h.weight_decay) - size * m2;
  const Long m_error = 5 * (std::abs(h.beta1 * m) + std::abs((1 - Long(h.beta1)) * g)), v_error = 8 * v2;
  return {{p2, 2 * std::abs(p) + std::abs(p2) + size * (m_error + 14 * std::abs(m2))}, {m2, m_error}, {v2, v_error}};
}
inline WantedElement wanted(const SgdCase& h, Long g, Long p, Long m, Long v, Long /*u*/) {
  const Long g1 = g * h.grad_factor, g2 = g1 + p * h.weight_decay;
  const Long g_error = 3 * (std::abs(g1) + std::abs(p * h.weight_decay));
  if (h.momentum == 0) return {{p - h.lr * g2, std::abs(p) + h.lr * (2 * g_error)}, {m, 0}, {v, 0}};
  const Long m2 = h.first_step ? g2 : h.momentum * m + g2;
  const Long m_error = g_error + 3 * std::abs(h.momentum * m) + std::abs(g2);
  const Long p2 = p - h.lr * m2;
  return {{p2, std::abs(p2) + h.lr * (m_error + 2 * std::abs(m2))}, {m2, m_error}, {v, 0}};
}
inline WantedElement wanted(const LionCase& h, Long g, Long p, Long m, Long v, Long u) {
  g *= h.grad_factor;
  const Long c = h.beta1 * m + (1 - Long(h.beta1)) * g, step = c > 0 ? h.lr : (c < 0 ? -h.lr : 0);
  const Long c_error = 5 * (std::abs(h.beta1 * m) + std::abs((1 - Long(h.beta1)) * g));
  const Long m2 = h.beta2 * m + (1 - Long(h.beta2)) * g, p2 = p * (1 - Long(h.lr) * h.weight_decay) - step;
  const Long m_error = 5 * (std::abs(h.beta2 * m) + std::abs((1 - Long(h.beta2)) * g));
  const Long either_sign = std::abs(c) <= c_error * u && c_error > 0 ? 2 * h.lr / u : 0;
  return {{p2, 2 * std::abs(p) + std::abs(p2) + h.lr + either_sign}, {m2, m_error}, {v, 0}};
}

// Maximum change from storing |x| in a block of largest magnitude `largest`.
inline Long storage_error(Number number, bool stochastic, bool is_signed, Long x, Long largest) {
  const Long whole = stochastic ? 2 : 1;  // of half a last bit
  if (number == Number::bf16) return whole * x / 256 + 1e-40L;
  if (number != Number::block8) return 0;
  const Long scale = largest * 1.125L, below = is_signed ? std::exp2(-15.0L) * (whole / 2) : std::exp2(-31.0L);
  return whole * x / 16 + 1.125L * below * scale + 1e-27L;
}

template <class Hyper>
void expect_step(const Hyper& hyper, const Storage& storage, const Contents& before, const Contents& after,
                 int moments) {
  const auto n = static_cast<int64_t>(before.grad.size());
  const Long u = storage.wide() ? std::exp2(-53.0L) : std::exp2(-24.0L);
  std::vector<WantedElement> right;
  for (size_t i = 0; i < before.grad.size(); ++i)
    right.push_back(wanted(hyper, before.grad[i], before.main[i], before.first[i], before.second[i], u));
  const Number main = storage.main == Main::bf16 ? Number::bf16 : Number::f32;
  const auto near = [&](int64_t i, const char* what, double got, const Wanted& want, Long stored) {
    ASSERT_LE(std::abs(got - want.value), want.error * u + stored)
        << what << " of element " << i << " of " << n << ", " << storage.text() << ": " << got << ", expected "
        << static_cast<double>(want.value);
  };
  for (int64_t start = 0; start < n; start += kBlock8) {
    const int64_t end = std::min(n, start + kBlock8);
    Long first = 0, second = 0;
    for (int64_t i = start; i < end; ++i) {
      first = std::max(first, std::abs(right[static_cast<size_t>(i)].first.value));
      second = std::max(second, right[static_cast<size_t>(i)].second.value);
    }
    for (int64_t i = start; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      const WantedElement& w = right[at];
      const bool s = storage.stochastic;
      near(i, "main", after.main[at], w.main, storage_error(main, s, true, std::abs(w.main.value), 0));
      if (moments > 0)
        near(i, "first moment", after.first[at], w.first,
             storage_error(storage.first, s, true, std::abs(w.first.value), first));
      if (moments > 1)
        near(i, "second moment", after.second[at], w.second,
             storage_error(storage.second, s, false, w.second.value, second));
    }
  }
}

}  // namespace metroplex::kernels::test
