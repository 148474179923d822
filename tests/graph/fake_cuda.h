// A fake GPU: logs the calls of capture and replay. It runs issued work at once, or in a capture stores it for the
// launches.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/cuda_graph.h"

namespace metroplex::graph {

class FakeCuda final : public CudaGraphCalls {
 public:
  void issue(const std::function<void()>& work) {
    if (capturing_ == nullptr) return work();
    MPX_ASSERT(current_ == capture_stream_, "work on another stream than the capture's");
    capturing_->work.push_back(work);
  }
  void say(const std::string& line) {
    log_ += line + "\n";
    if (fails_at != line) return;
    fails_at.clear();
    if (without_memory) throw std::bad_alloc();
    TORCH_CHECK(false, "refused at ", line);
  }
  std::string take_log() { return std::exchange(log_, {}); }
  c10::StreamId current() const { return current_; }

  std::string fails_at;  // the first call that logs this line fails
  static constexpr size_t kNoNode = ~size_t{0};
  std::atomic<size_t> endless_node{kNoNode};   // position of the work that does not end in a launch
  bool without_memory = false;                 // the failure is an out-of-memory error on the host
  std::map<uint64_t, GraphPool::Bytes> bytes;  // by pool

  std::unique_ptr<Graph> make_graph() override {
    const auto number = ++graphs_;
    say(base::concat("graph ", number));
    return std::make_unique<FakeGraph>(*this, number);
  }
  c10::Stream current_stream() override { return stream(current_); }
  c10::Stream make_stream() override {
    say("stream 7");
    return stream(7);
  }
  void set_current_stream(c10::Stream next) override {
    say(base::concat("current stream ", next.id()));
    current_ = next.id();
  }
  void chain(c10::Stream first, c10::Stream then) override {
    say(base::concat("event of ", first.id(), ", ", then.id(), " waits"));
  }
  void synchronize(c10::Stream which) override { say(base::concat("host waits for ", which.id())); }
  std::function<bool()> record_end() override {
    return [this, ended = endless_node == kNoNode] { return ended || endless_node == kNoNode; };
  }
  Pool make_pool() override {
    say(base::concat("pool ", pools_ + 1));
    return {0, ++pools_};
  }
  void drop_pool(Pool pool) noexcept override { log_ += base::concat("drop pool ", pool.second, "\n"); }
  GraphPool::Bytes pool_bytes(Pool pool) override { return bytes[pool.second]; }
  int64_t free_bytes() override { return free_; }

 private:
  struct FakeGraph final : Graph {
    FakeGraph(FakeCuda& its_gpu, int its_number) : gpu(its_gpu), number(its_number) {}
    ~FakeGraph() override { gpu.log_ += base::concat("destroy graph ", number, "\n"); }
    void begin_capture(Pool pool) override {
      gpu.say(base::concat("begin capture of ", gpu.current_, " into pool ", pool.second));
      gpu.capturing_ = this;
      gpu.capture_stream_ = gpu.current_;
    }
    void end_capture() override {
      gpu.capturing_ = nullptr;
      gpu.say("end capture");
    }
    void discard_capture() noexcept override {
      gpu.capturing_ = nullptr;
      gpu.log_ += "discard capture\n";
    }
    void instantiate() override {
      gpu.free_ -= 1000;
      gpu.say("instantiate");
    }
    int64_t nodes() override { return static_cast<int64_t>(work.size()); }
    void launch() override {
      gpu.say(base::concat("launch graph ", number, " on ", gpu.current_));
      for (size_t i = 0; i < std::min<size_t>(work.size(), gpu.endless_node); ++i) work[i]();
    }
    FakeCuda& gpu;
    const int number;
    std::vector<std::function<void()>> work;
  };
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), id);
  }

  std::string log_;
  c10::StreamId current_ = 0, capture_stream_ = 0;
  FakeGraph* capturing_ = nullptr;
  int graphs_ = 0;
  uint64_t pools_ = 0;
  int64_t free_ = 1 << 30;
};

}  // namespace metroplex::graph
