// Checks that a resumed run visits the training samples in the order of the run that saved the checkpoint. In another
// order, the skipped samples would not be the trained ones.
#pragma once

#include <string>

#include "config/config.h"
#include "data/build.h"
#include "files/manifest.h"

namespace metroplex::run {

struct TrainDataInfo {
  const config::Config& config;
  data::TrainOrder order;
};

struct SavedData {
  config::Config config;
  data::TrainOrder order;
  TrainDataInfo run() const { return {config, order}; }
};
SavedData saved_data(const files::Manifest& manifest);

// Returns one line per key that changes the order of training samples, with both values; "" if the order is equal.
// Sources are equal if their documents are, independent of their path. Sources are compared only if both sides have
// recorded them.
std::string data_differences(const TrainDataInfo& here, const TrainDataInfo& there);
// Returns a note about sources that could not be compared, or about different epochs; "" if there is none. Different
// epochs are accepted, because longer training is a legitimate reason to resume.
std::string data_note(const TrainDataInfo& here, const TrainDataInfo& there);

// Throws base::Error with `differences` unless checkpoint.resume_with_other_data is set.
void check_data_override(const config::Checkpoint& checkpoint, const std::string& differences,
                         const std::string& path, int64_t consumed_samples);

}  // namespace metroplex::run
