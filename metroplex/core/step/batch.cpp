#include "step/batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "device/device.h"
#include "comm/collectives.h"

namespace metroplex::step {
namespace {

template <class T>
void copy_row(at::Tensor& matrix, int64_t row, const std::vector<T>& values) {
  MPX_ASSERT(matrix.size(1) == static_cast<int64_t>(values.size()), "samples of one microbatch differ in length");
  auto* out = matrix.mutable_data_ptr<int64_t>() + row * matrix.size(1);
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i];
}

void check_tokens(const HostBatch& batch, int64_t row, const char* what, const std::vector<int64_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    MPX_CHECK(tokens[i] >= 0 && tokens[i] < batch.vocab_size, "data", what, " ", i, " of sample ",
              batch.numbers.first + row * batch.numbers.stride, " is ", tokens[i], ", outside the vocabulary of ",
              batch.vocab_size, "; the data set was made with another tokenizer");
  }
}

at::Tensor make_offsets(const HostBatch& batch, const at::Tensor& document_ids) {
  const int64_t most = batch.documents.per_sample;
  if (most == 0) return {};
  at::Tensor offsets = nn::document_offsets(document_ids, most);
  MPX_CHECK(offsets.defined() || !batch.documents.must_fit, "data", "the samples from ", batch.numbers.first, " on, ",
            document_ids.size(0), " of a microbatch, have more than ", most,
            " documents each on average, the limit of captured graphs; raise "
            "data.max_documents_per_sample, or set train.cuda_graph_impl: none");
  return offsets;
}

// The header of a microbatch, broadcast between hosts. Holds a presence flag, the bits of mask_sum, full_seq_len, and
// the number of run lists per direction of keys and group_keys. Then follow the total number of runs, the hybrid
// context parallel fields, and two sizes per tensor of kMicrobatchTensors (-1: no such dimension).
enum Header : int64_t {
  kPresent,
  kMaskSum,
  kFullSeqLen,
  kKeys,
  kGroupKeys,
  kRuns,
  kContextRanks,
  kCounts,
  kSamplesOfStep,
  kSizes
};
constexpr auto kNumTensors = static_cast<int64_t>(std::size(nn::kMicrobatchTensors));
constexpr int64_t kHeader = kSizes + 2 * kNumTensors;

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

// The tensors of a microbatch in two messages: all integer tensors concatenated, and the loss mask. Both sides
// compute the sizes from the header.
struct BatchMessage {
  at::Tensor ids, mask;
};

struct WireFormat {
  at::ScalarType float_type;
  at::Device device;
};

std::vector<int64_t> tensor_sizes(const int64_t* header, int64_t tensor) {
  std::vector<int64_t> sizes;
  for (int64_t i = kSizes + 2 * tensor; i < kSizes + 2 * tensor + 2; ++i) {
    if (header[i] >= 0) sizes.push_back(header[i]);
  }
  return sizes;
}

bool is_mask(int64_t tensor) { return std::string_view(nn::kMicrobatchTensors[tensor].name) == "loss_mask"; }

BatchMessage empty_message(const int64_t* header, const WireFormat& wire, at::Device device) {
  int64_t ids = 0, mask = 0;
  for (int64_t i = 0; i < kNumTensors; ++i) {
    const std::vector<int64_t> sizes = tensor_sizes(header, i);
    if (!sizes.empty()) (is_mask(i) ? mask : ids) += c10::multiply_integers(sizes);
  }
  const at::TensorOptions on = at::TensorOptions().device(device);
  return {at::empty({ids}, on.dtype(at::kLong)), at::empty({mask}, on.dtype(wire.float_type))};
}

nn::Microbatch make_views(const BatchMessage& message, const int64_t* header) {
  nn::Microbatch out;
  int64_t begin = 0;
  for (int64_t i = 0; i < kNumTensors; ++i) {
    const std::vector<int64_t> sizes = tensor_sizes(header, i);
    if (sizes.empty()) continue;
    at::Tensor& view = nn::kMicrobatchTensors[i].tensor(out);
    view = is_mask(i) ? message.mask.view(sizes)
                      : message.ids.narrow(0, begin, c10::multiply_integers(sizes)).view(sizes);
    if (!is_mask(i)) begin += view.numel();
  }
  return out;
}

BatchMessage pack_message(const nn::Microbatch& batch, const int64_t* header, const WireFormat& wire) {
  const BatchMessage out = empty_message(header, wire, at::kCPU);
  const nn::Microbatch views = make_views(out, header);
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    if (tensor(batch).defined()) tensor(views).copy_(tensor(batch));
  }
  return {to_device(out.ids, wire.device), to_device(out.mask, wire.device)};
}

nn::Microbatch unpack_batch(const BatchMessage& message, const int64_t* header) {
  nn::Microbatch out = make_views(message, header);
  // Separate storage: dropout saves the counters for backward and must not keep the whole batch alive.
  nn::view_counters(out, at::cat({out.counters.samples, out.counters.step}));
  out.mask_sum = std::bit_cast<double>(header[kMaskSum]);
  out.sequence.length = header[kFullSeqLen];
  out.sequence.context_ranks = header[kContextRanks];
  out.sequence.counts_tokens = header[kCounts] != 0;
  out.sequence.step_samples = header[kSamplesOfStep];
  return out;
}

using Runs = std::vector<nn::IndexRange>;

constexpr int64_t kRowLists = 4;
// Returns row_ranges, rank_rows, all_ranges and document_ranges, followed by the lists of keys and group_keys.
std::vector<Runs> collect_lists(const nn::Microbatch& batch) {
  std::vector<Runs> lists{batch.sequence.row_ranges, batch.sequence.rank_rows, batch.sequence.all_ranges,
                          batch.documents.ranges};
  for (const nn::KeyExchange* keys : {&batch.sequence.keys, &batch.sequence.group_keys}) {
    lists.insert(lists.end(), keys->sent.begin(), keys->sent.end());
    lists.insert(lists.end(), keys->received.begin(), keys->received.end());
  }
  return lists;
}
void set_lists(nn::Microbatch& batch, const std::vector<Runs>& lists, const int64_t* header) {
  batch.sequence.row_ranges = lists[0];
  batch.sequence.rank_rows = lists[1];
  batch.sequence.all_ranges = lists[2];
  batch.documents.ranges = lists[3];
  auto next = lists.begin() + kRowLists;
  const auto take = [&](std::vector<Runs>& to, int64_t count) {
    to.assign(next, next + count);
    next += count;
  };
  take(batch.sequence.keys.sent, header[kKeys]);
  take(batch.sequence.keys.received, header[kKeys]);
  take(batch.sequence.group_keys.sent, header[kGroupKeys]);
  take(batch.sequence.group_keys.received, header[kGroupKeys]);
}
int64_t num_runs(const std::vector<Runs>& lists) {
  int64_t count = 0;
  for (const auto& list : lists) count += static_cast<int64_t>(list.size());
  return count;
}

void write_header(int64_t* header, const nn::Microbatch& batch) {
  header[kPresent] = 1;
  header[kMaskSum] = std::bit_cast<int64_t>(batch.mask_sum);
  header[kFullSeqLen] = batch.sequence.length;
  header[kKeys] = static_cast<int64_t>(batch.sequence.keys.sent.size());
  header[kGroupKeys] = static_cast<int64_t>(batch.sequence.group_keys.sent.size());
  header[kRuns] = num_runs(collect_lists(batch));
  header[kContextRanks] = batch.sequence.context_ranks;
  header[kCounts] = batch.sequence.counts_tokens ? 1 : 0;
  header[kSamplesOfStep] = batch.sequence.step_samples;
  int64_t* sizes = header + kSizes;
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    const at::Tensor& x = tensor(batch);
    for (int64_t d = 0; d < 2; ++d) *sizes++ = x.defined() && d < x.dim() ? x.size(d) : -1;
  }
}

// Metadata of a step's microbatches, broadcast before their tensors.
struct Headers {
  at::Tensor numbers;  // [most, kHeader]
  at::Tensor runs;     // [all runs, 3]: list index, first, count
  int64_t count = 0;
  const int64_t* of(int64_t m) const { return numbers.const_data_ptr<int64_t>() + m * kHeader; }
};

Headers broadcast_headers(const std::vector<nn::Microbatch>& mine, int64_t most, const comm::Group& group) {
  Headers out{at::zeros({most, kHeader}, at::kLong), {}, 0};
  std::vector<int64_t> runs;
  for (size_t m = 0; group.first() && m < mine.size(); ++m) {
    write_header(out.numbers.mutable_data_ptr<int64_t>() + static_cast<int64_t>(m) * kHeader, mine[m]);
    const auto lists = collect_lists(mine[m]);
    for (size_t list = 0; list < lists.size(); ++list) {
      for (const nn::IndexRange& run : lists[list])
        runs.insert(runs.end(), {static_cast<int64_t>(list), run.first, run.count});
    }
  }
  comm::broadcast(out.numbers, 0, group);
  int64_t all_ranges = 0;
  while (out.count < most && out.of(out.count)[kPresent] != 0) all_ranges += out.of(out.count++)[kRuns];
  out.runs = at::empty({all_ranges, 3}, at::kLong);
  if (all_ranges == 0) return out;
  std::copy(runs.begin(), runs.end(), out.runs.mutable_data_ptr<int64_t>());
  comm::broadcast(out.runs, 0, group);
  return out;
}

}  // namespace

nn::Microbatch stack_samples(const HostBatch& batch, at::ScalarType float_type) {
  const int64_t b = static_cast<int64_t>(batch.samples.size()),
                s = static_cast<int64_t>(batch.samples.at(0).tokens.size());
  MPX_ASSERT(batch.vocab_size > 0, "the vocabulary size of the samples is not set");
  const bool documents = !batch.samples[0].document_ids.empty();
  nn::Microbatch out = nn::empty_microbatch({b, s, documents});
  for (int64_t row = 0; row < b; ++row) {
    const data::Sample& sample = batch.samples[row];
    check_tokens(batch, row, "token", sample.tokens);
    check_tokens(batch, row, "label", sample.labels);
    copy_row(out.tokens, row, sample.tokens);
    copy_row(out.labels, row, sample.labels);
    copy_row(out.position_ids, row, sample.position_ids);
    if (documents) copy_row(out.documents.ids, row, sample.document_ids);
    std::copy(sample.loss_mask.begin(), sample.loss_mask.end(), out.loss_mask.mutable_data_ptr<float>() + row * s);
  }
  if (documents) out.documents.offsets = make_offsets(batch, out.documents.ids);
  out.loss_mask = out.loss_mask.to(float_type);
  out.mask_sum = out.loss_mask.sum(at::kDouble).item<double>();
  MPX_ASSERT(batch.numbers.step >= 0, "a microbatch has samples and no step");
  nn::set_counters(out, batch.numbers.step,
                   at::arange(b, at::kLong).mul_(batch.numbers.stride).add_(batch.numbers.first));
  return out;
}

config::DocumentBound document_bound_on(const config::Config& config, at::Device device) {
  return device.is_cuda() ? config::document_bound(config, device::compute_capability()) : config::DocumentBound();
}

int64_t batch_bytes(const nn::Microbatch& batch) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : nn::kMicrobatchTensors)
    bytes += tensor(batch).defined() ? static_cast<int64_t>(tensor(batch).nbytes()) : 0;
  return bytes;
}

nn::Microbatch on_device(const nn::Microbatch& host, at::Device device) {
  nn::Microbatch out = host;
  if (device.is_cpu()) return out;
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    if (tensor(out).defined()) tensor(out) = to_device(tensor(out), device);
  }
  return out;
}

std::vector<nn::Microbatch> broadcast_batches(const std::vector<nn::Microbatch>& mine, int64_t most,
                                              const comm::Group& group, at::ScalarType float_type,
                                              at::Device device) {
  MPX_ASSERT(static_cast<int64_t>(mine.size()) <= most, mine.size(), " microbatches of at most ", most);
  std::vector<nn::Microbatch> out;
  if (group.size() == 1) {
    for (const nn::Microbatch& batch : mine) out.push_back(on_device(batch, device));
    return out;
  }
  const Headers headers = broadcast_headers(mine, most, group);
  const auto* run = headers.runs.const_data_ptr<int64_t>();
  const WireFormat wire{float_type, device};
  for (int64_t m = 0; m < headers.count; ++m) {
    const int64_t* header = headers.of(m);
    const BatchMessage message = group.first() ? pack_message(mine[static_cast<size_t>(m)], header, wire)
                                               : empty_message(header, wire, device);
    comm::broadcast(message.ids, 0, group);
    comm::broadcast(message.mask, 0, group);
    out.push_back(unpack_batch(message, header));
    std::vector<Runs> lists(static_cast<size_t>(kRowLists + 2 * (header[kKeys] + header[kGroupKeys])));
    for (int64_t i = 0; i < header[kRuns]; ++i, run += 3)
      lists.at(static_cast<size_t>(run[0])).push_back({run[1], run[2]});
    set_lists(out.back(), lists, header);
  }
  return out;
}

// Broadcasts the value of the first rank of `group`.
static int64_t broadcast_count(int64_t mine, const comm::Group& group) {
  const at::Tensor number = at::empty({1}, at::kLong);
  *number.mutable_data_ptr<int64_t>() = mine;
  comm::broadcast(number, 0, group);
  return *number.const_data_ptr<int64_t>();
}

std::vector<nn::Microbatch> BatchStream::next(const std::vector<SampleNumbers>& numbers) {
  std::vector<nn::Microbatch> mine;
  for (const SampleNumbers& of : numbers) {
    if (!loader_) break;
    HostBatch batch;
    batch.numbers = of;
    batch.vocab_size = form_.vocab_size;
    batch.documents = form_.documents;
    if (!loader_->next(batch.samples) || batch.samples.empty()) break;
    nn::Microbatch whole = stack_samples(batch, form_.float_type);
    mine.push_back(form_.hybrid ? std::move(whole) : shard_sequence(whole, form_.parts));
  }
  auto most = static_cast<int64_t>(numbers.size());
  if (form_.hybrid) {
    const bool all = mine.size() == numbers.size();
    mine = loader_ && all ? hybrid_batches(mine, *form_.hybrid) : std::vector<nn::Microbatch>();
    most = broadcast_count(static_cast<int64_t>(mine.size()), group_);
    if (most == 0) return {};
  }
  return broadcast_batches(mine, most, group_, form_.float_type, form_.device);
}

}  // namespace metroplex::step
