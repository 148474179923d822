// Nested lists of a vector file as tensors.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "conformance/report.h"

namespace metroplex::conformance {

// Lists of one depth have one length; an empty one has no depth below.
inline at::Tensor to_tensor(const Json& nested, at::ScalarType dtype) {
  std::vector<int64_t> sizes;
  std::vector<double> values;
  for (const Json* level = &nested; level->is_array(); level = &level->front()) {
    sizes.push_back(static_cast<int64_t>(level->size()));
    if (level->empty()) break;
  }
  const std::function<void(const Json&)> walk = [&](const Json& level) {
    if (level.is_boolean()) return values.push_back(level.get<bool>() ? 1 : 0);
    if (!level.is_array()) return values.push_back(level.get<double>());
    for (const Json& entry : level) walk(entry);
  };
  walk(nested);
  return at::tensor(values, at::kDouble).view(sizes).to(dtype);
}

inline std::string compare_tensors(const char* what, const at::Tensor& got, const at::Tensor& expected,
                                   double tolerance) {
  if (got.sizes() != expected.sizes())
    return std::string(what) + base::concat(" has the shape ", Json(got.sizes().vec()).dump(), ", expected ",
                                            Json(expected.sizes().vec()).dump());
  if (got.numel() == 0) return "";
  const double worst = (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  return worst <= tolerance ? "" : std::string(what) + " differs by " + std::to_string(worst);
}

}  // namespace metroplex::conformance
