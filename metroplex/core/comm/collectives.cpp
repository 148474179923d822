#include "comm/collectives.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace metroplex::comm {
namespace {

// The operation ran on a contiguous copy; wait() copies the result back.
class CopyBack final : public Pending {
 public:
  CopyBack(PendingPtr inner, at::Tensor target, at::Tensor result)
      : inner_(std::move(inner)), target_(std::move(target)), result_(std::move(result)) {}
  void wait() override {
    if (inner_) inner_->wait();
    const at::NoGradGuard no_grad;
    if (result_.defined()) target_.copy_(result_);
    inner_.reset();
    result_.reset();
  }

 private:
  PendingPtr inner_;
  at::Tensor target_, result_;
};

template <class Issue>
Handle run_in_place(const at::Tensor& tensor, const Issue& issue) {
  const at::Tensor data = tensor.detach();
  if (data.is_contiguous()) return Handle(issue(data));
  const at::Tensor packed = data.contiguous();
  return Handle(std::make_shared<CopyBack>(issue(packed), data, packed));
}

std::vector<int64_t> with_front(int64_t front, at::IntArrayRef sizes) {
  std::vector<int64_t> shape{front};
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  return shape;
}

int64_t wrap_dim(const at::Tensor& x, int64_t dim) {
  MPX_ASSERT(dim >= -x.dim() && dim < x.dim(), "dim ", dim, " of a tensor with ", x.dim(), " dims");
  return dim < 0 ? dim + x.dim() : dim;
}

int64_t even_shard_size(const at::Tensor& x, int64_t dim, const Group& group) {
  MPX_CHECK(x.size(dim) % group.size() == 0, "comm", "size ", x.size(dim), " of dim ", dim,
            " is not a multiple of the ", group.size(), " ranks of group ", group.name(),
            "; choose sizes divisible by the group size");
  return x.size(dim) / group.size();
}

}  // namespace

void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  all_reduce_async(tensor, group, op).wait();
}

Handle all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  if (group.size() == 1) return Handle();
  return run_in_place(tensor, [&](const at::Tensor& data) { return group.backend().all_reduce(data, op); });
}

at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group) {
  if (group.size() == 1) return x;
  dim = wrap_dim(x, dim);
  const at::NoGradGuard no_grad;
  const at::Tensor mine = x.detach().contiguous();
  const at::Tensor all = at::empty(with_front(group.size(), mine.sizes()), mine.options());
  Handle(group.backend().all_gather(all, mine)).wait();
  return all.movedim(0, dim).flatten(dim, dim + 1);
}

Handle all_gather_into_async(const at::Tensor& out, const at::Tensor& x, const Group& group) {
  MPX_ASSERT(out.is_contiguous() && x.is_contiguous(), "all_gather_into_async requires contiguous tensors");
  MPX_ASSERT(out.numel() == x.numel() * group.size(), "all_gather_into_async: ", out.numel(), " elements for ",
             group.size(), " x ", x.numel());
  if (group.size() > 1) return Handle(group.backend().all_gather(out.detach(), x.detach()));
  const at::NoGradGuard no_grad;
  if (out.const_data_ptr() != x.const_data_ptr()) out.detach().view(-1).copy_(x.detach().view(-1));
  return Handle();
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group) {
  if (group.size() == 1) return x;
  dim = wrap_dim(x, dim);
  const int64_t shard_size = even_shard_size(x, dim, group);
  const at::NoGradGuard no_grad;
  const at::Tensor shards = x.detach().unflatten(dim, {group.size(), shard_size}).movedim(dim, 0).contiguous();
  const at::Tensor out = at::empty(shards.sizes().slice(1), shards.options());
  Handle(group.backend().reduce_scatter(out, shards, ReduceOp::sum)).wait();
  return out;
}

Handle reduce_scatter_into_async(const at::Tensor& out, const at::Tensor& x, const Group& group) {
  MPX_ASSERT(out.is_contiguous() && x.is_contiguous(), "reduce_scatter_into_async requires contiguous tensors");
  MPX_ASSERT(x.numel() == out.numel() * group.size(), "reduce_scatter_into_async: ", x.numel(), " elements for ",
             group.size(), " x ", out.numel());
  if (group.size() > 1) return Handle(group.backend().reduce_scatter(out.detach(), x.detach(), ReduceOp::sum));
  const at::NoGradGuard no_grad;
  if (out.const_data_ptr() != x.const_data_ptr()) out.detach().view(-1).copy_(x.detach().view(-1));
  return Handle();
}

void broadcast(const at::Tensor& tensor, int root, const Group& group) {
  if (group.size() == 1) return;
  MPX_ASSERT(root >= 0 && root < group.size(), "root ", root, " of group ", group.name());
  run_in_place(tensor, [&](const at::Tensor& data) { return group.backend().broadcast(data, root); }).wait();
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                      const std::vector<int64_t>& in_splits, const Group& group) {
  if (group.size() == 1) return x;
  const at::Tensor in = x.detach().contiguous();
  return all_to_all_async(in, out_splits, in_splits, group).wait();
}

Exchange all_to_all_async(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                          const std::vector<int64_t>& in_splits, const Group& group) {
  if (group.size() == 1) return {x, {}};
  const auto members = static_cast<size_t>(group.size());
  MPX_ASSERT(out_splits.size() == members && in_splits.size() == members, "all_to_all requires one split per member");
  MPX_ASSERT(x.is_contiguous(), "all_to_all_async requires a contiguous tensor");
  MPX_ASSERT(std::accumulate(in_splits.begin(), in_splits.end(), int64_t{0}) == x.size(0),
             "all_to_all: in_splits do not add up to ", x.size(0), " rows");
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = std::accumulate(out_splits.begin(), out_splits.end(), int64_t{0});
  Exchange exchange{at::empty(shape, x.options()), {}};
  exchange.handle = Handle(group.backend().all_to_all(exchange.out, x.detach(), out_splits, in_splits));
  return exchange;
}

namespace {

void check_rows(const CountedRows& at, const Group& group) {
  MPX_ASSERT(at.rows.is_contiguous() && at.counts.is_contiguous(), "exchange_rows requires contiguous tensors");
  MPX_ASSERT(at.rows.dim() > 0 && at.counts.numel() == group.size() && at.counts.scalar_type() == at::kLong &&
                 at.counts.device() == at.rows.device(),
             "exchange_rows requires int64 counts of ", group.size(), " members on the device of the rows");
}

// In a group of one, rows are dropped only when they exceed `capacity`, the length of `in` or the length of `out`.
void copy_rows(const CountedRows& out, const CountedRows& in, int64_t capacity, const at::Tensor& overflow) {
  const int64_t num_rows = std::min({capacity, in.rows.size(0), out.rows.size(0)});
  out.rows.narrow(0, 0, num_rows).copy_(in.rows.narrow(0, 0, num_rows));
  overflow.bitwise_or_(in.counts.gt(num_rows).to(at::kInt).view_as(overflow));
  out.counts.copy_(in.counts.clamp_max(num_rows));
}

}  // namespace

Handle exchange_rows_async(const CountedRows& out, const CountedRows& in, int64_t capacity,
                           const at::Tensor& overflow, const Group& group) {
  check_rows(out, group);
  check_rows(in, group);
  MPX_ASSERT(out.rows.sizes().slice(1) == in.rows.sizes().slice(1) && out.rows.dtype() == in.rows.dtype(),
             "exchange_rows: rows of ", in.rows.sizes(), " ", in.rows.dtype(), " into ", out.rows.sizes(), " ",
             out.rows.dtype());
  MPX_ASSERT(capacity > 0 && overflow.numel() == 1 && overflow.scalar_type() == at::kInt,
             "exchange_rows requires a capacity and an int32 flag");
  const at::NoGradGuard no_grad;
  const CountedRows to{out.rows.detach(), out.counts}, from{in.rows.detach(), in.counts};
  if (group.size() > 1) return Handle(group.backend().exchange_rows(to, from, capacity, overflow));
  copy_rows(to, from, capacity, overflow);
  return Handle();
}

namespace {

// rows [h, ...] are owned rows, slots [s, ...] the requested ones.
void check_owners(const at::Tensor& rows, const at::Tensor& slots, const at::Tensor& owners, const Group& group) {
  MPX_ASSERT(rows.is_contiguous() && slots.is_contiguous() && owners.is_contiguous() && rows.dim() > 0 &&
                 rows.sizes().slice(1) == slots.sizes().slice(1) && rows.dtype() == slots.dtype(),
             "rows of ", rows.sizes(), " ", rows.dtype(), " and slots of ", slots.sizes(), " ", slots.dtype());
  MPX_ASSERT(owners.scalar_type() == at::kInt && owners.numel() == group.size() * slots.size(0) &&
                 owners.device() == rows.device(),
             "int32 owners of ", slots.size(0), " slots on each of ", group.size(),
             " members must be on the device of the rows");
}

}  // namespace

Handle fetch_rows_async(const at::Tensor& out, const at::Tensor& in, const at::Tensor& owners, const Group& group) {
  check_owners(in, out, owners, group);
  if (group.size() == 1) return Handle();
  return Handle(group.backend().fetch_rows(out.detach(), in.detach(), owners, group.index()));
}

Handle return_rows_async(const at::Tensor& sum, const at::Tensor& in, const at::Tensor& owners, const Group& group) {
  check_owners(sum, in, owners, group);
  if (group.size() == 1) return Handle();
  return Handle(group.backend().return_rows(sum.detach(), in.detach(), owners, group.index()));
}

void barrier(const Group& group) {
  if (group.size() > 1) group.backend().barrier();
}

at::Tensor select_shard(const at::Tensor& x, int64_t dim, const Group& group) {
  if (group.size() == 1) return x;
  dim = wrap_dim(x, dim);
  const int64_t shard_size = even_shard_size(x, dim, group);
  return x.narrow(dim, group.index() * shard_size, shard_size);
}

std::vector<std::string> all_gather_strings(const std::string& mine, const Group& group) {
  if (group.size() == 1) return {mine};
  const at::Tensor lengths = all_gather(at::full({1}, static_cast<int64_t>(mine.size()), at::kLong), 0, group);
  const auto longest = lengths.max().item<int64_t>();
  const at::Tensor bytes = at::zeros({longest}, at::kByte);
  if (!mine.empty()) std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = all_gather(bytes, 0, group);
  const auto* const length = static_cast<const int64_t*>(lengths.const_data_ptr());
  std::vector<std::string> strings;
  for (int64_t i = 0; i < group.size(); ++i) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + i * longest;
    strings.emplace_back(begin, static_cast<size_t>(length[i]));
  }
  return strings;
}

// Gathers rows of equal width: the length, then the bytes.
std::vector<std::string> gather_strings(const std::string& mine, const Group& group) {
  if (group.size() == 1) return {mine};
  constexpr int64_t kLength = sizeof(int64_t);
  const auto length = static_cast<int64_t>(mine.size());
  const at::Tensor longest = at::full({1}, length, at::kLong);
  all_reduce(longest, group, ReduceOp::max);
  const int64_t width = kLength + longest.item<int64_t>();
  const at::Tensor row = at::zeros({width}, at::kByte);
  auto* bytes = static_cast<char*>(row.mutable_data_ptr());
  std::memcpy(bytes, &length, kLength);
  if (!mine.empty()) std::memcpy(bytes + kLength, mine.data(), mine.size());
  const at::Tensor all = group.first() ? at::empty({group.size(), width}, at::kByte) : at::Tensor();
  Handle(group.backend().gather(all, row, group.index(), group.size())).wait();
  std::vector<std::string> strings;
  for (int64_t i = 0; group.first() && i < group.size(); ++i) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + i * width;
    int64_t size = 0;
    std::memcpy(&size, begin, kLength);
    strings.emplace_back(begin + kLength, static_cast<size_t>(size));
  }
  return strings;
}

std::string broadcast_string(const std::string& text, const Group& group) {
  if (group.size() == 1) return text;
  const at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(length, 0, group);
  const at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (group.first() && !text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  if (bytes.numel() > 0) broadcast(bytes, 0, group);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

Handle batch_p2p(std::vector<P2pOp> ops, const Group& group) {
  if (ops.empty() && group.size() == 1) return Handle();
  for (P2pOp& op : ops) {
    MPX_ASSERT(op.tensor.defined() && op.tensor.is_contiguous(), "p2p requires contiguous tensors");
    op.tensor = op.tensor.detach();
  }
  return Handle(group.backend().batch_p2p(std::move(ops)));
}

}  // namespace metroplex::comm
