#include "kernels/column_sums_device.h"
#include "kernels/heads.h"
#include "kernels/launch.h"
#include "kernels/rope_device.h"

namespace metroplex::kernels {
namespace {

// One item is `count` adjacent elements of a head, or of a rotated head those and their partners.
template <int64_t count, class T>
__device__ void move_item(const T* from, T* to, const Wide<T>* cos, const Wide<T>* sin, Wide<T> sign, int64_t apart) {
  if (cos != nullptr) return rotate_elements<count>(from, to, apart, cos, sin, sign);
  Elements<T, count> elements;
  elements.read(from);
  elements.write(to);
}

// Items of a head: the pairs, then the elements that are not rotated. 0 if the region is skipped.
template <int64_t count, class T>
__device__ int64_t head_items(const HeadRegion<T>& region, const HeadsShape& shape) {
  if (region.x == nullptr) return 0;
  return (region.cos != nullptr ? shape.head_dim - shape.rotary / 2 : shape.head_dim) / count;
}

// The first column of the item that begins with element or pair `begin`, and whether it is rotated.
struct HeadItem {
  int64_t column;
  bool turns;
};

template <class T>
__device__ HeadItem head_item(const HeadRegion<T>& region, const HeadsShape& shape, int64_t begin) {
  const int64_t half = shape.rotary / 2;
  if (region.cos == nullptr) return {begin, false};
  if (begin >= half) return {begin + half, false};
  return {begin * (shape.interleaved ? 2 : 1), true};
}

template <bool splits, int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    heads_kernel(T* fused, HeadRegions<T> all, HeadsShape shape, int64_t fused_row_heads) {
  int64_t row_items = 0;
  for (const HeadRegion<T>& region : all.regions)
    row_items += shape.groups * region.heads * head_items<count>(region, shape);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, items = shape.sequence * shape.batch * row_items;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const Divided of_rows = divided(item, row_items), at = divided(of_rows.quotient, shape.batch);
    int64_t left = of_rows.remainder, first_head = 0;
    int which = 0;
    for (;; ++which) {
      const int64_t of_region =
          shape.groups * all.regions[which].heads * head_items<count>(all.regions[which], shape);
      if (left < of_region) break;
      left -= of_region;
      first_head += all.regions[which].heads;
    }
    const HeadRegion<T>& region = all.regions[which];
    const Divided of_heads = divided(left, head_items<count>(region, shape)),
                  of_groups = divided(of_heads.quotient, region.heads);
    const int64_t half = shape.rotary / 2, begin = of_heads.remainder * count;
    const auto [column, turns] = head_item(region, shape, begin);
    const int64_t head = of_groups.quotient * fused_row_heads + first_head + of_groups.remainder;
    T* const whole = fused + (of_rows.quotient * shape.groups * fused_row_heads + head) * shape.head_dim + column;
    T* const own = region.x + at.quotient * region.stride_s + at.remainder * region.stride_b +
                   of_heads.quotient * region.stride_head + column;
    const int64_t angle = at.quotient * half + begin;
    move_item<count>(static_cast<const T*>(splits ? whole : own), splits ? own : whole,
                     turns ? region.cos + angle : nullptr, turns ? region.sin + angle : nullptr,
                     Wide<T>(splits ? 1 : -1), shape.interleaved ? 1 : half);
  }
}

// join_heads with sums. Each thread reads both elements of a pair and joins one of them.
template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads, kColumnBlocks)
    join_sums_kernel(T* fused, HeadRegions<T> all, HeadsShape shape, ColumnSumsShape sums) {
  const int64_t fused_row_heads = fused_heads(all), half = shape.rotary / 2, apart = shape.interleaved ? 1 : half;
  sum_line<count, T>(all.sums, sums, [&](int64_t row, int64_t column) {
    const Divided of_heads = divided(column, shape.head_dim), of_groups = divided(of_heads.quotient, fused_row_heads),
                  at = divided(row, shape.batch);
    int64_t head = of_groups.remainder;
    int which = 0;
    for (; head >= all.regions[which].heads; ++which) head -= all.regions[which].heads;
    const HeadRegion<T>& region = all.regions[which];
    const T* const own = region.x + at.quotient * region.stride_s + at.remainder * region.stride_b +
                         (of_groups.quotient * region.heads + head) * region.stride_head;
    const int64_t inside = of_heads.remainder;
    Elements<T, count> low, high;
    if (region.cos == nullptr || inside >= shape.rotary) {
      low.read(own + inside);
    } else {
      const bool upper = shape.interleaved ? inside % 2 == 1 : inside >= half;
      const int64_t first = upper ? inside - apart : inside,
                    angle = at.quotient * half + (shape.interleaved ? first / 2 : first);
      low.read(own + first);
      high.read(own + first + apart);
      rotate_values(low, high, region.cos + angle, region.sin + angle, Wide<T>(-1));
      if (upper) low = high;
      for (Wide<T>& value : low.values) value = load(store<T>(value));
    }
    low.write(fused + row * sums.width + column);
    return low;
  });
}

template <class T>
__host__ __device__ int64_t region_lines(const HeadRegion<T>& region, const HeadsShape& shape) {
  return region.x == nullptr ? 0 : head_lines(shape.sequence * shape.batch * shape.groups * region.heads);
}

// The elements of a normalized head that one thread of a warp or of an aligned part of it holds.
template <int64_t count, class T>
struct HeadShare {
  static constexpr int kItems = static_cast<int>(kMostNormedHead / (kWarp * count));
  Elements<T, count> low[kItems] = {}, high[kItems] = {};  // high: partners of rotated elements
};

// Splits a region's heads over `lanes` threads each: the power of two that covers a head's items, or a whole warp.
template <int64_t count, class T>
struct HeadTeam {
  const HeadRegion<T>& region;
  const HeadsShape& shape;
  int64_t items = head_items<count>(region, shape), half = shape.rotary / 2, apart = shape.interleaved ? 1 : half;
  unsigned lanes = 1;

  __device__ HeadTeam(const HeadRegion<T>& of, const HeadsShape& sizes) : region(of), shape(sizes) {
    while (lanes < kWarp && lanes < items) lanes *= 2;
  }
  // Calls each(i, item, begin) for the items of this thread.
  template <class Each>
  __device__ void for_items(const Each& each) const {
#pragma unroll
    for (int i = 0; i < HeadShare<count, T>::kItems; ++i) {
      const int64_t item = i * lanes + threadIdx.x % lanes, begin = item * count;
      if (item >= items) continue;
      each(i, head_item(region, shape, begin), begin);
    }
  }
  __device__ void read(const T* head, HeadShare<count, T>& share) const {
    for_items([&](int i, const HeadItem& item, int64_t) {
      share.low[i].read(head + item.column);
      if (item.turns) share.high[i].read(head + item.column + apart);
    });
  }
  __device__ void write(T* head, const HeadShare<count, T>& share) const {
    for_items([&](int i, const HeadItem& item, int64_t) {
      share.low[i].write(head + item.column);
      if (item.turns) share.high[i].write(head + item.column + apart);
    });
  }
  __device__ void rotate(int64_t position, Wide<T> sign, HeadShare<count, T>& share) const {
    for_items([&](int i, const HeadItem& item, int64_t begin) {
      if (!item.turns) return;
      const int64_t angle = position * half + begin;
      rotate_values(share.low[i], share.high[i], region.cos + angle, region.sin + angle, sign);
    });
  }
  // Calls each(x, more...) with the elements at each location of the shares; absent ones are zeros.
  template <class Each, class... Shares>
  static __device__ void for_elements(const Each& each, Shares&... shares) {
#pragma unroll
    for (int i = 0; i < HeadShare<count, T>::kItems; ++i) {
      for (int64_t at = 0; at < count; ++at) {
        each(shares.low[i].values[at]...);
        each(shares.high[i].values[at]...);
      }
    }
  }
};

template <class T>
__device__ Wide<T> rounded(Wide<T> value) {
  return load(store<T>(value));
}

// Sums the shares of all teams of the block and writes them to `line` [head_dim], in the order of the teams.
template <int64_t count, class T>
__device__ void write_line(const HeadTeam<count, T>& team, HeadShare<count, Wide<T>>& sums, Wide<T>* line) {
  __shared__ __align__(kWideBytes) Wide<T> parts[kWarps][kMostNormedHead];
  HeadTeam<count, T>::for_elements(
      [&](Wide<T>& sum) {
        for (unsigned offset = team.lanes; offset < kWarp; offset *= 2) sum += __shfl_xor_sync(kAll, sum, offset);
      },
      sums);
  if (threadIdx.x % kWarp < team.lanes) {
    Wide<T>* const part = parts[threadIdx.x / kWarp];
    team.for_items([&](int i, const HeadItem& item, int64_t) {
      for (int64_t at = 0; at < count; ++at) {
        part[item.column + at] = sums.low[i].values[at];
        if (item.turns) part[item.column + team.apart + at] = sums.high[i].values[at];
      }
    });
  }
  __syncthreads();
  for (int64_t column = threadIdx.x; column < team.shape.head_dim; column += kThreads) {
    Wide<T> sum = parts[0][column];
    for (unsigned warp = 1; warp < kWarps; ++warp) sum += parts[warp][column];
    line[column] = sum;
  }
}

// Heads of regions of which at least one is normalized. A thread block processes the heads of one line of one region.
template <bool splits, int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    normed_heads_kernel(T* fused, HeadRegions<T> all, HeadsShape shape, int64_t fused_row_heads) {
  int64_t line = blockIdx.x, first_head = 0;
  int which = 0;
  for (;; ++which) {
    const int64_t lines = region_lines(all.regions[which], shape);
    if (line < lines) break;
    line -= lines;
    first_head += all.regions[which].heads;
  }
  const HeadRegion<T>& region = all.regions[which];
  const HeadNorm<T>& norm = region.norm;
  const bool normed = norm.weight != nullptr;
  const HeadTeam<count, T> team(region, shape);
  const int64_t of_row = shape.groups * region.heads, heads = shape.sequence * shape.batch * of_row,
                begin = line * heads_per_line(heads), most = begin + heads_per_line(heads),
                end = most < heads ? most : heads;
  const Wide<T> part = Wide<T>(1) / static_cast<Wide<T>>(shape.head_dim);
  HeadShare<count, T> weight;
  HeadShare<count, Wide<T>> sums;
  if (normed) team.read(norm.weight, weight);
  if (norm.one_plus) team.for_elements([](Wide<T>& value) { value += 1; }, weight);
  for (int64_t first = begin; first < end; first += kThreads / team.lanes) {
    const int64_t index = first + threadIdx.x / team.lanes;
    const bool active = index < end;
    const Divided of_heads = divided(active ? index : begin, of_row), at = divided(of_heads.quotient, shape.batch),
                  of_groups = divided(of_heads.remainder, region.heads);
    const int64_t head = of_groups.quotient * fused_row_heads + first_head + of_groups.remainder,
                  in_fused = (of_heads.quotient * shape.groups * fused_row_heads + head) * shape.head_dim;
    T* const own = region.x + at.quotient * region.stride_s + at.remainder * region.stride_b +
                   of_heads.remainder * region.stride_head;
    HeadShare<count, T> x, dy;
    if constexpr (splits) {
      if (active) team.read(fused + in_fused, x);
      if (normed) {
        Wide<T> square = 0;
        team.for_elements([&](Wide<T> value) { square += value * value; }, x);
        const Wide<T> variance = warp_reduce(square, Add(), team.lanes) * part,
                      rstd = Wide<T>(1) / sqrt(variance + static_cast<Wide<T>>(norm.epsilon));
        team.for_elements([&](Wide<T>& value, Wide<T> by) { value = rounded<T>(value * rstd * by); }, x, weight);
        if (active && norm.rstd != nullptr && threadIdx.x % team.lanes == 0) norm.rstd[index] = rstd;
      }
      team.rotate(at.quotient, Wide<T>(1), x);
      if (active) team.write(own, x);
    } else {
      if (active) team.read(own, dy);
      if (active && normed) team.read(all.raw + in_fused, x);
      team.rotate(at.quotient, Wide<T>(-1), dy);
      if (normed) {
        const Wide<T> rstd = norm.rstd[active ? index : begin];
        Wide<T> dot = 0;
        team.for_elements(
            [&](Wide<T>& gradient, Wide<T>& value, Wide<T> by, Wide<T>& sum) {
              gradient = rounded<T>(gradient);
              value *= rstd;
              sum += gradient * value;
              gradient *= by;
              dot += gradient * value;
            },
            dy, x, weight, sums);
        dot = warp_reduce(dot, Add(), team.lanes) * part;
        team.for_elements([&](Wide<T>& gradient, Wide<T> value) { gradient = rstd * (gradient - value * dot); }, dy,
                          x);
      }
      if (active) team.write(fused + in_fused, dy);
    }
  }
  if constexpr (!splits) {
    if (normed) write_line(team, sums, norm.lines + line * shape.head_dim);
  }
}

template <class T>
bool packs_fit(const T* fused, const HeadRegions<T>& all, const HeadsShape& shape) {
  constexpr int64_t kPack = Pack<T>::kCount;
  bool fit = shape.head_dim % kPack == 0 && aligned_for_packs(fused, all.raw);
  for (const HeadRegion<T>& region : all.regions) {
    fit = fit && region.stride_s % kPack == 0 && region.stride_b % kPack == 0 && region.stride_head % kPack == 0 &&
          aligned_for_packs(region.x, region.cos, region.sin, region.norm.weight);
    if (region.cos != nullptr) fit = fit && shape.rotary / 2 % kPack == 0 && !shape.interleaved;
  }
  return fit;
}

template <bool splits, class T>
void launch(const char* name, T* fused, const HeadRegions<T>& all, const HeadsShape& shape, CUstream_st* stream) {
  const int64_t heads = fused_heads(all), row = shape.groups * heads * shape.head_dim,
                elements = shape.sequence * shape.batch * row;
  if (elements == 0) return;
  bool has_norm = false;
  int64_t lines = 0;
  for (const HeadRegion<T>& region : all.regions) {
    has_norm = has_norm || region.norm.weight != nullptr;
    lines += region_lines(region, shape);
  }
  const auto start = [&]<int64_t count>() {
    const ColumnSumsShape sums{shape.sequence * shape.batch, row, row};
    if (all.sums != nullptr) {
      launch_kernel(name, join_sums_kernel<count, T>, Grid{line_blocks<count, T>(sums), kThreads, 0, stream}, fused,
                    all, shape, sums);
    } else if (has_norm) {
      launch_kernel(splits ? "split_normed_heads" : "join_normed_heads", normed_heads_kernel<splits, count, T>,
                    Grid{static_cast<unsigned>(lines), kThreads, 0, stream}, fused, all, shape, heads);
    } else {
      launch_kernel(name, heads_kernel<splits, count, T>, Grid{blocks_for(elements / count), kThreads, 0, stream},
                    fused, all, shape, heads);
    }
  };
  packs_fit(fused, all, shape) ? start.template operator()<Pack<T>::kCount>() : start.template operator()<1>();
}

}  // namespace

template <class T>
void split_heads_cuda(const T* fused, const HeadRegions<T>& to, const HeadsShape& shape, CUstream_st* stream) {
  launch<true>("split_heads", const_cast<T*>(fused), to, shape, stream);
}

template <class T>
void join_heads_cuda(T* fused, const HeadRegions<T>& from, const HeadsShape& shape, CUstream_st* stream) {
  launch<false>("join_heads", fused, from, shape, stream);
}

#define MPX_INSTANTIATE(T)                                                                             \
  template void split_heads_cuda<T>(const T*, const HeadRegions<T>&, const HeadsShape&, CUstream_st*); \
  template void join_heads_cuda<T>(T*, const HeadRegions<T>&, const HeadsShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
