#include "kernels/activation.h"
#include "kernels/activation_kinds.h"
#include "kernels/column_sums_device.h"

namespace metroplex::kernels {
namespace {

template <class T>
struct Operands {
  T* x;
  const T* bias;
  const T* dy;
  T* out;                    // dx in backward
  Wide<T>* lines = nullptr;  // see activation_backward
};

// x + bias at offset `at`, in column `column`.
template <int64_t count, class T>
__device__ Elements<T, count> with_bias(const Operands<T>& operands, int64_t at, int64_t column) {
  Elements<T, count> x;
  x.read(operands.x + at);
  x.add(operands.bias != nullptr ? operands.bias + column : nullptr);
  return x;
}

// All loads of an item precede its arithmetic, so that their latencies overlap.
template <Activation kind, bool gated, int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Operands<T> operands, int64_t rows, int64_t width, UnitLimits limits) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, of_row = width / count;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < rows * of_row; item += stride) {
    const auto [row, pack] = divided(item, of_row);
    const int64_t column = pack * count, at = gated ? row * 2 * width + column : item * count;
    const Elements<T, count> x = with_bias<count>(operands, at, column);
    Elements<T, count> y, up;
    if constexpr (gated) up = with_bias<count>(operands, at + width, column + width);
    for (int64_t i = 0; i < count; ++i) {
      y.values[i] = activation_value<kind, DeviceMath>(limits.gate(x.values[i]));
      if constexpr (gated) y.values[i] *= limits.up(up.values[i]);
    }
    if constexpr (!kIsHalf<T>) {
      x.write(operands.x + at);
      if constexpr (gated) up.write(operands.x + at + width);
    }
    y.write(operands.out + item * count);
  }
}

template <Activation kind, bool gated, int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Operands<T> operands, int64_t rows, int64_t width, UnitLimits limits) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, of_row = width / count;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < rows * of_row; item += stride) {
    const auto [row, pack] = divided(item, of_row);
    const int64_t column = pack * count, at = gated ? row * 2 * width + column : item * count;
    const Elements<T, count> x = with_bias<count>(operands, at, column);
    Elements<T, count> dy, dx;
    dy.read(operands.dy + item * count);
    if constexpr (gated) {
      const Elements<T, count> up = with_bias<count>(operands, at + width, column + width);
      Elements<T, count> dup;
      for (int64_t i = 0; i < count; ++i) {
        const Wide<T> gate = limits.gate(x.values[i]), slope = activation_slope<kind, DeviceMath>(gate);
        dx.values[i] = dy.values[i] * limits.up(up.values[i]) * slope * limits.gate_slope(x.values[i]);
        dup.values[i] = dy.values[i] * activation_value<kind, DeviceMath>(gate) * limits.up_slope(up.values[i]);
      }
      dup.write(operands.out + at + width);
    } else {
      for (int64_t i = 0; i < count; ++i)
        dx.values[i] = dy.values[i] * activation_slope<kind, DeviceMath>(x.values[i]);
    }
    dx.write(operands.out + at);
  }
}

// Backward of units without a gate with sums of dx.
template <Activation kind, int64_t count, class T>
__global__ void __launch_bounds__(kThreads, kColumnBlocks)
    backward_sums_kernel(Operands<T> operands, ColumnSumsShape shape) {
  sum_line<count, T>(operands.lines, shape, [&](int64_t row, int64_t column) {
    const int64_t at = row * shape.width + column;
    Elements<T, count> dx = with_bias<count>(operands, at, column), dy;
    dy.read(operands.dy + at);
    for (int64_t i = 0; i < count; ++i) {
      const Wide<T> value = dy.values[i] * activation_slope<kind, DeviceMath>(dx.values[i]);
      dx.values[i] = load(store<T>(value));
    }
    dx.write(operands.out + at);
    return dx;
  });
}

template <Activation kind, bool gated, int64_t count, class T>
void launch_by(const Operands<T>& operands, const ActivationShape& shape, CUstream_st* stream) {
  if (operands.lines != nullptr) {
    const ColumnSumsShape sums{shape.rows, shape.width, shape.width};
    return launch_kernel("activation_backward", backward_sums_kernel<kind, count, T>,
                         Grid{line_blocks<count, T>(sums), kThreads, 0, stream}, operands, sums);
  }
  const Grid grid{blocks_for(shape.rows * (shape.width / count)), kThreads, 0, stream};
  if (operands.dy == nullptr) {
    launch_kernel("activation_forward", forward_kernel<kind, gated, count, T>, grid, operands, shape.rows,
                  shape.width, shape.limits);
  } else {
    launch_kernel("activation_backward", backward_kernel<kind, gated, count, T>, grid, operands, shape.rows,
                  shape.width, shape.limits);
  }
}

template <Activation kind, bool gated, class T>
void launch(const Operands<T>& operands, const ActivationShape& shape, CUstream_st* stream) {
  constexpr int64_t kPack = Pack<T>::kCount;
  if (shape.width % kPack == 0 && aligned_for_packs(operands.x, operands.bias, operands.dy, operands.out)) {
    launch_by<kind, gated, kPack>(operands, shape, stream);
  } else {
    launch_by<kind, gated, 1>(operands, shape, stream);
  }
}

template <class T>
void dispatch(const Operands<T>& operands, const ActivationShape& shape, CUstream_st* stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  with_kind(shape.kind, [&]<Activation kind>() {
    shape.gated ? launch<kind, true>(operands, shape, stream) : launch<kind, false>(operands, shape, stream);
  });
}

}  // namespace

template <class T>
void activation_forward_cuda(T* x, const T* bias, T* out, const ActivationShape& shape, CUstream_st* stream) {
  dispatch<T>({x, bias, nullptr, out}, shape, stream);
}

template <class T>
void activation_backward_cuda(const T* dy, const T* x, const T* bias, T* dx, Wide<T>* lines,
                              const ActivationShape& shape, CUstream_st* stream) {
  dispatch<T>({const_cast<T*>(x), bias, dy, dx, lines}, shape, stream);
}

#define MPX_INSTANTIATE(T)                                                                                      \
  template void activation_forward_cuda<T>(T*, const T*, T*, const ActivationShape&, CUstream_st*);             \
  template void activation_backward_cuda<T>(const T*, const T*, const T*, T*, Wide<T>*, const ActivationShape&, \
                                            CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
