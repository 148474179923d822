// No AMX for the CPU reference.
#pragma once

namespace at::cpu {

inline bool init_amx() { return false; }

}  // namespace at::cpu
