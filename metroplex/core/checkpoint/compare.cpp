#include "checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/error.h"
#include "checkpoint/pieces.h"

namespace metroplex::checkpoint {
namespace {

using files::TensorForm;

constexpr int64_t kSlabBytes = int64_t{64} << 20;

std::vector<std::byte> read_slab(TensorSource& source, const TensorForm& tensor, const Dims& offset,
                                 const Dims& size) {
  const int64_t width = files::dtype_bits(tensor.dtype) / 8;
  std::vector<std::byte> data(static_cast<size_t>(files::element_count(size) * width));
  source.fill({tensor.name, tensor.kind, tensor.shape, offset, size, tensor.dtype, data.data()});
  return data;
}

void compare_slab(files::Dtype a_type, const std::vector<std::byte>& a, files::Dtype b_type,
                  const std::vector<std::byte>& b, TensorDifference& difference) {
  if (a_type == b_type && a == b) return;
  const size_t count = a.size() / static_cast<size_t>(files::dtype_bits(a_type) / 8);
  for (size_t i = 0; i < count; ++i) {
    const double x = files::element_as_double(a_type, a.data(), i), y = files::element_as_double(b_type, b.data(), i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    ++difference.different_elements;
    const double distance = std::abs(x - y);
    const double counted = std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
    difference.max_absolute = std::max(difference.max_absolute, counted);
    difference.norm += counted * counted;
  }
}

void compare_values(TensorSource& first, const TensorForm& a, TensorSource& second, const TensorForm& form,
                    TensorDifference& difference) {
  Dims offset(a.shape.size(), 0), size = a.shape;
  const int64_t width = std::max(files::dtype_bits(a.dtype), files::dtype_bits(form.dtype)) / 8;
  const int64_t rows = a.shape.empty() ? 1 : a.shape[0];
  const int64_t row_bytes = rows == 0 ? 0 : difference.elements / rows * width;
  const int64_t step = std::max<int64_t>(1, kSlabBytes / std::max<int64_t>(1, row_bytes));
  for (int64_t row = 0; row < rows; row += step) {
    if (!a.shape.empty()) {
      offset[0] = row;
      size[0] = std::min(step, rows - row);
    }
    compare_slab(a.dtype, read_slab(first, a, offset, size), form.dtype, read_slab(second, form, offset, size),
                 difference);
  }
}

}  // namespace

std::vector<TensorDifference> compare(TensorSource& first, TensorSource& second) {
  std::set<std::pair<std::string, std::string>> keys;
  for (const TensorSource* source : {&first, &second}) {
    for (const TensorForm& tensor : source->tensors()) keys.emplace(tensor.name, tensor.kind);
  }
  std::vector<TensorDifference> differences;
  for (const auto& [name, kind] : keys) {
    TensorDifference difference{name, kind};
    const TensorForm* const form = first.find(name, kind);
    const TensorForm* const tensor_form = second.find(name, kind);
    if (form != nullptr) difference.first = *form;
    if (tensor_form != nullptr) difference.second = *tensor_form;
    if (form == nullptr || tensor_form == nullptr) {
      difference.problem = form == nullptr ? "only in the second" : "only in the first";
    } else if (form->shape != tensor_form->shape) {
      difference.problem =
          base::concat("shape ", describe_shape(form->shape), " and ", describe_shape(tensor_form->shape));
    } else {
      difference.elements = files::element_count(form->shape);
      compare_values(first, *form, second, *tensor_form, difference);
      difference.norm = std::sqrt(difference.norm);
    }
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace metroplex::checkpoint
