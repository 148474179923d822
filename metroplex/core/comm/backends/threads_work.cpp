#include "comm/backends/threads_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "comm/backends/reduce.h"
#include "device/memory_meter.h"

namespace metroplex::comm {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements of a reduction per chunk

int64_t count_chunks(int64_t numel) { return (numel + kChunk - 1) / kChunk; }

bool on_host(const Collective& op) { return op.all_args[0].in.is_cpu(); }

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

void reduce_chunk(Collective& op, int64_t chunk) {
  const int64_t numel = op.all_args[0].out.numel();
  const int64_t chunks_per_rank = count_chunks(numel);
  const int64_t part = chunk / chunks_per_rank;  // 0 for an all-reduce, the receiver for a reduce-scatter
  const int64_t begin = chunk % chunks_per_rank * kChunk;
  const at::Tensor& model = op.all_args[0].in;
  const int64_t offset =
      op.agreement.kind == Kind::reduce_scatter ? part * numel * static_cast<int64_t>(model.element_size()) : 0;
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (const RankArgs& args : op.all_args) sources.push_back(bytes(args.in) + offset);
  if (op.agreement.kind == Kind::reduce_scatter) {
    destinations.push_back(mutable_bytes(op.all_args[static_cast<size_t>(part)].out));
  } else {
    for (const RankArgs& args : op.all_args) destinations.push_back(mutable_bytes(args.out));
  }
  reduce_in_order(sources, destinations, {begin, std::min(begin + kChunk, numel)}, model.scalar_type(),
                  op.agreement.reduce);
}

// One chunk per receiver.
void all_to_all_chunk(Collective& op, size_t receiver) {
  const RankArgs& to = op.all_args[receiver];
  char* out = mutable_bytes(to.out);
  for (size_t sender = 0; sender < op.all_args.size(); ++sender) {
    const RankArgs& from = op.all_args[sender];
    const size_t size = static_cast<size_t>(to.out_splits[sender] * row_bytes(to.out));
    copy_bytes(out, bytes(from.in) + sum_before(from.in_splits, receiver) * row_bytes(from.in), size);
    out += size;
  }
}

struct SentRows {
  int64_t begin, rows;
};
SentRows find_sent_rows(const RankArgs& from, size_t receiver) {
  const auto* counts = static_cast<const int64_t*>(from.in_counts.const_data_ptr());
  const int64_t length = from.in.size(0);
  const int64_t begin = std::min(std::accumulate(counts, counts + receiver, int64_t{0}), length);
  return {begin, std::min(counts[receiver], length - begin)};
}

// One chunk per member. It copies the member's rows and checks whether the member had too many for another one.
void exchange_rows_chunk(Collective& op, size_t member) {
  RankArgs& mine = op.all_args[member];
  const int64_t capacity = op.agreement.capacity, width = row_bytes(mine.out);
  int64_t row = 0;
  for (size_t i = 0; i < op.all_args.size(); ++i) {
    const RankArgs& from = op.all_args[i];
    const SentRows sent = find_sent_rows(from, member);
    const int64_t rows = std::min({sent.rows, capacity, mine.out.size(0) - row});
    copy_bytes(mutable_bytes(mine.out) + row * width, bytes(from.in) + sent.begin * width,
               static_cast<size_t>(rows * width));
    static_cast<int64_t*>(mine.out_counts.mutable_data_ptr())[i] = rows;
    row += rows;
    const int64_t requested = static_cast<const int64_t*>(mine.in_counts.const_data_ptr())[i];
    if (rows < sent.rows || std::min(find_sent_rows(mine, i).rows, capacity) < requested) mine.overflow = true;
  }
}

// Calls body(member, slot, row number) for each slot that requests a row.
template <class Body>
void for_each_request(const at::Tensor& owners, int64_t slots, const Body& body) {
  const auto* numbers = static_cast<const int32_t*>(owners.const_data_ptr());
  for (int64_t i = 0; i < owners.numel(); ++i) {
    if (numbers[i] >= 0) body(static_cast<size_t>(i / slots), i % slots, int64_t{numbers[i]});
  }
}

// One chunk per member whose slots are filled.
void fetch_rows_chunk(Collective& op, size_t member) {
  const RankArgs& mine = op.all_args[member];
  const int64_t width = row_bytes(mine.out), owned_rows = mine.in.size(0);
  for_each_request(mine.owners, mine.out.size(0), [&](size_t requester, int64_t slot, int64_t row) {
    if (requester != member) return;
    const RankArgs& from = op.all_args[static_cast<size_t>(row / owned_rows)];
    copy_bytes(mutable_bytes(mine.out) + slot * width, bytes(from.in) + row % owned_rows * width,
               static_cast<size_t>(width));
  });
}

// One chunk per member whose rows receive the sums.
void return_rows_chunk(Collective& op, size_t member) {
  const at::NoGradGuard no_grad;
  const RankArgs& mine = op.all_args[member];
  const int64_t owned_rows = mine.out.size(0);
  for_each_request(mine.owners, mine.in.size(0), [&](size_t requester, int64_t slot, int64_t row) {
    if (static_cast<size_t>(row / owned_rows) == member)
      mine.out.select(0, row % owned_rows).add_(op.all_args[requester].in[slot]);
  });
}

void run_on_host(Collective& op, int64_t chunk) {
  const auto index = static_cast<size_t>(chunk);
  switch (op.agreement.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
      reduce_chunk(op, chunk);
      return;
    case Kind::all_gather: {  // one chunk per sender
      const size_t size = op.all_args[index].in.nbytes();
      for (RankArgs& args : op.all_args)
        copy_bytes(mutable_bytes(args.out) + index * size, bytes(op.all_args[index].in), size);
      return;
    }
    case Kind::broadcast: {  // one chunk per receiver
      const at::Tensor& root = op.all_args[static_cast<size_t>(op.agreement.root)].in;
      copy_bytes(mutable_bytes(op.all_args[index].out), bytes(root), root.nbytes());
      return;
    }
    case Kind::all_to_all:
      all_to_all_chunk(op, index);
      return;
    case Kind::exchange_rows:
      exchange_rows_chunk(op, index);
      return;
    case Kind::fetch_rows:
      fetch_rows_chunk(op, index);
      return;
    case Kind::return_rows:
      return_rows_chunk(op, index);
      return;
    case Kind::barrier:
      return;
  }
}

// Tensors of an accelerator: all work runs on the current stream of the rank that arrived last.
void run_on_device(Collective& op) {
  const size_t n = op.all_args.size();
  const auto view_chunks = [&](size_t i) { return op.all_args[i].in.view({static_cast<int64_t>(n), -1}); };
  switch (op.agreement.kind) {
    case Kind::all_reduce: {
      std::vector<at::Tensor> sources;
      for (const RankArgs& args : op.all_args) sources.push_back(args.in);
      const at::Tensor total = reduce_tensors(sources, op.agreement.reduce);
      for (RankArgs& args : op.all_args) args.out.copy_(total, true);
      return;
    }
    case Kind::reduce_scatter:
      for (size_t j = 0; j < n; ++j) {
        std::vector<at::Tensor> sources;
        for (size_t i = 0; i < n; ++i) sources.push_back(view_chunks(i)[static_cast<int64_t>(j)]);
        op.all_args[j].out.view(-1).copy_(reduce_tensors(sources, op.agreement.reduce), true);
      }
      return;
    case Kind::all_gather:
      for (RankArgs& args : op.all_args) {
        const at::Tensor out = args.out.view({static_cast<int64_t>(n), -1});
        for (size_t i = 0; i < n; ++i) out[static_cast<int64_t>(i)].copy_(op.all_args[i].in.view(-1), true);
      }
      return;
    case Kind::broadcast:
      for (size_t j = 0; j < n; ++j) {
        if (static_cast<int>(j) != op.agreement.root) {
          op.all_args[j].out.view(-1).copy_(op.all_args[static_cast<size_t>(op.agreement.root)].in.view(-1), true);
        }
      }
      return;
    case Kind::all_to_all:
      for (size_t j = 0; j < n; ++j) {
        for (size_t i = 0; i < n; ++i) {
          const int64_t rows = op.all_args[j].out_splits[i];
          op.all_args[j]
              .out.narrow(0, sum_before(op.all_args[j].out_splits, i), rows)
              .copy_(op.all_args[i].in.narrow(0, sum_before(op.all_args[i].in_splits, j), rows), true);
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
  const size_t n = op.all_args.size();
  for (size_t i = 0; i < n; ++i) {
    const RankArgs& args = op.all_args[i];
    if (args.in_splits.size() != n || args.out_splits.size() != n ||
        sum_before(args.in_splits, n) != args.in.size(0) || sum_before(args.out_splits, n) != args.out.size(0)) {
      return base::concat("the splits of member ", i, " do not add up to its ", args.in.size(0), " rows in and ",
                          args.out.size(0), " rows out");
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const int64_t sent = op.all_args[i].in_splits[j];
      const int64_t expected = op.all_args[j].out_splits[i];
      if (sent != expected) {
        return base::concat("member ", i, " sends ", sent, " rows to member ", j, ", which expects ", expected);
      }
    }
  }
  return "";
}

std::string check_sizes(const Collective& op) {
  const RankArgs& first = op.all_args[0];
  const auto n = static_cast<int64_t>(op.all_args.size());
  for (size_t i = 0; i < op.all_args.size(); ++i) {
    const RankArgs& args = op.all_args[i];
    if (args.in.scalar_type() != first.in.scalar_type() || args.out.scalar_type() != args.in.scalar_type() ||
        args.in.device().type() != first.in.device().type()) {
      return base::concat("member ", i, " passes ", args.in.scalar_type(), " on ", args.in.device(),
                          ", member 0 passes ", first.in.scalar_type(), " on ", first.in.device());
    }
    if (op.agreement.kind == Kind::exchange_rows && args.in.sizes().slice(1) != first.in.sizes().slice(1)) {
      return base::concat("member ", i, " passes rows of ", args.in.sizes().slice(1), ", member 0 of ",
                          first.in.sizes().slice(1));
    }
    if (op.agreement.kind == Kind::all_to_all || op.agreement.kind == Kind::exchange_rows) continue;
    if (args.in.numel() != first.in.numel()) {
      return base::concat("member ", i, " passes ", args.in.numel(), " elements, member 0 ", first.in.numel());
    }
    if (op.agreement.kind == Kind::fetch_rows || op.agreement.kind == Kind::return_rows) {
      if (args.out.numel() != first.out.numel() ||
          std::memcmp(bytes(args.owners), bytes(first.owners), first.owners.nbytes()) != 0)
        return base::concat("member ", i, " has different slots or owners than member 0");
      continue;
    }
    const int64_t in = args.in.numel() * (op.agreement.kind == Kind::all_gather ? n : 1);
    const int64_t out = args.out.numel() * (op.agreement.kind == Kind::reduce_scatter ? n : 1);
    if (in != out)
      return base::concat("member ", i, " has ", args.out.numel(), " elements of output for ", args.in.numel(),
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
  const auto n = static_cast<int64_t>(op.all_args.size());
  if (!on_host(op)) {
    op.num_chunks = 1;
  } else if (op.agreement.kind == Kind::all_reduce) {
    op.num_chunks = count_chunks(op.all_args[0].out.numel());
  } else if (op.agreement.kind == Kind::reduce_scatter) {
    op.num_chunks = n * count_chunks(op.all_args[0].out.numel());
  } else {
    op.num_chunks = n;
  }
  return "";
}

void run_chunk(Collective& op, int64_t chunk) {
  if (on_host(op)) {
    run_on_host(op, chunk);
    return;
  }
  const at::Tensor& mine = op.all_args[0].in;
  for (const RankArgs& args : op.all_args) args.ready.block(mine);
  const at::NoGradGuard no_grad;
  const device::UnmeteredMemory unmetered;
  run_on_device(op);
  op.finished.record(mine);
}

}  // namespace metroplex::comm
