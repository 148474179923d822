// Bytes of the fullest rank by formula, as Megatron's report_theoretical_memory counts them: 18 bytes a parameter
// (bf16 weight and fp32 gradient 6, fp32 weight and two moments 12, the latter shared over dp with a distributed
// optimizer), activations of one transformer layer after Korthikanti et al. (arXiv:2205.05198, table 2), times the
// microbatches in flight. A first estimate: no workspace, no fragmentation, no communication buffers.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/model_shape.h"

namespace metroplex::sim {

struct MemoryLayout {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t vpp = 0;  // 0: not interleaved
  int64_t dp = 1;
  int64_t ep = 1, etp = 1;  // routed experts are cut over both
  int64_t expert_dp = 1;    // world / (etp * ep * pp)
  bool distributed_optimizer = false;
  int64_t micro_batch_size = 1;
  std::optional<int64_t> num_microbatches = std::nullopt;  // none: enough to fill the pipeline
};

// Parameters by how a rank holds them.
struct ParameterCount {
  double sharded = 0;     // cut over tp
  double replicated = 0;  // norms, router, latent projections: whole on every tp rank
  double experts = 0;     // routed experts, cut over ep and etp
  double total() const { return sharded + replicated + experts; }
};
struct ModelParameters {
  ParameterCount block;  // all transformer layers and the last norm
  ParameterCount mtp;    // multi-token prediction layers
  double embedding = 0;  // one vocabulary table
  double total = 0;      // with the output table where it is not tied
};
ModelParameters count_parameters(const ModelShape& shape);

double weight_and_optimizer_bytes(const ModelShape& shape, const MemoryLayout& layout);
// With sequence parallelism and selective recompute of the core attention.
double activation_bytes(const ModelShape& shape, const MemoryLayout& layout);
// Without sequence parallelism, 5 % added for what the formula leaves out.
double activation_bytes_without_sp(const ModelShape& shape, const MemoryLayout& layout);

}  // namespace metroplex::sim
