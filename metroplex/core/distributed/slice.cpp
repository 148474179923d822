#include "distributed/slice.h"

#include "base/error.h"
#include "topology/placement.h"

namespace metroplex::distributed {

int64_t Shard::padding() const {
  if (param->padding_numel() == 0) return 0;
  int64_t valid = 0;
  for (const topology::BoxRange& box : topology::box_ranges(param->global_shape, param->placement, begin, end))
    valid += box.end - box.begin;
  return size() - valid;
}

std::vector<Shard> own_shards(const ParamBuffer& params) {
  const auto& pieces = params.layout().own_pieces();
  std::vector<Shard> slices;
  for (size_t i = 0; i < pieces.size(); ++i)
    slices.push_back({pieces[i].param, pieces[i].begin, pieces[i].end, params.own_values()[i], {}});
  return slices;
}

std::vector<Shard> own_shards(const ParamBuffer& params, const GradBuffer& gradients) {
  MPX_ASSERT(&params.layout() == &gradients.layout(),
             "own_slices needs parameter and gradient buffers of the same layout");
  std::vector<Shard> slices = own_shards(params);
  for (size_t i = 0; i < slices.size(); ++i) slices[i].gradient = gradients.own_gradients()[i];
  return slices;
}

}  // namespace metroplex::distributed
