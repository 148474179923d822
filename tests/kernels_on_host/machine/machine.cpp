#include "kernels_on_host/machine/machine.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>

#include "base/error.h"
#include "kernels_on_host/machine/fiber.h"
#include "kernels_on_host/machine/copies.h"
#include "kernels_on_host/machine/watch.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace metroplex::kernels_on_host {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr size_t kSharedBytes = size_t{48} << 10;  // the default limit of every GPU

enum class State { ready, at_barrier, in_warp, ended };

struct Thread {
  Fiber fiber;
  State state = State::ended;
  Index index;
  const char* file = nullptr;  // of the barrier or meeting where it waits
  int line = 0;
  void* brought = nullptr;
};

struct Warp {
  unsigned live = 0, waiting = 0;
};

class Machine {
 public:
  std::string run(const Launch& launch) {
    if (const std::string refused = refusal(launch); !refused.empty()) return refused;
    launch_ = &launch;
    finding_.clear();
    const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    num_threads_ = launch.block.x * launch.block.y * launch.block.z;
    while (threads_.size() < num_threads_) threads_.push_back(std::make_unique<Thread>());
    request_launch(launch.dynamic_bytes);
    watch_launch({launch.name, launch.packet, launch.packet_bytes, room_.data(), launch.dynamic_bytes});
    std::mt19937_64 random(order_.seed);
    std::vector<uint64_t> which = order_.only;
    if (which.empty()) {
      which.resize(blocks);
      std::iota(which.begin(), which.end(), uint64_t{0});
    }
    if (order_.seed != 0) std::shuffle(which.begin(), which.end(), random);
    for (const uint64_t block : which) {
      if (block < blocks) run_block(block, random);
      if (!finding_.empty()) break;
    }
    watch_nothing();
    current_ = nullptr;
    for (unsigned t = 0; t < num_threads_ && !finding_.empty(); ++t) threads_[t]->fiber.abandon();
    return finding_;
  }

  void barrier(const char* file, int line) {
    Thread& me = *current_;
    me.file = file;
    me.line = line;
    me.state = State::at_barrier;
    me.fiber.leave(false);
  }

  void meet(const WarpMeeting& meeting, unsigned mask, void* mine, void (*all)(void* const*)) {
    Thread& me = *current_;
    if (mask != 0xFFFFFFFFU) fail("a warp meets by a mask of some of its threads, which this machine does not know");
    me.file = meeting.file;
    me.line = meeting.line;
    me.brought = mine;
    Warp& warp = warps_[number_ / kWarp];
    ++warp.waiting;
    meets_ = {all, meeting.orders};
    if (warp.waiting == warp.live) {
      watch_nothing();  // lanes' values are on the stacks of all of them
      complete(number_ / kWarp);
      watch_thread(number_, me.fiber);
      return;
    }
    me.state = State::in_warp;
    me.fiber.leave(false);
  }

  [[noreturn]] void fail(const char* what) {
    watch_nothing();
    if (finding_.empty()) finding_ = base::concat("block ", block_, ", thread ", number_, ": ", what);
    current_->state = State::ended;
    current_->fiber.leave(true);
    __builtin_unreachable();
  }

  Order order_;
  const Launch* launch_ = nullptr;
  Thread* current_ = nullptr;
  Index block_index_;
  alignas(32) std::array<unsigned char, kSharedBytes> room_{};

 private:
  static std::string refusal(const Launch& launch) {
    const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
    if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0 || threads == 0)
      return "a grid without blocks or threads";
    if (launch.grid.x > 0x7FFFFFFFU || launch.grid.y > 65535 || launch.grid.z > 65535)
      return "a grid that is too large";
    if (threads > kMaxThreads) return "more than 1024 threads in a block";
    constexpr size_t kArgumentBytes = 32764;
    if (launch.packet_bytes - sizeof(void*) > kArgumentBytes) return "arguments of more than 32,764 bytes";
    if (launch.dynamic_bytes > kSharedBytes) return "more shared memory than a GPU gives by default";
    return "";
  }

  // Lets AddressSanitizer detect accesses beyond `bytes`.
  void request_launch([[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(room_.data(), bytes);
    __asan_poison_memory_region(room_.data() + bytes, room_.size() - bytes);
#endif
  }

  static void thread_main(void* machine) {
    auto& self = *static_cast<Machine*>(machine);
    self.launch_->run(self.launch_->packet);
    self.current_->state = State::ended;
    self.current_->fiber.leave(true);
  }

  void run_block(uint64_t block, std::mt19937_64& random) {
    const Index& grid = launch_->grid;
    block_ = block;
    block_index_ = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
                    static_cast<unsigned>(block / grid.x / grid.y)};
    watch_block(block);
    forget_copies();
    warps_.assign((num_threads_ + kWarp - 1) / kWarp, Warp{});
    turn_.resize(num_threads_);
    std::iota(turn_.begin(), turn_.end(), 0U);
    for (unsigned t = 0; t < num_threads_; ++t) {
      Thread& thread = *threads_[t];
      thread.index = {t % launch_->block.x, t / launch_->block.x % launch_->block.y,
                      t / launch_->block.x / launch_->block.y};
      thread.state = State::ready;
      thread.fiber.start(thread_main, this);
      ++warps_[t / kWarp].live;
    }
    while (finding_.empty()) {
      if (order_.seed != 0) std::shuffle(turn_.begin(), turn_.end(), random);
      const bool ran = run_ready();
      if (!finding_.empty() || (!ran && !release())) return;
    }
  }

  bool run_ready() {
    bool ran = false;
    for (const unsigned t : turn_) {
      Thread& thread = *threads_[t];
      if (thread.state != State::ready) continue;
      ran = true;
      current_ = &thread;
      number_ = t;
      watch_thread(t, thread.fiber);
      thread.fiber.enter();
      watch_nothing();
      if (!finding_.empty()) return true;
      if (thread.state != State::ended) continue;
      Warp& warp = warps_[t / kWarp];
      --warp.live;
      if (warp.live > 0 && warp.waiting == warp.live) complete(t / kWarp);
    }
    return ran;
  }

  // Runs when the last thread of a warp has arrived or ended.
  void complete(unsigned w) {
    void* lanes[kWarp] = {};
    const Thread* first = nullptr;
    const unsigned end = std::min(num_threads_, (w + 1) * kWarp);
    for (unsigned t = w * kWarp; t < end; ++t) {
      const Thread& thread = *threads_[t];
      if (thread.state != State::in_warp && &thread != current_) continue;
      if (thread.state == State::ended) continue;
      if (first == nullptr) first = &thread;
      if (thread.file != first->file || thread.line != first->line) {
        fail(base::concat("its warp meets at ", place(thread), " and at ", place(*first)).c_str());
      }
      lanes[t % kWarp] = thread.brought;
    }
    meets_.all(lanes);
    if (meets_.orders) watch_warp_ordered(w);
    for (unsigned t = w * kWarp; t < end; ++t) {
      if (threads_[t]->state == State::in_warp) threads_[t]->state = State::ready;
    }
    warps_[w].waiting = 0;
  }

  // No thread can run: either all wait at one barrier, or some wait for threads that cannot arrive.
  bool release() {
    const Thread* first = nullptr;
    for (unsigned t = 0; t < num_threads_; ++t) {
      if (threads_[t]->state != State::ended && first == nullptr) first = threads_[t].get(), number_ = t;
    }
    if (first == nullptr) return false;
    for (unsigned t = 0; t < num_threads_; ++t) {
      const Thread& other = *threads_[t];
      if (other.state == first->state && other.file == first->file && other.line == first->line) continue;
      finding_ =
          base::concat("block ", block_, ": thread ", number_, " waits at ", place(*first), ", and thread ", t,
                       other.state == State::ended ? " has ended without coming there" : " waits at " + place(other));
      return false;
    }
    if (first->state != State::at_barrier) {
      finding_ = base::concat("block ", block_, ": all warps wait at ", place(*first));
      return false;
    }
    watch_block_ordered();
    for (unsigned t = 0; t < num_threads_; ++t) threads_[t]->state = State::ready;
    return true;
  }

  static std::string place(const Thread& thread) {
    const std::string file = thread.file;
    return base::concat(file.substr(file.rfind('/') + 1), ":", thread.line);
  }

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> turn_;
  struct {
    void (*all)(void* const*) = nullptr;
    bool orders = false;
  } meets_;
  std::string finding_;
  uint64_t block_ = 0;
  unsigned num_threads_ = 0, number_ = 0;
};

Machine& machine() {
  static Machine* const one = new Machine;  // kernels have no parameter for it
  return *one;
}
std::vector<std::string>& names() {
  static auto* const all = new std::vector<std::string>;
  return *all;
}

}  // namespace

void set_order(Order order) { machine().order_ = std::move(order); }

std::vector<uint64_t> orders_to_try() {
#ifdef __SANITIZE_ADDRESS__
  return {0};
#else
  return {0, 1, 2};
#endif
}

std::string run(const Launch& launch) {
  if (std::find(names().begin(), names().end(), launch.name) == names().end()) names().emplace_back(launch.name);
  return machine().run(launch);
}
const std::vector<std::string>& launched() { return names(); }

Index thread_index() { return machine().current_->index; }
Index block_index() { return machine().block_index_; }
Index block_size() { return machine().launch_->block; }
Index grid_size() { return machine().launch_->grid; }
unsigned char* dynamic_shared() { return machine().room_.data(); }
void block_barrier(const char* file, int line) { machine().barrier(file, line); }
void warp_meets(const WarpMeeting& meeting, unsigned mask, void* mine, void (*all)(void* const*)) {
  machine().meet(meeting, mask, mine, all);
}
void fail(const char* what) { machine().fail(what); }

}  // namespace metroplex::kernels_on_host
