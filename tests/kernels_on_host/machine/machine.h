// A machine that runs kernels on the CPU: a block's threads are fibers of the one thread that launches, so a run with
// the same seed is the same run. Threads wait for each other at barriers and in warps as a GPU's do, and a wait that
// cannot end is an error of the launch. What the kernel's code touches is watched (watch.h) where it was compiled for
// that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::kernels_on_host {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

// What the launching side hands over.
struct Launch {
  const char* name = "";
  Index grid, block;
  size_t dynamic_bytes = 0;
  void (*run)(const void* packet) = nullptr;  // by every thread
  const void* packet = nullptr;               // kernel and arguments
  size_t packet_bytes = 0;
};

// In which order blocks and threads run: 0 is ascending, others shuffle. `only` names the blocks that run, by their
// number x + grid.x (y + grid.y z); empty: all of them.
struct Order {
  uint64_t seed = 0;
  std::vector<uint64_t> only;
};
void set_order(Order order);
// Seeds of the orders that results are compared in, ascending first. Under the sanitizers one: what they find does
// not depend on the order, and the watched program tries the others.
std::vector<uint64_t> orders_to_try();

// Runs the whole grid. Returns what was found wrong, "" if nothing was: a launch that a GPU refuses, threads that
// wait for ever, and what watch.h says. Behind the first finding nothing more of the launch runs.
std::string run(const Launch& launch);

// Names of the launches since the program began, each once.
const std::vector<std::string>& launched();

// For kernels. Whole blocks and whole warps only.
__attribute__((const)) Index thread_index();
__attribute__((const)) Index block_index();
__attribute__((const)) Index block_size();
__attribute__((const)) Index grid_size();
unsigned char* dynamic_shared();
void block_barrier(const char* file, int line);

// A warp meets at `line`: the last of its threads that arrives calls all(lanes) with what each of them brought, null
// for those that have ended. `orders`: what they wrote to memory before is seen by all of them behind it.
struct Meeting {
  const char* file;
  int line;
  bool orders;
};
constexpr unsigned kWarp = 32;
void warp_meets(const Meeting& meeting, unsigned mask, void* mine, void (*all)(void* const* lanes));

// Ends the launch with this finding; called by a thread of it.
[[noreturn]] void fail(const char* what);

}  // namespace metroplex::kernels_on_host
