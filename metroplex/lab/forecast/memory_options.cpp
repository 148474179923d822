#include "forecast/memory_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace metroplex::forecast {
namespace {

using Chosen = std::map<OptionKind, const OptionLevel*>;

// Bytes of a rank in its domain, by category.
using Bytes = std::array<double, 8>;
constexpr size_t kActivations = 4;

Bytes category_bytes(const RankFigures& rank, bool gpu) {
  const replay::MemoryUse& use = rank.prediction.memory.use;
  Bytes out;
  size_t i = 0;
  for (const int64_t bytes : {use.parameters, use.gradients, use.main_parameters, use.moments, use.activations,
                              use.communication, use.workspace, gpu ? 0 : use.host})
    out[i++] = static_cast<double>(bytes);
  return out;
}

struct TriedOption {
  MemoryOption option;
  OptionKind kind = OptionKind::recompute;
  const OptionLevel* level = nullptr;
  Bytes bytes{};  // of the rank with the largest current peak
};

class Search {
 public:
  Search(const FitRequest& request, const Fit& now, const Predictor& predict)
      : request_(request), now_(now), predict_(predict), lists_(option_levels(request.config, request.domains.gpu)) {
    for (const size_t i : std::set<size_t>{now.worst, 0, now.ranks.size() - 1}) sample_.push_back(&now.ranks[i]);
  }

  MemoryOptions run() {
    for (const OptionLevels& list : lists_) {
      for (const OptionLevel& level : list.levels) {
        Bytes bytes{};
        if (auto option = attempt({{list.kind, &level}}, &bytes))
          tried_.push_back({*option, list.kind, &level, bytes});
      }
    }
    MemoryOptions out;
    out.single = best_of_kinds();
    const bool enough = !out.single.empty() && out.single.front().fits;
    out.together = cheapest_combination(enough ? out.single.front().cost : std::numeric_limits<double>::infinity());
    if (enough || out.together) return out;
    out.together = together();
    return out;
  }

 private:
  // Returns the request with these settings; nullopt if they violate the config rules.
  std::optional<FitRequest> apply_settings(const Chosen& chosen, MemoryOption& option) const {
    for (const auto& [kind, level] : chosen) {
      option.settings.insert(option.settings.end(), level->settings.begin(), level->settings.end());
      option.what += (option.what.empty() ? "" : "; ") + level->what;
    }
    return with_settings(request_, option.settings);
  }

  // Predicts a few ranks only; `bytes` receives the categories of the rank with the largest current peak. Returns
  // nullopt for settings that violate the rules or save less than a thousandth.
  std::optional<MemoryOption> attempt(const Chosen& chosen, Bytes* bytes = nullptr) {
    MemoryOption option;
    const auto request = apply_settings(chosen, option);
    if (!request) return std::nullopt;
    double before = 0, after = 0;
    for (const RankFigures* rank : sample_) {
      const RankFigures then = predict_figures(*request, rank->rank, predict_);
      before += static_cast<double>(rank->peak);
      after += static_cast<double>(then.peak);
      option.need = std::max(option.need, then.peak);
      if (rank != &now_.worst_rank()) continue;
      option.cost = added_cost(request_, *rank, *request, then);
      if (bytes != nullptr) *bytes = category_bytes(then, request_.domains.gpu);
    }
    if (request_.domains.ranks_each > 1) option.need = std::llround(static_cast<double>(now_.need) * after / before);
    return rate_option(option) ? std::optional(option) : std::nullopt;
  }

  // Predicts every rank, because other sharding may move the maximum to another rank.
  std::optional<MemoryOption> confirm(MemoryOption option, const Chosen& chosen) const {
    MemoryOption again;
    option.need = fit(*apply_settings(chosen, again), predict_).need;
    return rate_option(option) ? std::optional(option) : std::nullopt;
  }

  bool rate_option(MemoryOption& option) const {
    option.saves = now_.need - option.need;
    option.fits = !now_.have || option.need <= *now_.have;
    return option.saves > now_.need / 1000;
  }

  static bool better(const TriedOption& a, const TriedOption& b) {
    if (a.option.fits != b.option.fits) return a.option.fits;
    if (a.option.fits && a.option.cost != b.option.cost) return a.option.cost < b.option.cost;
    return a.option.need < b.option.need;
  }

  // Returns up to three options: first the best of each kind that fits, then other levels that fit, then options
  // that do not fit.
  std::vector<MemoryOption> best_of_kinds() {
    std::vector<TriedOption> sorted = tried_, first, second;
    std::stable_sort(sorted.begin(), sorted.end(), better);
    std::set<OptionKind> seen;
    for (const TriedOption& one : sorted) (seen.insert(one.kind).second ? first : second).push_back(one);
    const auto split =
        std::stable_partition(first.begin(), first.end(), [](const TriedOption& tried) { return tried.option.fits; });
    first.insert(split, second.begin(), std::find_if(second.begin(), second.end(), [](const TriedOption& tried) {
                   return !tried.option.fits;
                 }));
    std::vector<MemoryOption> out;
    for (const TriedOption& one : first) {
      if (out.size() == 3) break;
      if (const auto option = confirm(one.option, {{one.kind, one.level}})) out.push_back(*option);
    }
    std::stable_sort(out.begin(), out.end(), [](const MemoryOption& a, const MemoryOption& b) {
      return a.fits != b.fits ? a.fits : a.fits && a.cost < b.cost;
    });
    return out;
  }

  double find_cost(OptionKind kind, const OptionLevel* level) const {
    for (const TriedOption& one : tried_) {
      if (one.kind == kind && one.level == level) return one.option.cost;
    }
    return 0;
  }

  // Adds the best option of each kind, in order of memory need, if it helps in addition to the previous ones.
  std::optional<MemoryOption> combine_greedily(Chosen& chosen) {
    std::vector<TriedOption> sorted = tried_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const TriedOption& a, const TriedOption& b) { return a.option.need < b.option.need; });
    std::optional<MemoryOption> best;
    for (const TriedOption& one : sorted) {
      if (chosen.contains(one.kind) || (best && best->fits)) continue;
      Chosen more = chosen;
      more[one.kind] = one.level;
      const auto option = attempt(more);
      if (!option || (best && option->need >= best->need)) continue;
      best = option;
      chosen = more;
    }
    return best;
  }

  // Removes settings that are not needed to fit, or replaces them by cheaper ones; the most expensive first.
  MemoryOption relax(Chosen& chosen, MemoryOption best) {
    std::vector<OptionKind> kinds;
    for (const auto& [kind, level] : chosen) kinds.push_back(kind);
    std::stable_sort(kinds.begin(), kinds.end(), [&](OptionKind a, OptionKind b) {
      return find_cost(a, chosen.at(a)) > find_cost(b, chosen.at(b));
    });
    for (const OptionKind kind : kinds) {
      std::vector<const OptionLevel*> levels{nullptr};
      bool milder = true;  // levels are in order of strength
      for (const TriedOption& one : tried_) {
        if (one.kind != kind) continue;
        milder = milder && one.level != chosen.at(kind);
        const double most = find_cost(kind, chosen.at(kind));
        if (one.option.cost < most || (milder && one.option.cost == most)) levels.push_back(one.level);
      }
      std::stable_sort(levels.begin() + 1, levels.end(), [&](const OptionLevel* a, const OptionLevel* b) {
        return find_cost(kind, a) < find_cost(kind, b);
      });
      for (const OptionLevel* level : levels) {
        Chosen less = chosen;
        level == nullptr ? static_cast<void>(less.erase(kind)) : static_cast<void>(less[kind] = level);
        const auto option = attempt(less);
        if (!option || !option->fits) continue;
        chosen = less;
        best = *option;
        break;
      }
    }
    return best;
  }

  struct Combination {
    std::vector<const TriedOption*> taken;
    double cost = 0, need = 0;  // estimated from the single options
  };

  // Each setting scales every category independently of the other settings. The cost of offloading activations scales
  // with the activations that remain.
  Combination estimate(std::vector<const TriedOption*> taken) const {
    const Bytes before = category_bytes(now_.worst_rank(), request_.domains.gpu);
    Bytes after = before;
    for (const TriedOption* one : taken) {
      for (size_t i = 0; i < after.size(); ++i)
        before[i] > 0 ? after[i] *= one->bytes[i] / before[i] : after[i] += one->bytes[i];
    }
    Combination out{std::move(taken)};
    for (const TriedOption* one : out.taken) {
      const double alone = one->bytes[kActivations] / std::max(1.0, before[kActivations]);
      const double others = alone > 0 ? after[kActivations] / std::max(1.0, before[kActivations]) / alone : 0;
      out.cost += one->option.cost * (one->kind == OptionKind::activation_offload ? others : 1);
    }
    const double all = std::accumulate(before.begin(), before.end(), 0.0);
    out.need = static_cast<double>(now_.need) * std::accumulate(after.begin(), after.end(), 0.0) / std::max(1.0, all);
    return out;
  }

  // Returns all combinations of one setting each from two or more kinds.
  std::vector<Combination> all_combinations() const {
    std::vector<std::vector<const TriedOption*>> chosen{{}};
    for (const OptionLevels& list : lists_) {
      const size_t before = chosen.size();
      for (size_t i = 0; i < before; ++i) {
        for (const TriedOption& one : tried_) {
          if (one.kind != list.kind) continue;
          chosen.push_back(chosen[i]);
          chosen.back().push_back(&one);
        }
      }
    }
    std::vector<Combination> out;
    for (auto& taken : chosen) {
      if (taken.size() > 1) out.push_back(estimate(std::move(taken)));
    }
    return out;
  }

  // Finds settings that fit together and cost less than `most` of a step. Predicts the cheapest combinations that are
  // estimated to nearly fit.
  std::optional<MemoryOption> cheapest_combination(double most) {
    constexpr int kMaxPredictions = 24;
    constexpr double kNeedFactor = 1.05, kCostFactor = 1.3;  // a setting may lower the cost of another one
    if (!now_.have) return std::nullopt;
    std::vector<Combination> candidates = all_combinations();
    std::erase_if(candidates, [&](const Combination& combination) {
      return combination.need > kNeedFactor * static_cast<double>(*now_.have);
    });
    std::stable_sort(candidates.begin(), candidates.end(), [](const Combination& x, const Combination& y) {
      return x.cost != y.cost ? x.cost < y.cost : x.taken.size() < y.taken.size();
    });
    std::optional<MemoryOption> best;
    Chosen best_chosen;
    int predictions = 0;
    for (const Combination& combination : candidates) {
      if (predictions == kMaxPredictions || combination.cost >= kCostFactor * most) break;
      ++predictions;
      Chosen chosen;
      for (const TriedOption* one : combination.taken) chosen[one->kind] = one->level;
      const auto option = attempt(chosen);
      if (!option || !option->fits || option->cost >= most) continue;
      most = option->cost;
      best = option;
      best_chosen = chosen;
    }
    if (best) best = confirm(*best, best_chosen);
    return best && best->fits ? best : std::nullopt;
  }

  std::optional<MemoryOption> together() {
    Chosen all;
    const auto most = combine_greedily(all);
    if (!most || all.size() < 2) return std::nullopt;
    if (!most->fits) return confirm(*most, all);
    Chosen fewer = all;
    const MemoryOption least = relax(fewer, *most);
    const auto option = confirm(least, fewer);
    return option && option->fits ? option : confirm(*most, all);
  }

  const FitRequest& request_;
  const Fit& now_;
  const Predictor& predict_;
  std::vector<OptionLevels> lists_;
  std::vector<const RankFigures*> sample_;
  std::vector<TriedOption> tried_;
};

}  // namespace

MemoryOptions memory_options(const FitRequest& request, const Fit& now, const Predictor& predict) {
  return Search(request, now, predict).run();
}

}  // namespace metroplex::forecast
