// Asynchronous copies of the running threads. A thread waits for its own copies only.
#pragma once

#include <cstddef>

namespace metroplex::kernels_on_host {

struct PendingCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;  // copied of 16; the others become zeros
};

void start_copy(const PendingCopy& copy);
void commit_copies();
// Takes the next copy of the oldest committed groups, except the `newer` last ones; false: there is none.
bool take_copy(size_t newer, PendingCopy* copy);
// Forgets the copies of all threads; called at the start of a block.
void forget_copies();

}  // namespace metroplex::kernels_on_host
