// Copies to shared memory that a thread starts, commits in groups and waits for. Hardware may write at any moment
// from the start to the end of the wait: here the start overwrites the memory with ones, and the wait copies.
#pragma once

#include <cuda_runtime.h>

#include "kernels_on_host/machine/copies.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  namespace host = metroplex::kernels_on_host;
  if (bytes != sizeof(uint4)) host::fail("an asynchronous copy of another size than 16 bytes");
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0)
    host::fail("an asynchronous copy does not begin at a multiple of 16 bytes");
  *static_cast<uint4*>(to) = ~uint4{};
  host::start_copy({to, from, bytes - zeros});
}
inline void __pipeline_commit() { metroplex::kernels_on_host::commit_copies(); }
inline void __pipeline_wait_prior(size_t newer) {
  metroplex::kernels_on_host::PendingCopy copy;
  while (metroplex::kernels_on_host::take_copy(newer, &copy)) {
    if (copy.bytes == sizeof(uint4)) {
      *static_cast<uint4*>(copy.to) = *static_cast<const uint4*>(copy.from);
      continue;
    }
    auto* const bytes = static_cast<unsigned char*>(copy.to);
    for (size_t i = 0; i < sizeof(uint4); ++i)
      bytes[i] = i < copy.bytes ? static_cast<const unsigned char*>(copy.from)[i] : 0;
  }
}
