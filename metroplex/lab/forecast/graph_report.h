// Log lines about the captured graphs of a rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "step/assemble.h"

namespace metroplex::forecast {

int64_t captured_graphs(const step::CapturedGraphs& graphs);
// Reports number, operations and memory of this rank's graphs, and the predicted pool size. Empty without graphs.
std::vector<std::string> graph_lines(const step::ProcessContext& process, const step::CapturedGraphs& graphs,
                                     int64_t num_microbatches);

// Reports the captured segments of this rank's stages, one line per chunk, from the first segment to the last.
// "[...]" encloses the segments of one graph; "4 x (...)" stands for equal blocks. Empty without partial graphs.
std::vector<std::string> scope_lines(const step::RankModel& model, const step::CapturedGraphs& graphs);

}  // namespace metroplex::forecast
