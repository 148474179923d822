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

// Items of a head: the pairs, then the elements that are not rotated.
template <int64_t count, class T>
__device__ int64_t head_items(const HeadRegion<T>& region, const HeadsShape& shape) {
  return (region.cos != nullptr ? shape.head_dim - shape.rotary / 2 : shape.head_dim) / count;
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
    const bool turns = region.cos != nullptr && begin < half;
    const int64_t column = region.cos == nullptr ? begin
                           : !turns              ? begin + half
                                                 : begin * (shape.interleaved ? 2 : 1);
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

template <class T>
bool packs_fit(const T* fused, const HeadRegions<T>& all, const HeadsShape& shape) {
  constexpr int64_t kPack = Pack<T>::kCount;
  bool fit = shape.head_dim % kPack == 0 && aligned_for_packs(fused);
  for (const HeadRegion<T>& region : all.regions) {
    fit = fit && region.stride_s % kPack == 0 && region.stride_b % kPack == 0 && region.stride_head % kPack == 0 &&
          aligned_for_packs(region.x, region.cos, region.sin);
    if (region.cos != nullptr) fit = fit && shape.rotary / 2 % kPack == 0 && !shape.interleaved;
  }
  return fit;
}

template <bool splits, class T>
void launch(const char* name, T* fused, const HeadRegions<T>& all, const HeadsShape& shape, CUstream_st* stream) {
  const int64_t heads = fused_heads(all),
                elements = shape.sequence * shape.batch * shape.groups * heads * shape.head_dim;
  if (elements == 0) return;
  const auto start = [&]<int64_t count>() {
    launch_kernel(name, heads_kernel<splits, count, T>, Grid{blocks_for(elements / count), kThreads, 0, stream},
                  fused, all, shape, heads);
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
