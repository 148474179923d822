#include "graph/cuda_graph.h"

#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "device/memory_meter.h"
#include "graph/replay_watch.h"

namespace metroplex::graph {
namespace {

struct Shared {
  std::shared_ptr<CudaGraphCalls> calls;
  c10::Stream stream;  // for captures and warm-up
  ReplayWatch* watch;  // may be null
  bool capturing = false;
};
using SharedPtr = std::shared_ptr<Shared>;

// During its lifetime the capture stream is the current stream, ordered after the work of the previous one. At the
// end the previous stream waits for it. Autograd's own threads are disabled, so that backward runs in this thread.
class CaptureStreamGuard {
 public:
  explicit CaptureStreamGuard(Shared& shared) : shared_(shared), outer_(shared.calls->current_stream()) {
    shared.calls->chain(outer_, shared.stream);
    shared.calls->set_current_stream(shared.stream);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  CaptureStreamGuard(const CaptureStreamGuard&) = delete;
  CaptureStreamGuard& operator=(const CaptureStreamGuard&) = delete;
  ~CaptureStreamGuard() {
    if (left_) return;
    try {
      leave();
    } catch (const std::exception&) {}  // the first exception is already propagating
  }
  void leave() {
    left_ = true;
    c10::AutogradState::get_tls_state().set_multithreading_enabled(multithreading_);
    shared_.calls->set_current_stream(outer_);
    shared_.calls->chain(shared_.stream, outer_);
  }

 private:
  Shared& shared_;
  const c10::Stream outer_;
  const bool multithreading_ = c10::AutogradState::get_tls_state().get_multithreading_enabled();
  bool left_ = false;
};

class CudaPool final : public GraphPool {
 public:
  explicit CudaPool(SharedPtr shared) : shared_(std::move(shared)), id_(shared_->calls->make_pool()) {}
  ~CudaPool() override { shared_->calls->drop_pool(id_); }
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;

  Bytes bytes() const override {
    Bytes bytes = shared_->calls->pool_bytes(id_);
    bytes.peak = std::max(bytes.live, peak_);
    return bytes;
  }
  CudaGraphCalls::Pool id() const { return id_; }
  void reached(int64_t bytes) { peak_ = std::max(peak_, bytes); }

 private:
  SharedPtr shared_;
  CudaGraphCalls::Pool id_;
  int64_t peak_ = 0;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(SharedPtr shared, std::shared_ptr<CudaPool> pool) : shared_(std::move(shared)), pool_(std::move(pool)) {}
  ~CudaGraph() override { reset(); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void begin() override {
    MPX_ASSERT(!captured_, "a capture over a graph; reset it before");
    MPX_ASSERT(!shared_->capturing, "a capture inside another one");
    refusals([&] {
      shared_->capturing = capturing_ = true;
      graph_ = calls().make_graph();
      live_before_ = pool_->bytes().live;
      guard_.emplace(*shared_);
      calls().synchronize(shared_->stream);
      meter_.emplace(device::MemoryMeter::Of::gpu);
      graph_->begin_capture(pool_->id());
      if (shared_->watch != nullptr) shared_->watch->begin_capture();
    });
  }

  void end() override {
    MPX_ASSERT(capturing_, "a capture ends that has not begun");
    refusals([&] {
      if (shared_->watch != nullptr) shared_->watch->end_capture();
      graph_->end_capture();
      pool_->reached(live_before_ + meter_->peak_bytes());
      meter_.reset();
      size_.nodes = graph_->nodes();
      const int64_t free_before = calls().free_bytes();
      graph_->instantiate();
      size_.bytes = std::max<int64_t>(0, free_before - calls().free_bytes());
      calls().synchronize(shared_->stream);
      guard_->leave();
    });
    guard_.reset();
    shared_->capturing = capturing_ = false;
    captured_ = true;
  }

  void abandon() noexcept override {
    if (!capturing_) return;
    if (shared_->watch != nullptr) shared_->watch->end_capture();
    if (graph_) graph_->discard_capture();
    graph_.reset();
    meter_.reset();
    guard_.reset();
    size_ = {};
    shared_->capturing = capturing_ = false;
  }

  bool runs_while_capturing() const override { return false; }
  bool captured() const override { return captured_; }

  void replay() override {
    MPX_ASSERT(captured_, "a replay of a graph that holds nothing");
    graph_->launch();
    if (shared_->watch != nullptr) shared_->watch->add(calls().record_end());
  }

  void reset() override {
    abandon();
    graph_.reset();
    size_ = {};
    captured_ = false;
  }

  GraphSize size() const override { return size_; }

 private:
  CudaGraphCalls& calls() { return *shared_->calls; }

  // CUDA capture errors do not name the operator, so the message suggests capturing on the CPU, where the error does.
  template <class Step>
  void refusals(const Step& step) {
    try {
      step();
    } catch (const c10::Error& error) {
      abandon();
      base::throw_error("cuda graph",
                        base::concat("CUDA refused the capture: ", error.what_without_backtrace(),
                                     "; capture the same run on the CPU, which names the operator and its place"));
    } catch (...) {
      abandon();
      throw;
    }
  }

  SharedPtr shared_;
  std::shared_ptr<CudaPool> pool_;
  std::unique_ptr<CudaGraphCalls::Graph> graph_;
  std::optional<CaptureStreamGuard> guard_;
  std::optional<device::MemoryMeter> meter_;
  int64_t live_before_ = 0;
  GraphSize size_;
  bool capturing_ = false, captured_ = false;
};

class CudaGraphDevice final : public GraphDevice {
 public:
  explicit CudaGraphDevice(SharedPtr shared) : shared_(std::move(shared)) {}

  std::shared_ptr<GraphPool> make_pool() override { return std::make_shared<CudaPool>(shared_); }
  std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) override {
    auto of_gpu = std::dynamic_pointer_cast<CudaPool>(std::move(pool));
    MPX_ASSERT(of_gpu, "a graph of a GPU with the pool of another device");
    return std::make_unique<CudaGraph>(shared_, std::move(of_gpu));
  }
  device::Recorder* recorder() override { return nullptr; }
  void run_on_capture_stream(const std::function<void()>& work) override {
    MPX_ASSERT(!shared_->capturing, "warm-up inside a capture");
    CaptureStreamGuard guard(*shared_);
    work();
    guard.leave();
  }

 private:
  SharedPtr shared_;
};

}  // namespace

std::unique_ptr<GraphDevice> make_cuda_graph_device(std::shared_ptr<CudaGraphCalls> calls, ReplayWatch* watch) {
  const c10::Stream stream = calls->make_stream();
  return std::make_unique<CudaGraphDevice>(std::make_shared<Shared>(Shared{std::move(calls), stream, watch}));
}

}  // namespace metroplex::graph
