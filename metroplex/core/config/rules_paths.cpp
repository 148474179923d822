// Rules for paths that need no file system access.
#include "config/rules.h"

namespace metroplex::config {

void check_paths(Rules& rules) {
  const Config& c = rules.config;
  const std::pair<const char*, const std::string*> paths[] = {
      {"checkpoint.save", &c.checkpoint.save},
      {"checkpoint.load", &c.checkpoint.load},
      {"checkpoint.export_hf", &c.checkpoint.export_hf},
      {"data.data_cache_path", &c.data.data_cache_path},
      {"data.tokenizer_model", &c.data.tokenizer_model},
      {"memory.offload_directory", &c.memory.offload_directory},
      {"model.from", &c.model.from},
      {"train.expert_trace_file", &c.train.expert_trace_file},
      {"train.metrics_file", &c.train.metrics_file},
      {"train.tensorboard_dir", &c.train.tensorboard_dir}};
  for (const auto& [key, path] : paths) {
    rules.require(!path->starts_with("~/"), key, *path,
                  "begins with ~, which a shell does not expand after =, so a folder of that name would be made",
                  "write $HOME instead, or the whole path");
  }
}

}  // namespace metroplex::config
