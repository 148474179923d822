// Tabulates the configurations of runs.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "page/run_file.h"

namespace metroplex::page {

struct ConfigRow {
  std::string key;                  // "model.hidden_size"
  std::vector<std::string> values;  // one per run; "" if the run lacks the key
  bool differs = false;
};

// Returns the keys that differ first, and otherwise keeps the order of the files. Empty if no run has a line "run".
std::vector<ConfigRow> config_rows(const std::vector<const RunData*>& runs);

// Returns the configuration of a line "run". Ignores keys and values that this version does not have, and lists.
config::Config read_config(const Json& start);

}  // namespace metroplex::page
