#include "forecast/trace_recorder.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::forecast {

using replay::TraceStep;

namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& x : tensors) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

class MetaGraph final : public graph::Graph {
 public:
  MetaGraph(TraceRecorder& recorder, std::shared_ptr<TracePool> pool) : recorder_(recorder), pool_(std::move(pool)) {}
  void begin() override { recorder_.enter_pool(pool_); }
  void end() override { recorder_.leave_pool(); }
  void abandon() noexcept override { recorder_.leave_pool(); }
  bool runs_while_capturing() const override { return true; }
  bool captured() const override { return false; }
  void replay() override { MPX_ASSERT(false, "a graph of the meta device is captured in every pass"); }
  void reset() override {}
  graph::GraphSize size() const override { return {}; }

 private:
  TraceRecorder& recorder_;
  std::shared_ptr<TracePool> pool_;
};

}  // namespace

void TracePool::add(int64_t bytes) {
  bytes_.live += bytes;
  bytes_.reserved = bytes_.peak = std::max(bytes_.peak, bytes_.live);
}

void TraceRecorder::allocated(int64_t bytes, const void* block) {
  if (pool_) {
    pool_->add(rounded(bytes));
    pool_of_.emplace(block, pool_);
    return;
  }
  live_ += rounded(bytes);
  net_ += rounded(bytes);
  most_ = std::max(most_, net_);
}

void TraceRecorder::freed(int64_t bytes, const void* block) {
  if (const auto found = pool_of_.find(block); found != pool_of_.end()) {
    found->second->add(-rounded(bytes));
    pool_of_.erase(found);
    return;
  }
  live_ -= rounded(bytes);
  net_ -= rounded(bytes);
}

bool TraceRecorder::in_pool(const at::Tensor& x) const {
  return pool_of_.contains(x.storage().data_ptr().get_context());
}

void TraceRecorder::run(device::Operation operation) {
  operation.run();
  issued(operation);
}

void TraceRecorder::issued(const device::Operation& operation) {
  if (!on_) return;
  const int64_t bytes = operation.group.empty() ? device::bytes_of(operation)
                                                : std::max(bytes_of(operation.reads), bytes_of(operation.writes));
  region_.operations.push_back({operation.name, operation.group, operation.flops, bytes});
}

void TraceRecorder::start() {
  on_ = true;
  net_ = most_ = 0;
}

void TraceRecorder::end_step(TraceStep::End end, size_t param) {
  if (net_ != 0 || most_ != 0 || end != TraceStep::End::nothing) region_.steps.push_back({net_, most_, end, param});
  net_ = most_ = 0;
}

void TraceRecorder::begin_region(replay::IslandTrace next) {
  end_step(TraceStep::End::nothing, 0);
  if (!region_.steps.empty() || !region_.operations.empty()) regions_.push_back(std::move(region_));
  region_ = std::move(next);
}

std::vector<replay::IslandTrace> TraceRecorder::take() {
  begin_region({});
  return std::exchange(regions_, {});
}

std::unique_ptr<graph::Graph> MetaGraphs::make_graph(std::shared_ptr<graph::GraphPool> pool) {
  auto of_trace = std::dynamic_pointer_cast<TracePool>(std::move(pool));
  MPX_ASSERT(of_trace, "a graph of the meta device needs a pool of the meta device");
  return std::make_unique<MetaGraph>(recorder_, std::move(of_trace));
}

}  // namespace metroplex::forecast
