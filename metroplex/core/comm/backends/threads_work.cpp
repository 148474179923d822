#include "comm/backends/threads_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "comm/backends/reduce.h"

namespace metroplex::comm {
namespace {

constexpr int64_t kPiece = 1 << 16;  // elements of a reduction per piece

int64_t num_spans(int64_t numel) { return (numel + kPiece - 1) / kPiece; }

bool on_host(const Collective& op) { return op.arrivals[0].in.is_cpu(); }

const char* bytes(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }
char* mutable_bytes(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

void copy_bytes(char* to, const char* from, size_t size) {
  if (size > 0 && to != from) std::memcpy(to, from, size);
}

int64_t row_bytes(const at::Tensor& tensor) {
  int64_t size = static_cast<int64_t>(tensor.element_size());
  for (int64_t dim = 1; dim < tensor.dim(); ++dim) size *= tensor.size(dim);
  return size;
}

int64_t sum_before(const std::vector<int64_t>& splits, size_t index) {
  return std::accumulate(splits.begin(), splits.begin() + static_cast<std::ptrdiff_t>(index), int64_t{0});
}

void reduce_piece(Collective& op, int64_t piece) {
  const int64_t numel = op.arrivals[0].out.numel();
  const int64_t spans = num_spans(numel);
  const int64_t part = piece / spans;  // 0 for an all-reduce, the receiver for a reduce-scatter
  const int64_t begin = piece % spans * kPiece;
  const at::Tensor& model = op.arrivals[0].in;
  const int64_t offset =
      op.agreement.kind == Kind::reduce_scatter ? part * numel * static_cast<int64_t>(model.element_size()) : 0;
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (const Arrival& arrival : op.arrivals) sources.push_back(bytes(arrival.in) + offset);
  if (op.agreement.kind == Kind::reduce_scatter) {
    destinations.push_back(mutable_bytes(op.arrivals[static_cast<size_t>(part)].out));
  } else {
    for (const Arrival& arrival : op.arrivals) destinations.push_back(mutable_bytes(arrival.out));
  }
  reduce_in_order(sources, destinations, {begin, std::min(begin + kPiece, numel)}, model.scalar_type(),
                  op.agreement.reduce);
}

// One piece per receiver.
void all_to_all_piece(Collective& op, size_t receiver) {
  const Arrival& to = op.arrivals[receiver];
  char* out = mutable_bytes(to.out);
  for (size_t sender = 0; sender < op.arrivals.size(); ++sender) {
    const Arrival& from = op.arrivals[sender];
    const size_t size = static_cast<size_t>(to.out_splits[sender] * row_bytes(to.out));
    copy_bytes(out, bytes(from.in) + sum_before(from.in_splits, receiver) * row_bytes(from.in), size);
    out += size;
  }
}

struct RowRun {
  int64_t begin, rows;
};
RowRun run_for(const Arrival& from, size_t receiver) {
  const auto* counts = static_cast<const int64_t*>(from.in_counts.const_data_ptr());
  const int64_t length = from.in.size(0);
  const int64_t begin = std::min(std::accumulate(counts, counts + receiver, int64_t{0}), length);
  return {begin, std::min(counts[receiver], length - begin)};
}

// One piece per member: the rows for it, and whether it had too many for another member.
void exchange_rows_piece(Collective& op, size_t member) {
  Arrival& mine = op.arrivals[member];
  const int64_t capacity = op.agreement.capacity, width = row_bytes(mine.out);
  int64_t row = 0;
  for (size_t i = 0; i < op.arrivals.size(); ++i) {
    const Arrival& from = op.arrivals[i];
    const RowRun sent = run_for(from, member);
    const int64_t rows = std::min({sent.rows, capacity, mine.out.size(0) - row});
    copy_bytes(mutable_bytes(mine.out) + row * width, bytes(from.in) + sent.begin * width,
               static_cast<size_t>(rows * width));
    static_cast<int64_t*>(mine.out_counts.mutable_data_ptr())[i] = rows;
    row += rows;
    const int64_t asked = static_cast<const int64_t*>(mine.in_counts.const_data_ptr())[i];
    if (rows < sent.rows || std::min(run_for(mine, i).rows, capacity) < asked) mine.overflow = true;
  }
}

// Calls body(member, slot, row number) for each slot that requests a row.
template <class Body>
void each_owned(const at::Tensor& owners, int64_t slots, const Body& body) {
  const auto* numbers = static_cast<const int32_t*>(owners.const_data_ptr());
  for (int64_t i = 0; i < owners.numel(); ++i) {
    if (numbers[i] >= 0) body(static_cast<size_t>(i / slots), i % slots, int64_t{numbers[i]});
  }
}

// One piece per member whose slots are filled.
void fetch_rows_piece(Collective& op, size_t member) {
  const Arrival& mine = op.arrivals[member];
  const int64_t width = row_bytes(mine.out), home = mine.in.size(0);
  each_owned(mine.owners, mine.out.size(0), [&](size_t of, int64_t slot, int64_t row) {
    if (of != member) return;
    const Arrival& from = op.arrivals[static_cast<size_t>(row / home)];
    copy_bytes(mutable_bytes(mine.out) + slot * width, bytes(from.in) + row % home * width,
               static_cast<size_t>(width));
  });
}

// One piece per member whose rows receive the sums.
void return_rows_piece(Collective& op, size_t member) {
  const at::NoGradGuard no_grad;
  const Arrival& mine = op.arrivals[member];
  const int64_t home = mine.out.size(0);
  each_owned(mine.owners, mine.in.size(0), [&](size_t of, int64_t slot, int64_t row) {
    if (static_cast<size_t>(row / home) == member) mine.out.select(0, row % home).add_(op.arrivals[of].in[slot]);
  });
}

void run_on_host(Collective& op, int64_t piece) {
  const auto index = static_cast<size_t>(piece);
  switch (op.agreement.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
      reduce_piece(op, piece);
      return;
    case Kind::all_gather: {  // one piece per sender
      const size_t size = op.arrivals[index].in.nbytes();
      for (Arrival& arrival : op.arrivals)
        copy_bytes(mutable_bytes(arrival.out) + index * size, bytes(op.arrivals[index].in), size);
      return;
    }
    case Kind::broadcast: {  // one piece per receiver
      const at::Tensor& root = op.arrivals[static_cast<size_t>(op.agreement.root)].in;
      copy_bytes(mutable_bytes(op.arrivals[index].out), bytes(root), root.nbytes());
      return;
    }
    case Kind::all_to_all:
      all_to_all_piece(op, index);
      return;
    case Kind::exchange_rows:
      exchange_rows_piece(op, index);
      return;
    case Kind::fetch_rows:
      fetch_rows_piece(op, index);
      return;
    case Kind::return_rows:
      return_rows_piece(op, index);
      return;
    case Kind::barrier:
      return;
  }
}

// Tensors of an accelerator: all work runs on the current stream of the rank that arrived last.
void run_on_device(Collective& op) {
  const size_t n = op.arrivals.size();
  const auto parts = [&](size_t i) { return op.arrivals[i].in.view({static_cast<int64_t>(n), -1}); };
  switch (op.agreement.kind) {
    case Kind::all_reduce: {
      std::vector<at::Tensor> sources;
      for (const Arrival& arrival : op.arrivals) sources.push_back(arrival.in);
      const at::Tensor total = reduce_tensors(sources, op.agreement.reduce);
      for (Arrival& arrival : op.arrivals) arrival.out.copy_(total, true);
      return;
    }
    case Kind::reduce_scatter:
      for (size_t j = 0; j < n; ++j) {
        std::vector<at::Tensor> sources;
        for (size_t i = 0; i < n; ++i) sources.push_back(parts(i)[static_cast<int64_t>(j)]);
        op.arrivals[j].out.view(-1).copy_(reduce_tensors(sources, op.agreement.reduce), true);
      }
      return;
    case Kind::all_gather:
      for (Arrival& arrival : op.arrivals) {
        const at::Tensor out = arrival.out.view({static_cast<int64_t>(n), -1});
        for (size_t i = 0; i < n; ++i) out[static_cast<int64_t>(i)].copy_(op.arrivals[i].in.view(-1), true);
      }
      return;
    case Kind::broadcast:
      for (size_t j = 0; j < n; ++j) {
        if (static_cast<int>(j) != op.agreement.root) {
          op.arrivals[j].out.view(-1).copy_(op.arrivals[static_cast<size_t>(op.agreement.root)].in.view(-1), true);
        }
      }
      return;
    case Kind::all_to_all:
      for (size_t j = 0; j < n; ++j) {
        for (size_t i = 0; i < n; ++i) {
          const int64_t rows = op.arrivals[j].out_splits[i];
          op.arrivals[j]
              .out.narrow(0, sum_before(op.arrivals[j].out_splits, i), rows)
              .copy_(op.arrivals[i].in.narrow(0, sum_before(op.arrivals[i].in_splits, j), rows), true);
        }
      }
      return;
    case Kind::exchange_rows:  // unreachable: on a device the defaults of GroupBackend apply
    case Kind::fetch_rows:
    case Kind::return_rows:
    case Kind::barrier:
      return;
  }
}

std::string check_splits(const Collective& op) {
  const size_t n = op.arrivals.size();
  for (size_t i = 0; i < n; ++i) {
    const Arrival& arrival = op.arrivals[i];
    if (arrival.in_splits.size() != n || arrival.out_splits.size() != n ||
        sum_before(arrival.in_splits, n) != arrival.in.size(0) ||
        sum_before(arrival.out_splits, n) != arrival.out.size(0)) {
      return base::concat("the splits of member ", i, " do not add up to its ", arrival.in.size(0), " rows in and ",
                          arrival.out.size(0), " rows out");
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const int64_t sent = op.arrivals[i].in_splits[j];
      const int64_t expected = op.arrivals[j].out_splits[i];
      if (sent != expected) {
        return base::concat("member ", i, " sends ", sent, " rows to member ", j, ", which expects ", expected);
      }
    }
  }
  return "";
}

std::string check_sizes(const Collective& op) {
  const Arrival& first = op.arrivals[0];
  const auto n = static_cast<int64_t>(op.arrivals.size());
  for (size_t i = 0; i < op.arrivals.size(); ++i) {
    const Arrival& arrival = op.arrivals[i];
    if (arrival.in.scalar_type() != first.in.scalar_type() || arrival.out.scalar_type() != arrival.in.scalar_type() ||
        arrival.in.device().type() != first.in.device().type()) {
      return base::concat("member ", i, " passes ", arrival.in.scalar_type(), " on ", arrival.in.device(),
                          ", member 0 passes ", first.in.scalar_type(), " on ", first.in.device());
    }
    if (op.agreement.kind == Kind::exchange_rows && arrival.in.sizes().slice(1) != first.in.sizes().slice(1)) {
      return base::concat("member ", i, " passes rows of ", arrival.in.sizes().slice(1), ", member 0 of ",
                          first.in.sizes().slice(1));
    }
    if (op.agreement.kind == Kind::all_to_all || op.agreement.kind == Kind::exchange_rows) continue;
    if (arrival.in.numel() != first.in.numel()) {
      return base::concat("member ", i, " passes ", arrival.in.numel(), " elements, member 0 ", first.in.numel());
    }
    if (op.agreement.kind == Kind::fetch_rows || op.agreement.kind == Kind::return_rows) {
      if (arrival.out.numel() != first.out.numel() ||
          std::memcmp(bytes(arrival.owners), bytes(first.owners), first.owners.nbytes()) != 0)
        return base::concat("member ", i, " has different slots or owners than member 0");
      continue;
    }
    const int64_t in = arrival.in.numel() * (op.agreement.kind == Kind::all_gather ? n : 1);
    const int64_t out = arrival.out.numel() * (op.agreement.kind == Kind::reduce_scatter ? n : 1);
    if (in != out)
      return base::concat("member ", i, " has ", arrival.out.numel(), " elements of output for ", arrival.in.numel(),
                          " of input");
  }
  return op.agreement.kind == Kind::all_to_all ? check_splits(op) : "";
}

}  // namespace

std::string in_words(const Agreement& agreement) {
  switch (agreement.kind) {
    case Kind::all_reduce:
      return agreement.reduce == ReduceOp::sum ? "all_reduce" : "all_reduce(max)";
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::broadcast:
      return base::concat("broadcast from member ", agreement.root);
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::exchange_rows:
      return base::concat("exchange_rows of up to ", agreement.capacity, " for each");
    case Kind::fetch_rows:
      return "fetch_rows";
    case Kind::return_rows:
      return "return_rows";
    case Kind::barrier:
      return "barrier";
  }
  return "";
}

std::string prepare(Collective& op) {
  if (op.agreement.kind == Kind::barrier) return "";
  std::string error = check_sizes(op);
  if (!error.empty()) return error;
  const auto n = static_cast<int64_t>(op.arrivals.size());
  if (!on_host(op)) {
    op.num_pieces = 1;
  } else if (op.agreement.kind == Kind::all_reduce) {
    op.num_pieces = num_spans(op.arrivals[0].out.numel());
  } else if (op.agreement.kind == Kind::reduce_scatter) {
    op.num_pieces = n * num_spans(op.arrivals[0].out.numel());
  } else {
    op.num_pieces = n;
  }
  return "";
}

void run_piece(Collective& op, int64_t piece) {
  if (on_host(op)) {
    run_on_host(op, piece);
    return;
  }
  const at::Tensor& mine = op.arrivals[0].in;
  for (const Arrival& arrival : op.arrivals) arrival.ready.block(mine);
  const at::NoGradGuard no_grad;
  run_on_device(op);
  op.finished.record(mine);
}

}  // namespace metroplex::comm
