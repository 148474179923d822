// The exchanges of context_attention.h if the visible keys are known: a rank sends each other rank only the rows that
// its queries see, and no message if there are none.
#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

using Runs = std::vector<RowRun>;

// Calls on_run(row in the whole tensor, row in the packed tensor, count).
template <class OnRun>
void for_each_run(const Runs& runs, const OnRun& on_run) {
  int64_t packed = 0;
  for (const RowRun& run : runs) {
    on_run(run.first, packed, run.count);
    packed += run.count;
  }
}
void pack(const at::Tensor& packed, const at::Tensor& rows, const Runs& runs) {
  for_each_run(runs, [&](int64_t from, int64_t to, int64_t count) {
    packed.narrow(0, to, count).copy_(rows.narrow(0, from, count));
  });
}
void add_unpacked(const at::Tensor& rows, const at::Tensor& packed, const Runs& runs) {
  for_each_run(runs, [&](int64_t to, int64_t from, int64_t count) {
    rows.narrow(0, to, count).add_(packed.narrow(0, from, count));
  });
}

// Rows exchanged between this rank and each other rank.
struct Lists {
  const comm::Group& cp;
  const KeyTravel& keys;

  explicit Lists(const CoreCall& call) : cp(call.spec.cp), keys(call.batch.keys) {}
  int64_t size() const { return cp.size(); }
  int at(int64_t hops) const { return static_cast<int>((cp.index() + cp.size() + hops) % cp.size()); }
  const Runs& sent(int to) const { return keys.sent[static_cast<size_t>(to)]; }
  const Runs& received(int from) const { return keys.received[static_cast<size_t>(from)]; }
};

void append_runs(Runs& to, const Runs& runs) { to.insert(to.end(), runs.begin(), runs.end()); }

Positions rows_seen(const CoreCall& call, const Lists& lists, int owner) {
  Positions all = rows_of(call.batch, owner);
  const Runs& runs = lists.received(owner);
  const at::Tensor rows = at::empty({num_rows(runs)}, all.rows.options());
  pack(rows, all.rows, runs);
  Positions seen{0, rows, all.whole};
  for (const RowRun& run : runs) append_runs(seen.runs, cut_runs(all.runs, run.first, run.count));
  return seen;
}

// p2p: in step `hops` a rank sends `hops` ranks ahead and receives from `hops` ranks back.
struct Passing {
  KeyMessage out, in;
  comm::Handle travel;
};
Passing pass(const Lists& lists, KeyMessage out, int to, KeyMessage in, int from, int channel) {
  std::vector<comm::P2pOp> ops;
  if (out.flat.numel() > 0) ops.push_back({true, out.flat, to, channel});
  if (in.flat.numel() > 0) ops.push_back({false, in.flat, from, channel});
  Passing passing{std::move(out), std::move(in), {}};
  passing.travel = comm::batch_p2p(std::move(ops), lists.cp);
  return passing;
}

Passing pass_keys(const CoreInputs& in, const Lists& lists, int64_t hops) {
  const int to = lists.at(hops), from = lists.at(-hops);
  const KeyMessage out = empty_message(in, num_rows(lists.sent(to)), in.k.scalar_type());
  pack(out.k, in.k, lists.sent(to));
  pack(out.v, in.v, lists.sent(to));
  return pass(lists, out, to, empty_message(in, num_rows(lists.received(from)), in.k.scalar_type()), from,
              comm::kForwardChannel);
}

// Calls on_block(hops, keys and values, positions) for the local rows and for the visible rows of each other rank.
// The transfer of the next rows overlaps with the call. Steps without rows skip on_block; on_step(hops) follows every
// step.
template <class OnBlock, class OnStep>
void for_each_step(const CoreInputs& in, const CoreCall& call, const OnBlock& on_block, const OnStep& on_step) {
  const Lists lists(call);
  CoreInputs here{{}, in.k, in.v};
  CorePositions positions{call.positions.queries, call.positions.queries};
  for (int64_t hops = 0; hops < lists.size(); ++hops) {
    Passing coming;
    if (hops + 1 < lists.size()) coming = pass_keys(in, lists, hops + 1);
    if (hops == 0 || here.k.size(0) > 0) on_block(hops, here, positions);
    on_step(hops);
    coming.travel.wait();
    if (hops + 1 == lists.size()) break;
    here = {{}, coming.in.k, coming.in.v};
    positions.keys = rows_seen(call, lists, lists.at(-hops - 1));
  }
}

// all_gather: rows of all ranks in group order, including all local rows.
struct Gathering {
  std::vector<int64_t> sent, received;  // numbers of rows
  int64_t rows_sent = 0;

  Gathering(const Lists& lists, int64_t own) {
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
void for_each_sent(const Lists& lists, int64_t own, const OnRows& on_rows) {
  const Runs all{{0, own}};
  int64_t first = 0;
  for (int rank = 0; rank < lists.size(); ++rank) {
    const Runs& runs = rank == lists.cp.index() ? all : lists.sent(rank);
    on_rows(first, runs);
    first += num_rows(runs);
  }
}

CoreInputs gathered_seen(const CoreInputs& in, const Lists& lists) {
  const Gathering moves(lists, in.k.size(0));
  const auto packed = [&](const at::Tensor& x) {
    const at::Tensor rows = at::empty({moves.rows_sent, x.size(1), x.size(2), x.size(3)}, x.options());
    for_each_sent(lists, x.size(0),
                  [&](int64_t first, const Runs& runs) { pack(rows.narrow(0, first, num_rows(runs)), x, runs); });
    return rows;
  };
  const at::Tensor k = packed(in.k), v = packed(in.v);
  comm::Exchange keys = comm::all_to_all_async(k, moves.received, moves.sent, lists.cp),
                 values = comm::all_to_all_async(v, moves.received, moves.sent, lists.cp);
  return {in.q, keys.wait(), values.wait()};
}

CorePositions positions_seen(const CoreCall& call, const Lists& lists) {
  std::vector<at::Tensor> rows;
  Positions keys{0, {}, call.batch.full_seq_len};
  for (int rank = 0; rank < lists.size(); ++rank) {
    const Positions seen = rank == lists.cp.index() ? call.positions.queries : rows_seen(call, lists, rank);
    rows.push_back(seen.rows);
    append_runs(keys.runs, seen.runs);
  }
  keys.rows = at::cat(rows);
  return {call.positions.queries, keys};
}

// Sums, in at least fp32, the contributions that other ranks send for each row.
at::Tensor summed(const at::Tensor& packed, const Lists& lists, const at::Tensor& like) {
  const at::Tensor sum = at::zeros(like.sizes(), like.options().dtype(acc_type(like.scalar_type())));
  for_each_sent(lists, like.size(0), [&](int64_t first, const Runs& runs) {
    add_unpacked(sum, packed.narrow(0, first, num_rows(runs)), runs);
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
  const Lists lists(call);
  const at::ScalarType type = in.k.scalar_type(), wide = acc_type(type);
  CoreInputs sum;
  KeyMessage block;
  Passing home;
  int reader = 0;  // rank whose gradients of local rows `home` receives
  const auto take_home = [&] {
    home.travel.wait();
    if (home.in.flat.defined() && home.in.flat.numel() > 0) {
      add_unpacked(sum.k, home.in.k, lists.sent(reader));
      add_unpacked(sum.v, home.in.v, lists.sent(reader));
    }
    home = {};
  };
  for_each_step(
      in, call,
      [&](int64_t hops, const CoreInputs& keys, const CorePositions& positions) {
        const CoreInputs d =
            attend_backward(dout, {in.q, keys.k, keys.v}, result, {call.spec, positions, call.batch});
        if (hops == 0) {
          sum = {to_wide(d.q), to_wide(d.k), to_wide(d.v)};
          return;
        }
        sum.q.add_(d.q);
        block = empty_message(in, keys.k.size(0), wide);
        block.k.copy_(d.k);
        block.v.copy_(d.v);
      },
      [&](int64_t hops) {
        if (hops == 0) return;
        take_home();
        reader = lists.at(hops);
        if (!block.flat.defined()) block = empty_message(in, 0, wide);
        home = pass(lists, std::exchange(block, {}), lists.at(-hops),
                    empty_message(in, num_rows(lists.sent(reader)), wide), reader, comm::kBackwardChannel);
      });
  take_home();
  return {sum.q.to(type), sum.k.to(type), sum.v.to(type)};
}

CoreResult seen_gathered_attention(const CoreInputs& in, const CoreCall& call) {
  const Lists lists(call);
  return attend(gathered_seen(in, lists), {call.spec, positions_seen(call, lists), call.batch});
}

CoreInputs seen_gathered_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                            const CoreCall& call) {
  const Lists lists(call);
  const Gathering moves(lists, in.k.size(0));
  const CoreInputs all =
      attend_backward(dout, gathered_seen(in, lists), result, {call.spec, positions_seen(call, lists), call.batch});
  const at::Tensor k = all.k.contiguous(), v = all.v.contiguous();
  comm::Exchange keys = comm::all_to_all_async(k, moves.sent, moves.received, lists.cp),
                 values = comm::all_to_all_async(v, moves.sent, moves.received, lists.cp);
  return {all.q, summed(keys.wait(), lists, in.k), summed(values.wait(), lists, in.v)};
}

}  // namespace metroplex::nn
