// What libtorch says of the CPU, for the CPU twins: they take their plain ways.
#pragma once

#include <string>

namespace at {

inline std::string get_cpu_capability() { return "DEFAULT"; }

}  // namespace at
