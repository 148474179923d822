// What context-parallel ranks send each other for the attention of one layer and one microbatch, from the cut and the
// documents: the formulas of docs/context_parallel.md. nn/context_attention.h is what sends. Integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sequence_cut.h"

namespace metroplex::plan {

struct ContextTrafficRequest {
  config::CpCommType exchange = config::CpCommType::p2p;
  int neighbours = 1;      // ranks that share heads with a2a+p2p; divides cp
  bool documents = false;  // attention stays inside documents, so only keys that are seen are sent
  int64_t samples = 1;
  int64_t heads = 1, groups = 1;  // of a tensor-parallel rank
  int64_t head_dim = 1, v_head_dim = 1;
  int64_t element_bytes = 2;  // of activations
  int64_t wide_bytes = 4;     // of gradients of keys on their way: at least fp32
};

// Bytes that each rank sends to others.
struct ContextTraffic {
  std::vector<int64_t> forward, backward;
};
ContextTraffic context_traffic(const DocumentLengths& documents, const SequenceCut& cut,
                               const ContextTrafficRequest& request);

}  // namespace metroplex::plan
