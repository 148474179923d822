#include "moe/exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "device/turns.h"

namespace metroplex::moe {
namespace {

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

static size_t index(int i) { return static_cast<size_t>(i); }

static comm::Exchange start_direct(const at::Tensor& x, const RowTable& table, const ExpertContext& context) {
  const comm::Group& group = context.experts;
  MPX_ASSERT(group.size() > 1, "an exchange of one rank with itself");
  std::vector<int64_t> in_splits, out_splits;
  for (int i = 0; i < group.size(); ++i) {
    in_splits.push_back(table.at(group.index(), i));
    out_splits.push_back(table.at(i, group.index()));
  }
  return comm::all_to_all_async(x, out_splits, in_splits, group);
}

static at::Tensor finish_direct(comm::Exchange started, const RowTable&, const ExpertContext&) {
  device::yield_turn();
  return started.wait();
}

const RowExchange kDirectExchange{start_direct, finish_direct};

namespace {

// Node and index within the node of a rank; the group lists its members node by node.
struct Grid {
  explicit Grid(const ExpertContext& context)
      : places(context.node.size()),
        nodes(context.across.size()),
        me(context.experts.index()),
        node(me / places),
        place(me % places) {}
  int member(int of_node, int of_place) const { return of_node * places + of_place; }
  int places, nodes, me, node, place;
};

}  // namespace

// Within the node: the member with index i receives all rows for ranks with index i on any node.
static comm::Exchange start_by_node(const at::Tensor& x, const RowTable& table, const ExpertContext& context) {
  const Grid grid(context);
  std::vector<int64_t> lengths, in_splits(index(grid.places), 0), out_splits(index(grid.places), 0);
  std::vector<size_t> order;
  for (int i = 0; i < table.members(); ++i) lengths.push_back(table.at(grid.me, i));
  for (int to = 0; to < grid.places; ++to) {
    for (int n = 0; n < grid.nodes; ++n) {
      order.push_back(index(grid.member(n, to)));
      in_splits[index(to)] += table.at(grid.me, grid.member(n, to));
      out_splits[index(to)] += table.at(grid.member(grid.node, to), grid.member(n, grid.place));
    }
  }
  return comm::all_to_all_async(in_order(x, lengths, order), out_splits, in_splits, context.node);
}

// Across nodes: rows received from each member of the node, sorted by destination node.
static at::Tensor finish_by_node(comm::Exchange started, const RowTable& table, const ExpertContext& context) {
  const Grid grid(context);
  device::yield_turn();
  const at::Tensor collected = started.wait();
  std::vector<int64_t> lengths, in_splits(index(grid.nodes), 0), out_splits(index(grid.nodes), 0);
  std::vector<size_t> order;
  for (int from = 0; from < grid.places; ++from) {
    for (int n = 0; n < grid.nodes; ++n)
      lengths.push_back(table.at(grid.member(grid.node, from), grid.member(n, grid.place)));
  }
  for (int n = 0; n < grid.nodes; ++n) {
    for (int from = 0; from < grid.places; ++from) {
      order.push_back(index(from * grid.nodes + n));
      in_splits[index(n)] += table.at(grid.member(grid.node, from), grid.member(n, grid.place));
      out_splits[index(n)] += table.at(grid.member(n, from), grid.me);
    }
  }
  comm::Exchange across =
      comm::all_to_all_async(in_order(collected, lengths, order), out_splits, in_splits, context.across);
  device::yield_turn();
  return across.wait();
}

const RowExchange kExchangeByNode{start_by_node, finish_by_node};

RowsUnderWay::RowsUnderWay(const at::Tensor& x, const RowTable& table, const ExpertContext& context,
                           const RowExchange& how, const RowFormats& formats)
    : x_(x), table_(table), context_(&context), how_(&how), formats_(formats) {
  const at::NoGradGuard no_grad;
  started_ = how.start(encode_rows(formats.target, formats.forward, x.detach().contiguous()), table, context);
}

at::Tensor RowsUnderWay::finish() {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = decode_rows(formats_.target, formats_.forward, how_->finish(std::exchange(started_, {}), table_, *context_),
                      x_.scalar_type());
  }
  return nn::attach(
      out, {std::exchange(x_, {})},
      [back = table_.turned(), context = context_, how = how_, target = formats_.target,
       format = formats_.backward](const at::Tensor& dy) -> nn::Gradients {
        const at::NoGradGuard no_grad;
        comm::Exchange started = how->start(encode_rows(target, format, dy.contiguous()), back, *context);
        return {decode_rows(target, format, how->finish(std::move(started), back, *context), dy.scalar_type())};
      });
}

namespace {

// Receives rows and their counts. The counts equal the expected ones unless a buffer overflowed.
at::Tensor start_counted(const at::Tensor& x, const CountedExchange& how, const comm::Group& group,
                         const at::Tensor& overflow, comm::Handle& handle) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = how.room;
  const at::Tensor out = at::empty(shape, x.options());
  handle = comm::exchange_rows_async({out, at::empty_like(how.came)}, {x, how.sent}, how.capacity, overflow, group);
  return out;
}

}  // namespace

CountedRowsUnderWay::CountedRowsUnderWay(const at::Tensor& x, const CountedExchange& how, const comm::Group& group,
                                         const at::Tensor& overflow, const RowFormats& formats)
    : x_(x), overflow_(overflow), how_(how), formats_(formats), group_(&group) {
  const at::NoGradGuard no_grad;
  sent_ = encode_rows(formats.target, formats.forward, x.detach().contiguous());
  out_ = start_counted(sent_, how, group, overflow, started_);
}

at::Tensor CountedRowsUnderWay::finish() {
  device::yield_turn();
  started_.wait();
  sent_.reset();
  const int64_t rows = x_.size(0);
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = decode_rows(formats_.target, formats_.forward, std::exchange(out_, {}), x_.scalar_type());
  }
  return nn::attach(out, {std::exchange(x_, {})},
                    [back = how_.turned(rows), group = group_, overflow = overflow_, target = formats_.target,
                     format = formats_.backward](const at::Tensor& dy) -> nn::Gradients {
                      const at::NoGradGuard no_grad;
                      comm::Handle handle;
                      const at::Tensor sent = encode_rows(target, format, dy.contiguous()),
                                       dx = start_counted(sent, back, *group, overflow, handle);
                      device::yield_turn();
                      handle.wait();
                      return {decode_rows(target, format, dx, dy.scalar_type())};
                    });
}

}  // namespace metroplex::moe
