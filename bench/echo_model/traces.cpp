#include "echo_model/traces.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"

namespace metroplex::bench {
namespace {

constexpr EchoTraceForm kEchoTraceForms[] = {
    {"Zipf 0.3", EchoTraceKind::zipf, 0.3},
    {"Zipf 0.6", EchoTraceKind::zipf, 0.6},
    {"Zipf 0.9", EchoTraceKind::zipf, 0.9},
    {"Zipf 1.2", EchoTraceKind::zipf, 1.2},
    {"Zipf 1.5", EchoTraceKind::zipf, 1.5},
    {"imbalance 1.5", EchoTraceKind::scaled, 1.5},
    {"imbalance 2", EchoTraceKind::scaled, 2},
    {"imbalance 3", EchoTraceKind::scaled, 3},
    {"imbalance 5", EchoTraceKind::scaled, 5},
    {"UltraEP 1.51", EchoTraceKind::ultra_ep, 1.51},
    {"UltraEP 2.01", EchoTraceKind::ultra_ep, 2.01},
    {"UltraEP 3.03", EchoTraceKind::ultra_ep, 3.03},
    {"drift every 3 steps", EchoTraceKind::drift, 3},
    {"drift every 50 steps", EchoTraceKind::drift, 50},
    {"one hot rank", EchoTraceKind::hot_rank, 10},
    {"one hot expert", EchoTraceKind::hot_experts, 1},
    {"two hot experts", EchoTraceKind::hot_experts, 2},
    {"even", EchoTraceKind::even, 0},
    {"empty ranks", EchoTraceKind::empty_ranks, 0},
    {"fewer rows than ranks", EchoTraceKind::few, 0},
};

using Weights = std::vector<double>;  // per expert

// Random numbers that are equal for all standard libraries.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double around(double by) { return 1 - by + 2 * by * unit(); }
  int below(int end) { return static_cast<int>(engine_() % static_cast<uint64_t>(end)); }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (int i = static_cast<int>(values.size()); i > 1; --i)
      std::swap(values[static_cast<size_t>(i - 1)], values[static_cast<size_t>(below(i))]);
  }

 private:
  std::mt19937_64 engine_;
};

Weights zipf_weights(int experts, double exponent, Draw& draw) {
  Weights weights;
  for (int i = 1; i <= experts; ++i) weights.push_back(std::pow(i, -exponent));
  draw.shuffle(weights);
  return weights;
}

double load_imbalance(const Weights& weights, int ranks) {
  const size_t home = weights.size() / static_cast<size_t>(ranks);
  double largest = 0, all = 0;
  for (size_t first = 0; first < weights.size(); first += home) {
    const double load = std::accumulate(weights.begin() + static_cast<std::ptrdiff_t>(first),
                                        weights.begin() + static_cast<std::ptrdiff_t>(first + home), 0.0);
    largest = std::max(largest, load);
    all += load;
  }
  return largest * ranks / all;
}

Weights scaled_weights(const EchoTraceSizes& sizes, double imbalance, Draw& draw) {
  for (double exponent = 0.9;; exponent += 0.3) {
    Weights weights = zipf_weights(sizes.experts, exponent, draw);
    const double found = load_imbalance(weights, sizes.ranks);
    MPX_ASSERT(exponent < 9, "no weights of ", sizes.experts, " experts have imbalance ", imbalance);
    if (found < imbalance) continue;
    const double mean = std::accumulate(weights.begin(), weights.end(), 0.0) / static_cast<double>(weights.size());
    const double share = found > 1 ? (imbalance - 1) / (found - 1) : 0;
    for (double& weight : weights) weight = mean + share * (weight - mean);
    return weights;
  }
}

// Returns the share of tokens that select each expert when topk are sampled without replacement: 1 - exp(-x weight).
// x is such that the sum is topk.
Weights topk_shares(const Weights& weights, int topk) {
  double low = 0, high = 1;
  Weights shares(weights.size());
  const auto sum = [&](double x) {
    for (size_t i = 0; i < weights.size(); ++i) shares[i] = -std::expm1(-x * weights[i]);
    return std::accumulate(shares.begin(), shares.end(), 0.0);
  };
  while (sum(high) < topk && high < 1e12) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (sum(middle) < topk ? low : high) = middle;
  }
  sum(high);
  return shares;
}

Weights ultra_ep_weights(const EchoTraceSizes& sizes, double imbalance) {
  const int home = sizes.experts / sizes.ranks;
  double low = 0, high = 8;
  Weights shares;
  const auto make = [&](double exponent) {
    Weights weights;
    for (int expert = 0; expert < sizes.experts; ++expert)
      weights.push_back(std::pow(expert / home + 1, -exponent) * std::pow(expert % home + 1, -4.0));
    shares = topk_shares(weights, sizes.topk);
    return load_imbalance(shares, sizes.ranks);
  };
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (make(middle) < imbalance ? low : high) = middle;
  }
  make(high);
  return shares;
}

Weights even_weights(const EchoTraceSizes& sizes) { return Weights(static_cast<size_t>(sizes.experts), 1.0); }

Weights hot_weights(const EchoTraceSizes& sizes, int hot) {
  // A token has topk choices; `hot` of them are always the same.
  Weights weights = even_weights(sizes);
  const double others = static_cast<double>(sizes.topk - hot) / (sizes.experts - hot);
  std::fill(weights.begin(), weights.end(), others);
  for (int i = 0; i < hot; ++i)
    weights[static_cast<size_t>((3 + 7 * i) % sizes.ranks * (sizes.experts / sizes.ranks))] = 1;
  return weights;
}

Weights draw_weights(const EchoTraceForm& form, const EchoTraceSizes& sizes, Draw& draw) {
  const int home = sizes.experts / sizes.ranks;
  Weights weights = even_weights(sizes);
  switch (form.kind) {
    case EchoTraceKind::zipf:
      return zipf_weights(sizes.experts, form.value, draw);
    case EchoTraceKind::scaled:
      return scaled_weights(sizes, form.value, draw);
    case EchoTraceKind::ultra_ep:
      return ultra_ep_weights(sizes, form.value);
    case EchoTraceKind::drift:
      return zipf_weights(sizes.experts, 1, draw);
    case EchoTraceKind::hot_experts:
      return hot_weights(sizes, static_cast<int>(form.value));
    case EchoTraceKind::hot_rank:
      std::fill_n(weights.begin() + sizes.ranks / 3 * home, home, 10.0);
      return weights;
    case EchoTraceKind::empty_ranks:
      for (int expert = 0; expert < sizes.experts; ++expert) {
        if (expert / home % 2 == 1) weights[static_cast<size_t>(expert)] = 0;
      }
      return weights;
    case EchoTraceKind::even:
    case EchoTraceKind::few:
      return weights;
  }
  return weights;
}

// Adds `rows` rows in proportion to the weights, rounded by the running sum.
void add_source(const Weights& weights, int64_t rows, std::vector<int64_t>& counts) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  int64_t dealt = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    int64_t until = static_cast<int64_t>(static_cast<double>(rows) * (sum / all) + 0.5);
    if (i + 1 == weights.size()) until = rows;
    counts.push_back(std::max<int64_t>(0, until - dealt));
    dealt += counts.back();
  }
}

}  // namespace

std::span<const EchoTraceForm> echo_trace_forms() { return kEchoTraceForms; }

EchoTrace make_echo_trace(const EchoTraceForm& form, const EchoTraceSizes& sizes, uint64_t seed) {
  MPX_ASSERT(sizes.experts % sizes.ranks == 0, sizes.experts, " experts on ", sizes.ranks, " ranks");
  Draw draw(seed);
  EchoTrace trace{form.name, {sizes.ranks, sizes.experts, 0}, {}};
  const bool drifts = form.kind == EchoTraceKind::drift;
  const int64_t rows = sizes.tokens * sizes.topk;
  Weights base;
  for (int step = 0; step < sizes.steps; ++step) {
    if (step == 0 || (drifts && step % static_cast<int>(form.value) == 0)) base = draw_weights(form, sizes, draw);
    Weights now = base;
    if (drifts) {
      for (double& weight : now) weight *= draw.around(0.3);
    }
    std::vector<int64_t>& counts = trace.steps.emplace_back();
    for (int source = 0; source < sizes.ranks; ++source) {
      if (form.kind == EchoTraceKind::few) {
        std::vector<int64_t> some(static_cast<size_t>(sizes.experts), 0);
        if (source % 2 == 0) some[static_cast<size_t>(draw.below(sizes.experts))] = 1;
        counts.insert(counts.end(), some.begin(), some.end());
        continue;
      }
      Weights of_source = now;
      for (double& weight : of_source) weight *= draw.around(0.1);
      add_source(of_source, rows, counts);
    }
  }
  return trace;
}

}  // namespace metroplex::bench
