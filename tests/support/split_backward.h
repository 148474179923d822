// A table of full backwards with weight gradients as separate actions, as in zero-bubble schedules.
#pragma once

#include <utility>
#include <vector>

#include "plan/pipeline_table.h"
#include "plan/verify.h"

namespace metroplex::test {

// Puts each weight gradient directly after its backward, or all of them at the end of the list, newest first.
inline plan::PipelineTable split_backward(plan::PipelineTable table, bool at_the_end) {
  for (auto& actions : table.ranks) {
    std::vector<plan::Action> weights, all;
    for (const plan::Action& action : actions) {
      all.push_back(action);
      if (action.kind != plan::ActionKind::backward) continue;
      weights.push_back({plan::ActionKind::weight, action.microbatch, action.chunk});
      if (!at_the_end) all.push_back(weights.back());
    }
    if (at_the_end) all.insert(all.end(), weights.rbegin(), weights.rend());
    actions = std::move(all);
  }
  table.live_activation_bounds.clear();  // those of the schedule end at the backward
  plan::verify(table);
  return table;
}

}  // namespace metroplex::test
