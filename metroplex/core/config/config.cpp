#include "config/config.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::config {

bool Memory::recomputes(const std::string& module) const {
  if (recompute_granularity != Recompute::selective) return false;
  if (recompute_modules.empty()) return module == "core_attn";
  return std::find(recompute_modules.begin(), recompute_modules.end(), module) != recompute_modules.end();
}

SavePointSet Memory::recomputed_save_points() const {
  SavePointSet points;
  for (const Module& module : kModules) {
    if (recomputes(module.name)) points |= module.points;
  }
  return points;
}

int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int64_t tp) {
  MPX_CHECK(vocab_size > 0 && divisible_by > 0 && tp > 0, "config", "cannot pad a vocabulary of ", vocab_size,
            " to a multiple of ", divisible_by, " * tp ", tp, "; all three must be at least 1");
  int64_t multiple = 0, padded = 0;
  const bool overflows = __builtin_mul_overflow(divisible_by, tp, &multiple) ||
                         __builtin_mul_overflow((vocab_size - 1) / multiple + 1, multiple, &padded);
  MPX_CHECK(!overflows, "config", "a vocabulary of ", vocab_size, " padded to a multiple of ", divisible_by, " * tp ",
            tp, " is too large; choose a smaller make_vocab_size_divisible_by");
  return padded;
}

}  // namespace metroplex::config
