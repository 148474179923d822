#include "optim/sums.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <vector>

#include "base/error.h"

namespace metroplex::optim {
namespace {

constexpr int64_t kBlock = 16384;

// One partial result a block, whatever thread computes it.
template <class Out, class T, class Block>
Out blockwise(const T* data, int64_t count, Block block) {
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<Out> partial(blocks);
  at::parallel_for(0, blocks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) partial[b] = block(data + b * kBlock, std::min(kBlock, count - b * kBlock));
  });
  Out total = 0;
  for (const Out value : partial) total += value;
  return total;
}

template <class T>
double block_squares(const T* data, int64_t count) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = data[i + lane];
      lanes[lane] += x * x;
    }
  }
  for (; i < count; ++i) lanes[0] += static_cast<double>(data[i]) * data[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  MPX_ASSERT(tensor.is_contiguous(), "sum_of_squares wants a contiguous tensor");
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES(tensor.scalar_type(), "sum_of_squares", [&] {
    sum = blockwise<double>(tensor.const_data_ptr<scalar_t>(), tensor.numel(), block_squares<scalar_t>);
  });
  return sum;
}

int64_t count_zeros(const at::Tensor& tensor) {
  MPX_ASSERT(tensor.is_contiguous(), "count_zeros wants a contiguous tensor");
  int64_t zeros = 0;
  AT_DISPATCH_FLOATING_TYPES(tensor.scalar_type(), "count_zeros", [&] {
    zeros = blockwise<int64_t>(tensor.const_data_ptr<scalar_t>(), tensor.numel(),
                               [](const scalar_t* data, int64_t count) {
                                 int64_t found = 0;
                                 for (int64_t i = 0; i < count; ++i) found += data[i] == 0;
                                 return found;
                               });
  });
  return zeros;
}

}  // namespace metroplex::optim
