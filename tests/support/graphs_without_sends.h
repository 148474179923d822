// Megatron's plan of the live sets of graphs, which takes a send for done as soon as it is issued.
#pragma once

#include "plan/graph_plan.h"

namespace metroplex::test {

inline plan::GraphPlan plan_graphs_without_sends(const plan::PipelineTable& table, int pp_rank,
                                                 const plan::GraphLayers& layers) {
  plan::ReadsOfSets reads = plan::set_reads(table, pp_rank);
  for (auto& chunk : reads) {
    for (plan::SetReads& set : chunk) {
      for (plan::SetReads::Reader* reader : {&set.output, &set.input_gradient}) {
        if (reader->what.starts_with("its send_")) *reader = {};
      }
    }
  }
  return plan_graphs(table, pp_rank, layers, reads);
}

}  // namespace metroplex::test
