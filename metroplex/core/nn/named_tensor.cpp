#include "nn/named_tensor.h"

namespace metroplex::nn {

int64_t NamedTensor::numel() const {
  int64_t product = 1;
  for (const int64_t size : local_shape) product *= size;
  return product;
}

int64_t NamedTensor::padding_numel() const { return topology::padding_numel(global_shape, placement); }

}  // namespace metroplex::nn
