// Directories of other programs that contain a model: a Hugging Face directory (hf/directory.h) or a checkpoint of
// Megatron-LM (mcore/source.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "config/config.h"
#include "files/file_system.h"

namespace metroplex::foreign {

// Whether `directory` is a checkpoint of Megatron-LM or a folder of them.
bool is_megatron(files::FileSystem& disk, const std::string& directory);
// Returns keys of section model, the dtype of the weights, and keys for a tokenizer in the directory. Throws
// base::Error if the directory has no model or one that is not supported. `given`: whether the run sets a key; some
// directories need it (mcore/settings.h).
std::vector<std::string> read_settings(files::FileSystem& disk, const std::string& directory,
                                       const std::function<bool(const std::string& key)>& given = {});
// Whether the directory has weights in addition to configuration files.
bool has_weights(files::FileSystem& disk, const std::string& directory);
// Opens the weights. Tensors for which `wanted` returns false are not provided. Throws base::Error with a list of all
// missing, misshapen and unknown tensors.
std::unique_ptr<checkpoint::TensorSource> open_weights(files::FileSystem& disk, const std::string& directory,
                                                       const config::Model& model,
                                                       const std::function<bool(const std::string&)>& wanted = {});
// Opens the weights of model.from, with the adapters of peft.from if it is set. `config` must be resolved.
std::unique_ptr<checkpoint::TensorSource> open_run_weights(
    files::FileSystem& disk, const config::Config& config,
    const std::function<bool(const std::string&)>& wanted = {});

}  // namespace metroplex::foreign
