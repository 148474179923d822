#include "nn/scaled_product.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace metroplex::nn {

at::Tensor scaled_product(const device::Target& target, const Codes& left, const Codes& right, at::ScalarType type,
                          const std::string& layer) {
  constexpr int64_t kMultiple = 16;  // of cuBLASLt
  const int64_t m = left.codes.size(0), k = left.codes.size(1), n = right.codes.size(0);
  for (const int64_t size : {n, k}) {
    MPX_CHECK(size % kMultiple == 0, "config", "precision.fp8_products = library: ", layer,
              " multiplies matrices with ", size, " rows, but the library needs multiples of ", kMultiple,
              "; change the widths or the number of tokens, or set it to widened");
  }
  at::Tensor out = at::empty({m, n}, left.codes.options().dtype(type));
  // Sums of partial sums in fp32 (no fast accumulation), as in the products of the other recipes.
  if (!target.meta && m > 0)
    at::_scaled_mm_out(out, left.codes, right.codes.t(), left.decode, right.decode, {}, {}, type, false);
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  device::issued(target, {"scaled_mm", {&left.codes, &right.codes}, {&out}, {}, flops});
  return out;
}

}  // namespace metroplex::nn
