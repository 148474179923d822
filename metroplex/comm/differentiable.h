// Collectives inside an autograd graph, each with the collective that is its gradient. "Equal on all" means that
// every member holds the same values; the pairs are exact only where input and gradient are what the table says. For
// layers made of autograd's own operators; those of nn/ have backwards of their own and overlap the raw collectives.
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

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/group.h"

namespace metroplex::comm {

at::Tensor copy_to_group(const at::Tensor& x, const Group& group);
at::Tensor reduce_from_group(const at::Tensor& x, const Group& group);
at::Tensor scatter_to_group(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor gather_from_group(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor gather_from_sequence(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor reduce_scatter_to_group(const at::Tensor& x, int64_t dim, const Group& group);
// See all_to_all in collectives.h.
at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                           const std::vector<int64_t>& in_splits, const Group& group);

}  // namespace metroplex::comm
