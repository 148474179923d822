// Entries PATTERN=VALUE of keys that select modules by name, with PEFT's patterns: a regular expression for a
// module's name, or for its end after a dot.
#pragma once

#include <optional>
#include <string>

namespace metroplex::config {

struct ModuleEntry {
  std::string pattern, value;
};
// Returns nothing if the text has another form.
std::optional<ModuleEntry> read_module_entry(const std::string& text);
bool matches_module(const std::string& pattern, const std::string& module);

}  // namespace metroplex::config
