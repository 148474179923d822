// Two recordings of the same work on different data. A graph repeats the first one; what is another in the second,
// a replay gets wrong.
#pragma once

#include <vector>

#include "cuda/graph/tape_findings.h"

namespace metroplex::cuda {

// Each was recorded into a pool that was in the same state, a fresh one say; addresses in a pool are compared from
// its start, all others as they are. In this order:
// - operators: the first that differs is named, with its neighbours; what follows is not compared.
// - shapes and types, and addresses in the pool: the first that differs, and how many do.
// - addresses outside: each memory once, as an input that was not copied in, or, where it is written first, as memory
//   from outside the pool.
// - numbers of the host by their names (TapeScalar), and of own kernels all that is among their arguments besides
//   pointers.
std::vector<Finding> compare(const Recording& first, const Recording& second);

}  // namespace metroplex::cuda
