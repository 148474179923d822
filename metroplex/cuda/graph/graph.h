// Graphs: work that is captured once and replayed without the code that issued it. On a GPU a CUDA graph
// (cuda_graph.h); on the CPU a tape (tape.h), which runs the recorded operations again on the same memory, so that
// what would go wrong in a CUDA graph goes wrong on the CPU too. The rules of a capture are the same for both:
// docs/cuda_graphs.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "cuda/launch_point.h"

namespace metroplex::cuda {

// The memory from which captures allocate; it stays reserved for their replays. Memory that a capture frees may be
// allocated again by a later capture of the same pool, so graphs that share a pool must replay in the order of their
// capture, except where nothing of a graph is read after it but tensors that are still held.
class GraphPool {
 public:
  struct Bytes {
    int64_t live = 0;      // asked for by tensors that are held now
    int64_t peak = 0;      // of `live`, since the pool was made
    int64_t reserved = 0;  // that it has taken from the device: peak, rounded, and what fragmentation costs
  };
  virtual ~GraphPool() = default;
  virtual Bytes bytes() const = 0;
};

struct GraphSize {
  int64_t nodes = 0;
  int64_t bytes = 0;  // of host memory for the graph itself, as far as it is known
};

class Graph {
 public:
  virtual ~Graph() = default;
  // What the calling thread issues between the two is captured, and what it allocates comes from the pool. Throws
  // base::Error("cuda graph", ...) where something cannot be captured, naming operator and place; the graph is then
  // empty again.
  virtual void begin() = 0;
  virtual void end() = 0;
  // Instead of end(), after an exception in between.
  virtual void abandon() noexcept = 0;
  // Whether capturing also runs the work: a tape does, a CUDA graph does not.
  virtual bool runs_while_capturing() const = 0;
  virtual bool captured() const = 0;
  // Once more, on the memory of the capture. Asserts captured().
  virtual void replay() = 0;
  // Empty again.
  virtual void reset() = 0;
  virtual GraphSize size() const = 0;
};

// Makes the pools and graphs of one rank; outlives them.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;
  virtual std::shared_ptr<GraphPool> make_pool() = 0;
  virtual std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) = 0;
  // The recorder that must be at the Target of everything that is captured (World::recorded); null: none is needed.
  virtual Recorder* recorder() = 0;
  // Runs `work` on the stream of the captures (on a GPU not the default one), and makes later work wait for it. For
  // warm-up.
  virtual void run_on_capture_stream(const std::function<void()>& work) = 0;
};

// On the calling thread's GPU, or on the CPU.
std::unique_ptr<GraphDevice> make_graph_device(at::Device device);

// Captures `work`, and replays it once where capturing does not run it: on either device it has run once. After an
// exception the graph is empty.
void capture(Graph& graph, const std::function<void()>& work);

// The form of a tensor, type and sizes: what a graph has been captured for. "Float [2, 3]", or "undefined".
inline std::string form_of(const at::Tensor& x) {
  return x.defined() ? base::concat(c10::toString(x.scalar_type()), " ", x.sizes()) : "undefined";
}

// Two undefined ones have the same.
inline bool same_form(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

}  // namespace metroplex::cuda
