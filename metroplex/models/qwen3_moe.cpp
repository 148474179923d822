#include "models/decoder.h"
#include "models/registry.h"

namespace metroplex::models {

// Mixtral with norms over queries and keys (arXiv 2505.09388).
nn::Blocks build_qwen3_moe(const ModelContext& context, const StageSlice& slice) {
  require_llama_layers(context.model, context.model.has_experts() && context.model.qk_layernorm,
                       ", num_moe_experts above 0 and qk_layernorm true");
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models
