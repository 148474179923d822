#include "config/name_patterns.h"

#include <algorithm>

namespace metroplex::config {

bool matches(const std::string& pattern, const std::string& name) {
  // Position of the last *, and the end of the text it covers so far. A mismatch extends the covered text by one
  // character.
  size_t star = std::string::npos, covered = 0, p = 0, n = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      covered = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++covered;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

bool trains(const Config& config, const std::string& name) {
  const Train& train = config.train;
  if (config.peft.lora() && !config.peft.trains(name)) return false;
  if (!train.trainable.empty() && !matches_any(train.trainable, name)) return false;
  return !matches_any(train.freeze, name);
}

bool loads(const Config& config, const std::string& name) {
  const Checkpoint& checkpoint = config.checkpoint;
  return (checkpoint.load_only.empty() || matches_any(checkpoint.load_only, name)) &&
         !matches_any(checkpoint.load_except, name);
}

}  // namespace metroplex::config
