// What the patterns of the configuration mean for the parameters of an assembly: which are frozen, and whether each
// pattern fits a name.
#pragma once

#include <string>
#include <vector>

#include "train/assemble.h"

namespace metroplex::train {

// A pattern of optim.param_groups, train.trainable or train.freeze that fits no parameter of any stage is taken for a
// misspelling: throws base::Error("config") with names that are near. Collective over the pipeline; on the meta
// device, where a rank knows its own stage only, nothing is checked with several stages.
void check_name_patterns(const Assembly& assembly);

// A pattern, and for messages the key that it is of.
struct NamePattern {
  std::string key, pattern;
};
// Throws base::Error("config") for one that fits none of `names`.
void check_patterns(const std::vector<NamePattern>& patterns, const std::vector<std::string>& names);
// Of the parameters and buffers of all stages. Collective over the pipeline.
std::vector<std::string> names_of_all_stages(const Assembly& assembly);

// Sets Param::frozen, of a shared parameter on all holders alike, and Buffer::frozen. Throws where nothing is left to
// train. Collective over the pipeline.
void freeze(Assembly& assembly);

}  // namespace metroplex::train
