#include <algorithm>

#include "hf/directory.h"

namespace metroplex::hf {
namespace {

constexpr const char* kIdKeys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

Json object_of(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

Json ids_of(const Json& config) {
  Json ids = Json::object();
  for (const char* key : kIdKeys) {
    if (config.contains(key)) ids[key] = config[key];
  }
  return ids;
}

}  // namespace

std::vector<std::string> special_id_settings(const Json& config, const Json& generation) {
  std::vector<std::string> settings;
  const auto add = [&](const char* key, const Json& json) {
    if (json.is_object() && !json.empty())
      settings.push_back(std::string("model.") + key + "=" + json.dump(-1, ' ', /*ensure_ascii=*/true));
  };
  add("special_token_ids", ids_of(config));
  add("generation_config", generation);
  return settings;
}

void add_special_ids(const config::Model& model, Json& config) {
  config.update(ids_of(object_of(model.special_token_ids)));
}

Json generation_config(const config::Model& model) {
  if (!model.generation_config.empty()) return object_of(model.generation_config);
  Json generation = ids_of(object_of(model.special_token_ids));
  generation["_from_model_config"] = true;
  return generation;
}

std::vector<int64_t> end_token_ids(const config::Model& model) {
  for (const std::string& text : {model.generation_config, model.special_token_ids}) {
    const Json json = object_of(text);
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
