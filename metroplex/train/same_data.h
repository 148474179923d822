// Whether a resumed run has the same order of samples as the run that saved the checkpoint. In another order, the
// samples before the current position would not be those that have been trained on.
#pragma once

#include <string>

#include "config/config.h"
#include "data/build.h"
#include "files/manifest.h"

namespace metroplex::train {

struct DataOfRun {
  const config::Config& config;
  data::TrainOrder order;
};

// What a checkpoint says of the data that it came by.
struct SavedData {
  config::Config config;
  data::TrainOrder order;
  DataOfRun run() const { return {config, order}; }
};
SavedData saved_data(const files::Manifest& manifest);

// A line for each key in which the order of the training samples differs, with both values; "" where it is the same.
// Sources are the same where their documents are, under whatever path; where one side's are not known they are not
// compared.
std::string data_differences(const DataOfRun& here, const DataOfRun& there);
// What could not be compared and may differ, and epochs that do: a line each; "" for nothing. Epochs are no reason to
// refuse: who asks for more of them wants to go on.
std::string data_note(const DataOfRun& here, const DataOfRun& there);

// Throws base::Error with `differences` unless checkpoint.resume_with_other_data is set.
void check_consent(const config::Checkpoint& checkpoint, const std::string& differences, const std::string& path,
                   int64_t consumed_samples);

}  // namespace metroplex::train
