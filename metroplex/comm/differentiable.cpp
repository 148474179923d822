#include "comm/differentiable.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "comm/autograd_node.h"
#include "comm/collectives.h"

namespace metroplex::comm {
namespace {

// `forward` runs without autograd; a group of one hands the input through.
template <class Forward>
at::Tensor differentiate(const at::Tensor& x, const Group& group, const Forward& forward, Backward backward) {
  if (group.size() == 1) return x;
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = forward(x.detach());
  }
  return x.requires_grad() ? attach(std::move(out), {x}, std::move(backward)) : out;
}

at::Tensor summed(const at::Tensor& x, const Group& group) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  all_reduce(sum, group);
  return sum;
}

at::Tensor sliced(const at::Tensor& x, int64_t dim, const Group& group) {
  return own_slice(x, dim, group).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

at::Tensor copy_to_group(const at::Tensor& x, const Group& group) {
  return differentiate(
      x, group, [](const at::Tensor& data) { return data; },
      [group](const at::Tensor& dy) { return Gradients{summed(dy, group)}; });
}

at::Tensor reduce_from_group(const at::Tensor& x, const Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return summed(data, group); },
      [](const at::Tensor& dy) { return Gradients{dy}; });
}

at::Tensor scatter_to_group(const at::Tensor& x, int64_t dim, const Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return sliced(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return Gradients{all_gather(dy, dim, group)}; });
}

at::Tensor gather_from_group(const at::Tensor& x, int64_t dim, const Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return all_gather(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return Gradients{sliced(dy, dim, group)}; });
}

at::Tensor gather_from_sequence(const at::Tensor& x, int64_t dim, const Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return all_gather(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return Gradients{reduce_scatter(dy, dim, group)}; });
}

at::Tensor reduce_scatter_to_group(const at::Tensor& x, int64_t dim, const Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return reduce_scatter(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return Gradients{all_gather(dy, dim, group)}; });
}

at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                           const std::vector<int64_t>& in_splits, const Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return all_to_all(data, out_splits, in_splits, group); },
      [out_splits, in_splits, group](const at::Tensor& dy) {
        return Gradients{all_to_all(dy, in_splits, out_splits, group)};
      });
}

}  // namespace metroplex::comm
