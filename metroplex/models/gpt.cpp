#include "models/decoder.h"
#include "models/families.h"

namespace metroplex::models {

Segments build_gpt(const ModelContext& context, const StageSlice& slice) {
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models
