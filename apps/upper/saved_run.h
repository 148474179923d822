// Data of a checkpoint about its run: location, configuration and tokenizer files.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::apps {

struct SavedRun {
  std::string directory;  // the checkpoint itself
  // Contains only keys of this version. Excludes expert replicas, whose replica slots depend on the ranks of that
  // run.
  std::string config_yaml;
  std::vector<std::string> problems;  // skipped damaged checkpoints
  std::string tokenizer_type;         // empty: no tokenizer in the checkpoint
  std::vector<std::string> tokenizer_files;
};

// Opens checkpoint.load at checkpoint.ckpt_step (0: the newest). Throws base::Error if there is none.
SavedRun open_saved_run(const std::string& load, int64_t ckpt_step);

// Returns the run that eval and generate read: checkpoint.load, described by `what` in errors. With only model.from,
// the directory is empty. Throws base::Error if both are unset.
SavedRun find_saved_run(const config::Config& requested, const std::string& what);

bool names_tokenizer(const config::Data& data);
// Sets `data` to the tokenizer in the checkpoint; no effect without one.
void use_saved_tokenizer(const SavedRun& saved, config::Data& data);

}  // namespace metroplex::apps
