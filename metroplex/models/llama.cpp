#include "models/decoder.h"
#include "models/registry.h"

namespace metroplex::models {

// RMSNorm, rotary positions, gated MLP, no biases (qkv excepted).
nn::Blocks build_llama(const ModelContext& context, const StageSlice& slice) {
  require_llama_layers(context.model);
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models
