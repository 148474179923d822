#include <vector>

#include "kernels/block8_store.h"
#include "kernels/launch.h"
#include "kernels/optimizer_math.h"
#include "kernels/stored_numbers.h"

namespace metroplex::kernels {
namespace {

template <int64_t count, bool is_signed, class T>
__device__ void load_moment(const MomentArray& moment, int64_t i, T* to) {
  if constexpr (sizeof(T) == sizeof(float) && count == 1) {
    if (moment.number == Number::block8) {
      *to = block8_decode<is_signed>(static_cast<const uint8_t*>(moment.data)[i], moment.scales[i / kBlock8]);
      return;
    }
  }
  load_stored<count>(moment.data, moment.number, i, to);
}

template <int64_t count, class T>
__device__ void load_main(const OptimizerRange& range, int64_t i, T* to) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (range.remainder != nullptr) {
      uint16_t param[count], remainder[count];
      read_stored<count>(static_cast<const uint16_t*>(range.param) + i, param);
      read_stored<count>(range.remainder + i, remainder);
      for (int64_t l = 0; l < count; ++l) to[l] = join_float(param[l], remainder[l]);
      return;
    }
  }
  load_stored<count>(range.main, range.main_number, i, to);
}

// 16 random bits per element; if not `stochastic`, rounds to nearest.
template <int64_t count>
struct Noise {
  bool stochastic;
  uint32_t bits[count];
};

template <int64_t count, bool is_signed, class T>
__device__ void store_moment(const MomentArray& moment, int64_t i, bool inside, const T* x,
                             const Noise<count>& noise) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if constexpr (count == 1) {
      if (moment.number == Number::block8)
        return store_block8<is_signed>({static_cast<uint8_t*>(moment.data), moment.scales}, i, inside, *x,
                                       noise.stochastic ? noise.bits : nullptr);
    }
    if (inside && moment.number == Number::bf16) {
      uint16_t halves[count];
      for (int64_t l = 0; l < count; ++l)
        halves[l] = noise.stochastic ? float_to_bf16(x[l], noise.bits[l]) : float_to_bf16(x[l]);
      return write_stored<count>(static_cast<uint16_t*>(moment.data) + i, halves);
    }
  }
  if (inside) write_stored<count>(static_cast<T*>(moment.data) + i, x);
}

template <int64_t count>
__device__ void store_param(const OptimizerRange& range, int64_t i, const float* x) {
  if (range.param == nullptr) return;
  if (range.param_number == Number::f32) return write_stored<count>(static_cast<float*>(range.param) + i, x);
  uint16_t halves[count];
  for (int64_t l = 0; l < count; ++l)
    halves[l] = range.param_number == Number::bf16 ? float_to_bf16(x[l]) : float_to_f16(x[l]);
  write_stored<count>(static_cast<uint16_t*>(range.param) + i, halves);
}

// Stores the main parameter, and rounds x to the stored value.
template <int64_t count, class T>
__device__ void store_main(const OptimizerRange& range, int64_t i, T* x, uint32_t key) {
  if constexpr (sizeof(T) == sizeof(double)) {
    write_stored<count>(static_cast<double*>(range.main) + i, x);
  } else if (range.remainder != nullptr) {
    uint16_t param[count], remainder[count];
    for (int64_t l = 0; l < count; ++l) {
      const SplitFloat split = split_float(x[l]);
      param[l] = split.param, remainder[l] = split.remainder;
    }
    write_stored<count>(static_cast<uint16_t*>(range.param) + i, param);
    write_stored<count>(range.remainder + i, remainder);
  } else if (range.main_number == Number::bf16) {
    uint16_t halves[count];
    for (int64_t l = 0; l < count; ++l) {
      const uint32_t noise = position_noise(key, range.noise_start + i + l) & 0xFFFF;
      halves[l] = range.stochastic ? float_to_bf16(x[l], noise) : float_to_bf16(x[l]);
      x[l] = bf16_to_float(halves[l]);
    }
    write_stored<count>(static_cast<uint16_t*>(range.main) + i, halves);
    store_param<count>(range, i, x);
  } else {
    write_stored<count>(static_cast<float*>(range.main) + i, x);
    store_param<count>(range, i, x);
  }
}

struct NoiseKeys {
  uint32_t moments, main;
};

// Updates elements [i, i + count), if `inside`. With count 1 and block8, all threads of a block must call it.
template <int64_t count, class Update>
__device__ void step_elements(const OptimizerRange& range, const Update& update, const NoiseKeys& keys, int64_t i,
                              bool inside) {
  using T = typename Update::Scalar;
  T g[count] = {}, p[count] = {}, m[count] = {}, v[count] = {};
  if (inside) {
    load_stored<count>(range.grad, range.grad_number, i, g);
    load_main<count>(range, i, p);
    if constexpr (Update::kMoments > 0) load_moment<count, true>(range.first, i, m);
    if constexpr (Update::kMoments > 1) load_moment<count, false>(range.second, i, v);
    for (int64_t l = 0; l < count; ++l) update(g[l], p[l], m[l], v[l]);
    store_main<count>(range, i, p, keys.main);
  }
  Noise<count> low{range.stochastic, {}}, high{range.stochastic, {}};
  for (int64_t l = 0; l < count; ++l) {
    const uint32_t word = range.stochastic ? position_noise(keys.moments, range.noise_start + i + l) : 0;
    low.bits[l] = word & 0xFFFF, high.bits[l] = word >> 16;
  }
  // A scale is stored after all threads have read it, because block_max synchronizes.
  if constexpr (Update::kMoments > 0) store_moment<count, true>(range.first, i, inside, m, low);
  if constexpr (Update::kMoments > 1) store_moment<count, false>(range.second, i, inside, v, high);
}

// Thread blocks of all ranges in one launch, in range order.
struct RangeTable {
  OptimizerRange ranges[kRangesOfLaunch];
  const GroupRates* rates[kRangesOfLaunch];
  int64_t first[kRangesOfLaunch + 1];  // first block of each range, then the number of blocks
  bool packs[kRangesOfLaunch];         // kAtOnce elements per thread, else one
  int count;
};
static_assert(sizeof(RangeTable) <= kTableBytes);

template <class Update, class Hyper>
__global__ void __launch_bounds__(kThreads)
    step_kernel(const __grid_constant__ RangeTable table, Hyper hyper, const StepValues* values) {
  if (values->updates == 0) return;
  int of = 0;
  Update update(hyper, *values, *table.rates[0]);
  for (int64_t block = blockIdx.x; block < table.first[table.count]; block += gridDim.x) {
    const int next = find_range(table.first, table.count, block);
    if (next != of) update = Update(hyper, *values, *table.rates[next]);
    of = next;
    const OptimizerRange& range = table.ranges[of];
    const uint64_t key = step_key(range.noise_key, values->number);
    const NoiseKeys keys{mixed_key(key), mixed_key(~key)};
    const int64_t thread = (block - table.first[of]) * kThreads + threadIdx.x;
    if (!table.packs[of]) {
      step_elements<1>(range, update, keys, thread, thread < range.n);
    } else if (thread * kAtOnce + kAtOnce <= range.n) {
      step_elements<kAtOnce>(range, update, keys, thread * kAtOnce, true);
    } else {
      for (int64_t i = thread * kAtOnce; i < range.n; ++i) step_elements<1>(range, update, keys, i, true);
    }
  }
}

bool takes_packs(const OptimizerRange& range) {
  const bool blocks = range.first.number == Number::block8 || range.second.number == Number::block8;
  return !blocks &&
         aligned_for_packs(range.grad, range.main, range.param, range.remainder, range.first.data, range.second.data);
}

bool is_wide(const OptimizerRange& range) { return range.remainder == nullptr && range.main_number == Number::f64; }

// Returns the table of one launch for the ranges from `begin` on; advances `begin` past them.
RangeTable next_table(const std::vector<RatedRange>& ranges, size_t& begin) {
  RangeTable table{};
  const bool wide = is_wide(ranges[begin].range);
  for (; begin < ranges.size() && table.count < kRangesOfLaunch; ++begin) {
    const RatedRange& of = ranges[begin];
    if (of.range.n == 0) continue;
    if (is_wide(of.range) != wide) break;
    table.ranges[table.count] = of.range;
    table.rates[table.count] = of.rates;
    table.packs[table.count] = takes_packs(of.range);
    const int64_t of_block = table.packs[table.count] ? kThreads * kAtOnce : kThreads;
    table.first[table.count + 1] = table.first[table.count] + (of.range.n + of_block - 1) / of_block;
    ++table.count;
  }
  return table;
}

template <class Hyper>
void launch(const std::vector<RatedRange>& ranges, const Hyper& hyper, const StepValues* values, CUstream_st* stream,
            const char* name) {
  for (const RatedRange& of : ranges) with_update(of.range, hyper, [&]<class Update>() {});  // checks storage types
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

}  // namespace metroplex::kernels
