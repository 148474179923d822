#include "pipeline/static_batches.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "graph/graph.h"

namespace metroplex::pipeline {
namespace {

std::vector<at::Tensor> list_tensors(const std::vector<nn::Microbatch>& batches) {
  std::vector<at::Tensor> all;
  for (const nn::Microbatch& batch : batches) {
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
      if (tensor(batch).defined()) all.push_back(tensor(batch));
    }
  }
  return all;
}

bool equal_ranges(const std::vector<nn::IndexRange>& a, const std::vector<nn::IndexRange>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const nn::IndexRange& x, const nn::IndexRange& y) {
    return x.first == y.first && x.count == y.count;
  });
}

std::string format_ranges(const std::vector<nn::IndexRange>& ranges) {
  std::ostringstream out;
  for (const nn::IndexRange& range : ranges)
    out << (&range == ranges.data() ? "" : " ") << range.first << "+" << range.count;
  return ranges.empty() ? "none" : out.str();
}

struct MicrobatchRanges {
  const char* name;
  std::vector<nn::IndexRange> nn::SequenceShard::*ranges;
};
constexpr MicrobatchRanges kRangeFields[] = {{"row_ranges", &nn::SequenceShard::row_ranges},
                                             {"rank_rows", &nn::SequenceShard::rank_rows},
                                             {"all_ranges", &nn::SequenceShard::all_ranges}};

std::string compare_batches(const nn::Microbatch& now, const nn::Microbatch& buffers) {
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    const at::Tensor &a = tensor(now), &b = tensor(buffers);
    if (!graph::same_form(a, b))
      return base::concat(name, ": ", graph::format_form(a), ", not ", graph::format_form(b));
  }
  for (const auto& [name, ranges] : kRangeFields) {
    if (!equal_ranges(now.sequence.*ranges, buffers.sequence.*ranges))
      return base::concat(name, ": ", format_ranges(now.sequence.*ranges), ", not ",
                          format_ranges(buffers.sequence.*ranges));
  }
  if (!now.sequence.keys.sent.empty() || !buffers.sequence.keys.sent.empty())
    return "sequence.keys is set: the rows to send may differ between steps";
  if (now.sequence.length != buffers.sequence.length)
    return base::concat("full_seq_len: ", now.sequence.length, ", not ", buffers.sequence.length);
  if (now.training != buffers.training)
    return now.training ? "training: true, not false" : "training: false, not true";
  return now.cache == buffers.cache ? "" : "cache: a different KvCache object";
}

at::Tensor make_buffer(const at::Tensor& x, at::Device device) {
  return x.defined() ? at::empty(x.sizes(), x.options().device(device)) : x;
}

nn::Microbatch make_buffers(const nn::Microbatch& batch, at::Device device) {
  nn::Microbatch out = batch;
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) tensor(out) = make_buffer(tensor(batch), device);
  if (!batch.counters.samples.defined() || !batch.counters.step.defined()) return out;
  nn::view_counters(out,
                    at::empty({batch.counters.samples.numel() + 1}, batch.counters.step.options().device(device)));
  return out;
}

}  // namespace

void StaticBatches::allocate(const std::vector<nn::Microbatch>& batches) {
  batches_.clear();
  for (const nn::Microbatch& batch : batches) {
    MPX_ASSERT(batch.cache == nullptr,
               "static buffers cannot hold generation microbatches, because their shapes change from step to step");
    batches_.push_back(make_buffers(batch, device_));
  }
  buffers_ = list_tensors(batches_);
  fill(batches);
}

std::string StaticBatches::difference(const std::vector<nn::Microbatch>& batches) const {
  if (batches.size() != batches_.size()) return base::concat(batches.size(), " microbatches, not ", batches_.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    const std::string text = compare_batches(batches[i], batches_[i]);
    if (!text.empty()) return base::concat("microbatch ", i, ": ", text);
  }
  return "";
}

void StaticBatches::fill(const std::vector<nn::Microbatch>& batches) {
  const std::string what = difference(batches);
  MPX_ASSERT(what.empty(), "batches do not match the static buffers: ", what);
  for (size_t i = 0; i < batches.size(); ++i) batches_[i].mask_sum = batches[i].mask_sum;
  const std::vector<at::Tensor> from = list_tensors(batches);
  if (from.empty()) return;
  const at::Device source = from.front().device();
  for (const at::Tensor& x : from) MPX_ASSERT(x.device() == source, "a batch on two devices");
  // _foreach_copy_ over tensors of one dtype is a single kernel, so tensors are grouped by dtype.
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_type;
  for (size_t i = 0; i < from.size(); ++i) {
    auto& [to, values] = by_type[from[i].scalar_type()];
    to.push_back(buffers_[i]);
    values.push_back(from[i]);
  }
  for (auto& [type, lists] : by_type) at::_foreach_copy_(lists.first, lists.second);
}

int64_t StaticBatches::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& x : buffers_) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

}  // namespace metroplex::pipeline
