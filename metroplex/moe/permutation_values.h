// A permutation among the values between two segments.
#pragma once

#include <string>

#include "moe/permutation.h"
#include "nn/value.h"

namespace metroplex::moe {

inline void add_permutation(nn::Values& values, const std::string& name, const Permutation& p) {
  values.add(name + "_rows", p.rows).add(name + "_source", p.source);
}

// Without the counts.
inline Permutation permutation_in(const nn::Values& values, const std::string& name, int64_t divisor) {
  return {values.tensor(name + "_rows"), values.tensor(name + "_source"), {}, divisor};
}

}  // namespace metroplex::moe
