#include "kernels/random_rows.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/dropout_rows.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
void random_row(T* out, Noise noise, const DropoutShape& shape, const DropoutRow& row) {
  uint32_t bits[kDrawn];
  for (int64_t first = -(row.start % 4); first < shape.width; first += kDrawn) {
    philox_blocks(shape.key, static_cast<uint64_t>((row.start + first) / 4), row.counter, bits);
    const int64_t begin = std::max<int64_t>(0, first), end = std::min(shape.width, first + kDrawn);
    for (int64_t i = begin; i < end; ++i) {
      const double u = uniform_double(bits[i - first]);
      out[i] = static_cast<T>(noise == Noise::uniform ? u : -std::log(-std::log(u)));
    }
  }
}

}  // namespace

template <class T>
void random_rows(T* out, Noise noise, const DropoutShape& shape) {
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.num_rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) random_row(out + r * shape.width, noise, shape, dropout_row(shape, r));
  });
}

template void random_rows<float>(float*, Noise, const DropoutShape&);
template void random_rows<double>(double*, Noise, const DropoutShape&);

}  // namespace metroplex::kernels
