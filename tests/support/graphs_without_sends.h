// A plan of graph instances by Megatron's rule: a send is complete as soon as it is issued.
#pragma once

#include "plan/graph_plan.h"

namespace metroplex::test {

inline plan::GraphPlan plan_graphs_without_sends(const plan::PipelineTable& table, int pp_rank,
                                                 const plan::GraphLayers& layers) {
  plan::ReadsOfPasses reads = plan::pass_reads(table, pp_rank);
  for (auto& chunk : reads) {
    for (plan::PassReads& pass : chunk) {
      for (plan::PassReads::Reader* reader : {&pass.output, &pass.input_gradient}) {
        if (reader->what.starts_with("its send_")) *reader = {};
      }
    }
  }
  return plan_graphs(table, pp_rank, layers, reads);
}

}  // namespace metroplex::test
