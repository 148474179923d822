// What the log says of a run before its first step, beside what train/dry_run.h predicts, and the file in which its
// whole configuration lies.
#pragma once

#include <string>
#include <vector>

#include "files/file_system.h"
#include "train/assemble.h"
#include "train/run_length.h"

namespace metroplex::train {

// Ranks and layout, batches, data with epochs, device and threads, a line each. Looks at the data through `disk`.
std::vector<std::string> run_lines(const Assembly& a, const RunLength& length, files::FileSystem& disk);

// What a run should be warned of that has experts and nothing that keeps their load even; empty for others.
std::string unbalanced_experts(const config::Model& model);

// checkpoint.save/run.yaml: the configuration with everything that was derived, as `config::dump` writes it. Written
// beside and renamed; returns the path, or nothing where the run saves nothing.
std::string write_run_config(const config::Config& config, files::FileSystem& disk);

}  // namespace metroplex::train
