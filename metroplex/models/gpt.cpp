#include "models/decoder.h"
#include "models/families.h"

namespace metroplex::models {

nn::Blocks build_gpt(const ModelContext& context, const StageSlice& slice) {
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models
