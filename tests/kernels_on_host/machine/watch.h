// Watches each read and write of kernel code. Kernels are compiled with -fsanitize=thread, and the calls that the
// compiler inserts before every access reach this file instead of the sanitizer's library. Each byte (or element) of
// an array stores its last access in a launch, so a diagnostic does not depend on the order of threads:
//   - memory that belongs to no array, or is read-only in this launch,
//   - accesses that do not begin at a multiple of their size, which a GPU rejects,
//   - reads of uninitialized memory; for shared memory, not written by this block,
//   - conflicting accesses of two threads to one location with no barrier between: __syncwarp in a warp,
//     __syncthreads in a block, between blocks only the end of the launch. Shuffles order nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace metroplex::kernels_on_host {

class Fiber;

// An array that kernels may access until it is unregistered.
struct Memory {
  void* begin = nullptr;
  size_t bytes = 0;
  size_t granule = 1;  // accesses begin and end at multiples of it
  bool writable = true;
  bool filled = true;  // initialized
  std::string name;
};
void watch_memory(const Memory& memory);
void forget_memory(const void* begin);

// True if this program's kernels were compiled to be watched.
bool watches();

// Bytes of arrays accessed by a kernel's launches, by the size of the access.
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
