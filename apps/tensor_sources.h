// Weight sources of commands without tensors: a Metroplex checkpoint, a Hugging Face directory, or a checkpoint of
// Megatron-LM.
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
// Whether `path` is a Hugging Face directory, a checkpoint of Megatron-LM, or a folder of such checkpoints.
bool is_model_directory(files::FileSystem& disk, const std::string& path);
// Returns the directory to read: `path`, or in a folder of Megatron's checkpoints that of `iteration` (0: the
// newest). Throws base::Error if a Hugging Face directory is given with an iteration.
std::string find_model_directory(files::FileSystem& disk, const std::string& path, int64_t iteration);
using checkpoint::refuse_foreign;
// Returns the configuration from such a directory, resolved for one rank. `adapters`: their directory (peft.from), or
// "". Throws base::Error.
config::Config directory_config(files::FileSystem& disk, const std::string& directory,
                                const std::string& adapters = "");

struct OpenedSource {
  std::unique_ptr<checkpoint::TensorSource> source;
  std::vector<std::string> problems;  // skipped damaged checkpoints
};
// Opens a model directory, a checkpoint, or in a folder of checkpoints that of `iteration` (0: the newest).
// Throws base::Error if there is none, and errors from opening it.
OpenedSource open_tensor_source(files::FileSystem& disk, const std::string& path, int64_t iteration);

// Throws base::Error if a checkpoint of Megatron-LM is damaged or incomplete. Reads all of it. Other directories have
// no checksums.
void verify_model_directory(files::FileSystem& disk, const std::string& directory);

// Returns notes about content that is not converted.
std::vector<std::string> conversion_notes(files::FileSystem& disk, const std::string& directory);
// Returns the state of a run that starts from this directory, with its tokenizer.
checkpoint::RunState directory_run_state(files::FileSystem& disk, const std::string& directory,
                                         const std::string& adapters = "");
// Returns the saved state of a checkpoint, with the files next to its tensors.
checkpoint::RunState saved_run_state(files::FileSystem& disk, const checkpoint::Reader& reader);

}  // namespace metroplex::apps
