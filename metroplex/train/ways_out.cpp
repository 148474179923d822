#include "train/ways_out.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "config/load.h"
#include "config/validate.h"

namespace metroplex::train {
namespace {

enum class Kind { sequence, remainders, sharding, micro_batch, recompute, optimizer_offload, activation_offload };

struct Level {
  std::vector<std::string> settings;
  std::string what;
};
struct Axis {
  Kind kind;
  std::vector<Level> levels;
};

Axis sequence_axis(const config::Config& c) {
  if (c.parallel.tp() == 1 || c.parallel.sequence_parallel) return {Kind::sequence, {}};
  return {Kind::sequence, {{{"parallel.sequence_parallel=true"}, "cut the sequence over tensor-parallel ranks"}}};
}

Axis remainders_axis(const config::Config& c) {
  if (c.optim.store_param_remainders) return {Kind::remainders, {}};
  return {Kind::remainders, {{{"optim.store_param_remainders=true"}, "keep remainders for main parameters"}}};
}

Axis sharding_axis(const config::Config& c) {
  Axis axis{Kind::sharding, {}};
  for (const auto& word : config::kWords<config::ShardingStrategy>) {
    const int stage = config::sharding_of(word.value).stage();
    if (stage <= c.parallel.sharding().stage()) continue;
    axis.levels.push_back(
        {{std::string("parallel.data_parallel_sharding_strategy=") + word.text}, "ZeRO-" + std::to_string(stage)});
  }
  return axis;
}

// The batch stays: where it was left to follow from the microbatch, it is written out.
Axis micro_batch_axis(const config::Config& c) {
  Axis axis{Kind::micro_batch, {}};
  for (int64_t size = c.train.micro_batch_size; size > 1 && size % 2 == 0;) {
    size /= 2;
    Level level{{"train.micro_batch_size=" + std::to_string(size)}, "microbatches of " + std::to_string(size)};
    if (c.train.global_batch_size > 0)
      level.settings.push_back("train.global_batch_size=" + std::to_string(c.train.global_batch_size));
    axis.levels.push_back(level);
  }
  return axis;
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

void add_selective(const config::Config& c, Axis& axis) {
  static const std::vector<std::set<std::string>> kSets = {{"layernorm"},
                                                           {"activation"},
                                                           {"core_attn"},
                                                           {"activation", "layernorm"},
                                                           {"activation", "core_attn", "layernorm"},
                                                           {"layernorm", "mlp"},
                                                           {"core_attn", "layernorm", "mlp"}};
  const std::set<std::string> already(c.memory.recompute_modules.begin(), c.memory.recompute_modules.end());
  std::set<std::string> seen{joined(already)};
  for (std::set<std::string> modules : kSets) {
    modules.insert(already.begin(), already.end());
    if (modules.contains("mlp")) modules.erase("activation");
    if (!seen.insert(joined(modules)).second) continue;
    axis.levels.push_back({{"memory.recompute_granularity=selective", "memory.recompute_modules=" + joined(modules)},
                           "recompute " + joined(modules)});
  }
}

// Chunks of one layer keep the most inputs and make the least again at a time; those of the root of all balance the
// two (Chen et al., arXiv:1604.06174).
Axis recompute_axis(const config::Config& c) {
  Axis axis{Kind::recompute, {}};
  if (!c.memory.recomputes_all()) add_selective(c, axis);
  const auto layers = static_cast<double>(c.model.num_layers / (c.parallel.pp() * c.parallel.vpp()));
  for (const int64_t chunk : std::set<int64_t>{1, std::max<int64_t>(1, std::llround(std::sqrt(layers)))}) {
    for (const bool cut : {false, true}) {
      if (cut && (c.parallel.tp() == 1 || c.parallel.sequence_parallel)) continue;
      Level level{{"memory.recompute_granularity=full", "memory.recompute_method=uniform",
                   "memory.recompute_num_layers=" + std::to_string(chunk)},
                  "recompute whole layers"};
      if (chunk > 1) level.what += ", " + std::to_string(chunk) + " at a time";
      if (!c.memory.recompute_modules.empty()) level.settings.push_back("memory.recompute_modules=");
      if (cut) level.settings.push_back("memory.distribute_saved_activations=true");
      if (cut) level.what += ", their inputs cut over tensor-parallel ranks";
      axis.levels.push_back(level);
    }
  }
  return axis;
}

Axis optimizer_offload_axis(const config::Config& c, bool gpu) {
  if (!gpu || c.optim.optimizer_cpu_offload) return {Kind::optimizer_offload, {}};
  return {Kind::optimizer_offload, {{{"optim.optimizer_cpu_offload=true"}, "optimizer in host memory"}}};
}

Axis activation_offload_axis(const config::Config& c) {
  Axis axis{Kind::activation_offload, {}};
  if (c.memory.offload_activations != config::Offload::none) return axis;
  axis.levels = {{{"memory.offload_activations=host"}, "activations in host memory"},
                 {{"memory.offload_activations=file"}, "activations in a file"}};
  return axis;
}

// Operations that a device does while one byte passes. A GPU: 989e12 operations a second in bf16, memory of 3.35e12
// bytes a second (NVIDIA's data sheet of the H100 SXM), 50e9 to another GPU or to the host (a link of 400 Gb/s), 5e9
// to a disk. A CPU rank: 50e9 operations, 10e9, 5e9 and 1e9 bytes a second. They order ways, no more.
struct Rates {
  double memory, link, file;
};
constexpr Rates kGpuRates{300, 20000, 200000}, kCpuRates{5, 10, 50};

// Bytes of a step.
struct Traffic {
  double memory = 0, link = 0, file = 0;
  double operations(const Rates& rates) const {
    return memory * rates.memory + link * rates.link + file * rates.file;
  }
};

// Of a rank in one step: what differs between settings, and stands in docs/memory.md under costs.
Traffic traffic(const FitRequest& request, const RankFigures& figures, double kept_of_a_microbatch) {
  const config::Config& c = request.config;
  const config::Sharding sharding = c.parallel.sharding();
  const auto steps = static_cast<double>(most_microbatches(c, request.world_size));
  const auto params = static_cast<double>(figures.prediction.num_params);
  const double values = params * static_cast<double>(plan::element_bytes(c.precision.params_dtype));
  const double gradients = params * (c.precision.main_grads_dtype == config::MainGradsDtype::fp32 ? 4.0 : 2.0);
  Traffic out;
  out.memory = 3 * values * steps;  // a forward and both products of backward read the weights
  out.link = (sharding.transient_gradients() ? steps : 1) * gradients;
  out.link += (sharding.gathers_units() ? 2 * steps : 1) * values;
  if (c.optim.optimizer_cpu_offload)
    out.link +=
        (values + gradients) /
        (sharding.any() ? static_cast<double>(config::data_parallel_size(c.parallel, request.world_size)) : 1.0);
  const double moved = 2 * steps * kept_of_a_microbatch;
  if (c.memory.offload_activations == config::Offload::host) out.link += moved;
  if (c.memory.offload_activations == config::Offload::file) out.file += moved;
  // One more gather a product's input in backward, or of a layer's input.
  const double border = static_cast<double>(c.train.seq_length * c.train.micro_batch_size * c.model.hidden_size) *
                        static_cast<double>(plan::element_bytes(c.precision.params_dtype));
  const double layers = static_cast<double>(c.model.num_layers) / static_cast<double>(c.parallel.pp());
  if (c.parallel.sequence_parallel) out.link += 2 * layers * border * steps;
  if (c.memory.distribute_saved_activations) out.link += layers * border * steps;
  return out;
}

// Microbatches that a pipeline rank holds at most, about.
double in_flight(const config::Config& c, int world_size, int pp) {
  const int64_t all = most_microbatches(c, world_size);
  if (c.parallel.pp() == 1) return 1;
  return static_cast<double>(
      c.parallel.pipeline_schedule == config::Schedule::gpipe ? all : std::min(all, c.parallel.pp() - pp));
}

using Chosen = std::map<Kind, const Level*>;

struct Tried {
  WayOut way;
  Kind kind = Kind::recompute;
  const Level* level = nullptr;
};

class Search {
 public:
  Search(const FitRequest& request, const Fit& now, const Predictor& predict)
      : request_(request), now_(now), predict_(predict), yaml_(config::dump(request.config)) {
    const config::Config& c = request.config;
    axes_ = {sequence_axis(c),          remainders_axis(c), sharding_axis(c),
             micro_batch_axis(c),       recompute_axis(c),  optimizer_offload_axis(c, request.places.gpu),
             activation_offload_axis(c)};
    for (const size_t i : std::set<size_t>{now.worst, 0, now.ranks.size() - 1}) sample_.push_back(&now.ranks[i]);
  }

  WaysOut run() {
    for (const Axis& axis : axes_) {
      for (const Level& level : axis.levels) {
        if (auto way = attempt({{axis.kind, &level}})) tried_.push_back({*way, axis.kind, &level});
      }
    }
    WaysOut out;
    out.single = best_of_kinds();
    const bool enough = std::any_of(out.single.begin(), out.single.end(), [](const WayOut& w) { return w.fits; });
    if (!enough) out.together = together();
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
      if (rank == &now_.worst_rank()) way.cost = cost(*request, *rank, then);
    }
    if (request_.places.ranks_each > 1) way.need = std::llround(static_cast<double>(now_.need) * after / before);
    return judged(way) ? std::optional(way) : std::nullopt;
  }

  // Looks at every rank.
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

  double cost(const FitRequest& then, const RankFigures& before, const RankFigures& after) const {
    const auto kept = [](const RankFigures& f) { return static_cast<double>(f.prediction.memory.use.activations); };
    const double flying = in_flight(request_.config, request_.world_size, before.pp);
    const double less = std::max(0.0, kept(before) - kept(after)) / flying;
    Traffic now = traffic(request_, before, 0), other = traffic(then, after, less);
    // What is made again is written and read once more.
    const config::Memory &m = then.config.memory, &was = request_.config.memory;
    const bool again =
        m.recompute_granularity != was.recompute_granularity || m.recompute_modules != was.recompute_modules;
    if (again) other.memory += 2 * less * static_cast<double>(most_microbatches(then.config, then.world_size));
    const Rates& rates = request_.places.gpu ? kGpuRates : kCpuRates;
    const double more =
        after.prediction.flops - before.prediction.flops + other.operations(rates) - now.operations(rates);
    return std::max(0.0, more / std::max(1.0, before.prediction.flops));
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
    std::set<Kind> seen;
    for (const Tried& one : sorted) (seen.insert(one.kind).second ? first : second).push_back(one);
    const auto split = std::stable_partition(first.begin(), first.end(), [](const Tried& t) { return t.way.fits; });
    first.insert(split, second.begin(),
                 std::find_if(second.begin(), second.end(), [](const Tried& t) { return !t.way.fits; }));
    std::vector<WayOut> out;
    for (const Tried& one : first) {
      if (out.size() == 3) break;
      if (const auto way = confirmed(one.way, {{one.kind, one.level}})) out.push_back(*way);
    }
    std::stable_sort(out.begin(), out.end(), [](const WayOut& a, const WayOut& b) { return a.fits > b.fits; });
    return out;
  }

  double cost_of(Kind kind, const Level* level) const {
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
    std::vector<Kind> kinds;
    for (const auto& [kind, level] : chosen) kinds.push_back(kind);
    std::stable_sort(kinds.begin(), kinds.end(),
                     [&](Kind a, Kind b) { return cost_of(a, chosen.at(a)) > cost_of(b, chosen.at(b)); });
    for (const Kind kind : kinds) {
      std::vector<const Level*> levels{nullptr};
      for (const Tried& one : tried_) {
        if (one.kind == kind && one.way.cost < cost_of(kind, chosen.at(kind))) levels.push_back(one.level);
      }
      std::stable_sort(levels.begin() + 1, levels.end(),
                       [&](const Level* a, const Level* b) { return cost_of(kind, a) < cost_of(kind, b); });
      for (const Level* level : levels) {
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
  std::vector<Axis> axes_;
  std::vector<const RankFigures*> sample_;
  std::vector<Tried> tried_;
};

}  // namespace

WaysOut ways_out(const FitRequest& request, const Fit& now, const Predictor& predict) {
  return Search(request, now, predict).run();
}

}  // namespace metroplex::train
