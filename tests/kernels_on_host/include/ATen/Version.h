// libtorch's CPU capabilities for the CPU reference: selects the portable code paths.
#pragma once

#include <string>

namespace at {

inline std::string get_cpu_capability() { return "DEFAULT"; }

}  // namespace at
