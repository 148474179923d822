#include "hf/directory.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::hf {
namespace {

constexpr const char* kIdKeys[] = {"bos_token_id", "eos_token_id", "pad_token_id",
                                   "unk_token_id", "sep_token_id", "decoder_start_token_id"};

// Settings of generation that older directories have in config.json.
constexpr const char* kGenerationKeys[] = {
    "max_length",          "max_new_tokens",     "min_length",      "do_sample",
    "num_beams",           "temperature",        "top_k",           "top_p",
    "typical_p",           "repetition_penalty", "length_penalty",  "no_repeat_ngram_size",
    "bad_words_ids",       "early_stopping",     "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "forced_eos_token_id"};

Json parse_object(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

// `file` contains the ids. Older files have the pad id -1 for none.
void check_ids(const Json& json, const char* file) {
  for (const char* key : kIdKeys) {
    const Json& given = json.is_object() ? json.value(key, Json()) : Json();
    const Json ids = given.is_array() ? given : given.is_null() ? Json::array() : Json::array({given});
    const int64_t least = key == std::string("pad_token_id") ? -1 : 0;
    const bool valid = std::all_of(
        ids.begin(), ids.end(), [&](const Json& id) { return id.is_number_integer() && id.get<int64_t>() >= least; });
    MPX_CHECK(valid, "hf", file, ": ", key, " = ", given.dump(), ": must be a token id, a list of them, or null; ",
              "correct the file");
  }
}

Json select_ids(const Json& config) {
  Json ids = Json::object();
  for (const char* key : kIdKeys) {
    if (config.contains(key)) ids[key] = config[key];
  }
  return ids;
}

// Returns the generation_config.json that transformers derives from the generation settings of a config.json.
// Empty without such settings, because the ids alone then give the same file.
Json read_generation(const Json& config) {
  Json generation = Json::object();
  for (const char* key : kGenerationKeys) {
    if (config.contains(key) && !config[key].is_null()) generation[key] = config[key];
  }
  if (generation.empty()) return generation;
  generation.update(select_ids(config));
  generation.erase("unk_token_id");
  generation.erase("sep_token_id");
  generation["_from_model_config"] = true;
  return generation;
}

}  // namespace

std::vector<std::string> special_id_settings(const Json& config, const Json& generation) {
  check_ids(config, "config.json");
  check_ids(generation, "generation_config.json");
  std::vector<std::string> settings;
  const auto add = [&](const char* key, const Json& json) {
    if (json.is_object() && !json.empty())
      settings.push_back(std::string("model.") + key + "=" + json.dump(-1, ' ', /*ensure_ascii=*/true));
  };
  add("special_token_ids", select_ids(config));
  if (generation.is_object() && generation.empty()) settings.push_back("model.generation_config={}");
  add("generation_config", generation.is_object() ? generation : read_generation(config));
  return settings;
}

void add_special_ids(const config::Model& model, Json& config) {
  config.update(select_ids(parse_object(model.special_token_ids)));
}

Json generation_config(const config::Model& model) {
  if (!model.generation_config.empty()) return parse_object(model.generation_config);
  Json generation = select_ids(parse_object(model.special_token_ids));
  generation["_from_model_config"] = true;
  return generation;
}

std::vector<int64_t> end_token_ids(const config::Model& model) {
  for (const std::string& text : {model.generation_config, model.special_token_ids}) {
    const Json json = parse_object(text);
    const Json ends = json.value("eos_token_id", Json());
    std::vector<int64_t> ids;
    for (const Json& id : ends.is_array() ? ends : Json::array({ends})) {
      if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
    }
    if (!ids.empty()) return ids;
  }
  return {};
}

}  // namespace metroplex::hf
