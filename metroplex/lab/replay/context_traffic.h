// Bytes that context-parallel ranks send each other for the attention of one layer and one microbatch, computed from
// the sequence partition and the documents. The formulas are in docs/context_parallel.md; nn/context_attention.h does
// the sending. Integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sequence_cut.h"

namespace metroplex::replay {

struct ContextTrafficRequest {
  config::CpCommType exchange = config::CpCommType::p2p;
  int neighbours = 1;      // ranks that share heads with a2a+p2p; must divide cp
  bool documents = false;  // attention is restricted to documents, so only visible keys are sent
  int64_t samples = 1;
  int64_t heads = 1, groups = 1;  // per tensor-parallel rank
  int64_t head_dim = 1, v_head_dim = 1;
  int64_t element_bytes = 2;  // of activations
  int64_t wide_bytes = 4;     // of key gradients in flight: at least fp32
};

// Bytes that each rank sends to others.
struct ContextTraffic {
  std::vector<int64_t> forward, backward;
};
ContextTraffic context_traffic(const plan::DocumentLengths& documents, const plan::SequenceCut& cut,
                               const ContextTrafficRequest& request);

}  // namespace metroplex::replay
