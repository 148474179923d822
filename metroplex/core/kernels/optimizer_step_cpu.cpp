#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/optimizer_math.h"
#include "kernels/optimizer_tile.h"

// Without contraction, an element's result is the same in the vectorized loop, in its remainder, and on every CPU.
#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=off")

// The const attribute removes errno, so that the calls vectorize. The pragma does not do this in templates.
extern "C" float sqrtf(float) noexcept __attribute__((const));
extern "C" double sqrt(double) noexcept __attribute__((const));

namespace metroplex::kernels {
namespace {

constexpr int64_t kGrain = 64;  // tiles

template <class T>
struct Buffers {
  alignas(64) T grad[kTile], main[kTile], first[kTile], second[kTile];
  alignas(64) uint32_t noise[kTile];
};

// Returns elements [at, at + n) as T: in place, or decoded into `buffer`.
template <class T>
MPX_INLINE T* opened(const void* data, Number number, int64_t at, int64_t n, T* buffer) {
  if (number == kNumberOf<T>) return static_cast<T*>(const_cast<void*>(data)) + at;
  if constexpr (sizeof(T) == sizeof(float)) {
    const uint16_t* half = static_cast<const uint16_t*>(data) + at;
    number == Number::bf16 ? bf16_to_floats(half, n, buffer) : f16_to_floats(half, n, buffer);
  }
  return buffer;
}

template <class T>
MPX_INLINE T* opened_main(const OptimizerRange& range, int64_t at, int64_t n, T* buffer) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (range.remainder != nullptr) {
      join_tile(static_cast<const uint16_t*>(range.param) + at, range.remainder + at, n, buffer);
      return buffer;
    }
  }
  return opened(range.main, range.main_number, at, n, buffer);
}

template <class T>
MPX_INLINE T* opened_moment(const MomentArray& moment, bool is_signed, int64_t at, int64_t n, T* buffer) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (moment.number == Number::block8) {
      decode_block8(static_cast<const uint8_t*>(moment.data) + at, moment.scales[at / kBlock8], n, is_signed, buffer);
      return buffer;
    }
  }
  return opened(moment.data, moment.number, at, n, buffer);
}

MPX_INLINE void close_moment(const MomentArray& moment, bool is_signed, int64_t at, int64_t n, const float* values,
                             NoiseWords noise) {
  if (moment.number == Number::block8) {
    moment.scales[at / kBlock8] = encode_block8(values, n, is_signed, noise, static_cast<uint8_t*>(moment.data) + at);
  } else if (moment.number == Number::bf16) {
    floats_to_bf16(values, n, is_signed, noise, static_cast<uint16_t*>(moment.data) + at);
  }
}

MPX_INLINE NoiseWords drawn(const OptimizerRange& range, uint64_t key, int64_t at, int64_t n, uint32_t* words) {
  if (!range.stochastic) return nullptr;
  const uint32_t mixed = mixed_key(key);
  for (int64_t i = 0; i < n; ++i) words[i] = position_noise(mixed, range.noise_start + at + i);
  return words;
}

MPX_INLINE void close_main(const OptimizerRange& range, int64_t at, int64_t n, float* values, uint32_t* words) {
  if (range.remainder != nullptr)
    return split_tile(values, n, static_cast<uint16_t*>(range.param) + at, range.remainder + at);
  if (range.main_number == Number::bf16) {
    const NoiseWords noise = drawn(range, ~range.noise_key, at, n, words);
    floats_to_bf16(values, n, true, noise, static_cast<uint16_t*>(range.main) + at);
    bf16_to_floats(static_cast<const uint16_t*>(range.main) + at, n, values);
  }
  if (range.param == nullptr) return;
  uint16_t* half = static_cast<uint16_t*>(range.param) + at;
  if (range.param_number == Number::bf16) return floats_to_bf16(values, n, half);
  if (range.param_number == Number::f16) return floats_to_f16(values, n, half);
  std::copy_n(values, n, static_cast<float*>(range.param) + at);
}

template <class T, class Update>
MPX_INLINE void update_tile(const Update update, int64_t n, const T* __restrict g, T* __restrict p, T* __restrict m,
                            T* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    T main = p[i], first = Update::kMoments > 0 ? m[i] : T(0), second = Update::kMoments > 1 ? v[i] : T(0);
    update(g[i], main, first, second);
    p[i] = main;
    if constexpr (Update::kMoments > 0) m[i] = first;
    if constexpr (Update::kMoments > 1) v[i] = second;
  }
}

template <class T, class Update>
MPX_INLINE void update_tiles(const OptimizerRange& range, const Update& update, int64_t begin, int64_t end) {
  Buffers<T> buffers;
  for (int64_t at = begin * kTile; at < std::min(end * kTile, range.n); at += kTile) {
    const int64_t n = std::min(kTile, range.n - at);
    const T* grad = opened(range.grad, range.grad_number, at, n, buffers.grad);
    T* main = opened_main(range, at, n, buffers.main);
    T *first = nullptr, *second = nullptr;
    if constexpr (Update::kMoments > 0) first = opened_moment(range.first, true, at, n, buffers.first);
    if constexpr (Update::kMoments > 1) second = opened_moment(range.second, false, at, n, buffers.second);
    update_tile(update, n, grad, main, first, second);
    if constexpr (sizeof(T) == sizeof(float)) {
      const bool narrow = (Update::kMoments > 0 && range.first.number != Number::f32) ||
                          (Update::kMoments > 1 && range.second.number != Number::f32);
      const NoiseWords noise = narrow ? drawn(range, range.noise_key, at, n, buffers.noise) : nullptr;
      if constexpr (Update::kMoments > 0) close_moment(range.first, true, at, n, first, noise);
      if constexpr (Update::kMoments > 1) close_moment(range.second, false, at, n, second, noise);
      close_main(range, at, n, main, buffers.noise);
    }
  }
}

#define MPX_STEP(...)                                                                                      \
  MPX_HALF_CLONES void run(const OptimizerRange& range, const __VA_ARGS__& update, int64_t b, int64_t e) { \
    update_tiles<__VA_ARGS__::Scalar>(range, update, b, e);                                                \
  }
MPX_STEP(AdamUpdate<float>)
MPX_STEP(AdamUpdate<double>)
MPX_STEP(LionUpdate<float>)
MPX_STEP(LionUpdate<double>)
MPX_STEP(SgdUpdate<float, true>)
MPX_STEP(SgdUpdate<double, true>)
MPX_STEP(SgdUpdate<float, false>)
MPX_STEP(SgdUpdate<double, false>)
#undef MPX_STEP

template <class Hyper>
void step(const OptimizerRange& range, const Hyper& hyper, const StepPlace& place) {
  with_update(range, hyper, [&]<class Update>() {
    if (place.values->updates == 0) return;
    const Update update(hyper, *place.values, *place.rates);
    OptimizerRange own = range;
    own.noise_key = step_key(range.noise_key, place.values->number);
    at::parallel_for(0, block8_scales(own.n), kGrain,
                     [&](int64_t begin, int64_t end) { run(own, update, begin, end); });
  });
}

}  // namespace

void adam_step(const OptimizerRange& range, const AdamHyper& hyper, const StepPlace& place) {
  step(range, hyper, place);
}
void sgd_step(const OptimizerRange& range, const SgdHyper& hyper, const StepPlace& place) {
  step(range, hyper, place);
}
void lion_step(const OptimizerRange& range, const LionHyper& hyper, const StepPlace& place) {
  step(range, hyper, place);
}

}  // namespace metroplex::kernels
