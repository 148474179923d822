// Applies the name patterns of the configuration to the parameters of an assembly: freezing, and a check that every
// pattern matches a name.
#pragma once

#include <string>
#include <vector>

#include "step/assemble.h"

namespace metroplex::step {

// Throws base::Error("config") with the nearest name if a pattern of optim.param_groups, train.trainable or
// train.freeze matches no parameter of any stage. Collective over the pipeline. Checks nothing on the meta device
// with several stages, because a rank then has only the names of its own stage.
void check_name_patterns(const ProcessContext& process, const RankModel& model);

struct NamePattern {
  std::string key, pattern;
};
// Throws base::Error("config") for a pattern that matches none of `names`.
void check_patterns(const std::vector<NamePattern>& patterns, const std::vector<std::string>& names);
// Returns the names of parameters and buffers of all stages. Collective over the pipeline.
std::vector<std::string> gather_stage_names(const ProcessContext& process, const RankModel& model);

// Sets Param::frozen (the same on all holders of a shared parameter) and Buffer::frozen. Throws if no trainable
// parameter remains. Collective over the pipeline.
void freeze(const ProcessContext& process, RankModel& model);

}  // namespace metroplex::step
