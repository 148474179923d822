// Log lines about a run before its first step, and the file that holds its whole configuration.
// forecast/dry_run.h adds the predictions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "step/assemble.h"
#include "step/run_length.h"

namespace metroplex::run {

// Returns one line each about layout, batches, data with epochs, and device. Reads the data indices through `disk`.
std::vector<std::string> run_lines(const step::ProcessContext& process, const step::RunLength& length,
                                   files::FileSystem& disk);

// Returns a warning for an MoE model without any load balancing, else "".
std::string balance_warning(const config::Model& model);

// Returns all warnings about a run that its config, datasets and model.from give. `eod`: TokenizerFacts::eod.
std::vector<std::string> start_warnings(const config::Config& config, int64_t eod, files::FileSystem& disk);

// Writes checkpoint.save/run.yaml: the configuration with all derived values (`config::dump`). Writes a temporary
// file and renames it. Returns the path, or "" if the run saves nothing.
std::string write_run_config(const config::Config& config, files::FileSystem& disk);

}  // namespace metroplex::run
