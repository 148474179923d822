#include "config/module_pattern.h"

#include <regex>

namespace metroplex::config {

std::optional<ModuleEntry> read_module_entry(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) return std::nullopt;
  ModuleEntry entry{text.substr(0, equals), text.substr(equals + 1)};
  try {
    matches_module(entry.pattern, "");
  } catch (const std::regex_error&) { return std::nullopt; }
  return entry;
}

bool matches_module(const std::string& pattern, const std::string& module) {
  return std::regex_match(module, std::regex("(?:.*\\.)?(?:" + pattern + ")"));
}

}  // namespace metroplex::config
