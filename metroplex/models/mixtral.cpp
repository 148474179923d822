#include "models/decoder.h"
#include "models/registry.h"

namespace metroplex::models {

// Llama with experts in every layer (arXiv 2401.04088).
nn::Blocks build_mixtral(const ModelContext& context, const StageSlice& slice) {
  require_llama_layers(context.model, context.model.has_experts(), ", num_moe_experts above 0");
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models
