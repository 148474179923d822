// What the commands without tensors read weights from: one of our checkpoints, or a Hugging Face directory.
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

// Judged by config.json and safetensors files in it.
bool is_hf_directory(files::FileSystem& disk, const std::string& path);
using checkpoint::refuse_foreign;
// What its config.json means, resolved for one rank. Throws base::Error.
config::Config hf_config(files::FileSystem& disk, const std::string& directory);

struct OpenedSource {
  std::unique_ptr<checkpoint::TensorSource> source;
  std::vector<std::string> problems;  // damaged checkpoints that were passed over
};
// A Hugging Face directory, a checkpoint, or a folder of them: that of `iteration`, or with 0 the newest. Throws
// base::Error where there is none, and what opening it throws.
OpenedSource open_tensor_source(files::FileSystem& disk, const std::string& path, int64_t iteration);

// The state of a run that has done nothing but begin with this directory, with its tokenizer.
checkpoint::RunState hf_run_state(files::FileSystem& disk, const std::string& directory);
// That of a checkpoint as it is, with the files beside its tensors.
checkpoint::RunState saved_run_state(files::FileSystem& disk, const checkpoint::Reader& reader);

}  // namespace metroplex::apps
