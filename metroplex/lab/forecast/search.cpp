#include "forecast/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/thread_pool.h"
#include "config/validate.h"
#include "forecast/layout_estimate.h"

namespace metroplex::forecast {
namespace {

struct Estimated {
  Layout layout;
  LayoutEstimate estimate;
};

bool is_faster(const SearchResult& left, const SearchResult& right) { return left.plan.step_s < right.plan.step_s; }

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

class Searcher {
 public:
  Searcher(const PlanRequest& request, const SearchLimits& limits)
      : request_(request), limits_(limits), estimator_(request) {}

  LayoutSearch run() {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Layout> layouts = list_layouts(request_);
    out_.candidates = std::ssize(layouts);
    report("estimating ", layouts.size(), " layouts");
    estimate_all(layouts);
    report("simulating the fastest of ", order_.size(), " layouts");
    simulate_all();
    if (found_.empty()) refuse(layouts);
    for (int64_t i = 0; i < std::min<int64_t>(limits_.refined, std::ssize(found_)); ++i)
      refine(found_[static_cast<size_t>(i)]);
    std::stable_sort(found_.begin(), found_.end(), is_faster);
    out_.pareto = pareto(found_);
    if (std::ssize(found_) > limits_.results) found_.resize(static_cast<size_t>(limits_.results));
    for (size_t i = 1; i < found_.size(); ++i) found_[i].loses_by = loses_by(found_[0].plan, found_[i].plan);
    out_.results = std::move(found_);
    out_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(out_);
  }

 private:
  template <class... Parts>
  void report(const Parts&... parts) const {
    if (request_.progress) request_.progress(base::concat(parts...));
  }

  struct Planned {
    std::optional<RunPlan> plan;
    bool too_large = false;
    int64_t need = 0;  // bytes, if the rules allow it
  };

  [[noreturn]] void refuse(const std::vector<Layout>& layouts) {
    const config::Config& config = request_.run.config;
    const int world = request_.run.world_size;
    MPX_CHECK(
        !layouts.empty(), "cost", "no layout of this model uses ", world,
        " ranks: train.global_batch_size = ", config.train.global_batch_size,
        ", model.num_layers and model.num_attention_heads must be divisible by the parallel sizes, whose product "
        "is the number of ranks; choose another number of ranks or another batch size");
    if (out_.too_large == 0) {
      // Throws the error of the first layout, which splits the least.
      for (const Layout& layout : layouts) {
        estimator_.estimate(layout);
        config::check(layout.apply(config), world);
      }
    }
    base::throw_error(
        "cost", base::concat("no layout of ", out_.candidates, " on ", world, " ranks of ", request_.machine.name,
                             " fits: ", out_.refused, " are refused by the rules and ", out_.too_large,
                             " are too large; use more ranks or a smaller batch"));
  }

  // Estimates all layouts, in parallel. Keeps those that the rules of one layer allow and whose memory may suffice.
  void estimate_all(const std::vector<Layout>& layouts) {
    // Layouts that share a layer's costs form a group, so that threads do not trace the same layer twice.
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, config::Recompute>, std::vector<size_t>> groups;
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Layout& layout = layouts[i];
      groups[{layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.recompute}].push_back(i);
    }
    std::vector<const std::vector<size_t>*> order;
    for (const auto& [key, group] : groups) order.push_back(&group);
    std::vector<std::optional<LayoutEstimate>> estimates(layouts.size());
    base::parallel_for(std::ssize(order), limits_.threads, [&](int64_t number) {
      for (const size_t i : *order[static_cast<size_t>(number)]) {
        try {
          estimates[i] = estimator_.estimate(layouts[i]);
        } catch (const base::Error&) {}  // refused
      }
    });
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (!estimates[i]) ++out_.refused;
      else add(layouts[i], *estimates[i]);
    }
    std::stable_sort(order_.begin(), order_.end(), is_sooner);
  }

  static bool is_sooner(const Estimated& left, const Estimated& right) {
    return left.estimate.seconds < right.estimate.seconds;
  }

  void add(const Layout& layout, const LayoutEstimate& estimate) {
    const MemoryDomains& domains = request_.run.domains;
    const double have = domains.bytes ? static_cast<double>(*domains.bytes) : INFINITY;
    const bool too_large =
        estimate.bytes > limits_.memory_margin * (domains.gpu ? have : have / request_.run.world_size);
    if (too_large) ++out_.too_large;
    else order_.push_back({layout, estimate});
    if (too_large) add_offloads(layout);
  }
  void add_offloads(const Layout& layout) {
    for (const Layout& offload : list_offloads(request_, layout)) {
      ++out_.candidates;
      add(offload, estimator_.estimate(offload));
    }
  }
  // The same after an exact prediction of `need`.
  void add_offloads(const Estimated& one, int64_t need) {
    for (const Layout& offload : list_offloads(request_, one.layout)) {
      ++out_.candidates;
      const LayoutEstimate estimate = estimator_.estimate(offload);
      const double saved = one.estimate.bytes - estimate.bytes;
      const double rest = static_cast<double>(need) - limits_.most_saved * saved;
      if (rest <= static_cast<double>(*request_.run.domains.bytes)) add(offload, estimate);
      else ++out_.too_large;
    }
  }

  // Refuses first by the rules, then by memory.
  Planned plan_layout(const Layout& layout) const {
    PlanRequest one = request_;
    one.run.config = layout.apply(request_.run.config);
    if (!config::violations(one.run.config, one.run.world_size).empty()) return {};
    one.run.config = config::resolved(one.run.config, one.run.world_size);
    Planned out;
    out.plan = plan_fitting_run(one, &out.need);
    out.too_large = !out.plan;
    return out;
  }
  std::vector<Planned> plan_layouts(const std::vector<Layout>& layouts) {
    std::vector<Planned> plans(layouts.size());
    base::parallel_for(std::ssize(layouts), limits_.threads, [&](int64_t i) {
      plans[static_cast<size_t>(i)] = plan_layout(layouts[static_cast<size_t>(i)]);
    });
    out_.simulated += std::ssize(layouts);
    return plans;
  }

  bool is_done(size_t next) const {
    if (next == order_.size()) return true;
    const bool proven = !found_.empty() &&
                        order_[next].estimate.seconds * (1 - limits_.margin - excess_) > found_.front().plan.step_s;
    return proven && (std::ssize(found_) >= limits_.results || out_.simulated >= limits_.max_simulated);
  }

  void simulate_all() {
    for (size_t next = 0; !is_done(next);) {
      const size_t end = std::min(order_.size(), next + static_cast<size_t>(limits_.threads));
      std::vector<Layout> batch;
      for (size_t i = next; i < end; ++i) batch.push_back(order_[i].layout);
      std::vector<Planned> plans = plan_layouts(batch);
      const size_t known = order_.size();
      for (size_t i = next; i < end; ++i) {
        Planned& one = plans[i - next];
        if (one.plan) {
          const double seconds = order_[i].estimate.seconds;
          excess_ = std::max(excess_, seconds / one.plan->step_s - 1);
          found_.push_back({order_[i].layout, std::move(*one.plan), seconds, ""});
        }
        if (one.too_large) add_offloads(Estimated(order_[i]), one.need);
      }
      next = end;
      if (order_.size() > known)
        std::stable_sort(order_.begin() + static_cast<std::ptrdiff_t>(next), order_.end(), is_sooner);
      std::stable_sort(found_.begin(), found_.end(), is_faster);
      report("simulated ", next, ", ", found_.size(), " fit",
             found_.empty() ? "" : base::concat(", fastest ", found_.front().plan.step_s, " s"));
    }
  }

  // Replaces the result by the fastest value of each further setting, one setting after another.
  void refine(SearchResult& result) {
    for (const Alternatives& alternatives : list_settings(request_, result.layout)) {
      std::vector<Layout> layouts;
      for (const std::vector<std::string>& settings : alternatives) {
        Layout& layout = layouts.emplace_back(result.layout);
        layout.settings.insert(layout.settings.end(), settings.begin(), settings.end());
      }
      out_.candidates += std::ssize(layouts);
      std::vector<Planned> plans = plan_layouts(layouts);
      for (size_t i = 0; i < plans.size(); ++i) {
        if (!plans[i].plan || plans[i].plan->step_s >= result.plan.step_s) continue;
        result.layout = layouts[i];
        result.plan = std::move(*plans[i].plan);
      }
    }
  }

  const PlanRequest& request_;
  const SearchLimits& limits_;
  LayoutEstimator estimator_;
  std::vector<Estimated> order_;
  std::vector<SearchResult> found_;
  double excess_ = 0;  // largest relative excess of an estimate over the simulated time
  LayoutSearch out_;
};

}  // namespace

LayoutSearch search_layouts(const PlanRequest& request, const SearchLimits& limits) {
  return Searcher(request, limits).run();
}

}  // namespace metroplex::forecast
