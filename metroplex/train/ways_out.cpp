#include "train/ways_out.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "config/load.h"
#include "config/validate.h"
#include "train/way_cost.h"
#include "train/way_list.h"

namespace metroplex::train {
namespace {

using Chosen = std::map<WayKind, const WayLevel*>;

struct Tried {
  WayOut way;
  WayKind kind = WayKind::recompute;
  const WayLevel* level = nullptr;
};

class Search {
 public:
  Search(const FitRequest& request, const Fit& now, const Predictor& predict)
      : request_(request),
        now_(now),
        predict_(predict),
        yaml_(config::dump(request.config)),
        lists_(way_lists(request.config, request.places.gpu)) {
    for (const size_t i : std::set<size_t>{now.worst, 0, now.ranks.size() - 1}) sample_.push_back(&now.ranks[i]);
  }

  WaysOut run() {
    for (const WayList& list : lists_) {
      for (const WayLevel& level : list.levels) {
        if (auto way = attempt({{list.kind, &level}})) tried_.push_back({*way, list.kind, &level});
      }
    }
    WaysOut out;
    out.single = best_of_kinds();
    const bool enough = !out.single.empty() && out.single.front().fits;
    out.together = cheapest_pair(enough ? out.single.front().cost : std::numeric_limits<double>::infinity());
    if (enough || out.together) return out;
    out.together = together();
    return out;
  }

 private:
  // The request with these settings; nothing where the rules refuse them.
  std::optional<FitRequest> changed(const Chosen& chosen, WayOut& way) const {
    for (const auto& [kind, level] : chosen) {
      way.settings.insert(way.settings.end(), level->settings.begin(), level->settings.end());
      way.what += (way.what.empty() ? "" : "; ") + level->what;
    }
    const config::Config config = config::parse(yaml_, way.settings);
    if (!config::violations(config, request_.world_size).empty()) return std::nullopt;
    FitRequest out = request_;
    out.config = config::resolved(config, request_.world_size);
    return out;
  }

  // Looks at a few ranks only. Nothing for what is refused or saves less than a thousandth.
  std::optional<WayOut> attempt(const Chosen& chosen) {
    WayOut way;
    const auto request = changed(chosen, way);
    if (!request) return std::nullopt;
    double before = 0, after = 0;
    for (const RankFigures* rank : sample_) {
      const RankFigures then = figures_of(*request, rank->rank, predict_);
      before += static_cast<double>(rank->peak);
      after += static_cast<double>(then.peak);
      way.need = std::max(way.need, then.peak);
      if (rank == &now_.worst_rank()) way.cost = added_cost(request_, *rank, *request, then);
    }
    if (request_.places.ranks_each > 1) way.need = std::llround(static_cast<double>(now_.need) * after / before);
    return judged(way) ? std::optional(way) : std::nullopt;
  }

  // Looks at every rank: with other sharding these are others than those of the sample.
  std::optional<WayOut> confirmed(WayOut way, const Chosen& chosen) const {
    WayOut again;
    way.need = fit(*changed(chosen, again), predict_).need;
    return judged(way) ? std::optional(way) : std::nullopt;
  }

  bool judged(WayOut& way) const {
    way.saves = now_.need - way.need;
    way.fits = !now_.have || way.need <= *now_.have;
    return way.saves > now_.need / 1000;
  }

  static bool better(const Tried& a, const Tried& b) {
    if (a.way.fits != b.way.fits) return a.way.fits;
    if (a.way.fits && a.way.cost != b.way.cost) return a.way.cost < b.way.cost;
    return a.way.need < b.way.need;
  }

  // The best of every kind ahead of the others of that kind.
  std::vector<WayOut> best_of_kinds() {
    std::vector<Tried> sorted = tried_, first, second;
    std::stable_sort(sorted.begin(), sorted.end(), better);
    std::set<WayKind> seen;
    for (const Tried& one : sorted) (seen.insert(one.kind).second ? first : second).push_back(one);
    const auto split = std::stable_partition(first.begin(), first.end(), [](const Tried& t) { return t.way.fits; });
    first.insert(split, second.begin(),
                 std::find_if(second.begin(), second.end(), [](const Tried& t) { return !t.way.fits; }));
    std::vector<WayOut> out;
    for (const Tried& one : first) {
      if (out.size() == 3) break;
      if (const auto way = confirmed(one.way, {{one.kind, one.level}})) out.push_back(*way);
    }
    std::stable_sort(out.begin(), out.end(), [](const WayOut& a, const WayOut& b) {
      return a.fits != b.fits ? a.fits : a.fits && a.cost < b.cost;
    });
    return out;
  }

  double cost_of(WayKind kind, const WayLevel* level) const {
    for (const Tried& one : tried_) {
      if (one.kind == kind && one.level == level) return one.way.cost;
    }
    return 0;
  }

  // Takes of every kind what leaves least alone, in that order, as far as it helps beside what was taken before.
  std::optional<WayOut> all_that_help(Chosen& chosen) {
    std::vector<Tried> sorted = tried_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Tried& a, const Tried& b) { return a.way.need < b.way.need; });
    std::optional<WayOut> best;
    for (const Tried& one : sorted) {
      if (chosen.contains(one.kind) || (best && best->fits)) continue;
      Chosen more = chosen;
      more[one.kind] = one.level;
      const auto way = attempt(more);
      if (!way || (best && way->need >= best->need)) continue;
      best = way;
      chosen = more;
    }
    return best;
  }

  // Leaves out, or takes cheaper, what is not needed to fit; the dearest first.
  WayOut relaxed(Chosen& chosen, WayOut best) {
    std::vector<WayKind> kinds;
    for (const auto& [kind, level] : chosen) kinds.push_back(kind);
    std::stable_sort(kinds.begin(), kinds.end(),
                     [&](WayKind a, WayKind b) { return cost_of(a, chosen.at(a)) > cost_of(b, chosen.at(b)); });
    for (const WayKind kind : kinds) {
      std::vector<const WayLevel*> levels{nullptr};
      bool milder = true;  // levels stand in the order of what they do
      for (const Tried& one : tried_) {
        if (one.kind != kind) continue;
        milder = milder && one.level != chosen.at(kind);
        const double most = cost_of(kind, chosen.at(kind));
        if (one.way.cost < most || (milder && one.way.cost == most)) levels.push_back(one.level);
      }
      std::stable_sort(levels.begin() + 1, levels.end(),
                       [&](const WayLevel* a, const WayLevel* b) { return cost_of(kind, a) < cost_of(kind, b); });
      for (const WayLevel* level : levels) {
        Chosen less = chosen;
        level == nullptr ? static_cast<void>(less.erase(kind)) : static_cast<void>(less[kind] = level);
        const auto way = attempt(less);
        if (!way || !way->fits) continue;
        chosen = less;
        best = *way;
        break;
      }
    }
    return best;
  }

  struct Pair {
    const Tried *a, *b;
    double cost() const { return a->way.cost + b->way.cost; }
  };
  // Of two kinds, neither enough alone, whose savings may add up; by the sum of their costs.
  std::vector<Pair> pairs() const {
    std::vector<Pair> all;
    const int64_t missing = now_.have ? now_.need - *now_.have : 0;
    for (auto a = tried_.begin(); a != tried_.end(); ++a) {
      for (auto b = a + 1; b != tried_.end(); ++b) {
        const bool may = a->kind != b->kind && !a->way.fits && !b->way.fits;
        if (may && a->way.saves + b->way.saves >= missing / 2) all.push_back({&*a, &*b});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Pair& x, const Pair& y) { return x.cost() < y.cost(); });
    return all;
  }

  // Two settings that fit together for less than `most` of a step. What two cost together is not the sum of what each
  // does (both may drop the same), so of the cheapest by the sum the first few are predicted.
  std::optional<WayOut> cheapest_pair(double most) {
    constexpr int kLooks = 20;
    std::optional<WayOut> best;
    Chosen chosen;
    int looks = 0;
    for (const Pair& pair : pairs()) {
      if (looks == kLooks || std::max(pair.a->way.cost, pair.b->way.cost) >= most) continue;
      ++looks;
      const Chosen both{{pair.a->kind, pair.a->level}, {pair.b->kind, pair.b->level}};
      const auto way = attempt(both);
      if (!way || !way->fits || way->cost >= most) continue;
      most = way->cost;
      best = way;
      chosen = both;
    }
    if (best) best = confirmed(*best, chosen);
    return best && best->fits ? best : std::nullopt;
  }

  std::optional<WayOut> together() {
    Chosen all;
    const auto most = all_that_help(all);
    if (!most || all.size() < 2) return std::nullopt;
    if (!most->fits) return confirmed(*most, all);
    Chosen fewer = all;
    const WayOut least = relaxed(fewer, *most);
    const auto way = confirmed(least, fewer);
    return way && way->fits ? way : confirmed(*most, all);
  }

  const FitRequest& request_;
  const Fit& now_;
  const Predictor& predict_;
  std::string yaml_;
  std::vector<WayList> lists_;
  std::vector<const RankFigures*> sample_;
  std::vector<Tried> tried_;
};

}  // namespace

WaysOut ways_out(const FitRequest& request, const Fit& now, const Predictor& predict) {
  return Search(request, now, predict).run();
}

}  // namespace metroplex::train
