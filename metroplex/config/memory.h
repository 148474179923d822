// What is kept, recomputed, split or moved away between forward and backward (activations), and the memory meter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/leaf.h"

namespace metroplex::config {

struct Memory {
  std::string recompute_granularity = "none";  // none | full | selective
  std::string recompute_method;                // full: uniform | block
  int64_t recompute_num_layers = 0;            // uniform: layers a chunk; block: the first layers of a model chunk
  std::vector<std::string>
      recompute_modules;                      // selective: core_attn | mlp | layernorm | activation; empty: core_attn
  bool distribute_saved_activations = false;  // ZeRO-R: what full recompute keeps is split over tp
  std::string offload_activations = "none";   // none | host | file
  std::string offload_directory;              // file: where; empty: the system's temporary folder
  bool log_memory = true;                     // after step 2, beside what the configuration predicts

  bool recomputes_all() const { return recompute_granularity == "full"; }
  bool recomputes(const std::string& module) const;
  LeafSet recomputed_leaves() const;  // of all modules that selective recomputes
};

}  // namespace metroplex::config
