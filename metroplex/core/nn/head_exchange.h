// All-to-alls between the rows and the heads of the ranks that share a sequence: before, a rank has its rows of all
// heads; between two all-to-alls it has the whole sequence for its share of the heads (Jacobs et al.: DeepSpeed
// Ulysses, arXiv:2309.14509).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.h"
#include "nn/microbatch.h"
#include "nn/param.h"

namespace metroplex::nn {

// An all-to-all in flight; owns its input until it completes.
struct PendingExchange {
  at::Tensor in;
  comm::Exchange exchange;
  at::Tensor wait() { return exchange.wait(); }
};

// Numbers of rows of the ranks of a group.
struct GroupRows {
  std::vector<int64_t> all;
  size_t own_index = 0;
  std::vector<int64_t> own_splits() const { return std::vector<int64_t>(all.size(), all[own_index]); }
};

// [s, b, heads, d] -> [rows of all ranks, b, heads / ranks, d], in group order.
PendingExchange to_heads(const at::Tensor& x, const comm::Group& group, const GroupRows& rows);
// The inverse of to_heads(); join_heads() rearranges the received tensor.
PendingExchange to_rows(const at::Tensor& x, const comm::Group& group, const GroupRows& rows);
at::Tensor join_heads(const at::Tensor& chunks, const comm::Group& group);

// Returns the rows of all ranks of `cp` in the order of their positions: x [s, ...] -> [whole s, ...]. Collective.
at::Tensor gather_sequence(const at::Tensor& x, const Microbatch& batch, const comm::Group& cp);

// The exchange for a layer that computes along the sequence. Its channels are consecutive sections, each of which is
// shared evenly between the ranks of `cp`.
class SequenceExchange {
 public:
  SequenceExchange(std::vector<int64_t> sections, const comm::Group& cp) : sections_(std::move(sections)), cp_(cp) {}

  // [s, b, c] -> [whole s, b, c / cp], rows in the order of their positions. Collective over cp.
  at::Tensor to_sequence(const at::Tensor& x, const Microbatch& batch) const;
  // The inverse, and its backward.
  at::Tensor to_rows(const at::Tensor& x, const Microbatch& batch) const;
  // The elements of a parameter [c, ...] that belong to this rank's channels, and their gradient.
  at::Tensor share(const at::Tensor& x) const;
  void accumulate(Param& param, const at::Tensor& gradient) const;

 private:
  std::vector<int64_t> sections_;
  comm::Group cp_;
};

}  // namespace metroplex::nn
