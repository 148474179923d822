// Graphs: work that is captured once and replayed without the code that issued it. On a GPU it is a CUDA graph
// (cuda_graph.h). On the CPU it is a tape (tape.h), which repeats the recorded operations on the same memory. CUDA
// graph bugs therefore also appear on the CPU. Both have the same capture rules: docs/cuda_graphs.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "device/launch_point.h"

namespace metroplex::graph {

// The memory pool of captures; it stays reserved for their replays. A later capture into the same pool may reuse
// memory that an earlier capture freed. Graphs that share a pool must therefore replay in capture order, unless later
// code reads only tensors of the graph that are still held.
class GraphPool {
 public:
  struct Bytes {
    int64_t live = 0;      // bytes requested by tensors that are currently held
    int64_t peak = 0;      // maximum of `live` since the pool was created
    int64_t reserved = 0;  // bytes taken from the device: peak, rounding and fragmentation
  };
  virtual ~GraphPool() = default;
  virtual Bytes bytes() const = 0;
};

struct GraphSize {
  int64_t nodes = 0;
  int64_t bytes = 0;  // host memory of the graph itself, if available
};

class Graph {
 public:
  virtual ~Graph() = default;
  // Capture the work that the calling thread issues between begin() and end(); its allocations come from the pool.
  // Both throw base::Error("cuda graph", ...) if something cannot be captured, with operator and location; the
  // graph is then empty.
  virtual void begin() = 0;
  virtual void end() = 0;
  // Replaces end() after an exception.
  virtual void abandon() noexcept = 0;
  // Returns whether capturing also runs the work: true for a tape, false for a CUDA graph.
  virtual bool runs_while_capturing() const = 0;
  virtual bool captured() const = 0;
  // Runs the captured work again, on the memory of the capture. Asserts captured().
  virtual void replay() = 0;
  virtual void reset() = 0;
  virtual GraphSize size() const = 0;
};

// Creates the pools and graphs of one rank; must outlive them.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;
  virtual std::shared_ptr<GraphPool> make_pool() = 0;
  virtual std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) = 0;
  // The recorder that must be set in the Target of all captured code (World::recorded); null: none is needed.
  virtual device::Recorder* recorder() = 0;
  // Runs `work` on the capture stream (on a GPU not the default stream), and makes later work wait for it. For
  // warm-up.
  virtual void run_on_capture_stream(const std::function<void()>& work) = 0;
};

class ReplayWatch;  // replay_watch.h

// Creates a device for the calling thread's GPU or for the CPU. `watch` may be null. The CPU needs none, because
// every wait of a tape has a time limit.
std::unique_ptr<GraphDevice> make_graph_device(at::Device device, ReplayWatch* watch = nullptr);

// Captures `work`, and replays it once if capturing does not run it, so that it has run once on either device. After
// an exception the graph is empty.
void capture(Graph& graph, const std::function<void()>& work);

// Returns the form of a tensor, its type and sizes: "Float [2, 3]", or "undefined". A graph is captured for given
// forms.
inline std::string format_form(const at::Tensor& x) {
  return x.defined() ? base::concat(c10::toString(x.scalar_type()), " ", x.sizes()) : "undefined";
}

// Two undefined tensors have the same form.
inline bool same_form(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

}  // namespace metroplex::graph
