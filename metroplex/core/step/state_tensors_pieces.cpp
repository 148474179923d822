#include "step/state_tensors.h"

#include "base/error.h"

namespace metroplex::step {
namespace {

struct NamedType {
  files::Dtype file;
  at::ScalarType scalar;
};
constexpr NamedType kTypes[] = {{files::Dtype::kF64, at::kDouble},
                                {files::Dtype::kF32, at::kFloat},
                                {files::Dtype::kBF16, at::kBFloat16},
                                {files::Dtype::kF16, at::kHalf},
                                {files::Dtype::kI64, at::kLong}};

}  // namespace

std::vector<topology::BoxRange> box_ranges(const nn::NamedTensor& tensor, int64_t begin, int64_t end) {
  return topology::box_ranges(tensor.global_shape, tensor.placement, begin, end);
}

files::Dtype file_dtype(at::ScalarType dtype) {
  for (const NamedType& type : kTypes) {
    if (type.scalar == dtype) return type.file;
  }
  MPX_ASSERT(false, "a checkpoint of ", c10::toString(dtype));
  return files::Dtype::kF32;
}

at::ScalarType to_scalar_type(files::Dtype dtype) {
  for (const NamedType& type : kTypes) {
    if (type.file == dtype) return type.scalar;
  }
  MPX_CHECK(false, "checkpoint", "a tensor of dtype ", files::dtype_name(dtype),
            " is neither a parameter, optimizer state nor a buffer; F64, F32, BF16, F16 and I64 are");
  return at::kFloat;
}

}  // namespace metroplex::step
