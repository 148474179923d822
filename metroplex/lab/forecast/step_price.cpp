#include "forecast/step_price.h"

#include <algorithm>
#include <map>
#include <string>

#include "forecast/count_microbatches.h"
#include "forecast/stage_traces.h"
#include "forecast/trace_step.h"
#include "plan/layout.h"
#include "plan/schedules/registry.h"
#include "topology/rank_grid.h"

namespace metroplex::forecast {
namespace {

// The trace of a stage with equal layers: the groups that do not span stages have other ranks.
replay::StepTrace move_trace(replay::StepTrace trace, const std::vector<int>& stages, size_t from, size_t to) {
  for (auto& [name, group] : trace.groups) {
    const bool spans = std::count_if(stages.begin(), stages.end(), [&](int rank) {
                         return std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end();
                       }) > 1;
    if (spans) continue;
    for (int& rank : group.ranks) rank += stages[to] - stages[from];
  }
  return trace;
}

// A traced rank assumes that every stage holds its shared parameters. Their groups have the stages that do.
void find_shared_groups(std::vector<replay::StepTrace>& traces, const std::vector<int>& stages) {
  std::map<std::string, std::vector<int>> holders;
  for (size_t stage = 0; stage < traces.size(); ++stage) {
    for (const auto& [name, group] : traces[stage].groups) {
      if (name.starts_with("shared ")) holders[name].push_back(stages[stage]);
    }
  }
  for (replay::StepTrace& trace : traces) {
    for (auto& [name, group] : trace.groups) {
      if (name.starts_with("shared ")) group.ranks = holders[name];
    }
  }
}

// The parameter families of all stages.
std::vector<distributed::FamilyKey> find_all_families(RankRequest request, const std::vector<int>& stages) {
  if (stages.size() == 1) return {};
  std::vector<distributed::FamilyKey> all;
  std::vector<StageForm> forms;
  for (size_t pp = 0; pp < stages.size(); ++pp) {
    const StageForm form = stage_form(request.config, static_cast<int>(pp));
    if (std::find(forms.begin(), forms.end(), form) != forms.end()) continue;
    forms.push_back(form);
    request.rank = stages[pp];
    for (const distributed::FamilyKey& key : find_families(request)) {
      if (std::find(all.begin(), all.end(), key) == all.end()) all.push_back(key);
    }
  }
  return all;
}

}  // namespace

TracedRun trace_run(const RankRequest& request) {
  const config::Parallel& parallel = request.config.parallel;
  const topology::RankGrid grid(request.world_size, parallel);
  const std::vector<int> stages = grid.group_ranks(0, topology::Axis::pp);
  TracedRun run;
  std::vector<StageForm> forms;
  RankRequest own = request;
  own.other_stages = find_all_families(request, stages);
  for (size_t pp = 0; pp < stages.size(); ++pp) {
    forms.push_back(stage_form(request.config, static_cast<int>(pp)));
    const auto same = std::find(forms.begin(), forms.end() - 1, forms.back());
    if (same + 1 != forms.end()) {
      const auto from = static_cast<size_t>(same - forms.begin());
      run.traces.push_back(move_trace(run.traces[from], stages, from, pp));
      continue;
    }
    own.rank = stages[pp];
    run.traces.push_back(trace_step(own));
  }
  find_shared_groups(run.traces, stages);
  run.table = plan::build_schedule(
      parallel.pipeline_schedule, plan::schedule_request(parallel, static_cast<int>(plan::num_model_chunks(parallel)),
                                                         static_cast<int>(count_microbatches(request))));
  return run;
}

replay::StepTime price_step(const TracedRun& run, const config::Config& config, const price::Machine& machine,
                            const ExpertDemand& experts, bool events) {
  const bool graphs = machine.gpu && config.train.cuda_graph_impl == config::CudaGraphImpl::full_iteration;
  return replay::simulate_step({machine, run.table, run.traces, graphs, expert_load(config, experts), events});
}

replay::StepTime price_step(const RankRequest& request, const price::Machine& machine, const ExpertDemand& experts) {
  return price_step(trace_run(request), request.config, machine, experts);
}

}  // namespace metroplex::forecast
