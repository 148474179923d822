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

std::vector<at::Tensor> tensors_of(const std::vector<nn::Microbatch>& batches) {
  std::vector<at::Tensor> all;
  for (const nn::Microbatch& batch : batches) {
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
      if ((batch.*tensor).defined()) all.push_back(batch.*tensor);
    }
  }
  return all;
}

bool same_runs(const std::vector<nn::RowRun>& a, const std::vector<nn::RowRun>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const nn::RowRun& x, const nn::RowRun& y) {
    return x.first == y.first && x.count == y.count;
  });
}

std::string text_of(const std::vector<nn::RowRun>& runs) {
  std::ostringstream out;
  for (const nn::RowRun& run : runs) out << (&run == runs.data() ? "" : " ") << run.first << "+" << run.count;
  return runs.empty() ? "none" : out.str();
}

struct MicrobatchRuns {
  const char* name;
  std::vector<nn::RowRun> nn::Microbatch::*runs;
};
constexpr MicrobatchRuns kRuns[] = {{"row_runs", &nn::Microbatch::row_runs},
                                    {"rank_rows", &nn::Microbatch::rank_rows},
                                    {"all_runs", &nn::Microbatch::all_runs}};

std::string difference_of(const nn::Microbatch& now, const nn::Microbatch& held) {
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    const at::Tensor &a = now.*tensor, &b = held.*tensor;
    if (!graph::same_form(a, b)) return base::concat(name, ": ", graph::form_of(a), ", not ", graph::form_of(b));
  }
  for (const auto& [name, runs] : kRuns) {
    if (!same_runs(now.*runs, held.*runs))
      return base::concat(name, ": ", text_of(now.*runs), ", not ", text_of(held.*runs));
  }
  if (!now.keys.sent.empty() || !held.keys.sent.empty()) return "lists of keys: the sent data may change";
  if (now.full_seq_len != held.full_seq_len)
    return base::concat("full_seq_len: ", now.full_seq_len, ", not ", held.full_seq_len);
  if (now.training != held.training) return now.training ? "training: true, not false" : "training: false, not true";
  return now.cache == held.cache ? "" : "cache: another one";
}

at::Tensor place_for(const at::Tensor& x, at::Device device) {
  return x.defined() ? at::empty(x.sizes(), x.options().device(device)) : x;
}

nn::Microbatch places_for(const nn::Microbatch& batch, at::Device device) {
  nn::Microbatch out = batch;
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) out.*tensor = place_for(batch.*tensor, device);
  if (!batch.sample_counters.defined() || !batch.step.defined()) return out;
  nn::place_counters(out, at::empty({batch.sample_counters.numel() + 1}, batch.step.options().device(device)));
  return out;
}

}  // namespace

void StaticBatches::make(const std::vector<nn::Microbatch>& batches) {
  batches_.clear();
  for (const nn::Microbatch& batch : batches) {
    MPX_ASSERT(batch.cache == nullptr,
               "static buffers cannot hold microbatches of generation, whose shapes change from step to step");
    batches_.push_back(places_for(batch, device_));
  }
  places_ = tensors_of(batches_);
  fill(batches);
}

std::string StaticBatches::difference(const std::vector<nn::Microbatch>& batches) const {
  if (batches.size() != batches_.size()) return base::concat(batches.size(), " microbatches, not ", batches_.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    const std::string text = difference_of(batches[i], batches_[i]);
    if (!text.empty()) return base::concat("microbatch ", i, ": ", text);
  }
  return "";
}

void StaticBatches::fill(const std::vector<nn::Microbatch>& batches) {
  const std::string what = difference(batches);
  MPX_ASSERT(what.empty(), "batches of another form than the buffers: ", what);
  for (size_t i = 0; i < batches.size(); ++i) batches_[i].mask_sum = batches[i].mask_sum;
  const std::vector<at::Tensor> from = tensors_of(batches);
  if (from.empty()) return;
  const at::Device source = from.front().device();
  for (const at::Tensor& x : from) MPX_ASSERT(x.device() == source, "a batch on two devices");
  // _foreach_copy_ over tensors of one dtype is a single kernel, so tensors are grouped by dtype.
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_type;
  for (size_t i = 0; i < from.size(); ++i) {
    auto& [to, values] = by_type[from[i].scalar_type()];
    to.push_back(places_[i]);
    values.push_back(from[i]);
  }
  for (auto& [type, lists] : by_type) at::_foreach_copy_(lists.first, lists.second);
}

int64_t StaticBatches::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& x : places_) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

}  // namespace metroplex::pipeline
