// Collectives inside an autograd graph, each with the collective that is its gradient. "Equal on all" means that
// every member holds the same values; the pairs are exact only if input and gradient match the table. They show that
// the raw collectives, which layers call and overlap, are each other's gradients as Megatron pairs them.
//
//   forward                  input -> output                        backward
//   copy_to_group            equal on all -> the same               all-reduce (the uses differ per member)
//   reduce_from_group        one summand each -> the sum            identity
//   scatter_to_group         equal on all -> own slice              all-gather
//   gather_from_group        own slice -> the whole                 own slice (the uses are equal on all)
//   gather_from_sequence     own slice -> the whole                 reduce-scatter (the uses differ per member)
//   reduce_scatter_to_group  one summand each -> slice of the sum   all-gather
//   all_to_all_rows          rows sent by splits                    rows sent back
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"
#include "nn/autograd_node.h"

namespace metroplex::test {

// `forward` runs without autograd; a group of one returns the input.
template <class Forward>
at::Tensor differentiate(const at::Tensor& x, const comm::Group& group, const Forward& forward,
                         nn::Backward backward) {
  if (group.size() == 1) return x;
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = forward(x.detach());
  }
  return x.requires_grad() ? nn::attach(std::move(out), {x}, std::move(backward)) : out;
}

inline at::Tensor summed(const at::Tensor& x, const comm::Group& group) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  comm::all_reduce(sum, group);
  return sum;
}

inline at::Tensor sliced(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  return comm::select_shard(x, dim, group).clone(at::MemoryFormat::Contiguous);
}

inline at::Tensor copy_to_group(const at::Tensor& x, const comm::Group& group) {
  return differentiate(
      x, group, [](const at::Tensor& data) { return data; },
      [group](const at::Tensor& dy) { return nn::Gradients{summed(dy, group)}; });
}

inline at::Tensor reduce_from_group(const at::Tensor& x, const comm::Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return summed(data, group); },
      [](const at::Tensor& dy) { return nn::Gradients{dy}; });
}

inline at::Tensor scatter_to_group(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return sliced(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return nn::Gradients{comm::all_gather(dy, dim, group)}; });
}

inline at::Tensor gather_from_group(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return comm::all_gather(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return nn::Gradients{sliced(dy, dim, group)}; });
}

inline at::Tensor gather_from_sequence(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return comm::all_gather(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return nn::Gradients{comm::reduce_scatter(dy, dim, group)}; });
}

inline at::Tensor reduce_scatter_to_group(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return comm::reduce_scatter(data, dim, group); },
      [dim, group](const at::Tensor& dy) { return nn::Gradients{comm::all_gather(dy, dim, group)}; });
}

// See all_to_all in collectives.h.
inline at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                                  const std::vector<int64_t>& in_splits, const comm::Group& group) {
  return differentiate(
      x, group, [&](const at::Tensor& data) { return comm::all_to_all(data, out_splits, in_splits, group); },
      [out_splits, in_splits, group](const at::Tensor& dy) {
        return nn::Gradients{comm::all_to_all(dy, in_splits, out_splits, group)};
      });
}

}  // namespace metroplex::test
