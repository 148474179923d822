// No AMX for the CPU twins.
#pragma once

namespace at::cpu {

inline bool init_amx() { return false; }

}  // namespace at::cpu
