// Megatron's options for CUDA graphs, including older spellings, and their conversion to current ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/rules_transformer.h"

namespace metroplex::megatron {

// `modules` may be {"full"}, the older spelling of an empty list.
struct CudaGraphOptions : config::GraphSettings {
  int64_t warmup_steps = 3;
  bool enable_cuda_graph = false, external_cuda_graph = false;
  std::optional<std::vector<std::string>> scope;  // cuda_graph_scope
  std::optional<std::string> inference_scope;     // none, layer, block; unset: derived from impl
};

// Converts older spellings. The result has enable_cuda_graph and external_cuda_graph false, scope unset, and modules
// without full, full_iteration and full_iteration_inference. Appends contradictions to `list`.
CudaGraphOptions migrate_options(CudaGraphOptions options, std::vector<config::Violation>& list);

}  // namespace metroplex::megatron
