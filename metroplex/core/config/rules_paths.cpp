// Rules for paths that need no file system access.
#include "config/rules.h"

namespace metroplex::config {

void check_paths(Rules& rules) {
  const Config& config = rules.config;
  const std::pair<const char*, const std::string*> paths[] = {
      {"checkpoint.save", &config.checkpoint.save},
      {"checkpoint.load", &config.checkpoint.load},
      {"checkpoint.export_hf", &config.checkpoint.export_hf},
      {"data.data_cache_path", &config.data.data_cache_path},
      {"data.tokenizer_model", &config.data.tokenizer_model},
      {"memory.offload_directory", &config.memory.offload_directory},
      {"model.from", &config.model.from},
      {"peft.from", &config.peft.from},
      {"train.expert_trace_file", &config.train.expert_trace_file},
      {"train.machine", &config.train.machine},
      {"train.metrics_file", &config.train.metrics_file},
      {"train.tensorboard_dir", &config.train.tensorboard_dir},
      {"train.trace_file", &config.train.trace_file}};
  for (const auto& [key, path] : paths) {
    rules.require(!path->starts_with("~/"), key, *path,
                  "begins with ~, which a shell does not expand after =, so a folder of that name would be made",
                  "write $HOME instead, or the whole path");
  }
}

}  // namespace metroplex::config
