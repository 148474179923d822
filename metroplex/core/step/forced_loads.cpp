#include "step/forced_loads.h"

#include <algorithm>

#include "base/error.h"
#include "config/experts.h"
#include "files/expert_trace.h"

namespace metroplex::step {
namespace {

constexpr const char* kKey = "model.moe_router_force_trace = ";

size_t find_layer_index(const files::ExpertTraceHead& head, int64_t layer, const std::string& path) {
  const auto found = std::find(head.layers.begin(), head.layers.end(), layer);
  MPX_CHECK(found != head.layers.end(), "config", kKey, path, ": has no load of layer ", layer,
            ", which has experts; give a trace of a run with the same model.moe_layer_freq and model.num_layers");
  return static_cast<size_t>(found - head.layers.begin());
}

std::vector<int64_t> select_loads(const files::ExpertTrace& trace, const files::ExpertTraceStep& step,
                                  size_t layer_index, const moe::ExpertContext& experts) {
  const int64_t count = trace.head.num_experts;
  const bool same = trace.head.ep == experts.ep && trace.head.etp == experts.etp;
  std::vector<int64_t> loads;
  for (int64_t e = 0; e < count; ++e) {
    const int64_t of_source =
        (static_cast<int64_t>(layer_index) * trace.head.sources() + experts.experts.index()) * count + e;
    loads.push_back(same ? step.tokens[static_cast<size_t>(of_source)] : trace.tokens(step, layer_index, e));
  }
  return loads;
}

}  // namespace

std::shared_ptr<const moe::RecordedLoads> forced_loads(const config::Model& model, const moe::ExpertContext& experts,
                                                       files::FileSystem& disk) {
  if (model.moe_router_force_trace.empty()) return nullptr;
  const std::string path = files::find_expert_trace(disk, model.moe_router_force_trace);
  const files::ExpertTrace trace = files::read_expert_trace(disk, path);
  MPX_CHECK(trace.head.num_experts == model.num_moe_experts, "config", kKey, path, ": is of ", trace.head.num_experts,
            " experts, model.num_moe_experts is ", model.num_moe_experts, "; give a trace with the same number");
  MPX_CHECK(!trace.steps.empty(), "config", kKey, path, ": has no iteration; give a trace with at least one");
  auto all = std::make_shared<moe::RecordedLoads>();
  for (const int64_t number : config::expert_layers(model)) {
    const size_t layer_index = find_layer_index(trace.head, number, path);
    for (const files::ExpertTraceStep& step : trace.steps)
      (*all)[number].push_back(select_loads(trace, step, layer_index, experts));
  }
  return all;
}

}  // namespace metroplex::step
