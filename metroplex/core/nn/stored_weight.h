// The stored form of a frozen weight with peft.base_format: codes with scales (kernels/weight_codes.h) in place of
// Param::data. A layer decodes the weight for each use into a temporary tensor of the parameter's dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/group.h"
#include "config/peft.h"
#include "device/launch_point.h"
#include "nn/layer_context.h"
#include "nn/param.h"

namespace metroplex::nn {

struct StoredWeight {
  config::BaseFormat format = config::BaseFormat::fp8;
  device::Target target;
  comm::Group shards;                       // ranks that hold the other shards of the same matrices
  at::Tensor codes, scales, matrix_scales;  // matrix_scales: only nvfp4

  int64_t bytes() const;
};

// With peft.base_format, replaces the data of a weight [rows, columns] or [matrices, rows, columns] by codes. Throws
// base::Error("config") if a block of the format would contain values of two shards. Collective over `shards`.
void store_as_codes(Param& weight, const LayerContext& context, const comm::Group& shards);

// Returns `data`, or the decoded values of a stored weight.
at::Tensor weight_values(const Param& param);
// Sets `data`, or encodes the values, which have the local shape. Collective over the shards of a stored weight.
void set_weight_values(Param& param, const at::Tensor& values);

}  // namespace metroplex::nn
