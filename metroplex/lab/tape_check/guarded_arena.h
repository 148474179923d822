// Memory that only recorded operations may access. Its pages are protected; a page that an operation touches stays
// open until the operation ends. Every access through a data pointer outside an operation is caught; on a GPU it
// would be a hidden synchronization or a crash. One arena per process, for one rank, because accesses of other
// threads are caught too.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tape_check/tape_findings.h"
#include "graph/tape_recorder.h"

namespace metroplex::tape_check {

// A log of memory accesses outside operations, written by a signal handler into preallocated space, without
// allocating or locking. It is read after the handler has been removed.

// A string that a signal handler can set; longer text is truncated.
template <size_t Room>
class FixedText {
 public:
  void set(std::string_view text) noexcept {
    size_ = text.size() < Room ? text.size() : Room;
    for (size_t i = 0; i < size_; ++i) text_[i] = text[i];
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, Room> text_;
  size_t size_ = 0;
};

struct Access {
  static constexpr int kFrames = 32;
  FindingKind kind = FindingKind::host_access;
  bool writes = false, given_back = false;
  uintptr_t address = 0;
  FixedText<120> operation, place;
  std::array<void*, kFrames> frames;  // the instruction and its callers
  int depth = 0;
};

class AccessLog {
 public:
  explicit AccessLog(size_t room = 1024) : accesses_(room) {}
  // Returns the next entry to fill in; one caller at a time. Null if the log is full: the access is only counted.
  Access* add() noexcept;

  // Diagnostics with the callers' names from the dynamic linker; functions of the program itself are offsets for
  // addr2line.
  std::vector<Finding> findings() const;

 private:
  std::vector<Access> accesses_;
  std::atomic<size_t> used_ = 0, left_out_ = 0;
};

// An alternate stack for a thread's signal handlers (sigaltstack). Generated code may use the stack pointer for
// other addresses: the copy-free sgemm kernels of oneDNN before 3.12 set it to a heap workspace. A handler on such
// a "stack" would overwrite the memory below it.
class SignalStack {
 public:
  // Installs the stack for SA_ONSTACK handlers of the calling thread. Throws base::Error("signal stack", ...) if the
  // system does not support it.
  SignalStack();
  // Must run in the same thread; restores the previous alternate stack.
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

  // Returns whether the pointer is in the stack of the constructing thread. Safe in any thread and in signal
  // handlers.
  bool on_thread(const void* stack_pointer) const { return stack_pointer >= low_ && stack_pointer < high_; }

 private:
  char* memory_ = nullptr;
  size_t bytes_ = 0;
  stack_t before_{};
  const void *low_ = nullptr, *high_ = nullptr;  // the thread's stack
};

struct MemoryFault {
  void* address;
  bool writes = false;
  void *instruction = nullptr, *stack = nullptr;
};

class GuardedArena final : private graph::OperationWatch {
 public:
  // Attaches itself to the recorder.
  explicit GuardedArena(graph::TapeRecorder& recorder);
  ~GuardedArena() override;
  GuardedArena(const GuardedArena&) = delete;
  GuardedArena& operator=(const GuardedArena&) = delete;

  // Pool for tensors that exist before a recording, such as parameters and inputs: use TapeHooks(nullptr, outside())
  // to create them.
  const std::shared_ptr<graph::TapePool>& outside() const { return pools_[0]; }
  // Pool for allocations during a recording.
  const std::shared_ptr<graph::TapePool>& inside() const { return pools_[1]; }

  // Start and end a non-strict recording, during which both pools are closed to all code except operations. Other
  // accesses succeed but are logged. A host write into memory that no operation has touched is not logged, because
  // libtorch creates its constants that way.
  void begin();
  graph::Tape end();
  void abandon() noexcept;  // replaces end() after an exception
  graph::Tape record(const std::function<void()>& work);

  // Diagnostics of two kinds. host_access: an access outside operations, reported with the preceding operation.
  // undeclared: a kernel accesses memory that its launch lists neither as read nor as written. Callers are included
  // (AccessLog) if the stack pointer pointed into the thread's stack.
  std::vector<Finding> findings() const { return log_.findings(); }

 private:
  struct Pages {
    void* begin;
    size_t bytes;
  };
  static constexpr size_t kOpen = 512;  // maximum blocks tracked per operation; beyond it, all are closed again
  static void on_fault(int signal, siginfo_t* info, void* context);
  void before(const graph::TapeOperation& operation) override;
  void after(const graph::TapeOperation& operation) override;
  bool opened(const MemoryFault& fault);  // returns whether the fault was in the arena
  void note(const MemoryFault& fault, FindingKind kind, bool given_back);
  bool names(const graph::TapePool::Place& block) const;
  void allow(const Pages& pages);
  void close_again();
  void leave() noexcept;
  void protect_all(int protection);

  graph::TapeRecorder& recorder_;
  std::shared_ptr<graph::TapePool> pools_[2];
  std::optional<SignalStack> stack_;
  struct sigaction previous_ {};
  int threads_ = 0;  // number of threads before the recording
  const graph::TapeOperation* running_ = nullptr;
  std::vector<graph::TapeSpan> named_;  // memory that the operation reads and writes
  std::string last_;
  int64_t before_[2] = {0, 0};  // allocations before the operation
  int64_t known_[2] = {0, 0};   // allocations before the recording
  std::array<Pages, kOpen> open_;
  size_t opened_ = 0;  // greater than kOpen: open_ is incomplete
  AccessLog log_;
};

}  // namespace metroplex::tape_check
