// What the code of kernels reads and writes, access by access. Kernels are compiled with -fsanitize=thread, and the
// calls that this puts before every access end here and not in the sanitizer's library. Each byte (or element) of an
// array remembers who touched it last in a launch, so a finding needs no particular order of threads:
//   - memory that belongs to no array, or is not this launch's to write,
//   - accesses that do not begin at a multiple of their size, which a GPU refuses,
//   - memory that is read and was never written; of shared memory, by this block,
//   - two threads at one place, one of them writing, with no barrier between: of a warp __syncwarp, of a block
//     __syncthreads, between blocks only the end of the launch. Shuffles order nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace metroplex::kernels_on_host {

class Fiber;

// An array that kernels may touch, until it is forgotten.
struct Memory {
  void* begin = nullptr;
  size_t bytes = 0;
  size_t granule = 1;  // accesses begin and end at multiples of it
  bool writable = true;
  bool filled = true;  // there is something to be read
  std::string name;
};
void watch_memory(const Memory& memory);
void forget_memory(const void* begin);

// Whether this program's kernels were compiled to be watched.
bool watches();

// Bytes of arrays that a kernel's launches touched, by the size of the access.
struct Traffic {
  uint64_t bytes = 0, in_8 = 0, in_16 = 0;
};
std::map<std::string, Traffic>& traffic();

// For the machine.
struct WatchedLaunch {
  std::string name;
  const void* packet;
  size_t packet_bytes;
  void* room;
  size_t room_bytes;
};
void watch_launch(const WatchedLaunch& launch);
void watch_block(uint64_t block);
void watch_thread(unsigned thread, const Fiber& fiber);
void watch_warp_ordered(unsigned warp);
void watch_block_ordered();
void watch_nothing();

}  // namespace metroplex::kernels_on_host
