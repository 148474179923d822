// The exchanges of context_attention.h if the visible keys are known. A rank sends each other rank only the rows
// that its queries see, and no message if there are none.
#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

using KeyRanges = std::vector<IndexRange>;

// Calls on_range(row in the whole tensor, row in the packed tensor, count).
template <class OnRange>
void for_each_range(const KeyRanges& ranges, const OnRange& on_range) {
  int64_t packed = 0;
  for (const IndexRange& range : ranges) {
    on_range(range.first, packed, range.count);
    packed += range.count;
  }
}
void pack(const at::Tensor& packed, const at::Tensor& rows, const KeyRanges& ranges) {
  for_each_range(ranges, [&](int64_t from, int64_t to, int64_t count) {
    packed.narrow(0, to, count).copy_(rows.narrow(0, from, count));
  });
}
void add_unpacked(const at::Tensor& rows, const at::Tensor& packed, const KeyRanges& ranges) {
  for_each_range(ranges, [&](int64_t to, int64_t from, int64_t count) {
    rows.narrow(0, to, count).add_(packed.narrow(0, from, count));
  });
}

// Rows exchanged between this rank and each other rank.
struct KeyLists {
  const comm::Group& cp;
  const KeyExchange& keys;

  explicit KeyLists(const CoreCall& call) : cp(call.spec.cp), keys(call.batch.sequence.keys) {}
  int64_t size() const { return cp.size(); }
  int at(int64_t hops) const { return static_cast<int>((cp.index() + cp.size() + hops) % cp.size()); }
  const KeyRanges& sent(int to) const { return keys.sent[static_cast<size_t>(to)]; }
  const KeyRanges& received(int from) const { return keys.received[static_cast<size_t>(from)]; }
};

void append_ranges(KeyRanges& to, const KeyRanges& ranges) { to.insert(to.end(), ranges.begin(), ranges.end()); }

Positions visible_positions(const CoreCall& call, const KeyLists& lists, int owner) {
  Positions all = rank_positions(call.batch, owner);
  const KeyRanges& ranges = lists.received(owner);
  const at::Tensor rows = at::empty({num_rows(ranges)}, all.rows.options());
  pack(rows, all.rows, ranges);
  Positions seen{0, rows, all.whole};
  for (const IndexRange& range : ranges)
    append_ranges(seen.ranges, narrow_ranges(all.ranges, range.first, range.count));
  return seen;
}

// p2p: in step `hops` a rank sends `hops` ranks ahead and receives from `hops` ranks back.
struct PendingTransfer {
  KeyMessage out, in;
  comm::Handle transfer;
};
PendingTransfer start_transfer(const KeyLists& lists, KeyMessage out, int to, KeyMessage in, int from, int channel) {
  std::vector<comm::P2pOp> ops;
  if (out.flat.numel() > 0) ops.push_back({true, out.flat, to, channel});
  if (in.flat.numel() > 0) ops.push_back({false, in.flat, from, channel});
  PendingTransfer pending{std::move(out), std::move(in), {}};
  pending.transfer = comm::batch_p2p(std::move(ops), lists.cp);
  return pending;
}

PendingTransfer send_keys(const CoreInputs& in, const KeyLists& lists, int64_t hops) {
  const int to = lists.at(hops), from = lists.at(-hops);
  const KeyMessage out = empty_message(in, num_rows(lists.sent(to)), in.k.scalar_type());
  pack(out.k, in.k, lists.sent(to));
  pack(out.v, in.v, lists.sent(to));
  return start_transfer(lists, out, to, empty_message(in, num_rows(lists.received(from)), in.k.scalar_type()), from,
                        comm::kForwardChannel);
}

// Calls on_block(hops, keys and values, positions) for the local rows and for the visible rows of each other rank.
// The transfer of the next rows overlaps with the call. Steps without rows do not call on_block; on_step(hops) is
// called after every step.
template <class OnBlock, class OnStep>
void for_each_step(const CoreInputs& in, const CoreCall& call, const OnBlock& on_block, const OnStep& on_step) {
  const KeyLists lists(call);
  CoreInputs current{{}, in.k, in.v};
  CorePositions positions{call.positions.queries, call.positions.queries};
  for (int64_t hops = 0; hops < lists.size(); ++hops) {
    PendingTransfer incoming;
    if (hops + 1 < lists.size()) incoming = send_keys(in, lists, hops + 1);
    if (hops == 0 || current.k.size(0) > 0) on_block(hops, current, positions);
    on_step(hops);
    incoming.transfer.wait();
    if (hops + 1 == lists.size()) break;
    current = {{}, incoming.in.k, incoming.in.v};
    positions.keys = visible_positions(call, lists, lists.at(-hops - 1));
  }
}

// all_gather: rows of all ranks in group order, including all local rows.
struct GatherSizes {
  std::vector<int64_t> sent, received;  // numbers of rows
  int64_t rows_sent = 0;

  GatherSizes(const KeyLists& lists, int64_t own) {
    for (int rank = 0; rank < lists.size(); ++rank) {
      const bool self = rank == lists.cp.index();
      sent.push_back(self ? own : num_rows(lists.sent(rank)));
      received.push_back(self ? own : num_rows(lists.received(rank)));
      rows_sent += sent.back();
    }
  }
};

// Calls on_rows(first packed row, ranges of local rows).
template <class OnRows>
void for_each_sent(const KeyLists& lists, int64_t own, const OnRows& on_rows) {
  const KeyRanges all{{0, own}};
  int64_t first = 0;
  for (int rank = 0; rank < lists.size(); ++rank) {
    const KeyRanges& ranges = rank == lists.cp.index() ? all : lists.sent(rank);
    on_rows(first, ranges);
    first += num_rows(ranges);
  }
}

CoreInputs gather_visible(const CoreInputs& in, const KeyLists& lists) {
  const GatherSizes moves(lists, in.k.size(0));
  const auto packed = [&](const at::Tensor& x) {
    const at::Tensor rows = at::empty({moves.rows_sent, x.size(1), x.size(2), x.size(3)}, x.options());
    for_each_sent(lists, x.size(0), [&](int64_t first, const KeyRanges& ranges) {
      pack(rows.narrow(0, first, num_rows(ranges)), x, ranges);
    });
    return rows;
  };
  const at::Tensor k = packed(in.k), v = packed(in.v);
  comm::Exchange keys = comm::all_to_all_async(k, moves.received, moves.sent, lists.cp),
                 values = comm::all_to_all_async(v, moves.received, moves.sent, lists.cp);
  return {in.q, keys.wait(), values.wait()};
}

CorePositions all_visible_positions(const CoreCall& call, const KeyLists& lists) {
  std::vector<at::Tensor> rows;
  Positions keys{0, {}, call.batch.sequence.length};
  for (int rank = 0; rank < lists.size(); ++rank) {
    const Positions seen = rank == lists.cp.index() ? call.positions.queries : visible_positions(call, lists, rank);
    rows.push_back(seen.rows);
    append_ranges(keys.ranges, seen.ranges);
  }
  keys.rows = at::cat(rows);
  return {call.positions.queries, keys};
}

// Sums, in at least fp32, the contributions that other ranks send for each row.
at::Tensor sum_received(const at::Tensor& packed, const KeyLists& lists, const at::Tensor& like) {
  const at::Tensor sum = at::zeros(like.sizes(), like.options().dtype(acc_type(like.scalar_type())));
  for_each_sent(lists, like.size(0), [&](int64_t first, const KeyRanges& ranges) {
    add_unpacked(sum, packed.narrow(0, first, num_rows(ranges)), ranges);
  });
  return sum.to(like.scalar_type());
}

}  // namespace

CoreResult seen_p2p_attention(const CoreInputs& in, const CoreCall& call) {
  CoreResult all;
  for_each_step(
      in, call,
      [&](int64_t hops, const CoreInputs& keys, const CorePositions& positions) {
        const CoreResult block = attend({in.q, keys.k, keys.v}, {call.spec, positions, call.batch});
        if (hops == 0) all = {to_wide(block.out), block.logsumexp};  // every query sees itself
        else join(all, block);
      },
      [](int64_t /*hops*/) {});
  return {all.out.to(in.q.scalar_type()), all.logsumexp};
}

// Gradients of keys received in one step are sent back in the next step.
CoreInputs seen_p2p_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call) {
  const KeyLists lists(call);
  const at::ScalarType type = in.k.scalar_type(), wide = acc_type(type);
  CoreInputs sum;
  KeyMessage block;
  PendingTransfer returned;
  int reader = 0;  // rank that sends the gradients in `returned`
  const auto add_returned = [&] {
    returned.transfer.wait();
    if (returned.in.flat.defined() && returned.in.flat.numel() > 0) {
      add_unpacked(sum.k, returned.in.k, lists.sent(reader));
      add_unpacked(sum.v, returned.in.v, lists.sent(reader));
    }
    returned = {};
  };
  for_each_step(
      in, call,
      [&](int64_t hops, const CoreInputs& keys, const CorePositions& positions) {
        const CoreInputs gradients =
            attend_backward(dout, {in.q, keys.k, keys.v}, result, {call.spec, positions, call.batch});
        if (hops == 0) {
          sum = {to_wide(gradients.q), to_wide(gradients.k), to_wide(gradients.v)};
          return;
        }
        sum.q.add_(gradients.q);
        block = empty_message(in, keys.k.size(0), wide);
        block.k.copy_(gradients.k);
        block.v.copy_(gradients.v);
      },
      [&](int64_t hops) {
        if (hops == 0) return;
        add_returned();
        reader = lists.at(hops);
        if (!block.flat.defined()) block = empty_message(in, 0, wide);
        returned =
            start_transfer(lists, std::exchange(block, {}), lists.at(-hops),
                           empty_message(in, num_rows(lists.sent(reader)), wide), reader, comm::kBackwardChannel);
      });
  add_returned();
  return {sum.q.to(type), sum.k.to(type), sum.v.to(type)};
}

CoreResult seen_gathered_attention(const CoreInputs& in, const CoreCall& call) {
  const KeyLists lists(call);
  return attend(gather_visible(in, lists), {call.spec, all_visible_positions(call, lists), call.batch});
}

CoreInputs seen_gathered_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                            const CoreCall& call) {
  const KeyLists lists(call);
  const GatherSizes moves(lists, in.k.size(0));
  const CoreInputs all = attend_backward(dout, gather_visible(in, lists), result,
                                         {call.spec, all_visible_positions(call, lists), call.batch});
  const at::Tensor k = all.k.contiguous(), v = all.v.contiguous();
  comm::Exchange keys = comm::all_to_all_async(k, moves.sent, moves.received, lists.cp),
                 values = comm::all_to_all_async(v, moves.sent, moves.received, lists.cp);
  return {all.q, sum_received(keys.wait(), lists, in.k), sum_received(values.wait(), lists, in.v)};
}

}  // namespace metroplex::nn
