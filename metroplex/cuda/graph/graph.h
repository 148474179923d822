// Work that is captured once and then repeated without the code that issued it. On a GPU a graph is CUDA's
// (cuda_graph.h); on the CPU it is a tape of operations (tape.h) that runs what was recorded, on the memory where it
// lay, so that whatever a GPU's graph would get wrong is wrong on a laptop too. What a capture may not do is the same
// on both: docs/cuda_graphs.md.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "cuda/launch_point.h"

namespace metroplex::cuda {

// Memory that graphs take tensors from while they are captured, and that stays theirs. What a capture frees, a later
// allocation of the same pool may take; so graphs that share a pool replay in the order in which they were captured,
// but for those of which nothing is read after their end except what is still held.
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
  // Whether what is captured has also been run by then: a tape does, a GPU does not.
  virtual bool runs_while_capturing() const = 0;
  virtual bool captured() const = 0;
  // Once more, on the memory of the capture. Asserts captured().
  virtual void replay() = 0;
  // Empty again.
  virtual void reset() = 0;
  virtual GraphSize size() const = 0;
};

// What makes them for one rank. Outlives its graphs.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;
  virtual std::shared_ptr<GraphPool> make_pool() = 0;
  virtual std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) = 0;
  // What has to hang at the target of everything that is captured (World::recorded); null where nothing has to.
  virtual Recorder* recorder() = 0;
  // Runs `work` where captures run (on a GPU: another stream than the default one), and what comes behind waits for
  // it: warm-up.
  virtual void run_on_capture_stream(const std::function<void()>& work) = 0;
};

// On the calling thread's GPU, or on the CPU.
std::unique_ptr<GraphDevice> make_graph_device(at::Device device);

// Captures what `work` issues; as an effect `work` has been run once, on either device. After an exception the graph
// is empty.
void capture(Graph& graph, const std::function<void()>& work);

}  // namespace metroplex::cuda
