// An emulated GPU that runs kernels on the CPU. A block's threads are fibers of the one thread that launches, so runs
// with the same seed are identical. Threads wait at barriers and in warps as on a GPU, and a wait that cannot end is
// an error of the launch. Memory accesses of kernels compiled for it are watched (watch.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::kernels_on_host {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

struct Launch {
  const char* name = "";
  Index grid, block;
  size_t dynamic_bytes = 0;
  void (*run)(const void* packet) = nullptr;  // run by every thread
  const void* packet = nullptr;               // kernel and arguments
  size_t packet_bytes = 0;
};

// Order in which blocks and threads run: seed 0 is ascending, others shuffle. `only`: numbers x + grid.x (y + grid.y
// z) of the blocks that run; empty: all.
struct Order {
  uint64_t seed = 0;
  std::vector<uint64_t> only;
};
void set_order(Order order);
// Seeds of the orders in which results are compared, ascending first. Sanitizer builds use one: their diagnostics do
// not depend on the order, and the watched program tries the others.
std::vector<uint64_t> orders_to_try();

// Runs the whole grid. Returns the first error, "" if there is none: a launch that a GPU rejects, threads that wait
// forever, or a report of watch.h. The launch stops at the first error.
std::string run(const Launch& launch);

// Names of the launches since program start, each once.
const std::vector<std::string>& launched();

// For kernels. Whole blocks and whole warps only.
__attribute__((const)) Index thread_index();
__attribute__((const)) Index block_index();
__attribute__((const)) Index block_size();
__attribute__((const)) Index grid_size();
unsigned char* dynamic_shared();
void block_barrier(const char* file, int line);

// A warp meets at `line`: the last arriving thread calls all(lanes) with the values of all threads, null for ended
// ones. `orders`: all threads see each other's earlier writes to memory afterwards.
struct WarpMeeting {
  const char* file;
  int line;
  bool orders;
};
constexpr unsigned kWarp = 32;
void warp_meets(const WarpMeeting& meeting, unsigned mask, void* mine, void (*all)(void* const* lanes));

// Ends the launch with this error; called by one of its threads.
[[noreturn]] void fail(const char* what);

}  // namespace metroplex::kernels_on_host
