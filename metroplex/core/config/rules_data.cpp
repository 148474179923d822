// Rules for datasets, tokenizers and checkpoints.
#include "config/rules.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "config/fields.h"

namespace metroplex::config {

using base::concat;

static std::optional<double> number(const std::string& text, std::chars_format format = std::chars_format::general) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, format);
  if (text.empty() || error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// Accepts PREFIX..., or WEIGHT PREFIX pairs with positive weights.
static void check_blend(Rules& rules, const char* key, const std::vector<std::string>& path) {
  size_t weights = 0, bad = 0;
  for (size_t i = 0; i < path.size(); i += 2) {
    const auto weight = number(path[i]);
    weights += weight ? 1 : 0;
    bad += weight && !(std::isfinite(*weight) && *weight > 0) ? 1 : 0;
  }
  std::string text;
  for (const auto& word : path) text += (text.empty() ? "" : ",") + word;
  const bool pairs = path.size() % 2 == 0 && weights == path.size() / 2;
  rules.require(weights == 0 || pairs, key, text,
                "mixes weights and prefixes: write a weight before every prefix or none",
                "write it like 0.7,wiki,0.3,code");
  rules.require(!pairs || bad == 0, key, text, "every weight must be above 0",
                "remove the datasets that should not be used");
  for (const auto& word : path) rules.require(!word.empty(), key, text, "has an empty prefix", "remove it");
}

static void check_split(Rules& rules) {
  const Data& data = rules.config.data;
  double sum = 0;
  size_t parts = 0;
  bool valid = true;
  std::istringstream stream(data.split);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t begin = part.find_first_not_of(' '), end = part.find_last_not_of(' ');
    // Like Megatron, which accepts no exponents.
    const auto share = begin == std::string::npos
                           ? std::nullopt
                           : number(part.substr(begin, end - begin + 1), std::chars_format::fixed);
    sum += share.value_or(0);
    valid = valid && share && *share >= 0 && std::isfinite(sum);
    ++parts;
  }
  rules.require(valid && parts >= 1 && parts <= 3 && sum > 0, "data.split", data.split,
                "must be one to three shares of at least 0, with commas and without exponents, that are not all 0",
                "write it like \"969, 30, 1\"");
}

static void check_source(Rules& rules) {
  const Data& data = rules.config.data;
  const bool per_split =
      !data.train_data_path.empty() || !data.valid_data_path.empty() || !data.test_data_path.empty();
  const int sources = (data.data_path.empty() ? 0 : 1) + (per_split ? 1 : 0) + (data.mock_data ? 1 : 0);
  rules.require(sources == 1, "data.data_path", data.data_path.empty() ? "nothing" : data.data_path[0],
                concat("exactly one source of data must be given: data.data_path, the per-split paths "
                       "(data.train_data_path, ...) or data.mock_data; there are ",
                       sources),
                "name a dataset, or set data.mock_data to true to try a layout");
  rules.require(!per_split || data.split == Data{}.split, "data.split", data.split,
                "has no meaning with per-split paths (data.train_data_path, ...)", "leave it out");
  rules.require(!per_split || !data.train_data_path.empty(), "data.train_data_path", "nothing",
                "must be given when data.valid_data_path or data.test_data_path is", "name the training dataset");
  rules.require(!data.multiple_validation_sets || !data.valid_data_path.empty(), "data.multiple_validation_sets",
                "true", "needs the datasets in data.valid_data_path", "list them there, or leave this key out");
  check_blend(rules, "data.data_path", data.data_path);
  check_blend(rules, "data.train_data_path", data.train_data_path);
  check_blend(rules, "data.valid_data_path", data.valid_data_path);
  check_blend(rules, "data.test_data_path", data.test_data_path);
}

static void check_tokenizer(Rules& rules) {
  const Data& data = rules.config.data;
  const int64_t vocab = rules.config.model.vocab_size;
  const bool pair = !data.vocab_file.empty() && !data.merge_file.empty();
  rules.require(data.tokenizer_type != TokenizerType::none || vocab > 0, "model.vocab_size", vocab,
                "must be given with data.tokenizer_type = none", "set the number of tokens, or name a tokenizer");
  rules.require(data.tokenizer_type != TokenizerType::bytes || vocab == 0 || vocab >= 256, "model.vocab_size", vocab,
                "is less than the 256 bytes of data.tokenizer_type = bytes", "leave it 0");
  rules.require(data.tokenizer_type != TokenizerType::sentencepiece || !data.tokenizer_model.empty(),
                "data.tokenizer_model", "nothing", "must name a .model file with data.tokenizer_type = sentencepiece",
                "name the file");
  rules.require(
      data.tokenizer_type != TokenizerType::bpe || pair || !data.tokenizer_model.empty(), "data.tokenizer_model",
      "nothing",
      "must name a tokenizer.json with data.tokenizer_type = bpe (or give data.vocab_file and data.merge_file)",
      "name the file");
  rules.require(data.tokenizer_type != TokenizerType::bpe || data.vocab_file.empty() == data.merge_file.empty(),
                "data.vocab_file", data.vocab_file, "goes together with data.merge_file", "give both or neither");
}

void check_data(Rules& rules) {
  const Data& data = rules.config.data;
  check_source(rules);
  check_split(rules);
  check_tokenizer(rules);
  const Checkpoint& checkpoint = rules.config.checkpoint;
  rules.require(
      data.dataloader_type != Dataloader::cyclic || !data.data_sharding ||
          (checkpoint.save.empty() && checkpoint.load.empty()),
      "data.data_sharding", "true",
      "a cyclic loader whose ranks shuffle their own shares cannot resume on another number of "
      "data-parallel ranks, so it excludes checkpoint.save and checkpoint.load",
      "set data.data_sharding to false, or data.dataloader_type to single: each changes the order of samples");
}

static void check_allow(Rules& rules) {
  if (rules.config.checkpoint.allow.empty()) return;
  std::vector<std::string> keys{"data.tokenizer_type", "data.tokenizer_model"};
  for (const std::string& key : all_keys()) {
    if (key.starts_with("model.")) keys.push_back(key);
  }
  for (const std::string& key : rules.config.checkpoint.allow) {
    const std::string near = base::nearest_name(key, keys);
    rules.require(std::find(keys.begin(), keys.end(), key) != keys.end(), "checkpoint.allow", key,
                  "is not a key that is compared with the checkpoint's",
                  near.empty() ? "name keys of the section model, data.tokenizer_type or data.tokenizer_model"
                               : "did you mean " + near + "?");
  }
}

void check_checkpoint(Rules& rules) {
  check_allow(rules);
  const Checkpoint& checkpoint = rules.config.checkpoint;
  const bool saves = !checkpoint.save.empty() || !rules.trains();  // evaluation accepts the keys of a training run
  static constexpr const char* kRetain = "checkpoint.save_retain_interval";
  const bool multiple =
      checkpoint.save_interval > 0 && checkpoint.save_retain_interval % checkpoint.save_interval == 0;
  rules.require(checkpoint.save_retain_interval == 0 || multiple || !saves, kRetain, checkpoint.save_retain_interval,
                concat("must be a multiple of checkpoint.save_interval = ", checkpoint.save_interval),
                "choose a multiple");
  rules.require_effect(checkpoint.save_retain_interval == 0 || saves, kRetain, checkpoint.save_retain_interval,
                       "needs checkpoint.save", "set checkpoint.save, or leave it out");
  rules.require_effect(checkpoint.save_interval == 0 || saves, "checkpoint.save_interval", checkpoint.save_interval,
                       "needs checkpoint.save: nothing is saved without a folder",
                       "set checkpoint.save, or set it to 0 for a run that saves nothing");
  rules.require_effect(!checkpoint.async_save || saves, "checkpoint.async_save", "given", "needs checkpoint.save",
                       "set checkpoint.save, or leave it out");
  rules.require(checkpoint.export_hf.empty() || saves, "checkpoint.export_hf", checkpoint.export_hf,
                "needs checkpoint.save: it is converted from the last checkpoint",
                "set checkpoint.save, or leave it out");
  const std::pair<const char*, bool> need_load[] = {
      {"checkpoint.finetune", checkpoint.finetune},
      {"checkpoint.ckpt_step", checkpoint.ckpt_step > 0},
      {"checkpoint.exit_on_missing_checkpoint", checkpoint.exit_on_missing_checkpoint},
      {"checkpoint.resume_with_other_data", checkpoint.resume_with_other_data}};
  for (const auto& [key, set] : need_load) {
    rules.require_effect(!set || !checkpoint.load.empty(), key, "given", "needs checkpoint.load",
                         "set checkpoint.load, or leave it out");
  }
  rules.require(checkpoint.ckpt_step == 0 || !checkpoint.finetune, "checkpoint.ckpt_step", checkpoint.ckpt_step,
                "excludes checkpoint.finetune, which starts from the latest",
                "name that one checkpoint in checkpoint.load");
  rules.require(!checkpoint.resume_with_other_data || !checkpoint.finetune, "checkpoint.resume_with_other_data",
                "true", "excludes checkpoint.finetune, which begins at sample 0 of any data", "leave it out");
}

}  // namespace metroplex::config
