// The loop: batch sizes, how long, what is printed and when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/cuda_graph.h"

namespace metroplex::config {

// Its keys, each with type, default and help: train_keys.inc.
struct Train {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/train_keys.inc"
#undef KEY

  bool captures_parts() const;      // partial graphs: local, transformer_engine
  bool captures_iteration() const;  // one graph: full_iteration
  // The parts of layers that partial graphs hold: all where none is named. Empty without partial graphs.
  CudaGraphModules captured_modules() const;
};

}  // namespace metroplex::config
