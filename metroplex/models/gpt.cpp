#include "models/decoder.h"
#include "models/registry.h"

namespace metroplex::models {

// Every combination that config::Model can say.
nn::Blocks build_gpt(const ModelContext& context, const StageSlice& slice) {
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models
