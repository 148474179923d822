#include "run/expert_loads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/collectives.h"
#include "config/experts.h"
#include "device/launch_point.h"
#include "files/expert_load.h"
#include "moe/load_meter.h"

namespace metroplex::run {
namespace {

files::ExpertTraceHead make_trace_head(const config::Model& model, const moe::ExpertContext& experts) {
  return {model.num_moe_experts, model.moe_router_topk, experts.ep, experts.etp, config::expert_layers(model)};
}

std::vector<int64_t> to_integers(const at::Tensor& x) {
  const at::Tensor whole = x.to(at::kLong).contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}

}  // namespace

static void add_balance_terms(const config::Model& model, std::map<std::string, double>& divisors) {
  const auto count = static_cast<double>(config::expert_layers(model).size());
  divisors["z_loss"] = model.moe_z_loss_coeff * count;
  for (const config::AuxLoss& loss : config::aux_losses(model)) {
    const char* name = loss.type == config::AuxLossType::aux_loss       ? "load_balancing_loss"
                       : loss.type == config::AuxLossType::seq_aux_loss ? "seq_load_balancing_loss"
                                                                        : "global_load_balancing_loss";
    divisors[name] = loss.coeff * count;
  }
}

std::map<std::string, double> normalized_terms(const config::Model& model,
                                               const std::map<std::string, double>& terms) {
  std::map<std::string, double> divisors;
  if (model.has_experts()) add_balance_terms(model, divisors);
  for (int64_t depth = 1; depth <= model.mtp_num_layers; ++depth) {
    divisors["mtp_" + std::to_string(depth) + " loss"] =
        model.mtp_loss_scaling_factor / static_cast<double>(model.mtp_num_layers);
  }
  std::map<std::string, double> shown = terms;
  for (auto& [name, value] : shown) {
    if (const auto by = divisors.find(name); by != divisors.end()) value /= by->second;
  }
  return shown;
}

ExpertLoads::ExpertLoads(const step::ProcessContext& process, const step::RankModel& model, files::FileSystem& disk,
                         base::Log& log)
    : process_(process),
      model_(model),
      log_(log),
      head_(make_trace_head(process.config.model, *model.experts)),
      writes_trace_(!process.config.train.expert_trace_file.empty()),
      loads_(*model.experts, head_.num_experts, std::max<int64_t>(1, process.config.train.log_experts_interval)) {
  if (writes_trace_ && process.world->rank() == 0)
    trace_.emplace(disk, process.config.train.expert_trace_file, head_);
}

std::vector<ExpertMetrics> ExpertLoads::after_step(int64_t iteration) {
  const int64_t interval = process_.config.train.log_experts_interval;
  loads_.add_step();
  if (writes_trace_) write_trace(iteration);
  const bool shows = interval > 0 && iteration % interval == 0;
  std::vector<ExpertMetrics> layers;
  if (shows) layers = table();
  if (shows || interval == 0) loads_.reset();
  return layers;
}

// Combines the rows of this stage's layers with those of all stages. The result is on rank 0's host; undefined on
// other ranks. Double is exact here: values are integers below 2^53, ratios or times.
at::Tensor ExpertLoads::all_layers(const at::Tensor& stage) const {
  const at::Tensor whole = at::zeros({static_cast<int64_t>(head_.layers.size()), stage.size(1)},
                                     stage.options().device(process_.world->target().memory()));
  int64_t row = 0;
  for (const auto& [number, of] : model_.experts->meter->layers()) {
    const auto place = std::find(head_.layers.begin(), head_.layers.end(), number) - head_.layers.begin();
    whole.select(0, place).copy_(stage.select(0, row++));
  }
  comm::all_reduce(whole, process_.groups().stages);
  return process_.world->rank() == 0 ? device::read_on_host(process_.world->target(), whole) : at::Tensor();
}

// Writes the counts of the last step, by source rank.
void ExpertLoads::write_trace(int64_t iteration) {
  const moe::ExpertContext& experts = model_.experts.value();
  const int64_t e = head_.num_experts, counts = head_.sources() * e;
  const at::Tensor own = loads_.last_step();
  const at::Tensor sums = at::zeros({own.size(0), counts + 1}, own.options().dtype(at::kDouble));
  if (own.size(0) > 0) {
    sums.narrow(1, experts.experts.index() * e, e).copy_(own.narrow(1, 0, e));
    sums.select(1, counts).copy_(own.select(1, e));
    comm::all_reduce(sums, experts.tp_dp_cp);
  }
  const at::Tensor all = all_layers(sums);
  if (!trace_) return;
  try {
    trace_->add({iteration, to_integers(all.narrow(1, 0, counts)), to_integers(all.select(1, counts))});
  } catch (const base::Error& error) {
    log_.warn(base::concat(error.what(), "; training continues without this file"));
    trace_.reset();
  }
}

std::vector<ExpertMetrics> ExpertLoads::table() {
  const at::Tensor rows = all_layers(loads_.sums());
  if (!rows.defined()) return {};
  const auto steps = static_cast<double>(loads_.steps()),
             holders = static_cast<double>(model_.experts->tp_dp_cp.size() / head_.etp);
  const int64_t e = head_.num_experts;
  std::vector<ExpertMetrics> layers;
  for (size_t layer = 0; layer < head_.layers.size(); ++layer) {
    const at::Tensor row = rows.select(0, static_cast<int64_t>(layer));
    const double* of = row.const_data_ptr<double>() + e;
    const std::vector<int64_t> tokens = to_integers(row.narrow(0, 0, e));
    const auto all = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
    const files::LoadQuantiles q = files::quantiles(tokens);
    const auto a_step = [&](int64_t count) { return static_cast<double>(count) / steps; };
    ExpertMetrics m{head_.layers[layer], loads_.steps(), a_step(q.min), a_step(q.p10),
                    a_step(q.p50),       a_step(q.p90),  a_step(q.max)};
    if (all > 0) {  // without tokens the load counts as balanced
      m.experts = {files::imbalance(tokens), of[step::kExpertsSum] / steps, of[step::kMaxExpertsRatio]};
      m.ranks = {of[step::kMaxRankTokens] * holders / all, of[step::kRanksSum] / steps, of[step::kMaxRanksRatio]};
    }
    const double assigned = all + of[step::kDropped];
    m.dropped = assigned > 0 ? of[step::kDropped] / assigned : 0;
    m.dispatch_ms = of[step::kDispatchMs] / steps;
    m.combine_ms = of[step::kCombineMs] / steps;
    if (const double plans = of[step::kPlans]; plans > 0)
      m.replicas = {of[step::kReplicas] / plans, of[step::kBeforeReplicas] / plans, of[step::kAfterReplicas] / plans,
                    of[step::kWorstAfterReplicas], of[step::kReplicasMs] / steps};
    layers.push_back(m);
  }
  return layers;
}

}  // namespace metroplex::run
