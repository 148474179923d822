#include "nn/stored_weight.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <limits>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "kernels/weight_codes.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

using config::BaseFormat;
using kernels::CodesShape;
using kernels::E2m1Codes;
using kernels::Wide;

CodesShape codes_shape(const Param& weight) {
  const std::vector<int64_t>& sizes = weight.local_shape;
  MPX_ASSERT(sizes.size() == 2 || sizes.size() == 3, weight.name, " is not a matrix");
  return {sizes.size() == 3 ? sizes[0] : 1, sizes[sizes.size() - 2], sizes.back()};
}

void check_block(const Param& weight, int64_t size, int64_t block, BaseFormat format, const char* fix) {
  MPX_CHECK(size % block == 0, "config", weight.name, ": a rank's shard has ", size, " features, but blocks of ",
            "peft.base_format = ", config::text_of(format), " have ", block, "; ", fix);
}

// Blocks of fp8 contain rows and columns, blocks of nvfp4 only columns.
void check_blocks(const Param& weight, BaseFormat format) {
  const auto last = static_cast<int>(weight.local_shape.size()) - 1;
  const bool nvfp4 = format == BaseFormat::nvfp4;
  const int64_t block = nvfp4 ? kernels::kE2m1Block : kernels::kE4m3Block;
  if (nvfp4) check_block(weight, weight.local_shape.back(), block, format, "use fp8, or other sizes of the model");
  for (const topology::DimShard& cut : weight.placement.cuts) {
    const bool whole = cut.valid_rows() == weight.global_shape[static_cast<size_t>(cut.dim)] || cut.dim < last - 1 ||
                       (nvfp4 && cut.dim != last);
    for (const topology::RowRange& range : cut.ranges) {
      if (!whole)
        check_block(weight, range.size, block, format,
                    "use a tensor-parallel size whose shards are multiples of it, or another format");
    }
  }
}

E2m1Codes e2m1_codes(const StoredWeight& stored) {
  return {static_cast<uint8_t*>(stored.codes.mutable_data_ptr()),
          static_cast<uint8_t*>(stored.scales.mutable_data_ptr()), elements<float>(stored.matrix_scales)};
}

// Returns the largest magnitude of each matrix, over all its shards.
at::Tensor matrix_magnitudes(const StoredWeight& stored, const at::Tensor& x, const CodesShape& shape) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  at::Tensor all = at::linalg_vector_norm(x.view({shape.matrices, -1}), kInfinity, at::IntArrayRef{1}, false,
                                          acc_type(x.scalar_type()));
  comm::all_reduce(all, stored.shards, comm::ReduceOp::max);
  return all;
}

template <class T>
void encode(const StoredWeight& stored, const at::Tensor& x, const CodesShape& shape) {
  if (stored.format == BaseFormat::fp8) {
    return device::launch(stored.target, {"encode_e4m3", {&x}, {&stored.codes, &stored.scales}},
                          kernels::encode_e4m3<T>, kernels::encode_e4m3_cuda<T>,
                          static_cast<uint8_t*>(stored.codes.mutable_data_ptr()), elements<float>(stored.scales),
                          static_cast<const T*>(elements<T>(x)), shape);
  }
  const at::Tensor magnitudes = matrix_magnitudes(stored, x, shape);
  device::launch(
      stored.target, {"encode_e2m1", {&x, &magnitudes}, {&stored.codes, &stored.scales, &stored.matrix_scales}},
      kernels::encode_e2m1<T>, kernels::encode_e2m1_cuda<T>, e2m1_codes(stored),
      static_cast<const T*>(elements<T>(x)), static_cast<const Wide<T>*>(elements<Wide<T>>(magnitudes)), shape);
}

template <class T>
void decode(const StoredWeight& stored, const at::Tensor& x, const CodesShape& shape) {
  if (stored.format == BaseFormat::fp8) {
    return device::launch(stored.target, {"decode_e4m3", {&stored.codes, &stored.scales}, {&x}},
                          kernels::decode_e4m3<T>, kernels::decode_e4m3_cuda<T>, elements<T>(x),
                          static_cast<const uint8_t*>(stored.codes.const_data_ptr()),
                          static_cast<const float*>(elements<float>(stored.scales)), shape);
  }
  device::launch(stored.target, {"decode_e2m1", {&stored.codes, &stored.scales, &stored.matrix_scales}, {&x}},
                 kernels::decode_e2m1<T>, kernels::decode_e2m1_cuda<T>, elements<T>(x), e2m1_codes(stored), shape);
}

void allocate_codes(StoredWeight& stored, const CodesShape& shape) {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(stored.target.memory()),
             floats = bytes.dtype(at::kFloat);
  if (stored.format == BaseFormat::fp8) {
    stored.codes = at::empty({shape.matrices, shape.rows, shape.columns}, bytes);
    stored.scales = at::empty({shape.matrices, shape.row_blocks(), shape.column_blocks()}, floats);
    return;
  }
  stored.codes = at::empty({shape.matrices, shape.rows, shape.columns / 2}, bytes);
  stored.scales = at::empty({shape.matrices, shape.rows, shape.columns / kernels::kE2m1Block}, bytes);
  stored.matrix_scales = at::empty({shape.matrices}, floats);
}

}  // namespace

int64_t StoredWeight::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& part : {codes, scales, matrix_scales})
    sum += part.defined() ? static_cast<int64_t>(part.nbytes()) : 0;
  return sum;
}

void store_as_codes(Param& weight, const LayerContext& context, const comm::Group& shards) {
  const config::Peft& peft = context.peft;
  if (!peft.stores_codes()) return;
  check_blocks(weight, peft.base_format);
  auto stored = std::make_shared<StoredWeight>();
  stored->format = peft.base_format, stored->target = context.target, stored->shards = shards;
  allocate_codes(*stored, codes_shape(weight));
  weight.stored = std::move(stored);
  set_weight_values(weight, std::exchange(weight.data, at::Tensor()));
}

at::Tensor weight_values(const Param& param) {
  if (!param.stored) return param.data;
  const StoredWeight& stored = *param.stored;
  at::Tensor values = at::empty(param.local_shape, stored.codes.options().dtype(param.dtype));
  dispatch_element(param.dtype, [&](auto zero) { decode<decltype(zero)>(stored, values, codes_shape(param)); });
  return values;
}

void set_weight_values(Param& param, const at::Tensor& values) {
  if (!param.stored) {
    param.data.copy_(values);
    return;
  }
  const at::Tensor x = values.to(param.dtype).contiguous();
  dispatch_element(param.dtype, [&](auto zero) { encode<decltype(zero)>(*param.stored, x, codes_shape(param)); });
}

}  // namespace metroplex::nn
