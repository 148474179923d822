// What Megatron can be told of graph capture, its earlier spellings among it, and what they come to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/rules_transformer.h"

namespace metroplex::megatron {

// modules may be {"full"}, the older spelling of an empty list.
struct CudaGraphOptions : config::GraphSettings {
  int64_t warmup_steps = 3;
  bool enable_cuda_graph = false, external_cuda_graph = false;
  std::optional<std::vector<std::string>> scope;  // cuda_graph_scope
  std::optional<std::string> inference_scope;     // none, layer, block; unset: as impl says
};

// The same without earlier spellings: enable_cuda_graph, external_cuda_graph, scope unset, modules without full,
// full_iteration and full_iteration_inference. What contradicts itself is added to `list`.
CudaGraphOptions migrated(CudaGraphOptions options, std::vector<config::Violation>& list);

}  // namespace metroplex::megatron
