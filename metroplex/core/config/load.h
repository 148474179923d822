// Converts text to a Config and back. A Draft merges a YAML file and --section.key=value overrides and records the
// given keys. It throws base::Error("config", ...) with all errors at once: unknown keys with the nearest name, wrong
// types, duplicate keys. Rules between keys are in validate.h.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

class Draft {
 public:
  // Merges YAML text; `source` is its name in messages ("run.yaml").
  void merge_yaml(const std::string& text, const std::string& source);
  void merge_file(const std::string& path);
  // Assigns "section.key=value" or "--section.key=value". A list is written a,b or as a YAML list [a, "b"].
  void assign(const std::string& assignment);
  void assign(const std::vector<std::string>& assignments);

  // Restores the default, as if the key had not been given.
  void retract(const std::string& key);

  const std::set<std::string>& given() const { return given_; }
  // Returns the configuration, with the presets of model.family for keys that were not given.
  Config finish() const;

 private:
  Config config_;
  std::set<std::string> given_;
};

// Returns the text of a YAML file or a pipe.
std::string read_config(const std::string& path);

// Loads a file ("" for none), then applies overrides.
Config load(const std::string& path, const std::vector<std::string>& overrides = {});
Config parse(const std::string& yaml, const std::vector<std::string>& overrides = {});

// Returns YAML with every key. parse(dump(c)) equals c, with doubles bit for bit.
std::string dump(const Config& config);
// Parses the dump of another version of this program. Keys that are unknown here or have another meaning are ignored.
// Throws base::Error if `yaml` is not YAML.
Config parse_saved(const std::string& yaml);

std::vector<std::string> differences(const Config& a, const Config& b);

}  // namespace metroplex::config
