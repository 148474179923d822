#include "page/config_rows.h"

#include <algorithm>
#include <map>

#include "config/fields.h"

namespace metroplex::page {
namespace {

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json& config_json(const Json& start) {
  static const Json kNone = Json::object();
  const auto found = start.is_object() ? start.find("config") : start.end();
  return start.is_object() && found != start.end() && found->is_object() ? *found : kNone;
}

void flatten(const Json& value, const std::string& key, std::vector<std::pair<std::string, std::string>>& out) {
  if (!value.is_object() || value.empty()) {
    out.emplace_back(key, value_text(value));
    return;
  }
  for (const auto& [name, member] : value.items()) flatten(member, key.empty() ? name : key + "." + name, out);
}

}  // namespace

std::vector<ConfigRow> config_rows(const std::vector<const RunData*>& runs) {
  std::vector<ConfigRow> rows;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::pair<std::string, std::string>> values;
    for (const auto& [section, keys] : config_json(runs[i]->start).items()) flatten(keys, section, values);
    for (const auto& [key, value] : values) {
      const auto [found, is_new] = index.try_emplace(key, rows.size());
      if (is_new) rows.push_back({key, std::vector<std::string>(runs.size()), false});
      rows[found->second].values[i] = value;
    }
  }
  for (ConfigRow& row : rows)
    row.differs =
        std::any_of(row.values.begin(), row.values.end(), [&](auto& value) { return value != row.values[0]; });
  std::stable_partition(rows.begin(), rows.end(), [](const ConfigRow& row) { return row.differs; });
  return rows;
}

config::Config read_config(const Json& start) {
  config::Config config;
  for (const auto& [section, keys] : config_json(start).items()) {
    if (!keys.is_object()) continue;
    for (const config::Field& field : config::fields(config)) {
      if (field.section != section || std::holds_alternative<std::vector<std::string>*>(field.member)) continue;
      if (const auto found = keys.find(field.name); found != keys.end())
        (void)config::assign_scalar(field, value_text(*found));
    }
  }
  return config;
}

}  // namespace metroplex::page
