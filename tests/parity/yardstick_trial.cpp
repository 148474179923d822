#include "parity/yardstick_trial.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <random>

#include "parity/yardstick.h"

namespace metroplex::parity {
namespace {

using Json = nlohmann::json;
using Named = std::map<std::string, at::Tensor>;

constexpr int kTensors = 12;

class RandomTensor {
 public:
  explicit RandomTensor(uint64_t seed) : random_(seed) {}
  double normal() { return normal_(random_); }

  // Errors of size 1; the tensor's elements share `share` of the squared error, a common part of each element.
  at::Tensor with_errors(const at::Tensor& exact, double share) {
    const double common = std::sqrt(share) * normal(), own = std::sqrt(1 - share);
    at::Tensor out = exact.clone();
    auto* x = out.data_ptr<double>();
    for (int64_t i = 0; i < out.numel(); ++i) x[i] += common * (x[i] > 0 ? 1 : -1) + own * normal();
    const double all_alike = std::sqrt(share) * normal();
    return out.add_(all_alike);
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

std::string tensor_name(int tensor) { return "tensor " + std::to_string(tensor); }

Json record_tensor(const at::Tensor& x) {
  const auto at = [&](int64_t i) { return x[i].item<double>(); };
  const int64_t n = x.numel();
  return {{"numel", n},
          {"first", {at(0), at(1), at(2)}},
          {"last", {at(n - 3), at(n - 2), at(n - 1)}},
          {"sum", x.sum().item<double>()},
          {"l2", x.norm().item<double>()}};
}

// Number of programs out of bounds among `trials`, ours changed by `spoil`.
int failures(int trials, double share, const std::function<void(Named&)>& spoil) {
  int failed = 0;
  for (int trial = 0; trial < trials; ++trial) {
    RandomTensor sampler(1000 + static_cast<uint64_t>(trial));
    Trajectory ours, exact;
    Json recorded{{"history", Json::array()}, {"grads_iter1", nullptr}, {"final_params", Json::object()}};
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      at::Tensor values = at::empty({tensor % 2 == 0 ? 2048 : 32}, at::kDouble);
      for (int64_t i = 0; i < values.numel(); ++i) values.data_ptr<double>()[i] = 1000 * sampler.normal();
      exact.parameters[tensor_name(tensor)] = values;
      ours.parameters[tensor_name(tensor)] = sampler.with_errors(values, share);
      recorded["final_params"][tensor_name(tensor)] = record_tensor(sampler.with_errors(values, share));
    }
    spoil(ours.parameters);
    failed += compare_half(recorded, ours, exact).failures.empty() ? 0 : 1;
  }
  return failed;
}

bool has_line(const char* what, int trials, int failed, bool good) {
  std::printf("yardstick: %s: %d of %d out of bounds  %s\n", what, failed, trials, good ? "ok" : "WRONG");
  return good;
}

}  // namespace

bool try_yardstick() {
  constexpr int kTrials = 300;
  bool good = true;
  for (const double share : {0.0, 0.02, 0.1}) {
    char text[96];
    std::snprintf(text, sizeof text, "right programs, errors with %.0f %% in common", 100 * share);
    // 12 bounds that a correct program exceeds once in 100,000 comparisons and two wider ones: about one in a
    // thousand.
    const int failed = failures(kTrials, share, [](Named&) {});
    good = has_line(text, kTrials, failed, failed <= 3) && good;
  }
  const auto caught = [&](const char* what, double share, const std::function<void(Named&)>& spoil) {
    const int failed = failures(30, share, spoil);
    good = has_line(what, 30, failed, failed == 30) && good;
  };
  // 2,048 elements, of which the recorded ones are correct.
  const auto inner = [](Named& x) { return x.at(tensor_name(4)).narrow(0, 3, 2042); };
  for (const double share : {0.0, 0.05}) {
    caught("one tensor zero", share, [](Named& x) { x.at(tensor_name(1)).zero_(); });
    caught("one tensor zero but for recorded elements", share, [&](Named& x) { inner(x).zero_(); });
    caught("one tensor off by 40 errors of an element where none is recorded", share,
           [&](Named& x) { inner(x).add_(40); });
    caught("one tensor 5 % too large where none is recorded", share, [&](Named& x) { inner(x).mul_(1.05); });
    caught("errors four times as large in all tensors", share, [](Named& x) {
      RandomTensor more(7);
      for (auto& [name, values] : x) values.copy_(more.with_errors(values, 0).sub_(values).mul_(4).add_(values));
    });
  }
  return good;
}

}  // namespace metroplex::parity
