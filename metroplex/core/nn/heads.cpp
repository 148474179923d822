#include "nn/heads.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "kernels/column_sums.h"
#include "kernels/heads.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

using Tensors = std::vector<const at::Tensor*>;

kernels::HeadsShape heads_shape(int64_t groups, const std::vector<FusedHeads>& all) {
  kernels::HeadsShape shape;
  for (const FusedHeads& heads : all) {
    if (heads.skipped > 0) continue;
    const at::Tensor& x = heads.x;
    MPX_ASSERT(x.dim() == 4 && x.stride(3) == 1, "heads need x [s, b, heads, head_dim] with a last stride of 1");
    shape.sequence = x.size(0), shape.batch = x.size(1), shape.groups = groups, shape.head_dim = x.size(3);
    if (!heads.angles.cos.defined()) continue;
    shape.rotary = 2 * heads.angles.cos.size(1), shape.interleaved = heads.angles.interleaved;
  }
  return shape;
}

template <class T>
kernels::HeadRegion<T> head_region(int64_t groups, const FusedHeads& heads, const at::Tensor& lines) {
  using Number = kernels::Wide<T>;
  if (heads.skipped > 0) return {.heads = heads.skipped};
  const HeadNorm& norm = heads.norm;
  const at::Tensor& x = heads.x;
  return {
      elements<T>(x),
      x.size(2) / groups,
      x.stride(0),
      x.stride(1),
      x.stride(2),
      elements<Number>(heads.angles.cos),
      elements<Number>(heads.angles.sin),
      {elements<T>(norm.weight), norm.epsilon, norm.one_plus, elements<Number>(norm.rstd), elements<Number>(lines)}};
}

// `lines` has one tensor for each normalized kind, or is empty.
template <class T>
kernels::HeadRegions<T> head_regions(int64_t groups, const std::vector<FusedHeads>& all,
                                     const std::vector<at::Tensor>& lines = {}) {
  kernels::HeadRegions<T> regions;
  MPX_ASSERT(all.size() <= regions.regions.size(), all.size(), " kinds of heads; at most ", regions.regions.size());
  size_t normed = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool has_lines = all[i].norm.weight.defined() && !lines.empty();
    regions.regions[i] = head_region<T>(groups, all[i], has_lines ? lines[normed++] : at::Tensor());
  }
  return regions;
}

void add_operands(const std::vector<FusedHeads>& all, Tensors& reads) {
  for (const FusedHeads& heads : all)
    reads.insert(reads.end(), {&heads.angles.cos, &heads.angles.sin, &heads.norm.weight});
}

std::vector<at::Tensor> make_lines(const device::Target& target, const std::vector<FusedHeads>& all) {
  std::vector<at::Tensor> lines;
  for (const FusedHeads& heads : all) {
    if (!heads.norm.weight.defined()) continue;
    const int64_t count = target.gpu() ? kernels::head_lines(heads.norm.rstd.numel()) : 1;
    lines.push_back(at::empty({count, heads.x.size(3)}, heads.norm.rstd.options()));
  }
  return lines;
}

at::Tensor make_row_lines(const device::Target& target, const at::Tensor& fused) {
  const int64_t width = fused.size(2);
  int64_t count = 1;
  dispatch_element(fused.scalar_type(), [&](auto zero) {
    if (target.gpu()) count = kernels::column_lines<decltype(zero)>({fused.size(0) * fused.size(1), width, width});
  });
  return at::empty({count, width}, fused.options().dtype(acc_type(fused.scalar_type())));
}

}  // namespace

void split_heads(const device::Target& target, const at::Tensor& fused, int64_t groups,
                 const std::vector<FusedHeads>& to) {
  const at::Tensor whole = fused.contiguous();
  Tensors reads{&whole}, writes;
  add_operands(to, reads);
  for (const FusedHeads& heads : to) writes.insert(writes.end(), {&heads.x, &heads.norm.rstd});
  dispatch_element(fused.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"split_heads", reads, writes}, kernels::split_heads<T>, kernels::split_heads_cuda<T>,
                   static_cast<const T*>(elements<T>(whole)), head_regions<T>(groups, to), heads_shape(groups, to));
  });
}

JoinedHeads join_heads(const device::Target& target, const JoinHeads& how, std::vector<FusedHeads> from) {
  int64_t heads = 0;
  for (FusedHeads& part : from) {
    heads += part.x.size(2);
    if (part.x.stride(3) != 1) part.x = part.x.contiguous();
  }
  const at::Tensor &first = from.front().x, raw = how.raw.defined() ? how.raw.contiguous() : how.raw;
  JoinedHeads out{at::empty({first.size(0), first.size(1), heads * first.size(3)}, first.options()),
                  make_lines(target, from)};
  MPX_ASSERT(!how.sums_rows || out.lines.empty(), "join_heads sums rows of heads without norms only");
  if (how.sums_rows) out.lines.push_back(make_row_lines(target, out.fused));
  Tensors reads{&raw}, writes{&out.fused};
  add_operands(from, reads);
  for (const FusedHeads& part : from) reads.insert(reads.end(), {&part.x, &part.norm.rstd});
  for (const at::Tensor& lines : out.lines) writes.push_back(&lines);
  dispatch_element(first.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    kernels::HeadRegions<T> regions = head_regions<T>(how.groups, from, out.lines);
    regions.raw = elements<T>(raw);
    if (how.sums_rows) regions.sums = elements<kernels::Wide<T>>(out.lines.front());
    device::launch(target, {"join_heads", reads, writes}, kernels::join_heads<T>, kernels::join_heads_cuda<T>,
                   elements<T>(out.fused), regions, heads_shape(how.groups, from));
  });
  return out;
}

}  // namespace metroplex::nn
