// Checks values of a command's options; errors name the option.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace metroplex::apps {

inline double real_number(const char* option, const std::string& text) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) { used = 0; }
  MPX_CHECK(used == text.size() && !text.empty() && !std::isnan(value), "config", option, " '", text,
            "' is not a number");
  MPX_CHECK(std::isfinite(value), "config", option, " '", text, "' is infinite; give a finite number");
  return value;
}

inline int64_t whole_number(const char* option, const std::string& text, int64_t least = 0) {
  size_t used = 0;
  long long value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) { used = 0; }
  MPX_CHECK(used == text.size() && !text.empty() && value >= least, "config", option, " '", text,
            "' is not an integer of at least ", least);
  return value;
}

}  // namespace metroplex::apps
