#include "kernels/random_rows.h"

#include "base/philox.h"
#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

constexpr int64_t kWords = 4;  // words per Philox block

// Maximum number of Philox blocks that overlap a row. A row that starts inside a block needs one more.
constexpr int64_t blocks_per_row(int64_t width) { return (width + 2 * (kWords - 1)) / kWords; }

// `whole`: rows start and end at block boundaries and are stored in packs.
template <bool whole, class T>
__global__ void __launch_bounds__(kThreads)
    random_rows_kernel(T* out, Noise noise, DropoutShape shape, int64_t items) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, blocks = blocks_per_row(shape.width);
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const auto [row, block] = divided(item, blocks);
    const DropoutRow where = dropout_row(shape, row);
    const int64_t first = block * kWords - where.start % kWords;  // may be negative
    if (first >= shape.width) continue;
    const base::PhiloxBlock bits =
        base::philox4x32(shape.key, static_cast<uint64_t>((where.start + first) / kWords), where.counter);
    Elements<T, kWords> values;
    for (int64_t word = 0; word < kWords; ++word) {
      const double u = uniform_double(bits[static_cast<size_t>(word)]);
      values.values[word] = static_cast<T>(noise == Noise::uniform ? u : -log(-log(u)));
    }
    T* const to = out + row * shape.width + first;
    if constexpr (whole) {
      values.write(to);
    } else {
      for (int64_t word = 0; word < kWords; ++word) {
        if (first + word >= 0 && first + word < shape.width) to[word] = values.values[word];
      }
    }
  }
}

}  // namespace

template <class T>
void random_rows_cuda(T* out, Noise noise, const DropoutShape& shape, CUstream_st* stream) {
  const int64_t items = shape.num_rows * blocks_per_row(shape.width);
  if (shape.num_rows == 0 || shape.width == 0) return;
  const auto kernel = shape.width % kWords == 0 && aligned_for_packs(out) ? random_rows_kernel<true, T>
                                                                          : random_rows_kernel<false, T>;
  launch_kernel("random_rows", kernel, Grid{blocks_for(items), kThreads, 0, stream}, out, noise, shape, items);
}

template void random_rows_cuda<float>(float*, Noise, const DropoutShape&, CUstream_st*);
template void random_rows_cuda<double>(double*, Noise, const DropoutShape&, CUstream_st*);

}  // namespace metroplex::kernels
