#include "replay/memory.h"

#include <algorithm>

namespace metroplex::replay {

namespace {

MemoryPrediction prediction(const RankTrace& trace, const plan::PipelineTable& table, const ReplayPeaks& peaks,
                            int64_t graphs) {
  MemoryPrediction out;
  out.use.parameters = trace.parameters;
  out.use.gradients = trace.gradients;
  out.use.main_parameters = trace.main_parameters;
  out.use.moments = trace.moments;
  out.use.host = trace.host;
  out.use.graphs = graphs;
  out.borders = peaks.borders;
  out.gathered = peaks.gathered;
  out.gradient_buckets = peaks.gradient_buckets;
  out.batches = table.num_microbatches * trace.batch;
  out.tables = trace.tables;
  out.libraries = trace.libraries;
  out.peak = out.use.total() + out.tables + out.libraries + out.batches + peaks.most;
  out.use.activations = peaks.activations + peaks.borders;
  out.use.communication = peaks.gathered + peaks.gradient_buckets;
  out.moments = peaks.moments;
  return out;
}

}  // namespace

MemoryPrediction predict_memory(const RankTrace& trace, const plan::PipelineTable& table, int pp_rank,
                                const GraphMemory& graphs) {
  MemoryPrediction out = prediction(trace, table, replay_trace(trace, table, pp_rank), 0);
  if (trace.graphs) {
    const int64_t eager = out.peak;
    out = prediction(trace, table, replay_trace(trace, trace.graphs->chunks, table, pp_rank),
                     graphs.static_buffers + graphs.pools);
    out.peak = std::max(out.peak, eager);
    out.graph_pools = graphs.pools;
  }
  out.use.workspace = std::max<int64_t>(0, out.peak - out.use.total());
  return out;
}

}  // namespace metroplex::replay
