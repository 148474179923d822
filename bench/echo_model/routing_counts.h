// Reads row counts per expert from other programs, one per line, as a trace of expert loads.
//
//   step,layer,expert,count          {"step":0,"layer":3,"expert":17,"count":412}
//   0,3,17,412
//
// A file that begins with '{' is JSON lines, else CSV. The first line of CSV names the four columns in any order.
// Missing counts are 0; lines with count 0 still define their step, layer and expert.
#pragma once

#include <string>

#include "files/expert_trace.h"

namespace metroplex::bench {

// The trace has one source, which represents all ranks, and topk 0 (unknown). Throws base::Error("files") with file
// and line for invalid, duplicate or out-of-range counts.
files::ExpertTrace read_routing_counts(const std::string& path);

}  // namespace metroplex::bench
