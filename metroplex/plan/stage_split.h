// Which transformer layers every pipeline stage builds. Even by default; with fewer or more layers on the first and
// last pp rank; with the embedding and the loss each counted as one layer; or as a layout string says. Layers are
// numbered along the model, so the offsets are the running sum over the stages in model order.
#pragma once

#include <cstdint>
#include <vector>

#include "config/parallel.h"

namespace metroplex::plan {

struct StageLayers {
  int64_t pp_rank = 0;
  int64_t chunk = 0;        // virtual stage on that rank
  int64_t first_layer = 0;  // global number of the first transformer layer, also where num_layers is 0
  int64_t num_layers = 0;
  int64_t num_mtp_layers = 0;  // multi-token prediction, only from a layout string
  bool has_embedding = false;
  bool has_loss = false;
  bool operator==(const StageLayers&) const = default;
};

// One entry a stage, in model order: entry chunk * pp + pp_rank. Throws base::Error("plan") where the numbers do not
// fit, with the key and a way out.
std::vector<StageLayers> split_stages(const config::Parallel& parallel, int64_t num_layers,
                                      int64_t num_mtp_layers = 0);

// Chunks a pp rank holds: what the layout string implies where there is one, else
// virtual_pipeline_model_parallel_size.
int64_t num_model_chunks(const config::Parallel& parallel);

}  // namespace metroplex::plan
