// Number formats. "fp64" is a real training dtype: layouts are compared in it.
#pragma once

#include <string>

namespace metroplex::config {

struct Precision {
  std::string params_dtype = "fp32";  // fp32 | fp64
};

}  // namespace metroplex::config
