#include "forecast/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/bytes_text.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/layout_estimate.h"

namespace metroplex::forecast {
namespace {

constexpr double kMemoryMargin =
    1.1;  // estimated bytes above this multiple of the device's are not predicted exactly

struct Estimated {
  Layout layout;
  LayoutEstimate estimate;
};

// Estimates all layouts, in parallel. Keeps those that the rules of one layer allow and whose memory may suffice.
std::vector<Estimated> estimate_all(const PlanRequest& request, const std::vector<Layout>& layouts, int threads,
                                    LayoutSearch& search) {
  LayoutEstimator estimator(request);
  // Layouts that share a layer's costs form a group, so that threads do not trace the same layer twice.
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, config::Recompute>, std::vector<size_t>> groups;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Layout& layout = layouts[i];
    groups[{layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.recompute}].push_back(i);
  }
  std::vector<const std::vector<size_t>*> order;
  for (const auto& [key, group] : groups) order.push_back(&group);
  std::vector<std::optional<LayoutEstimate>> estimates(layouts.size());
  base::parallel_for(static_cast<int64_t>(order.size()), threads, [&](int64_t number) {
    for (const size_t i : *order[static_cast<size_t>(number)]) {
      try {
        estimates[i] = estimator.estimate(layouts[i]);
      } catch (const base::Error&) { return; }  // refused: all layouts of the group share the layer
    }
  });
  std::vector<Estimated> kept;
  const double have = request.run.domains.bytes ? static_cast<double>(*request.run.domains.bytes) : INFINITY;
  const double each = request.run.domains.gpu ? have : have / request.run.world_size;
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (!estimates[i]) ++search.refused;
    else if (estimates[i]->bytes > kMemoryMargin * each) ++search.too_large;
    else kept.push_back({layouts[i], *estimates[i]});
  }
  std::stable_sort(kept.begin(), kept.end(), [](const Estimated& left, const Estimated& right) {
    return left.estimate.seconds < right.estimate.seconds;
  });
  return kept;
}

// The exact plan of a layout; nullopt if the rules or the memory refuse it.
std::optional<RunPlan> plan_layout(const PlanRequest& request, const Layout& layout) {
  PlanRequest one = request;
  one.run.config = layout.apply(request.run.config);
  if (!config::violations(one.run.config, one.run.world_size).empty()) return std::nullopt;
  one.run.config = config::resolved(one.run.config, one.run.world_size);
  RunPlan plan = plan_run(one);
  if (!plan.fit.fits()) return std::nullopt;
  return plan;
}

struct Part {
  const char* name;
  double seconds;
};
std::vector<Part> parts(const RunPlan& plan) {
  const replay::RankTimes& times = plan.time.slowest();
  std::vector<Part> all{{"forward", times.forward},
                        {"backward", times.backward + times.weight},
                        {"update", times.optimizer},
                        {"bubble", times.idle}};
  for (const auto& [purpose, seconds] : times.exposed) {
    for (const char* known : {"layers", "experts", "gradients", "replicas", "run"}) {
      if (purpose == known) all.push_back({known, seconds});
    }
  }
  return all;
}

std::string loses_by(const RunPlan& best, const RunPlan& plan) {
  std::string text;
  double most = 0;
  const std::vector<Part> first = parts(best);
  for (const Part& part : parts(plan)) {
    double before = 0;
    for (const Part& other : first) before += std::string(other.name) == part.name ? other.seconds : 0;
    if (part.seconds - before <= most) continue;
    most = part.seconds - before;
    char number[32];
    std::snprintf(number, sizeof number, " +%.1f %%", 100 * most / best.step_s);
    const bool known = std::string("forward backward update bubble").find(part.name) != std::string::npos;
    text = base::concat(known ? "" : "communication of ", part.name, number);
  }
  return text;
}

std::vector<SearchResult> pareto(std::vector<SearchResult> all) {
  std::stable_sort(all.begin(), all.end(), [](const SearchResult& left, const SearchResult& right) {
    if (left.plan.fit.need != right.plan.fit.need) return left.plan.fit.need < right.plan.fit.need;
    return left.plan.step_s < right.plan.step_s;
  });
  std::vector<SearchResult> front;
  for (SearchResult& one : all) {
    if (front.empty() || one.plan.step_s < front.back().plan.step_s) front.push_back(std::move(one));
  }
  return front;
}

}  // namespace

LayoutSearch search_layouts(const PlanRequest& request, const SearchLimits& limits) {
  const auto start = std::chrono::steady_clock::now();
  LayoutSearch search;
  const std::vector<Layout> layouts = list_layouts(request);
  search.candidates = static_cast<int64_t>(layouts.size());
  const std::vector<Estimated> order = estimate_all(request, layouts, limits.threads, search);
  std::vector<SearchResult> found;
  size_t next = 0;
  while (next < order.size()) {
    const bool proven =
        !found.empty() && order[next].estimate.seconds * (1 - limits.margin) > found.front().plan.step_s;
    if (proven && (std::ssize(found) >= limits.results || search.simulated >= limits.max_simulated)) break;
    const size_t batch = std::min(order.size() - next, static_cast<size_t>(limits.threads));
    std::vector<std::optional<RunPlan>> plans(batch);
    base::parallel_for(static_cast<int64_t>(batch), limits.threads, [&](int64_t i) {
      plans[static_cast<size_t>(i)] = plan_layout(request, order[next + static_cast<size_t>(i)].layout);
    });
    for (size_t i = 0; i < batch; ++i) {
      ++search.simulated;
      if (plans[i])
        found.push_back({order[next + i].layout, std::move(*plans[i]), order[next + i].estimate.seconds, ""});
    }
    next += batch;
    std::stable_sort(found.begin(), found.end(), [](const SearchResult& left, const SearchResult& right) {
      return left.plan.step_s < right.plan.step_s;
    });
  }
  MPX_CHECK(!found.empty(), "cost", "no layout of ", search.candidates, " on ", request.run.world_size, " ranks of ",
            request.machine.name, " fits: ", search.refused, " are refused by the rules and ", search.too_large,
            " are too large; use more ranks or a smaller batch");
  search.pareto = pareto(found);
  if (found.size() > static_cast<size_t>(limits.results)) found.resize(static_cast<size_t>(limits.results));
  for (size_t i = 1; i < found.size(); ++i) found[i].loses_by = loses_by(found[0].plan, found[i].plan);
  search.results = std::move(found);
  search.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return search;
}

namespace {

std::string row(const PlanRequest& request, const SearchResult& result) {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "%9.4g s %6.1f %% %9s  ", result.plan.step_s, 100 * result.plan.mfu,
                base::bytes_text(static_cast<double>(result.plan.fit.need)).c_str());
  return numbers + result.layout.to_string(request.run.world_size) +
         (result.loses_by.empty() ? "" : "  (" + result.loses_by + ")") + "\n";
}

}  // namespace

std::string to_text(const PlanRequest& request, const LayoutSearch& search) {
  char head[160];
  std::snprintf(head, sizeof head, "%lld layouts in %.1f s: %lld refused, %lld too large, %lld simulated\n",
                static_cast<long long>(search.candidates), search.seconds, static_cast<long long>(search.refused),
                static_cast<long long>(search.too_large), static_cast<long long>(search.simulated));
  std::string out = head;
  out += "       step     MFU    memory  layout (longest part against the first)\n";
  for (const SearchResult& result : search.results) out += row(request, result);
  out += "not beaten in both memory and time, of the simulated ones\n";
  for (const SearchResult& result : search.pareto) out += row(request, result);
  return out;
}

std::string to_json(const LayoutSearch& search) {
  nlohmann::ordered_json out{{"candidates", search.candidates}, {"refused", search.refused},
                             {"too_large", search.too_large},   {"simulated", search.simulated},
                             {"seconds", search.seconds},       {"results", nlohmann::ordered_json::array()}};
  for (const SearchResult& result : search.results) {
    const Layout& layout = result.layout;
    out["results"].push_back({{"tp", layout.tp},
                              {"cp", layout.cp},
                              {"pp", layout.pp},
                              {"vpp", layout.vpp},
                              {"ep", layout.ep},
                              {"etp", layout.etp},
                              {"micro_batch_size", layout.micro_batch},
                              {"recompute", config::text_of(layout.recompute)},
                              {"sharding", config::text_of(layout.sharding)},
                              {"schedule", config::text_of(layout.schedule)},
                              {"step_s", result.plan.step_s},
                              {"estimate_s", result.estimate_s},
                              {"mfu", result.plan.mfu},
                              {"bytes", result.plan.fit.need},
                              {"loses_by", result.loses_by}});
  }
  return out.dump(2) + "\n";
}

std::string best_yaml(const PlanRequest& request, const LayoutSearch& search) {
  return config::dump(search.results.at(0).layout.apply(request.run.config));
}

}  // namespace metroplex::forecast
