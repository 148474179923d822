#include "run/same_data.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/load.h"
#include "data/blend.h"

namespace metroplex::run {
namespace {

struct NamedSource {
  std::string key, value;
  bool operator==(const NamedSource&) const = default;
};

NamedSource training_source(const config::Data& data) {
  if (data.mock_data) return {"data.mock_data", "true"};
  const bool own = !data.train_data_path.empty();
  std::string words;
  for (const std::string& word : own ? data.train_data_path : data.data_path)
    words += (words.empty() ? "" : " ") + word;
  return {own ? "data.train_data_path" : "data.data_path", "\"" + words + "\""};
}

bool splits_data(const config::Data& data) { return !data.mock_data && data.train_data_path.empty(); }

std::string difference(const std::string& key, const std::string& here, const std::string& there) {
  return here == there ? "" : base::concat("\n  ", key, " is ", here, " here and was ", there);
}

std::string source_difference(const TrainDataInfo& here, const TrainDataInfo& there) {
  const NamedSource mine = training_source(here.config.data), theirs = training_source(there.config.data);
  if (mine == theirs)
    return base::concat("\n  ", mine.key, " is ", mine.value, " as before, but contains other documents");
  if (mine.key == theirs.key) return difference(mine.key, mine.value, theirs.value);
  return base::concat("\n  ", mine.key, " is ", mine.value, " here, and it was ", theirs.key, " = ", theirs.value);
}

std::string epochs_note(const data::TrainOrder& here, const data::TrainOrder& there) {
  if (there.epochs.empty() || here.sources != there.sources || here.epochs == there.epochs) return "";
  return base::concat("epochs of the training documents: ", here.epochs, " here, ", there.epochs,
                      " before. The order of their samples changes: some may be read twice and some never. The same "
                      "number of iterations as before (train.train_iters, train.train_samples) keeps the order");
}

}  // namespace

SavedData saved_data(const files::Manifest& manifest) {
  const auto extra = nlohmann::json::parse(manifest.extra);
  return {config::parse_saved(manifest.config_yaml),
          {extra.value("train_sources", ""), extra.value("train_epochs", "")}};
}

std::string data_differences(const TrainDataInfo& here, const TrainDataInfo& there) {
  const config::Config &mine = here.config, &theirs = there.config;
  std::string text =
      difference("train.seq_length", std::to_string(mine.train.seq_length), std::to_string(theirs.train.seq_length));
  const bool known = !here.order.sources.empty() && !there.order.sources.empty();
  if (known && here.order.sources != there.order.sources) text += source_difference(here, there);
  if (splits_data(mine.data) && splits_data(theirs.data) &&
      data::split_bounds(data::parse_split(mine.data.split))[0] !=
          data::split_bounds(data::parse_split(theirs.data.split))[0])
    text += difference("data.split", "\"" + mine.data.split + "\"", "\"" + theirs.data.split + "\"");
  text += difference("data.dataloader_type", mine.data.dataloader_type.text(), theirs.data.dataloader_type.text());
  return text;
}

std::string data_note(const TrainDataInfo& here, const TrainDataInfo& there) {
  if (here.order.sources.empty()) return "";
  if (!there.order.sources.empty()) return epochs_note(here.order, there.order);
  const NamedSource mine = training_source(here.config.data), theirs = training_source(there.config.data);
  const std::string text = "the checkpoint does not record its training documents: ";
  if (mine == theirs) return base::concat(text, mine.key, " = ", mine.value, " is assumed to be the same");
  return base::concat(text, mine.key, " = ", mine.value, " is assumed to be ", theirs.key, " = ", theirs.value);
}

void check_data_override(const config::Checkpoint& checkpoint, const std::string& differences,
                         const std::string& path, int64_t consumed_samples) {
  MPX_CHECK(
      checkpoint.resume_with_other_data, "checkpoint", "'", path, "' is at sample ", consumed_samples,
      " of other training data:", differences, "\nThese settings determine the order of the samples: the first ",
      consumed_samples,
      " would be skipped here, but the saved run read other samples, so some text would be read twice and "
      "some never. Set them as in the checkpoint, start at sample 0 with checkpoint.finetune, or continue anyway "
      "with checkpoint.resume_with_other_data=true");
}

}  // namespace metroplex::run
