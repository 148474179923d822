#include "nn/heads.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "kernels/heads.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

using Tensors = std::vector<const at::Tensor*>;

kernels::HeadsShape heads_shape(int64_t groups, const std::vector<FusedHeads>& all) {
  const at::Tensor& x = all.front().x;
  kernels::HeadsShape shape{x.size(0), x.size(1), groups, x.size(3)};
  for (const FusedHeads& heads : all) {
    if (!heads.angles.cos.defined()) continue;
    shape.rotary = 2 * heads.angles.cos.size(1), shape.interleaved = heads.angles.interleaved;
  }
  return shape;
}

template <class T>
kernels::HeadRegions<T> head_regions(int64_t groups, const std::vector<FusedHeads>& all) {
  kernels::HeadRegions<T> regions;
  MPX_ASSERT(all.size() <= regions.regions.size(), all.size(), " kinds of heads; at most ", regions.regions.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor& x = all[i].x;
    MPX_ASSERT(x.dim() == 4 && x.stride(3) == 1, "heads need x [s, b, heads, head_dim] with a last stride of 1");
    regions.regions[i] = {elements<T>(x),
                          x.size(2) / groups,
                          x.stride(0),
                          x.stride(1),
                          x.stride(2),
                          elements<kernels::Wide<T>>(all[i].angles.cos),
                          elements<kernels::Wide<T>>(all[i].angles.sin)};
  }
  return regions;
}

Tensors get_heads(const std::vector<FusedHeads>& all) {
  Tensors tensors;
  for (const FusedHeads& heads : all) tensors.push_back(&heads.x);
  return tensors;
}
void add_angles(const std::vector<FusedHeads>& all, Tensors& reads) {
  for (const FusedHeads& heads : all) reads.insert(reads.end(), {&heads.angles.cos, &heads.angles.sin});
}

}  // namespace

void split_heads(const device::Target& target, const at::Tensor& fused, int64_t groups,
                 const std::vector<FusedHeads>& to) {
  const at::Tensor whole = fused.contiguous();
  Tensors reads{&whole};
  add_angles(to, reads);
  const Tensors writes = get_heads(to);
  dispatch_element(fused.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"split_heads", reads, writes}, kernels::split_heads<T>, kernels::split_heads_cuda<T>,
                   static_cast<const T*>(elements<T>(whole)), head_regions<T>(groups, to), heads_shape(groups, to));
  });
}

at::Tensor join_heads(const device::Target& target, int64_t groups, std::vector<FusedHeads> from) {
  int64_t heads = 0;
  for (FusedHeads& part : from) {
    heads += part.x.size(2);
    if (part.x.stride(3) != 1) part.x = part.x.contiguous();
  }
  const at::Tensor& first = from.front().x;
  const at::Tensor fused = at::empty({first.size(0), first.size(1), heads * first.size(3)}, first.options());
  Tensors reads = get_heads(from);
  add_angles(from, reads);
  dispatch_element(first.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"join_heads", reads, {&fused}}, kernels::join_heads<T>, kernels::join_heads_cuda<T>,
                   elements<T>(fused), head_regions<T>(groups, from), heads_shape(groups, from));
  });
  return fused;
}

}  // namespace metroplex::nn
