#include "nn/head_exchange.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace metroplex::nn {
namespace {

GroupRows sequence_rows(const Microbatch& batch, const comm::Group& cp) {
  MPX_ASSERT(batch.sequence.context_ranks == 0, "the group of a layer's exchange is fixed");
  const auto size = static_cast<size_t>(cp.size());
  GroupRows rows{std::vector<int64_t>(size, batch.sequence.rows.numel()), static_cast<size_t>(cp.index())};
  if (batch.sequence.rank_rows.empty()) return rows;
  for (size_t i = 0; i < size; ++i) rows.all[i] = batch.sequence.rank_rows[i].count;
  return rows;
}

// Positions of the rows that a rank has after to_heads(); undefined if they are in order.
at::Tensor row_positions(const Microbatch& batch) {
  return batch.sequence.all_rows.defined() ? batch.sequence.all_rows.flatten() : batch.sequence.rows;
}

}  // namespace

PendingExchange to_heads(const at::Tensor& x, const comm::Group& group, const GroupRows& rows) {
  const int64_t size = group.size();
  const at::Tensor chunks =
      x.unflatten(2, {size, x.size(2) / size}).permute({2, 0, 1, 3, 4}).contiguous().flatten(0, 1);
  return {chunks, comm::all_to_all_async(chunks, rows.all, rows.own_splits(), group)};
}

PendingExchange to_rows(const at::Tensor& x, const comm::Group& group, const GroupRows& rows) {
  const at::Tensor all = x.contiguous();
  return {all, comm::all_to_all_async(all, rows.own_splits(), rows.all, group)};
}

at::Tensor join_heads(const at::Tensor& chunks, const comm::Group& group) {
  return chunks.unflatten(0, {group.size(), chunks.size(0) / group.size()}).permute({1, 2, 0, 3, 4}).flatten(2, 3);
}

at::Tensor gather_sequence(const at::Tensor& x, const Microbatch& batch, const comm::Group& cp) {
  const GroupRows rows = sequence_rows(batch, cp);
  const at::Tensor copies = at::cat(std::vector<at::Tensor>(static_cast<size_t>(cp.size()), x));
  const at::Tensor all = comm::all_to_all_async(copies, rows.all, rows.own_splits(), cp).wait();
  return at::empty_like(all).index_copy_(0, row_positions(batch), all);
}

at::Tensor SequenceExchange::to_sequence(const at::Tensor& x, const Microbatch& batch) const {
  at::Tensor rows = x;
  if (cp_.size() > 1) {
    std::vector<at::Tensor> shares;
    for (const at::Tensor& section : x.split_with_sizes(sections_, 2))
      shares.push_back(section.unflatten(2, {cp_.size(), section.size(2) / cp_.size()}));
    rows = to_heads(at::cat(shares, 3), cp_, sequence_rows(batch, cp_)).wait().squeeze(2);
  }
  const at::Tensor positions = row_positions(batch);
  return positions.defined() ? at::empty_like(rows).index_copy_(0, positions, rows) : rows;
}

at::Tensor SequenceExchange::to_rows(const at::Tensor& x, const Microbatch& batch) const {
  const at::Tensor positions = row_positions(batch);
  const at::Tensor rows = positions.defined() ? select_rows(x, 0, positions) : x;
  if (cp_.size() == 1) return rows;
  const at::Tensor shares = join_heads(nn::to_rows(rows.unsqueeze(2), cp_, sequence_rows(batch, cp_)).wait(), cp_);
  std::vector<at::Tensor> sections;
  int64_t begin = 0;
  for (const int64_t channels : sections_) {
    sections.push_back(shares.narrow(3, begin, channels / cp_.size()).flatten(2));
    begin += channels / cp_.size();
  }
  return at::cat(sections, 2);
}

at::Tensor SequenceExchange::share(const at::Tensor& x) const {
  if (cp_.size() == 1) return x;
  std::vector<at::Tensor> shares;
  for (const at::Tensor& section : x.split_with_sizes(sections_, 0))
    shares.push_back(comm::select_shard(section, 0, cp_));
  return at::cat(shares, 0);
}

void SequenceExchange::accumulate(Param& param, const at::Tensor& gradient) const {
  param.accumulate([sections = sections_, cp = cp_, gradient](at::Tensor& main_grad) {
    int64_t begin = 0;
    for (const at::Tensor& section : main_grad.split_with_sizes(sections, 0)) {
      const at::Tensor own = comm::select_shard(section, 0, cp);
      own.add_(gradient.narrow(0, begin, own.size(0)));
      begin += own.size(0);
    }
  });
}

}  // namespace metroplex::nn
