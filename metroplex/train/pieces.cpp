#include "train/pieces.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::train {
namespace {

struct NamedType {
  files::Dtype file;
  at::ScalarType scalar;
};
constexpr NamedType kTypes[] = {{files::Dtype::kF64, at::kDouble},
                                {files::Dtype::kF32, at::kFloat},
                                {files::Dtype::kBF16, at::kBFloat16},
                                {files::Dtype::kF16, at::kHalf}};

}  // namespace

std::vector<BoxRange> box_ranges(const nn::Param& param, int64_t begin, int64_t end) {
  const std::vector<int64_t> origin(param.global_shape.size(), 0);
  if (!param.sharded()) return {{origin, param.global_shape, begin, end, begin}};
  const auto dim = static_cast<size_t>(param.shard.dim);
  const int64_t local_rows = param.local_shape[dim];
  MPX_ASSERT(dim == 0 || (param.shard.ranges.size() == 1 && param.shard.ranges[0].size == local_rows), param.name,
             " is cut in several parts along dimension ", dim);
  const int64_t row = dim == 0 && local_rows > 0 ? param.numel() / local_rows : 0;
  std::vector<BoxRange> boxes;
  for (const nn::RowRange& range : param.shard.ranges) {
    BoxRange box{origin, param.global_shape, 0, 0, 0};
    box.offset[dim] = range.global;
    box.size[dim] = range.size;
    const int64_t first = dim == 0 ? range.local * row : 0,
                  last = dim == 0 ? first + range.size * row : param.numel();
    box.local = std::max(begin, first);
    box.begin = box.local - first;
    box.end = std::min(end, last) - first;
    if (box.begin < box.end) boxes.push_back(std::move(box));
  }
  return boxes;
}

files::Dtype file_dtype(at::ScalarType dtype) {
  for (const NamedType& type : kTypes) {
    if (type.scalar == dtype) return type.file;
  }
  MPX_ASSERT(false, "a checkpoint of ", c10::toString(dtype));
  return files::Dtype::kF32;
}

at::ScalarType scalar_type_of(files::Dtype dtype) {
  for (const NamedType& type : kTypes) {
    if (type.file == dtype) return type.scalar;
  }
  MPX_CHECK(false, "checkpoint", "a tensor of dtype ", files::dtype_name(dtype),
            " is neither a parameter nor optimizer state; F64, F32, BF16 and F16 are");
  return at::kFloat;
}

}  // namespace metroplex::train
