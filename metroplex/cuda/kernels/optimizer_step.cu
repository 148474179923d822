#include <vector>

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

// Blocks of kThreads elements, those of a range behind those of the range before.
struct RangeTable {
  OptimizerRange ranges[kRangesOfLaunch];
  const GroupRates* rates[kRangesOfLaunch];
  int64_t first[kRangesOfLaunch + 1];  // block of each; behind the last one, their number
  int count;
};
static_assert(sizeof(RangeTable) <= 4000, "the arguments of a launch take 4096 bytes at most");

template <class Update, class Hyper>
__global__ void __launch_bounds__(kThreads) step_kernel(RangeTable table, Hyper hyper, const StepValues* values) {
  using T = typename Update::Scalar;
  if (values->updates == 0) return;
  int of = 0;
  Update update(hyper, *values, *table.rates[0]);
  for (int64_t block = blockIdx.x; block < table.first[table.count]; block += gridDim.x) {
    if (block >= table.first[of + 1]) {
      while (block >= table.first[of + 1]) ++of;
      update = Update(hyper, *values, *table.rates[of]);
    }
    const OptimizerRange& r = table.ranges[of];
    const uint64_t key = step_key(r.noise_key, values->number);
    const NoiseKeys keys{mixed_key(key), mixed_key(~key)};
    const int64_t i = (block - table.first[of]) * kThreads + threadIdx.x;
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

bool is_wide(const OptimizerRange& r) { return r.remainder == nullptr && r.main_number == Number::f64; }

// The table of the ranges from `begin` on that go into one launch; `begin` becomes the first behind them.
RangeTable next_table(const std::vector<RatedRange>& ranges, size_t& begin) {
  RangeTable table{};
  const bool wide = is_wide(ranges[begin].range);
  for (; begin < ranges.size() && table.count < kRangesOfLaunch; ++begin) {
    const RatedRange& of = ranges[begin];
    if (of.range.n == 0) continue;
    if (is_wide(of.range) != wide) break;
    table.ranges[table.count] = of.range;
    table.rates[table.count] = of.rates;
    const int64_t blocks = (of.range.n + kThreads - 1) / kThreads;
    table.first[table.count + 1] = table.first[table.count] + blocks;
    ++table.count;
  }
  return table;
}

template <class Hyper>
void launch(const std::vector<RatedRange>& ranges, const Hyper& hyper, const StepValues* values, CUstream_st* stream,
            const char* name) {
  for (const RatedRange& of : ranges) with_update(of.range, hyper, [&]<class Update>() {});  // checks it
  for (size_t i = 0; i < ranges.size();) {
    const RangeTable table = next_table(ranges, i);
    if (table.count == 0) continue;
    with_update(table.ranges[0], hyper, [&]<class Update>() {
      launch_kernel(name, step_kernel<Update, Hyper>,
                    Grid{blocks_for(table.first[table.count] * kThreads), kThreads, 0, stream}, table, hyper, values);
    });
  }
}

}  // namespace

void adam_step_cuda(const std::vector<RatedRange>& ranges, const AdamHyper& hyper, const StepValues* values,
                    CUstream_st* stream) {
  launch(ranges, hyper, values, stream, "adam_step");
}
void sgd_step_cuda(const std::vector<RatedRange>& ranges, const SgdHyper& hyper, const StepValues* values,
                   CUstream_st* stream) {
  launch(ranges, hyper, values, stream, "sgd_step");
}
void lion_step_cuda(const std::vector<RatedRange>& ranges, const LionHyper& hyper, const StepValues* values,
                    CUstream_st* stream) {
  launch(ranges, hyper, values, stream, "lion_step");
}

}  // namespace metroplex::cuda::kernels
