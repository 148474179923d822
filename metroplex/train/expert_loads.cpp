#include "train/expert_loads.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "comm/collectives.h"
#include "config/experts.h"
#include "cuda/host_read.h"
#include "files/expert_load.h"
#include "moe/load_meter.h"

namespace metroplex::train {
namespace {

files::ExpertTraceHead head_of(const Assembly& a) {
  const config::Model& model = a.config.model;
  files::ExpertTraceHead head{model.num_moe_experts, model.moe_router_topk, a.experts->ep, a.experts->etp, {}};
  const std::vector<bool> layers = config::moe_layers(model);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer]) head.layers.push_back(static_cast<int64_t>(layer));
  }
  return head;
}

std::vector<int64_t> whole_numbers(const at::Tensor& x) {
  const at::Tensor whole = x.to(at::kLong).contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}

std::vector<double> numbers(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

// What is in `now` beyond `before`, which is empty or as long.
std::vector<int64_t> beyond(std::vector<int64_t> now, const std::vector<int64_t>& before) {
  for (size_t i = 0; i < before.size(); ++i) now[i] -= before[i];
  return now;
}

}  // namespace

bool counts_experts(const config::Config& config) {
  return config.model.has_experts() &&
         (config.train.log_experts_interval > 0 || !config.train.expert_trace_file.empty());
}

std::map<std::string, double> shown_terms(const config::Model& model, const std::map<std::string, double>& terms) {
  if (!model.has_experts()) return terms;
  std::map<std::string, double> coefficients{{"z_loss", model.moe_z_loss_coeff}};
  for (const config::AuxLoss& loss : config::aux_losses(model)) {
    const char* name = loss.type == config::AuxLossType::aux_loss       ? "load_balancing_loss"
                       : loss.type == config::AuxLossType::seq_aux_loss ? "seq_load_balancing_loss"
                                                                        : "global_load_balancing_loss";
    coefficients[name] = loss.coeff;
  }
  const std::vector<bool> layers = config::moe_layers(model);
  const auto count = static_cast<double>(std::count(layers.begin(), layers.end(), true));
  std::map<std::string, double> shown = terms;
  for (auto& [name, value] : shown) {
    if (const auto of = coefficients.find(name); of != coefficients.end()) value /= of->second * count;
  }
  return shown;
}

ExpertLoads::ExpertLoads(const Assembly& a, base::Log& log)
    : a_(a), log_(log), head_(head_of(a)), by_source_(!a.config.train.expert_trace_file.empty()) {
  if (by_source_ && a.world->rank() == 0) trace_.emplace(a.config.train.expert_trace_file, head_);
}

std::vector<ExpertMetrics> ExpertLoads::after_step(int64_t iteration) {
  const int64_t interval = a_.config.train.log_experts_interval;
  const bool shows = interval > 0 && iteration % interval == 0;
  ++steps_;
  if (!shows && !by_source_) return {};
  const std::optional<Totals> totals = read();
  std::vector<ExpertMetrics> layers;
  if (totals && by_source_) write_trace(iteration, *totals);
  if (!shows) return {};
  if (totals) layers = table(*totals);
  a_.experts->meter->reset();
  traced_ = {};
  steps_ = 0;
  return layers;
}

// Sums over the ranks of a stage, then over the stages, each of which has its own layers. All numbers are whole and
// below 2^53, or times: double holds them.
std::optional<ExpertLoads::Totals> ExpertLoads::read() {
  const moe::ExpertContext& experts = a_.experts.value();
  const auto layers = static_cast<int64_t>(head_.layers.size());
  const int64_t e = head_.num_experts, sources = by_source_ ? head_.sources() : 1;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(a_.world->target().memory());
  const at::Tensor sums = at::zeros({layers, sources * e + 1}, options), group = at::zeros({layers, e}, options);
  const at::Tensor times = at::zeros({layers, 2}, at::kDouble);
  for (const auto& [number, of] : experts.meter->layers()) {
    const auto row = std::find(head_.layers.begin(), head_.layers.end(), number) - head_.layers.begin();
    const int64_t source = by_source_ ? experts.experts.index() : 0;
    sums.select(0, row).narrow(0, source * e, e).copy_(of.tokens);
    sums.select(0, row).narrow(0, sources * e, 1).copy_(of.dropped);
    group.select(0, row).copy_(of.tokens);
    times.data_ptr<double>()[2 * row] = of.dispatch_ms;
    times.data_ptr<double>()[2 * row + 1] = of.combine_ms;
  }
  comm::all_reduce(group, experts.experts);
  const at::Tensor most = group.view({layers, head_.ep, e / head_.ep}).sum(-1).amax(-1, true);
  const at::Tensor largest = at::cat({most, times.to(options.device())}, 1);
  comm::all_reduce(largest, experts.tp_dp_cp, comm::ReduceOp::max);
  comm::all_reduce(sums, experts.tp_dp_cp);
  const at::Tensor all = at::cat({sums, largest}, 1);
  comm::all_reduce(all, a_.groups().pp);
  if (a_.world->rank() != 0) return std::nullopt;
  const at::Tensor here = cuda::read_on_host(a_.world->target(), all);
  const int64_t counts = sources * e;
  return Totals{whole_numbers(here.narrow(1, 0, counts)), whole_numbers(here.select(1, counts)),
                numbers(here.select(1, counts + 1)), numbers(here.select(1, counts + 2)),
                numbers(here.select(1, counts + 3))};
}

void ExpertLoads::write_trace(int64_t iteration, const Totals& totals) {
  if (!trace_) return;
  const files::ExpertTraceStep step{iteration, beyond(totals.tokens, traced_.tokens),
                                    beyond(totals.dropped, traced_.dropped)};
  traced_ = {iteration, totals.tokens, totals.dropped};
  if (trace_->add(step)) return;
  log_.warn("cannot write " + a_.config.train.expert_trace_file +
            " any more (is the disk full?); training goes on without it");
  trace_.reset();
}

std::vector<ExpertMetrics> ExpertLoads::table(const Totals& totals) const {
  const auto steps = static_cast<double>(steps_),
             ranks = static_cast<double>(a_.experts->tp_dp_cp.size() / head_.etp);
  const int64_t e = head_.num_experts, sources = by_source_ ? head_.sources() : 1;
  std::vector<ExpertMetrics> layers;
  for (size_t layer = 0; layer < head_.layers.size(); ++layer) {
    std::vector<int64_t> tokens(static_cast<size_t>(e));
    int64_t all = 0;
    for (int64_t i = 0; i < sources * e; ++i) {
      const int64_t count = totals.tokens[layer * static_cast<size_t>(sources * e) + static_cast<size_t>(i)];
      tokens[static_cast<size_t>(i % e)] += count;
      all += count;
    }
    const files::LoadQuantiles q = files::quantiles(tokens);
    const auto a_step = [&](int64_t count) { return static_cast<double>(count) / steps; };
    ExpertMetrics m{head_.layers[layer], a_step(q.least), a_step(q.p10),
                    a_step(q.p50),       a_step(q.p90),   a_step(q.most)};
    m.experts_max_over_mean = files::imbalance(tokens);
    m.ranks_max_over_mean = all == 0 ? 1 : totals.most_of_ranks[layer] * ranks / static_cast<double>(all);
    const auto assigned = static_cast<double>(all + totals.dropped[layer]);
    m.dropped = assigned > 0 ? static_cast<double>(totals.dropped[layer]) / assigned : 0;
    m.dispatch_ms = totals.dispatch_ms[layer] / steps;
    m.combine_ms = totals.combine_ms[layer] / steps;
    layers.push_back(m);
  }
  return layers;
}

}  // namespace metroplex::train
