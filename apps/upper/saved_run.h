// What a checkpoint says of the run that made it: where it lies, its configuration, and the tokenizer that it
// carries.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::apps {

struct SavedRun {
  std::string directory;  // the checkpoint itself
  // With the keys that this program knows. Without clones of experts: their slots are for the ranks of that run.
  std::string config_yaml;
  std::vector<std::string> problems;  // damaged ones that were passed over
  std::string tokenizer_type;         // empty: it carries none
  std::vector<std::string> tokenizer_files;
};

// checkpoint.load and checkpoint.ckpt_step (0: the newest). Throws base::Error when there is none.
SavedRun open_saved_run(const std::string& load, int64_t ckpt_step);

// What eval and generate read: the run of checkpoint.load, which `what` describes, or, with an empty directory, the
// weights of model.from alone. Throws base::Error where neither is given.
SavedRun run_to_read(const config::Config& asked, const std::string& what);

// Whether `data` names a tokenizer.
bool names_tokenizer(const config::Data& data);
// Points `data` to the tokenizer in the checkpoint. Without one nothing changes.
void use_carried_tokenizer(const SavedRun& saved, config::Data& data);

}  // namespace metroplex::apps
