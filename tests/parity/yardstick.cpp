#include "parity/yardstick.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace metroplex::parity {
namespace {

using Json = nlohmann::json;

constexpr double kFactor = 2.0;
// How often a right program may exceed a bound: a run has two rows of losses and norms, and dozens of tensors.
constexpr double kRowLevel = 1e-4, kTensorLevel = 1e-5;

class Sum {
 public:
  void add(double ours, double recorded, double exact) {
    ours_ += (ours - recorded) * (ours - recorded);
    theirs_ += (recorded - exact) * (recorded - exact);
    rounding_ += (ours - exact) * (ours - exact);
    ++count_;
  }
  Distance distance(const std::string& what) const {
    const auto n = static_cast<double>(std::max<int64_t>(1, count_));
    return {what, std::sqrt(ours_ / n), std::sqrt(theirs_ / n), std::sqrt(rounding_ / n), count_};
  }

 private:
  double ours_ = 0, theirs_ = 0, rounding_ = 0;
  int64_t count_ = 0;
};

// Of one kind, gradients or parameters.
struct Tensors {
  std::vector<Distance> each;  // recorded elements, the sum and the norm of a tensor, each in units of an element
  Distance elements;           // recorded elements of all tensors together
};

Tensors compare_tensors(const std::string& kind, const Json& recorded, const std::map<std::string, at::Tensor>& ours,
                        const std::map<std::string, at::Tensor>& exact) {
  Tensors result;
  Sum all;
  for (const auto& [name, values] : recorded.items()) {
    const auto found = ours.find(name);
    MPX_CHECK(found != ours.end(), "parity", "the run has a tensor ", name, " that this model lacks");
    const at::Tensor a = found->second.flatten(), b = exact.at(name).flatten();
    MPX_CHECK(a.numel() == values.at("numel").get<int64_t>(), "parity", name, " has ", a.numel(),
              " elements, the run had ", values.at("numel").dump());
    Sum tensor;
    const auto element = [&](int64_t at, double value) {
      tensor.add(a[at].item<double>(), value, b[at].item<double>());
      all.add(a[at].item<double>(), value, b[at].item<double>());
    };
    const auto first = values.value("first", std::vector<double>{}),
               last = values.value("last", std::vector<double>{});
    for (size_t i = 0; i < first.size(); ++i) element(static_cast<int64_t>(i), first[i]);
    for (size_t i = 0; i < last.size(); ++i)
      element(a.numel() - static_cast<int64_t>(last.size()) + static_cast<int64_t>(i), last[i]);
    const double root = std::sqrt(static_cast<double>(a.numel()));
    tensor.add(a.sum().item<double>() / root, values.at("sum").get<double>() / root, b.sum().item<double>() / root);
    tensor.add(a.norm().item<double>(), values.at("l2").get<double>(), b.norm().item<double>());
    result.each.push_back(tensor.distance(kind + " " + name));
  }
  result.elements = all.distance(kind + "s, all recorded elements");
  return result;
}

std::string text_of(const Distance& d, double allowed) {
  char text[256];
  std::snprintf(text, sizeof text,
                "%s: %.1e from the recorded, which is %.1e from the exact: %.2f times, %.2f allowed", d.what.c_str(),
                d.ours, d.theirs, d.ratio(), allowed);
  return text;
}

class Judge {
 public:
  void hold(const Distance& d, double allowed, bool say) {
    const std::string text = text_of(d, allowed);
    if (say) verdict.lines.push_back(text);
    if (!(d.ratio() <= allowed)) verdict.failures.push_back(text);
  }

  void hold(const std::string& kind, const Tensors& tensors) {
    if (tensors.each.empty()) return;
    for (const Distance& d : tensors.each) hold(d, allowed_ratio(d.count, kTensorLevel), false);
    std::vector<double> ratios;
    for (const Distance& d : tensors.each) ratios.push_back(d.ratio());
    std::sort(ratios.begin(), ratios.end());
    const double median = ratios[ratios.size() / 2];
    char text[160];
    std::snprintf(text, sizeof text,
                  "%ss: the median tensor is %.2f times as far, %.2f allowed; the worst %.2f times", kind.c_str(),
                  median, kFactor, ratios.back());
    verdict.lines.emplace_back(text);
    if (!(median <= kFactor)) verdict.failures.emplace_back(text);
    hold(tensors.elements, allowed_ratio(tensors.elements.count, kTensorLevel), true);
  }

  // A program that does not round where the recorded one does is nearer to the exact run than that one.
  void rounds(const Distance& gradients) {
    char text[160];
    std::snprintf(text, sizeof text, "rounding of gradients: %.2f of the recorded run's, at least 0.50 and at most 2",
                  gradients.rounding / gradients.theirs);
    verdict.lines.emplace_back(text);
    const bool alike =
        gradients.rounding >= gradients.theirs / kFactor && gradients.rounding <= gradients.theirs * kFactor;
    if (!alike) verdict.failures.emplace_back(text);
  }

  Verdict verdict;
};

bool is_recorded(const Json& run, const char* key) { return run.contains(key) && run.at(key).is_object(); }

}  // namespace

double allowed_ratio(int64_t count, double level) {
  if (count > 200) return kFactor;
  // P(F > x) with 2k and 2k degrees of freedom: fewer than k successes of 2k - 1 at p = x / (1 + x).
  const int64_t k = std::max<int64_t>(1, count / 2), trials = 2 * k - 1;
  const auto tail = [&](double p) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      const auto n = static_cast<double>(trials), i = static_cast<double>(j);
      sum += std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) + i * std::log(p) +
                      (n - i) * std::log1p(-p));
    }
    return sum;
  };
  double low = 0.5, high = 1 - 1e-12;
  for (int step = 0; step < 100; ++step) (tail((low + high) / 2) > level ? low : high) = (low + high) / 2;
  return std::max(kFactor, std::sqrt(2 * low / (1 - low)));
}

Verdict compare_half(const Json& recorded, const Trajectory& ours, const Trajectory& exact) {
  Judge judge;
  Sum losses, norms;
  for (size_t i = 0; i < ours.steps.size(); ++i) {
    const Json& line = recorded.at("history").at(i);
    losses.add(ours.steps[i].loss, line.at("loss"), exact.steps[i].loss);
    if (line.contains("grad_norm") && line.at("grad_norm").is_number() && exact.steps[i].updated)
      norms.add(ours.steps[i].grad_norm, line.at("grad_norm"), exact.steps[i].grad_norm);
  }
  for (const Distance& d : {losses.distance("losses"), norms.distance("gradient norms")}) {
    if (d.count > 0) judge.hold(d, allowed_ratio(d.count, kRowLevel), true);
  }
  if (is_recorded(recorded, "grads_iter1") && !ours.gradients.empty()) {
    const Tensors gradients =
        compare_tensors("gradient", recorded.at("grads_iter1"), ours.gradients, exact.gradients);
    judge.hold("gradient", gradients);
    judge.rounds(gradients.elements);
  }
  judge.hold("parameter",
             compare_tensors("parameter", recorded.at("final_params"), ours.parameters, exact.parameters));
  return std::move(judge.verdict);
}

}  // namespace metroplex::parity
