// Counts of rows of experts as other programs write them down, one a line: as a trace of expert loads.
//
//   step,layer,expert,count          {"step":0,"layer":3,"expert":17,"count":412}
//   0,3,17,412
//
// A file that begins with '{' is JSON lines, else it is CSV, whose first line names the four columns in any order.
// What has no line is 0; a line of zeros still makes its step, layer and experts known.
#pragma once

#include <string>

#include "files/expert_trace.h"

namespace metroplex::bench {

// With one source, which stands for all ranks, and a topk of 0: not known. Throws base::Error("files") naming file
// and line of what is no such count, is there twice, or lies beyond what a run can have.
files::ExpertTrace read_routing_counts(const std::string& path);

}  // namespace metroplex::bench
