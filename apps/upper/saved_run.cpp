#include "upper/saved_run.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/load.h"
#include "config/experts.h"
#include "config/load.h"
#include "files/file_system.h"
#include "text/tokenizer_files.h"

namespace metroplex::apps {

SavedRun open_saved_run(const std::string& load, int64_t ckpt_step) {
  files::PosixFileSystem disk;
  checkpoint::Alone alone;
  checkpoint::Found found = checkpoint::open_path(disk, load, ckpt_step, alone);
  MPX_CHECK(found.reader != nullptr, "checkpoint", "there is no checkpoint in ", load);
  const files::Manifest& manifest = found.reader->manifest();
  SavedRun saved;
  saved.directory = found.reader->directory();
  config::Config its_config = config::parse_saved(manifest.config_yaml);
  config::turn_echo_and_stash_off(its_config.model);
  saved.config_yaml = config::dump(its_config);
  saved.problems = std::move(found.problems);
  const auto tokenizer = nlohmann::json::parse(manifest.extra).value("tokenizer", nlohmann::json());
  if (tokenizer.is_object()) {
    saved.tokenizer_type = tokenizer.value("type", "");
    saved.tokenizer_files = tokenizer.value("files", std::vector<std::string>{});
  }
  return saved;
}

SavedRun find_saved_run(const config::Config& requested, const std::string& what) {
  const config::Checkpoint& checkpoint = requested.checkpoint;
  if (checkpoint.load.empty() && !requested.model.from.empty()) return {};
  MPX_CHECK(!checkpoint.load.empty(), "config", "--load DIR (checkpoint.load) is required for ", what,
            "; or give --model.from DIR, a Hugging Face directory");
  return open_saved_run(checkpoint.load, checkpoint.ckpt_step);
}

bool names_tokenizer(const config::Data& data) {
  return data.tokenizer_type != config::Data{}.tokenizer_type || !data.tokenizer_model.empty() ||
         !data.vocab_file.empty() || !data.merge_file.empty();
}

void use_saved_tokenizer(const SavedRun& saved, config::Data& data) {
  if (saved.tokenizer_files.empty()) return;
  const text::TokenizerPaths paths = text::tokenizer_paths(saved.directory, saved.tokenizer_files);
  data.tokenizer_type = saved.tokenizer_type;
  data.tokenizer_model = paths.model;
  data.vocab_file = paths.vocab_file;
  data.merge_file = paths.merge_file;
}

}  // namespace metroplex::apps
