#include "train/pieces.h"

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

std::vector<topology::BoxRange> box_ranges(const nn::Param& param, int64_t begin, int64_t end) {
  return topology::box_ranges(param.global_shape, param.placement, begin, end);
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
