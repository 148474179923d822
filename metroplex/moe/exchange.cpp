#include "moe/exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "base/error.h"
#include "comm/autograd_node.h"
#include "comm/collectives.h"

namespace metroplex::moe {
namespace {

// Chunks of `lengths` rows in the order of `order`.
at::Tensor in_order(const at::Tensor& x, const std::vector<int64_t>& lengths, const std::vector<size_t>& order) {
  std::vector<int64_t> starts;
  int64_t row = 0;
  for (const int64_t length : lengths) {
    starts.push_back(row);
    row += length;
  }
  MPX_ASSERT(row == x.size(0), "chunks of ", row, " rows of ", x.size(0));
  std::vector<at::Tensor> chunks;
  for (const size_t i : order) chunks.push_back(x.narrow(0, starts[i], lengths[i]));
  return at::cat(chunks);
}

}  // namespace

RowTable RowTable::turned() const {
  RowTable out(members_);
  for (int from = 0; from < members_; ++from) {
    for (int to = 0; to < members_; ++to) out.at(to, from) = at(from, to);
  }
  return out;
}

int64_t RowTable::sent(int from) const {
  int64_t sum = 0;
  for (int to = 0; to < members_; ++to) sum += at(from, to);
  return sum;
}

int64_t RowTable::received(int to) const {
  int64_t sum = 0;
  for (int from = 0; from < members_; ++from) sum += at(from, to);
  return sum;
}

at::Tensor exchange_directly(const at::Tensor& x, const RowTable& table, const ExpertContext& context,
                             const std::function<void()>& meanwhile) {
  const comm::Group& group = context.experts;
  MPX_ASSERT(group.size() > 1, "an exchange of one rank with itself");
  std::vector<int64_t> in_splits, out_splits;
  for (int i = 0; i < group.size(); ++i) {
    in_splits.push_back(table.at(group.index(), i));
    out_splits.push_back(table.at(i, group.index()));
  }
  comm::Exchange under_way = comm::all_to_all_async(x, out_splits, in_splits, group);
  if (meanwhile) meanwhile();
  return under_way.wait();
}

at::Tensor exchange_by_node(const at::Tensor& x, const RowTable& table, const ExpertContext& context,
                            const std::function<void()>& meanwhile) {
  const int places = context.node.size(), nodes = context.across.size(), me = context.experts.index();
  const int node = me / places, place = me % places;
  const auto member = [&](int of_node, int of_place) { return of_node * places + of_place; };
  const auto index = [&](int i) { return static_cast<size_t>(i); };

  // Inside the node: to its member at each place goes what is for that place on any node.
  std::vector<int64_t> lengths, in_splits(index(places), 0), out_splits(index(places), 0);
  std::vector<size_t> order;
  for (int i = 0; i < table.members(); ++i) lengths.push_back(table.at(me, i));
  for (int to = 0; to < places; ++to) {
    for (int n = 0; n < nodes; ++n) {
      order.push_back(index(member(n, to)));
      in_splits[index(to)] += table.at(me, member(n, to));
      out_splits[index(to)] += table.at(member(node, to), member(n, place));
    }
  }
  const at::Tensor by_place = in_order(x, lengths, order);
  comm::Exchange inside = comm::all_to_all_async(by_place, out_splits, in_splits, context.node);
  if (meanwhile) meanwhile();
  const at::Tensor collected = inside.wait();

  // Across: what came from each member of the node, sorted by node.
  lengths.clear();
  order.clear();
  std::vector<int64_t> across_in(index(nodes), 0), across_out(index(nodes), 0);
  for (int from = 0; from < places; ++from) {
    for (int n = 0; n < nodes; ++n) lengths.push_back(table.at(member(node, from), member(n, place)));
  }
  for (int n = 0; n < nodes; ++n) {
    for (int from = 0; from < places; ++from) {
      order.push_back(index(from * nodes + n));
      across_in[index(n)] += table.at(member(node, from), member(n, place));
      across_out[index(n)] += table.at(member(n, from), me);
    }
  }
  const at::Tensor by_node = in_order(collected, lengths, order);
  return comm::all_to_all_async(by_node, across_out, across_in, context.across).wait();
}

at::Tensor exchange(const at::Tensor& x, const RowTable& table, const ExpertContext& context, ExchangeRows* way,
                    const std::function<void()>& meanwhile) {
  const bool differentiable = at::GradMode::is_enabled();
  const auto as_outside = [&] {
    const at::AutoGradMode mode(differentiable);
    if (meanwhile) meanwhile();
  };
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = way(x.detach().contiguous(), table, context, as_outside);
  }
  return comm::attach(out, {x}, [table, &context, way](const at::Tensor& dy) -> comm::Gradients {
    const at::NoGradGuard no_grad;
    return {way(dy.contiguous(), table.turned(), context, {})};
  });
}

}  // namespace metroplex::moe
