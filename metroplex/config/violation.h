// One broken rule, in the four parts a user needs.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace metroplex::config {

struct Violation {
  std::string key;    // "parallel.tensor_model_parallel_size"
  std::string value;  // what it is
  std::string rule;   // what it must be, with the other values that matter
  std::string fix;    // what to do
};

// Adds one to `list`. An empty value is written "(empty)": nothing would look like a mistake of the message.
template <class Value>
void refuse(std::vector<Violation>& list, const char* key, const Value& value, const std::string& rule,
            const std::string& fix) {
  const std::string text = base::concat(value);
  list.push_back({key, text.empty() ? "(empty)" : text, rule, fix});
}

}  // namespace metroplex::config
