#include "forecast/trace_recorder.h"

#include <algorithm>

#include "base/error.h"
#include "device/thread_time.h"
#include "device/turns.h"
#include "graph/library_call.h"

namespace metroplex::forecast {

using replay::TraceStep;

namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& x : tensors) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

// Kernels that access only some rows of a table or pool: how often, and their tensor with just these rows.
struct RowAccess {
  const char* kernel;
  int accesses;
  const at::Tensor& (*rows)(const device::Operation& one);
};
constexpr RowAccess kRowAccesses[] = {
    {"gather_rows", 1, [](const device::Operation& one) -> const at::Tensor& { return one.writes.front(); }},
    {"scatter_add_rows", 2, [](const device::Operation& one) -> const at::Tensor& { return one.reads.back(); }},
    {"rows_to_pages", 1, [](const device::Operation& one) -> const at::Tensor& { return one.reads.front(); }},
    {"rows_from_pages", 1, [](const device::Operation& one) -> const at::Tensor& { return one.writes.front(); }}};

int64_t moved_bytes(const device::Operation& operation) {
  const int64_t all = device::bytes_of(operation);
  for (const RowAccess& access : kRowAccesses) {
    if (operation.name != access.kernel) continue;
    const at::Tensor& rows = access.rows(operation);
    // Gradients of a table are wider than the rows that are added to it.
    const int64_t element = std::max(rows.element_size(), operation.writes.front().element_size());
    return std::min(all, static_cast<int64_t>(rows.nbytes()) + access.accesses * rows.numel() * element);
  }
  return all;
}

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "fp64";
    case at::kFloat:
      return "fp32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return "fp8";
    case at::kFloat4_e2m1fn_x2:
      return "fp4";
    default:
      return "";
  }
}

std::string dtype_name(const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
  for (const auto* tensors : {&reads, &writes}) {
    for (const at::Tensor& x : *tensors) {
      if (x.defined() && x.is_floating_point()) return dtype_name(x.scalar_type());
    }
  }
  return "int";
}

// The dtype that a product computes in: the narrowest of its operands. It may accumulate into a wider tensor.
std::string product_dtype(const std::vector<at::Tensor>& reads) {
  const at::Tensor* narrowest = nullptr;
  for (const at::Tensor& x : reads) {
    if (x.is_floating_point() && (narrowest == nullptr || x.element_size() < narrowest->element_size()))
      narrowest = &x;
  }
  return narrowest == nullptr ? "int" : dtype_name(narrowest->scalar_type());
}

class Stopwatch {
 public:
  explicit Stopwatch(bool runs) : runs_(runs), start_(runs ? device::thread_cpu_seconds() : 0) {}
  double seconds() const { return runs_ ? device::thread_cpu_seconds() - start_ : 0; }

 private:
  bool runs_;
  double start_;
};

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

int TraceRecorder::call_number(const device::Operation& operation) {
  if (operation.work == nullptr) return 0;
  if (operation.name != "wait") return calls_.try_emplace(operation.work, num_calls_ + 1).first->second;
  const auto found = calls_.find(operation.work);
  if (found == calls_.end()) return 0;  // issued before recording began
  const int number = found->second;
  calls_.erase(found);
  return number;
}

void TraceRecorder::run(device::Operation operation) {
  const Stopwatch watch(timed_);
  graph::unseen(operation.run);
  if (!on_) return;
  const double seconds = watch.seconds() - clock_s_;
  const bool collective = !operation.group.empty();
  const int64_t bytes =
      collective ? std::max(bytes_of(operation.reads), bytes_of(operation.writes)) : moved_bytes(operation);
  const int call = call_number(operation);
  num_calls_ = std::max(num_calls_, call);
  region_.operations.push_back({operation.name, operation.group, operation.flops, bytes,
                                collective            ? ""
                                : operation.flops > 0 ? product_dtype(operation.reads)
                                                      : dtype_name(operation.reads, operation.writes),
                                call, seconds, std::exchange(turn_, false)});
}

// A product follows the library call that computed it, if these are recorded.
void TraceRecorder::issued(const device::Operation& operation) {
  if (!on_) return;
  replay::TraceOperation product{operation.name, "", operation.flops, device::bytes_of(operation),
                                 product_dtype(operation.reads)};
  for (size_t i = region_.operations.size(), tried = 0; i-- > 0 && tried < 4; ++tried) {
    replay::TraceOperation& before = region_.operations[i];
    if (before.flops > 0 || before.name.find("::") == std::string::npos) break;
    if (before.name.find("mm") == std::string::npos && before.name.find("attention") == std::string::npos) continue;
    product.seconds = before.seconds;
    before = std::move(product);
    return;
  }
  region_.operations.push_back(std::move(product));
}

void TraceRecorder::call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  if (!on_ || graph::makes_views(op)) return graph::run_below(op, keys, stack);
  const auto count = static_cast<int64_t>(op.schema().arguments().size());
  graph::LibraryCall call{op, {stack.end() - count, stack.end()}, {}};
  const Stopwatch watch(timed_);
  graph::run_below(op, keys, stack);
  const double seconds = watch.seconds() - clock_s_;
  call.results.assign(stack.end() - static_cast<int64_t>(op.schema().returns().size()), stack.end());
  if (graph::computes_nothing(call)) return;
  const auto [reads, writes] = graph::find_tensors(call);
  region_.operations.push_back(
      {graph::name_of(op), "", 0, bytes_of(reads) + bytes_of(writes), dtype_name(reads, writes), 0, seconds});
}

void TraceRecorder::start() {
  on_ = true;
  net_ = most_ = 0;
}

void TraceRecorder::time_operators() {
  timed_ = true;
  constexpr int kReads = 1000;
  const Stopwatch all(true);
  for (int i = 0; i < kReads; ++i) Stopwatch(true).seconds();
  clock_s_ = all.seconds() / (2 * kReads);
}

void TraceRecorder::take_turn() {
  if (!on_) return;
  end_step(TraceStep::End::turn, 0);
  turn_ = true;
}

void TraceRecorder::run_with_turns(const std::function<void()>& work) {
  bool ended = false;
  const auto run = [&] {
    work();
    ended = true;
  };
  device::Turns().run(run, [&] {
    for (; !ended; device::yield_turn()) take_turn();
  });
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
