// Writes the inputs and results of every ECHO plan to model.moe_echo_dump_dir, so that plans can be recomputed
// offline. JSON lines, one file per rank (replicas-<rank>.jsonl); a later run appends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/launch_point.h"
#include "files/file_system.h"
#include "moe/context.h"

namespace metroplex::step {

// Returns an ExpertContext::on_replica_plan that writes one line per plan; the host waits for each plan:
//   {"layer":3,"counts":[[...],...],"owners":[...],"source_rows":[[...],...],"loads":[[...],[...]]}
// Fields are those of ReplicaPlan. Throws base::Error("files") if the file cannot be written.
std::function<void(int64_t layer, const moe::ReplicaPlan&)> make_plan_writer(files::FileSystem& disk,
                                                                             const std::string& folder, int rank,
                                                                             const device::Target& target);

}  // namespace metroplex::step
