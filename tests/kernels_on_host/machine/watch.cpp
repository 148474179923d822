#include "kernels_on_host/machine/watch.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "kernels_on_host/machine/fiber.h"
#include "kernels_on_host/machine/machine.h"

extern "C" {
extern char __executable_start, __data_start, _end;  // of the program, by the linker
}

namespace metroplex::kernels_on_host {
namespace {

constexpr uint32_t kManyOfWarp = 0x4000, kManyOfBlock = 0x8000, kManyBlocks = 0xFFFFFFFF;

// Time and thread of an access. `thread` may be a set: kManyOfWarp + warp, or kManyOfBlock.
struct Touch {
  uint32_t block, thread, block_epoch, warp_epoch;
};

struct Cell {
  uint32_t wrote_in, read_in;  // launches, 0: none
  uint32_t filled;             // was written in some launch
  Touch wrote, read;
};

// Zeroed memory; only accessed pages take memory.
Cell* cells_for(size_t count) {
  void* const at = mmap(nullptr, std::max<size_t>(1, count) * sizeof(Cell), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) abort();
  return static_cast<Cell*>(at);
}

struct Region {
  Memory memory;
  bool shared = false;  // of the block
  Cell* cells = nullptr;

  Region(Memory of, bool is_shared)
      : memory(std::move(of)), shared(is_shared), cells(cells_for(memory.bytes / memory.granule + 1)) {}
  ~Region() { munmap(cells, std::max<size_t>(1, memory.bytes / memory.granule + 1) * sizeof(Cell)); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  size_t offset(const char* at) const { return static_cast<size_t>(at - static_cast<char*>(memory.begin)); }
  bool holds(const char* at, size_t bytes) const { return at >= memory.begin && offset(at) + bytes <= memory.bytes; }
};

class Watch {
 public:
  void add(const Memory& memory) { regions_.push_back(std::make_unique<Region>(memory, false)); }
  void forget(const void* begin) {
    last_ = nullptr;
    std::erase_if(regions_, [&](const auto& region) { return region->memory.begin == begin; });
  }

  void launch(const WatchedLaunch& launch) {
    if (statics_ == nullptr) {
      statics_ = std::make_unique<Region>(
          Memory{&__data_start, static_cast<size_t>(&_end - &__data_start), 1, true, false, "shared memory"}, true);
    }
    if (room_ == nullptr || room_->memory.bytes != launch.room_bytes || room_->memory.begin != launch.room) {
      room_ = std::make_unique<Region>(
          Memory{launch.room, launch.room_bytes, 1, true, false, "dynamic shared memory"}, true);
    }
    last_ = nullptr;
    packet_ = launch;
    of_kernel_ = &traffic()[launch.name];
    ++launch_;
  }
  void block(uint64_t block) {
    block_ = static_cast<uint32_t>(block);
    block_epoch_ = 1;
    warp_epochs_.fill(1);
  }
  void thread(unsigned thread, const Fiber& fiber) {
    thread_ = thread;
    fiber_ = &fiber;
  }
  void warp_ordered(unsigned warp) { ++warp_epochs_[warp]; }
  void block_ordered() { ++block_epoch_; }
  void nothing() { fiber_ = nullptr; }

  // `multiple`: required alignment of the address.
  void touch(const void* address, size_t bytes, size_t multiple, bool writes) {
    if (fiber_ == nullptr || fiber_->holds(address)) return;
    const char* const at = static_cast<const char*>(address);
    Region* const region = find(at, bytes);
    if (region == nullptr) {
      if (!writes && is_constant(at)) return;
      nothing();  // the message code may share functions with the kernels' files
      found(said(writes, bytes) + nearest(at));
    }
    if (writes && !region->memory.writable) {
      nothing();
      found(said(writes, bytes) + element(*region, at) + ", which is to be read only");
    }
    if (reinterpret_cast<uintptr_t>(at) % multiple != 0) {
      nothing();
      found(said(writes, bytes) + element(*region, at) + ", which is not aligned to that");
    }
    if (!region->shared) count(bytes);
    const size_t first = region->offset(at) / region->memory.granule,
                 last = (region->offset(at) + bytes - 1) / region->memory.granule;
    for (size_t i = first; i <= last; ++i) {
      const char* const race = writes ? write(region->cells[i], *region) : read(region->cells[i], *region);
      if (race != nullptr) found(said(writes, bytes) + element(*region, at) + race + other_);
    }
  }

 private:
  [[noreturn]] static void found(const std::string& what) { fail(what.c_str()); }
  static std::string said(bool writes, size_t bytes) {
    return base::concat(writes ? "writes " : "reads ", bytes, " bytes at ");
  }
  static std::string element(const Region& region, const char* at) {
    return base::concat(region.memory.name, "[", region.offset(at) / region.memory.granule, "]");
  }

  // Arguments of the launch and constants of the program.
  bool is_constant(const char* at) const {
    const char* const packet = static_cast<const char*>(packet_.packet);
    return (at >= packet && at < packet + packet_.packet_bytes) || (at >= &__executable_start && at < &__data_start);
  }

  Region* find(const char* at, size_t bytes) {
    if (last_ != nullptr && last_->holds(at, bytes)) return last_;
    for (const auto& region : regions_) {
      if (region->holds(at, bytes)) return last_ = region.get();
    }
    for (const auto* region : {&statics_, &room_}) {
      if ((*region)->holds(at, bytes)) return last_ = region->get();
    }
    return nullptr;
  }

  std::string nearest(const char* at) const {
    const Region* best = nullptr;
    int64_t least = INT64_MAX, where = 0;
    for (const auto& region : regions_) {
      const int64_t offset = at - static_cast<char*>(region->memory.begin),
                    size = static_cast<int64_t>(region->memory.bytes);
      const int64_t far = offset < 0 ? -offset : offset - size;
      if (far < least) best = region.get(), least = far, where = offset;
    }
    if (best == nullptr) return "a place outside all arrays";
    const auto granule = static_cast<int64_t>(best->memory.granule);
    return base::concat("a place outside all arrays: ", best->memory.name, "[", where / granule, "] of ",
                        static_cast<int64_t>(best->memory.bytes) / granule);
  }

  void count(size_t bytes) {
    of_kernel_->bytes += bytes;
    if (bytes == 8) of_kernel_->in_8 += bytes;
    if (bytes >= 16) of_kernel_->in_16 += bytes;
  }

  Touch now() const { return {block_, thread_, block_epoch_, warp_epochs_[thread_ / kWarp]}; }

  // True if all accesses in `past` happen before this thread's next one.
  bool before_now(const Touch& past) const {
    if (past.block != block_) return false;
    if (past.block_epoch < block_epoch_ || past.thread == thread_) return true;
    const bool my_warp = past.thread < kManyOfWarp ? past.thread / kWarp == thread_ / kWarp
                                                   : past.thread == kManyOfWarp + thread_ / kWarp;
    return my_warp && past.warp_epoch < warp_epochs_[thread_ / kWarp];
  }

  const char* write(Cell& cell, const Region& region) {
    if (region.shared) forget_other_blocks(cell);
    if (cell.wrote_in == launch_ && !before_now(cell.wrote))
      return report_access(cell.wrote, ", which is written by ");
    if (cell.read_in == launch_ && !before_now(cell.read)) return report_access(cell.read, ", which is read by ");
    cell.wrote_in = launch_;
    cell.filled = 1;
    cell.wrote = now();
    return nullptr;
  }

  const char* read(Cell& cell, const Region& region) {
    if (region.shared) {
      forget_other_blocks(cell);
      if (cell.wrote_in != launch_) return is_unreported();
    } else if (!region.memory.filled && cell.filled == 0) {
      return is_unreported();
    }
    if (cell.wrote_in == launch_ && !before_now(cell.wrote))
      return report_access(cell.wrote, ", which is written by ");
    if (cell.read_in != launch_) {
      cell.read_in = launch_;
      cell.read = now();
    } else {
      join(cell.read);
    }
    return nullptr;
  }

  void forget_other_blocks(Cell& cell) const {
    if (cell.wrote.block != block_) cell.wrote_in = 0;
    if (cell.read.block != block_) cell.read_in = 0;
  }

  // Adds this thread's read. Forgets reads that happen before it for every possible later thread.
  void join(Touch& past) const {
    const Touch mine = now();
    if (past.block == kManyBlocks) return;
    if (past.block != block_) {
      past.block = kManyBlocks;
      return;
    }
    if (past.block_epoch < block_epoch_) {
      past = mine;
      return;
    }
    const uint32_t warp = thread_ / kWarp;
    const bool my_warp = past.thread < kManyOfWarp ? past.thread / kWarp == warp : past.thread == kManyOfWarp + warp;
    if (past.thread == thread_ || (my_warp && past.warp_epoch < mine.warp_epoch)) {
      past = mine;
      return;
    }
    past.thread = my_warp ? kManyOfWarp + warp : kManyOfBlock;
    past.warp_epoch = mine.warp_epoch;
  }

  const char* is_unreported() {
    nothing();
    other_ = "that no thread has written yet";
    return ", ";
  }
  const char* report_access(const Touch& past, const char* how) {
    nothing();
    if (past.block == kManyBlocks) {
      other_ = "several blocks";
    } else if (past.block != block_) {
      other_ = base::concat("block ", past.block);
    } else if (past.thread < kManyOfWarp) {
      other_ = base::concat("thread ", past.thread, " with no barrier between");
    } else {
      other_ = "several threads with no barrier between";
    }
    return how;
  }

  std::vector<std::unique_ptr<Region>> regions_;
  std::unique_ptr<Region> statics_, room_;
  Region* last_ = nullptr;
  WatchedLaunch packet_{};
  Traffic* of_kernel_ = nullptr;
  const Fiber* fiber_ = nullptr;
  uint32_t launch_ = 0, block_ = 0, thread_ = 0, block_epoch_ = 1;
  std::array<uint32_t, 32> warp_epochs_{};
  std::string other_;
};

Watch& watch() {
  static auto* const one = new Watch;
  return *one;
}
bool compiled_to_watch = false;

}  // namespace

void watch_memory(const Memory& memory) { watch().add(memory); }
void forget_memory(const void* begin) { watch().forget(begin); }
bool watches() { return compiled_to_watch; }
std::map<std::string, Traffic>& traffic() {
  static auto* const all = new std::map<std::string, Traffic>;
  return *all;
}
void watch_launch(const WatchedLaunch& launch) { watch().launch(launch); }
void watch_block(uint64_t block) { watch().block(block); }
void watch_thread(unsigned thread, const Fiber& fiber) { watch().thread(thread, fiber); }
void watch_warp_ordered(unsigned warp) { watch().warp_ordered(warp); }
void watch_block_ordered() { watch().block_ordered(); }
void watch_nothing() { watch().nothing(); }

namespace {

void touched(const void* address, size_t bytes, size_t multiple, bool writes) {
  watch().touch(address, bytes, multiple, writes);
}

}  // namespace
}  // namespace metroplex::kernels_on_host

// Code compiled with -fsanitize=thread calls these functions.
extern "C" {
using metroplex::kernels_on_host::touched;
void __tsan_init() { metroplex::kernels_on_host::compiled_to_watch = true; }
// Whole structures are "unaligned" or ranges.
#define MPX_ACCESS(bytes)                                                          \
  void __tsan_read##bytes(void* at) { touched(at, bytes, bytes, false); }          \
  void __tsan_write##bytes(void* at) { touched(at, bytes, bytes, true); }          \
  void __tsan_unaligned_read##bytes(void* at) { touched(at, bytes, 1, false); }    \
  void __tsan_unaligned_write##bytes(void* at) { touched(at, bytes, 1, true); }    \
  void __tsan_volatile_read##bytes(void* at) { touched(at, bytes, bytes, false); } \
  void __tsan_volatile_write##bytes(void* at) { touched(at, bytes, bytes, true); }
MPX_ACCESS(1)
MPX_ACCESS(2)
MPX_ACCESS(4)
MPX_ACCESS(8)
MPX_ACCESS(16)
void __tsan_read_range(void* at, size_t bytes) { touched(at, bytes, 1, false); }
void __tsan_write_range(void* at, size_t bytes) { touched(at, bytes, 1, true); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
