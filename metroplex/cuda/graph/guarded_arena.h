// Memory that only recorded operations may access. Its pages are protected; a page that an operation touches is
// opened until the operation ends. So every access by data pointer outside of an operation is caught: on a GPU it
// would be a hidden synchronization or a crash. One arena per process, for one rank: accesses by other threads are
// caught too.
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

#include "cuda/graph/tape_findings.h"
#include "cuda/graph/tape_recorder.h"

namespace metroplex::cuda {

// A log of memory accesses outside of any operation, written by a signal handler: into preallocated space, without
// allocating or taking a lock. It is read after the handler has been removed.

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
  std::array<void*, kFrames> frames;  // the instruction, and whoever called it
  int depth = 0;
};

class AccessLog {
 public:
  explicit AccessLog(size_t room = 1024) : accesses_(room) {}
  // The next entry to fill in; one caller at a time. Null when the log is full: the access is only counted.
  Access* add() noexcept;

  // With the callers' names, as far as the dynamic linker knows them (of a program's own functions: their offsets in
  // it, for addr2line).
  std::vector<Finding> findings() const;

 private:
  std::vector<Access> accesses_;
  std::atomic<size_t> used_ = 0, left_out_ = 0;
};

// An alternate stack for a thread's signal handlers (sigaltstack). Generated code may use the stack pointer for other
// addresses (the copy-free sgemm kernels of oneDNN before 3.12 for a heap workspace); a handler on such a "stack"
// would overwrite the memory below it.
class SignalStack {
 public:
  // For handlers with SA_ONSTACK, in the calling thread. Throws base::Error("signal stack", ...) where the system has
  // none.
  SignalStack();
  // In the same thread, which gets back what it had.
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

  // Whether it points into the stack of the thread that made this. Any thread may ask, and a signal handler.
  bool on_thread(const void* stack_pointer) const { return stack_pointer >= low_ && stack_pointer < high_; }

 private:
  char* memory_ = nullptr;
  size_t bytes_ = 0;
  stack_t before_{};
  const void *low_ = nullptr, *high_ = nullptr;  // of the thread's stack
};

// An access that the processor refused.
struct MemoryFault {
  void* address;
  bool writes = false;
  void *instruction = nullptr, *stack = nullptr;
};

class GuardedArena final : private OperationWatch {
 public:
  // Hangs at the recorder.
  explicit GuardedArena(TapeRecorder& recorder);
  ~GuardedArena() override;
  GuardedArena(const GuardedArena&) = delete;
  GuardedArena& operator=(const GuardedArena&) = delete;

  // For what is there before a recording, parameters and inputs: TapeHooks(nullptr, outside()) where it is made.
  const std::shared_ptr<TapePool>& outside() const { return pools_[0]; }
  // What is recorded allocates here.
  const std::shared_ptr<TapePool>& inside() const { return pools_[1]; }

  // Between the two it is recorded, not strictly, and both are closed to all but operations. An access beside them
  // goes through and is remembered. What the host writes into memory that no operation has touched is no such access:
  // libtorch makes its constants so.
  void begin();
  Tape end();
  void abandon() noexcept;  // instead of end(), after an exception
  Tape record(const std::function<void()>& work);

  // host_access, at the operation that was the last one before it; undeclared, of a kernel that touches memory which
  // its launch names neither as read nor as written. With their callers (AccessLog), but where the stack pointer
  // was no stack's.
  std::vector<Finding> findings() const { return log_.findings(); }

 private:
  struct Pages {
    void* begin;
    size_t bytes;
  };
  static constexpr size_t kOpen = 512;  // blocks that one operation opens; beyond, all are closed again
  static void on_fault(int signal, siginfo_t* info, void* context);
  void before(const TapeOperation& operation) override;
  void after(const TapeOperation& operation) override;
  bool opened(const MemoryFault& fault);  // whether it was ours
  void note(const MemoryFault& fault, FindingKind kind, bool given_back);
  bool names(const TapePool::Place& block) const;
  void allow(const Pages& pages);
  void close_again();
  void leave() noexcept;
  void protect_all(int protection);

  TapeRecorder& recorder_;
  std::shared_ptr<TapePool> pools_[2];
  std::optional<SignalStack> stack_;
  struct sigaction previous_ {};
  int threads_ = 0;  // before
  const TapeOperation* running_ = nullptr;
  std::vector<TapeSpan> named_;  // what it reads and writes
  std::string last_;
  int64_t before_[2] = {0, 0};  // the operation: allocations
  int64_t known_[2] = {0, 0};   // allocations before the recording
  std::array<Pages, kOpen> open_;
  size_t opened_ = 0;  // more than kOpen: not all are in open_
  AccessLog log_;
};

}  // namespace metroplex::cuda
