#include "forecast/memory_report.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "comm/collectives.h"
#include "device/device.h"
#include "forecast/predict.h"
#include "step/state_tensors.h"

namespace metroplex::forecast {

// The part of `use` that this rank's device meter counts.
static int64_t metered_bytes(const replay::MemoryUse& use, const step::ProcessContext& process) {
  return use.total() - (process.world->device().is_cpu() ? 0 : use.host);
}

static constexpr const char* kReportListener = "memory report";

// Samples the communication buffers at their largest: after gathers and before releases.
class MemoryReport::Sampler final : public nn::StageObserver {
 public:
  explicit Sampler(MemoryReport& report) : report_(report) {}
  void before(const nn::RegionEvent&) override { report_.sample(); }
  void after(const nn::RegionEvent&) override { report_.sample(); }

 private:
  MemoryReport& report_;
};

MemoryReport::MemoryReport(step::Assembly& assembly, device::MemoryMeter& meter)
    : assembly_(assembly), meter_(meter), sampler_(std::make_unique<Sampler>(*this)) {
  MPX_ASSERT(assembly_.optimization.optimizer != nullptr, "a forward-only assembly has no training step");
  assembly_.model.executor->observers().add(kReportListener,
                                            [this](const plan::Action& action, double) { after_action(action); });
  if (!assembly_.model.sharding.transient_gradients() &&
      !assembly_.process.config.parallel.reduce_scatter_with_fp32_accumulation)
    return;
  for (const auto& stage : assembly_.model.stages) stage->add_observer(kReportListener, *sampler_);
  for (nn::Param* param : assembly_.model.params) param->on_use.add(kReportListener, [this] { sample(); });
}

MemoryReport::~MemoryReport() {
  assembly_.model.executor->observers().remove(kReportListener);
  for (const auto& stage : assembly_.model.stages) stage->remove_observer(kReportListener);
  for (nn::Param* param : assembly_.model.params) param->on_use.remove(kReportListener);
}

void MemoryReport::sample() {
  max_gathered_ = std::max(max_gathered_, assembly_.model.families.gathered_bytes());
  max_transient_ = std::max(max_transient_, assembly_.model.families.transient_bytes());
}

int64_t MemoryReport::rest() const {
  return meter_.bytes() - assembly_.model.executor->border_bytes() - assembly_.model.families.gathered_bytes() -
         assembly_.model.families.transient_bytes();
}

// Triggers cuBLAS's workspace allocation on the current stream, which would otherwise count in an action of the step.
static void warm_up_cublas(at::Device device) {
  if (device.is_cpu()) return;
  const at::Tensor one = at::zeros({1, 1}, at::TensorOptions().device(device));
  at::mm(one, one);
}

void MemoryReport::begin_step() {
  warm_up_cublas(assembly_.process.world->device());
  begun_ = true;
  max_gathered_ = max_transient_ = 0;
  at_ = 0;
  meter_.reset_peak();
  last_ = rest();
}

void MemoryReport::after_action(const plan::Action& action) {
  if (!begun_) return;
  sample();
  const int64_t now = rest(), added = plan::is_p2p(action.kind) ? 0 : now - last_;
  last_ = now;
  if (at_ == actions_.size()) actions_.push_back({added, assembly_.model.executor->border_bytes()});
  actions_[at_].added = std::min(actions_[at_].added, added);
  ++at_;
}

MeasuredMemory MemoryReport::end_step() const {
  MeasuredMemory out;
  replay::MemoryUse& use = out.use;
  use.parameters = assembly_.model.values_bytes();
  use.gradients = assembly_.model.families.gradients_bytes();
  const optim::Optimizer::Bytes state = assembly_.optimization.optimizer->bytes();
  use.main_parameters = state.main_params;
  use.moments = state.moments;
  use.host = state.host + copy_bytes(assembly_.process, assembly_.model, assembly_.optimization);
  int64_t activations = 0, most = 0;
  for (const Action& action : actions_) {
    activations += action.added;
    if (activations + action.borders <= most + out.borders) continue;
    most = activations;
    out.borders = action.borders;
  }
  use.activations = most + out.borders;
  use.communication = max_gathered_ + max_transient_;
  out.gathered = max_gathered_;
  out.peak = meter_.peak_bytes();
  use.workspace = std::max<int64_t>(0, out.peak - metered_bytes(use, assembly_.process));
  return out;
}

replay::MemoryPrediction predicted_memory(const step::ProcessContext& process, int64_t num_microbatches) {
  RankRequest request{process.config,     process.world->size(), process.world->rank(),
                      process.vocab_size, num_microbatches,      process.world->device()};
  request.eager = true;  // the report covers a step before the capture
  return predict_memory(request);
}

namespace {

constexpr size_t kColumns = replay::kMemoryCategories.size() + 1;  // categories and total

void write(const replay::MemoryUse& use, int64_t whole, double* out) {
  for (size_t i = 0; i + 1 < kColumns; ++i) out[i] = static_cast<double>(use.*replay::kMemoryCategories[i].bytes);
  out[kColumns - 1] = static_cast<double>(whole);
}

std::string line(const char* who, const double* measured, const double* predicted) {
  std::string text = std::string(" ") + who;
  for (size_t i = 0; i < kColumns; ++i) {
    const bool seldom = i + 1 < kColumns && (replay::kMemoryCategories[i].bytes == &replay::MemoryUse::host ||
                                             replay::kMemoryCategories[i].bytes == &replay::MemoryUse::graphs);
    if (seldom && measured[i] == 0 && predicted[i] == 0) continue;
    char cell[96];
    std::snprintf(cell, sizeof cell, " | %s %.2f (%.2f)",
                  i + 1 < kColumns ? replay::kMemoryCategories[i].name : "peak", measured[i] / 1048576,
                  predicted[i] / 1048576);
    text += cell;
  }
  return text;
}

std::string allocator_line() {
  const device::AllocatorPeak peak = device::allocator_peak();
  char text[128];
  std::snprintf(text, sizeof text, " GPU of rank 0: tensors took %.2f MiB at most, the allocator held %.2f",
                static_cast<double>(peak.allocated_bytes) / 1048576,
                static_cast<double>(peak.reserved_bytes) / 1048576);
  return text;
}

}  // namespace

std::string memory_json(const replay::MemoryUse& use, int64_t peak) {
  std::string text = "{";
  for (const replay::MemoryCategory& category : replay::kMemoryCategories)
    text += base::concat("\"", category.name, "\": ", use.*category.bytes, ", ");
  return base::concat(text, "\"peak\": ", peak, "}");
}

std::vector<std::string> memory_lines(const step::ProcessContext& process, const MeasuredMemory& measured,
                                      int64_t num_microbatches) {
  const replay::MemoryPrediction predicted = predicted_memory(process, num_microbatches);
  at::Tensor mine = at::zeros({2, static_cast<int64_t>(kColumns)}, at::kDouble);
  double* values = mine.mutable_data_ptr<double>();
  write(measured.use, measured.peak, values);
  const int64_t elsewhere = process.world->device().is_cpu() ? 0 : predicted.use.host;
  write(predicted.use, predicted.peak - elsewhere, values + kColumns);
  at::Tensor most = mine.clone();
  comm::all_reduce(most, process.groups().world, comm::ReduceOp::max);
  const double* all = most.const_data_ptr<double>();
  std::vector<std::string> lines = {" memory in MiB after two steps: measured (predicted)",
                                    line("rank 0", values, values + kColumns),
                                    line("maximum over ranks", all, all + kColumns)};
  if (!process.world->device().is_cpu()) lines.push_back(allocator_line());
  return lines;
}

}  // namespace metroplex::forecast
