// The folder of model.moe_echo_dump_dir: what every plan of clones was made of and what it is, to be planned again
// elsewhere. JSON lines, a file for each rank (clones-<rank>.jsonl); a later run goes on behind them.
#pragma once

#include <functional>
#include <string>

#include "cuda/launch_point.h"
#include "moe/context.h"

namespace metroplex::train {

// ExpertContext::on_clone_plan that writes a line for each plan, which the host waits for:
//   {"layer":3,"counts":[[...],...],"owners":[...],"source_rows":[[...],...],"loads":[[...],[...]]}
// as ClonePlan has them. Throws base::Error("files") where nothing can be written.
std::function<void(int64_t layer, const moe::ClonePlan&)> clone_dump(const std::string& folder, int rank,
                                                                     const cuda::Target& target);

}  // namespace metroplex::train
