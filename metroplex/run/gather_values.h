// Gathers plain values, such as measured times of a rank.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/collectives.h"

namespace metroplex::run {

// Returns the values of all members on member 0, an empty vector on the others.
template <class Value>
std::vector<Value> gather_values(const Value& mine, const comm::Group& group) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> values;
  for (const std::string& bytes :
       comm::gather_strings(std::string(reinterpret_cast<const char*>(&mine), sizeof mine), group))
    std::memcpy(&values.emplace_back(), bytes.data(), sizeof(Value));
  return values;
}

}  // namespace metroplex::run
