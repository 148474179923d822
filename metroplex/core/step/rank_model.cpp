#include "step/rank_model.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/multi_token.h"
#include "nn/rounded_weight.h"
#include "nn/stored_weight.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"

namespace metroplex::step {

const plan::PipelineTable& RankModel::table(const config::Parallel& parallel, int num_microbatches,
                                            bool forward_only) {
  const auto key = std::make_pair(num_microbatches, forward_only);
  const auto found = tables_.find(key);
  if (found != tables_.end()) return found->second;
  plan::ScheduleRequest request = plan::schedule_request(parallel, static_cast<int>(stages.size()), num_microbatches);
  request.forward_only = forward_only;
  plan::PipelineTable table = plan::build_schedule(parallel.pipeline_schedule, request);
  plan::verify(table);
  return tables_.emplace(key, std::move(table)).first->second;
}

int64_t RankModel::values_bytes() const {
  int64_t bytes = families.values_bytes();
  for (const nn::Param* param : params) {
    if (param->stored) bytes += param->stored->bytes();
    if (param->rounded) bytes += param->rounded->bytes();
  }
  return bytes;
}

void RankModel::set_table(plan::PipelineTable table) {
  const auto key = std::make_pair(table.num_microbatches, table.forward_only);
  tables_.insert_or_assign(key, std::move(table));
}

pipeline::BorderShape border_shape(const ProcessContext& process, const RankModel& model,
                                   const nn::Microbatch& batch) {
  const config::Config& config = process.config;
  const int64_t parts = config.parallel.sequence_parallel ? config.parallel.tp() : 1;
  const int64_t s = batch.tokens.size(1);
  MPX_CHECK(s % parts == 0, "config", "a sequence of ", s, " tokens is not a multiple of tp = ", parts,
            ", which parallel.sequence_parallel needs; pad it or turn that off");
  const bool wide = config.precision.fp32_residual_connection && config.precision.half();
  pipeline::BorderValue hidden{nn::kHiddenStates,
                               {s / parts, batch.tokens.size(0), config.model.hidden_size},
                               wide ? at::kFloat : process.dtype};
  const auto predicts = std::find_if(model.layers.begin(), model.layers.end(),
                                     [](const plan::StageLayers& stage) { return stage.num_mtp_layers > 0; });
  if (predicts != model.layers.end()) hidden.end = static_cast<int>(predicts - model.layers.begin());
  pipeline::BorderShape border{{hidden}, model.variable_lengths};
  if (predicts != model.layers.end()) {  // from here on, the normed outputs of the MTP layers, as input of the head
    hidden.dtype = process.dtype;
    hidden.first = std::exchange(hidden.end, pipeline::BorderValue{}.end);
    border.values.push_back(hidden);
    for (int64_t depth = 1; depth <= config.model.mtp_num_layers && models::has_predictions(batch); ++depth) {
      hidden.name = models::predicted_name(depth);
      border.values.push_back(hidden);
    }
  }
  border.values.insert(border.values.end(), model.extra_border_values.begin(), model.extra_border_values.end());
  return border;
}

static std::vector<optim::NormFamily> norm_parts(const ProcessContext& process, const RankModel& model,
                                                 bool include_frozen) {
  std::vector<optim::NormFamily> parts;
  for (const distributed::ParamFamily& family : model.families.all()) {
    if (family.key.frozen && !include_frozen) continue;
    parts.push_back(
        {family.slices,
         {process.world->coordinates(), family.model_parallel, family.data_parallel.shard, process.world->target()},
         family.gradients ? family.gradients->own_sums() : std::vector<at::Tensor>()});
  }
  return parts;
}

std::vector<optim::NormFamily> param_norm_parts(const ProcessContext& process, const RankModel& model) {
  return norm_parts(process, model, true);
}
std::vector<optim::NormFamily> gradient_norm_parts(const ProcessContext& process, const RankModel& model) {
  return norm_parts(process, model, false);
}

}  // namespace metroplex::step
