// From text to a Config and back. A Draft collects a YAML file and --section.key=value overrides, remembers which
// keys were given, and refuses with base::Error("config", ...) that lists everything wrong at once: unknown keys
// with the nearest name, values of the wrong type, keys written twice. Rules between keys are validate.h's.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

class Draft {
 public:
  // Merges YAML text; `source` names it in messages ("run.yaml").
  void merge_yaml(const std::string& text, const std::string& source);
  // Reads (read_config) and merges a file.
  void merge_file(const std::string& path);
  // One "section.key=value" or "--section.key=value"; a list is written a,b or as a YAML list [a, "b"].
  void assign(const std::string& assignment);
  void assign(const std::vector<std::string>& assignments);

  // Back to the default, as if the key had not been given.
  void retract(const std::string& key);

  const std::set<std::string>& given() const { return given_; }
  // The configuration, with the presets of model.family for the keys that were not given.
  Config finish() const;

 private:
  Config config_;
  std::set<std::string> given_;
};

// The text of a YAML file, or of a pipe.
std::string read_config(const std::string& path);

// A file ("" for none), then overrides.
Config load(const std::string& path, const std::vector<std::string>& overrides = {});
Config parse(const std::string& yaml, const std::vector<std::string>& overrides = {});

// YAML of every key. parse(dump(c)) equals c, doubles bit for bit.
std::string dump(const Config& config);
// What another program of ours, older or newer, has dumped: keys that are unknown here, or hold something else, are
// passed over. Throws base::Error when `yaml` is not YAML.
Config parse_saved(const std::string& yaml);

// Keys in which two configurations differ: "section.key".
std::vector<std::string> differences(const Config& a, const Config& b);

}  // namespace metroplex::config
