// Weight sources of commands without tensors: a Metroplex checkpoint or a Hugging Face directory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"
#include "config/config.h"
#include "files/file_system.h"

namespace metroplex::apps {

// Whether `path` contains config.json and safetensors files.
bool is_hf_directory(files::FileSystem& disk, const std::string& path);
using checkpoint::refuse_foreign;
// Returns the configuration from config.json, resolved for one rank. Throws base::Error.
config::Config hf_config(files::FileSystem& disk, const std::string& directory);

struct OpenedSource {
  std::unique_ptr<checkpoint::TensorSource> source;
  std::vector<std::string> problems;  // skipped damaged checkpoints
};
// Opens a Hugging Face directory, a checkpoint, or in a folder of checkpoints that of `iteration` (0: the newest).
// Throws base::Error if there is none, and errors from opening it.
OpenedSource open_tensor_source(files::FileSystem& disk, const std::string& path, int64_t iteration);

// Returns the state of a new run that starts from this directory, with its tokenizer.
checkpoint::RunState hf_run_state(files::FileSystem& disk, const std::string& directory);
// Returns the saved state of a checkpoint, with the files next to its tensors.
checkpoint::RunState saved_run_state(files::FileSystem& disk, const checkpoint::Reader& reader);

}  // namespace metroplex::apps
