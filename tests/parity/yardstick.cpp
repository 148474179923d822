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
// Probability that a correct program exceeds a bound: a run has two rows of losses and norms, and dozens of tensors.
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

// A number of one tensor: ours, the recorded, the exact.
struct Number {
  double ours = 0, recorded = 0, exact = 0;
};

// Compared values of one tensor. With n elements and independent errors, sum / sqrt(n) and norm err as much as an
// element does; with correlated errors up to sqrt(n) times as much.
struct Compared {
  std::string name;
  int64_t numel = 0;
  Sum elements;
  Number sum, norm;  // the sum by sqrt(n)
};

struct Tensors {
  std::vector<Distance> each;  // recorded elements, the sum and the norm of a tensor, each by its expected error
  Distance elements;           // recorded elements of all tensors together
};

double expected_share(const std::vector<Compared>& tensors, Number Compared::*of) {
  double excess = 0, most = 0;
  for (const Compared& tensor : tensors) {
    const Distance elements = tensor.elements.distance(tensor.name);
    const auto n = static_cast<double>(tensor.numel), m = static_cast<double>(elements.count);
    if (elements.theirs == 0 || m <= 2 || n <= 1) continue;
    const double error = ((tensor.*of).recorded - (tensor.*of).exact) / elements.theirs;
    // The ratio to the mean square of m numbers is an F number, whose mean is m / (m - 2).
    excess += error * error * (m - 2) / m - 1;
    most += n - 1;
  }
  return most > 0 ? std::clamp(excess / most, 0.0, 1.0) : 0;
}

// Expected error of a tensor's sum or norm in units of an element's error. The correlation of elements' errors is
// estimated from the recorded run over all tensors of the kind, independently of our run.
class Expected {
 public:
  Expected(const std::vector<Compared>& tensors, Number Compared::*of) : share_(expected_share(tensors, of)) {}
  double errors(int64_t numel) const { return std::sqrt(1 + static_cast<double>(numel - 1) * share_); }

 private:
  double share_;
};

Compared compare_tensor(const std::string& name, const Json& recorded, const at::Tensor& ours,
                        const at::Tensor& exact, Sum& all) {
  const int64_t n = ours.numel();
  Compared out{name, n, {}, {}, {}};
  const auto element = [&](int64_t at, double value) {
    out.elements.add(ours[at].item<double>(), value, exact[at].item<double>());
    all.add(ours[at].item<double>(), value, exact[at].item<double>());
  };
  const auto first = recorded.value("first", std::vector<double>{}),
             last = recorded.value("last", std::vector<double>{});
  for (size_t i = 0; i < first.size(); ++i) element(static_cast<int64_t>(i), first[i]);
  for (size_t i = 0; i < last.size(); ++i)
    element(n - static_cast<int64_t>(last.size()) + static_cast<int64_t>(i), last[i]);
  const double root = std::sqrt(static_cast<double>(n));
  out.sum = {ours.sum().item<double>() / root, recorded.at("sum").get<double>() / root,
             exact.sum().item<double>() / root};
  out.norm = {ours.norm().item<double>(), recorded.at("l2").get<double>(), exact.norm().item<double>()};
  return out;
}

Tensors compare_tensors(const std::string& kind, const Json& recorded, const std::map<std::string, at::Tensor>& ours,
                        const std::map<std::string, at::Tensor>& exact) {
  std::vector<Compared> compared;
  Sum all;
  for (const auto& [name, values] : recorded.items()) {
    const auto found = ours.find(name);
    MPX_CHECK(found != ours.end(), "parity", "the run has a tensor ", name, " that this model lacks");
    const at::Tensor a = found->second.flatten(), b = exact.at(name).flatten();
    MPX_CHECK(a.numel() == values.at("numel").get<int64_t>(), "parity", name, " has ", a.numel(),
              " elements, the run had ", values.at("numel").dump());
    compared.push_back(compare_tensor(name, values, a, b, all));
  }
  Tensors result;
  const Expected sum_distance(compared, &Compared::sum), of_norms(compared, &Compared::norm);
  for (const Compared& of : compared) {
    Sum tensor = of.elements;
    const double sum = sum_distance.errors(of.numel), norm = of_norms.errors(of.numel);
    tensor.add(of.sum.ours / sum, of.sum.recorded / sum, of.sum.exact / sum);
    tensor.add(of.norm.ours / norm, of.norm.recorded / norm, of.norm.exact / norm);
    result.each.push_back(tensor.distance(kind + " " + of.name));
  }
  result.elements = all.distance(kind + "s, all recorded elements");
  return result;
}

std::string format_distance(const Distance& distance, double allowed) {
  char text[256];
  std::snprintf(text, sizeof text,
                "%s: %.1e from the recorded, which is %.1e from the exact: %.2f times, %.2f allowed",
                distance.what.c_str(), distance.ours, distance.theirs, distance.ratio(), allowed);
  return text;
}

class HalfComparison {
 public:
  void check_bound(const Distance& distance, double allowed, bool say) {
    const std::string text = format_distance(distance, allowed);
    if (say) comparison.lines.push_back(text);
    if (!(distance.ratio() <= allowed)) comparison.failures.push_back(text);
  }

  void check_bound(const std::string& kind, const Tensors& tensors) {
    if (tensors.each.empty()) return;
    for (const Distance& distance : tensors.each)
      check_bound(distance, allowed_ratio(distance.count, kTensorLevel), false);
    std::vector<double> ratios;
    for (const Distance& d : tensors.each) ratios.push_back(d.ratio());
    std::sort(ratios.begin(), ratios.end());
    const double median = ratios[ratios.size() / 2];
    char text[160];
    std::snprintf(text, sizeof text,
                  "%ss: the median tensor is %.2f times as far, %.2f allowed; the worst %.2f times", kind.c_str(),
                  median, kFactor, ratios.back());
    comparison.lines.emplace_back(text);
    if (!(median <= kFactor)) comparison.failures.emplace_back(text);
    check_bound(tensors.elements, allowed_ratio(tensors.elements.count, kTensorLevel), true);
  }

  // A program that omits a rounding of the recorded one is nearer to the exact run than the recorded one.
  void rounds(const Distance& gradients) {
    char text[160];
    std::snprintf(text, sizeof text, "rounding of gradients: %.2f of the recorded run's, at least 0.50 and at most 2",
                  gradients.rounding / gradients.theirs);
    comparison.lines.emplace_back(text);
    const bool alike =
        gradients.rounding >= gradients.theirs / kFactor && gradients.rounding <= gradients.theirs * kFactor;
    if (!alike) comparison.failures.emplace_back(text);
  }

  ComparisonResult comparison;
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

ComparisonResult compare_half(const Json& recorded, const Trajectory& ours, const Trajectory& exact) {
  HalfComparison judge;
  Sum losses, norms;
  for (size_t i = 0; i < ours.steps.size(); ++i) {
    const Json& line = recorded.at("history").at(i);
    losses.add(ours.steps[i].loss, line.at("loss"), exact.steps[i].loss);
    if (line.contains("grad_norm") && line.at("grad_norm").is_number() && exact.steps[i].updated)
      norms.add(ours.steps[i].grad_norm, line.at("grad_norm"), exact.steps[i].grad_norm);
  }
  for (const Distance& distance : {losses.distance("losses"), norms.distance("gradient norms")}) {
    if (distance.count > 0) judge.check_bound(distance, allowed_ratio(distance.count, kRowLevel), true);
  }
  if (is_recorded(recorded, "grads_iter1") && !ours.gradients.empty()) {
    const Tensors gradients =
        compare_tensors("gradient", recorded.at("grads_iter1"), ours.gradients, exact.gradients);
    judge.check_bound("gradient", gradients);
    judge.rounds(gradients.elements);
  }
  judge.check_bound("parameter",
                    compare_tensors("parameter", recorded.at("final_params"), ours.parameters, exact.parameters));
  return std::move(judge.comparison);
}

}  // namespace metroplex::parity
