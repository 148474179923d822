#include "cuda/kernels/block8_store.h"
#include "cuda/kernels/optimizer_math.h"

namespace metroplex::cuda::kernels {
namespace {

template <class T>
__device__ T loaded(const void* data, Number number, int64_t i) {
  if constexpr (sizeof(T) == sizeof(double)) return static_cast<const double*>(data)[i];
  if (number == Number::f32) return static_cast<const float*>(data)[i];
  const uint16_t half = static_cast<const uint16_t*>(data)[i];
  return number == Number::bf16 ? bf16_to_float(half) : f16_to_float(half);
}

template <bool is_signed, class T>
__device__ T loaded_moment(const MomentArray& moment, int64_t i) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (moment.number == Number::block8)
      return block8_decode<is_signed>(static_cast<const uint8_t*>(moment.data)[i], moment.scales[i / kBlock8]);
  }
  return loaded<T>(moment.data, moment.number, i);
}

template <class T>
__device__ T loaded_main(const OptimizerRange& r, int64_t i) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (r.remainder != nullptr) return join_float(static_cast<const uint16_t*>(r.param)[i], r.remainder[i]);
  }
  return loaded<T>(r.main, r.main_number, i);
}

template <bool is_signed, class T>
__device__ void store_moment(const MomentArray& moment, int64_t i, bool inside, T x, const uint32_t* noise) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (moment.number == Number::block8) {
      store_block8<is_signed>({static_cast<uint8_t*>(moment.data), moment.scales}, i, inside, x, noise);
      return;
    }
    if (inside && moment.number == Number::bf16) {
      static_cast<uint16_t*>(moment.data)[i] = noise == nullptr ? float_to_bf16(x) : float_to_bf16(x, *noise);
      return;
    }
  }
  if (inside) static_cast<T*>(moment.data)[i] = x;
}

template <class T>
__device__ void store_main(const OptimizerRange& r, int64_t i, T x, uint32_t key) {
  if constexpr (sizeof(T) == sizeof(double)) {
    static_cast<double*>(r.main)[i] = x;
  } else {
    uint16_t* param = static_cast<uint16_t*>(r.param);
    if (r.remainder != nullptr) {
      const SplitFloat split = split_float(x);
      param[i] = split.param;
      r.remainder[i] = split.remainder;
      return;
    }
    if (r.main_number == Number::bf16) {
      const uint32_t noise = position_noise(key, r.noise_start + i) & 0xFFFF;
      const uint16_t half = r.stochastic ? float_to_bf16(x, noise) : float_to_bf16(x);
      static_cast<uint16_t*>(r.main)[i] = half;
      x = bf16_to_float(half);
    } else {
      static_cast<float*>(r.main)[i] = x;
    }
    if (param == nullptr) return;
    if (r.param_number == Number::f32) {
      static_cast<float*>(r.param)[i] = x;
    } else {
      param[i] = r.param_number == Number::bf16 ? float_to_bf16(x) : float_to_f16(x);
    }
  }
}

struct NoiseKeys {
  uint32_t moments, main;
};

template <class Update, class Hyper>
__global__ void __launch_bounds__(kThreads) step_kernel(OptimizerRange r, Hyper hyper, StepPlace place) {
  using T = typename Update::Scalar;
  if (place.values->updates == 0) return;
  const Update update(hyper, *place.values, *place.rates);
  const uint64_t key = step_key(r.noise_key, place.values->number);
  const NoiseKeys keys{mixed_key(key), mixed_key(~key)};
  for (int64_t start = int64_t{blockIdx.x} * kThreads; start < r.n; start += int64_t{gridDim.x} * kThreads) {
    const int64_t i = start + threadIdx.x;
    const bool inside = i < r.n;
    T g = 0, p = 0, m = 0, v = 0;
    if (inside) {
      g = loaded<T>(r.grad, r.grad_number, i);
      p = loaded_main<T>(r, i);
      if constexpr (Update::kMoments > 0) m = loaded_moment<true, T>(r.first, i);
      if constexpr (Update::kMoments > 1) v = loaded_moment<false, T>(r.second, i);
      update(g, p, m, v);
      store_main(r, i, p, keys.main);
    }
    const uint32_t word = r.stochastic ? position_noise(keys.moments, r.noise_start + i) : 0;
    const uint32_t low = word & 0xFFFF, high = word >> 16;
    // A scale is stored when all threads have read it: block_max lies between.
    if constexpr (Update::kMoments > 0) store_moment<true>(r.first, i, inside, m, r.stochastic ? &low : nullptr);
    if constexpr (Update::kMoments > 1) store_moment<false>(r.second, i, inside, v, r.stochastic ? &high : nullptr);
  }
}

template <class Hyper>
void launch(const OptimizerRange& range, const Hyper& hyper, const StepPlace& place, CUstream_st* stream,
            const char* name) {
  with_update(range, hyper, [&]<class Update>() {
    if (range.n == 0) return;
    launch_kernel(name, step_kernel<Update, Hyper>, Grid{blocks_for(range.n), kThreads, 0, stream}, range, hyper,
                  place);
  });
}

}  // namespace

void adam_step_cuda(const OptimizerRange& range, const AdamHyper& hyper, const StepPlace& place,
                    CUstream_st* stream) {
  launch(range, hyper, place, stream, "adam_step");
}
void sgd_step_cuda(const OptimizerRange& range, const SgdHyper& hyper, const StepPlace& place, CUstream_st* stream) {
  launch(range, hyper, place, stream, "sgd_step");
}
void lion_step_cuda(const OptimizerRange& range, const LionHyper& hyper, const StepPlace& place,
                    CUstream_st* stream) {
  launch(range, hyper, place, stream, "lion_step");
}

}  // namespace metroplex::cuda::kernels
