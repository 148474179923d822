#include "cuda/kernels/random_rows.h"

#include "base/philox.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {
namespace {

constexpr int64_t kWords = 4;  // of a Philox block

// Blocks that may touch a row: a row that starts in the middle of a block needs one more.
constexpr int64_t blocks_per_row(int64_t width) { return (width + 2 * (kWords - 1)) / kWords; }

template <class T>
__global__ void __launch_bounds__(kThreads) random_rows_kernel(T* out, Noise noise, DropoutShape s, int64_t items) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, blocks = blocks_per_row(s.width);
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const int64_t row = item / blocks;
    const DropoutRow where = dropout_row(s, row);
    const int64_t first = item % blocks * kWords - where.start % kWords;  // element of the row, may be before it
    if (first >= s.width) continue;
    const base::PhiloxBlock bits =
        base::philox4x32(s.key, static_cast<uint64_t>((where.start + first) / kWords), where.counter);
    for (int64_t word = 0; word < kWords; ++word) {
      const int64_t e = first + word;
      if (e < 0 || e >= s.width) continue;
      const double u = uniform_double(bits[static_cast<size_t>(word)]);
      out[row * s.width + e] = static_cast<T>(noise == Noise::uniform ? u : -log(-log(u)));
    }
  }
}

}  // namespace

template <class T>
void random_rows_cuda(T* out, Noise noise, const DropoutShape& shape, CUstream_st* stream) {
  const int64_t items = shape.num_rows * blocks_per_row(shape.width);
  if (shape.num_rows == 0 || shape.width == 0) return;
  launch_kernel("random_rows", random_rows_kernel<T>, Grid{blocks_for(items), kThreads, 0, stream}, out, noise, shape,
                items);
}

template void random_rows_cuda<float>(float*, Noise, const DropoutShape&, CUstream_st*);
template void random_rows_cuda<double>(double*, Noise, const DropoutShape&, CUstream_st*);

}  // namespace metroplex::cuda::kernels
