// One broken rule, in the four parts a user needs.
#pragma once

#include <string>

namespace metroplex::config {

struct Violation {
  std::string key;    // "parallel.tensor_model_parallel_size"
  std::string value;  // what it is
  std::string rule;   // what it must be, with the other values that matter
  std::string fix;    // what to do
};

}  // namespace metroplex::config
