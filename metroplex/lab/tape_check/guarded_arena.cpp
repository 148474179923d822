#include "tape_check/guarded_arena.h"

#include <ATen/Parallel.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"

namespace metroplex::tape_check {
namespace {

std::atomic<GuardedArena*> guarded = nullptr;  // the only state accessible to the signal handler
std::atomic<pthread_t> handling = 0;           // thread in the handler; 0: none

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Decodes the fault. On other processors every access counts as a read by an unknown instruction.
MemoryFault read_fault(const siginfo_t* info, const void* context) {
  MemoryFault fault{info->si_addr};
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;  // bit of the error code
  const greg_t* registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  fault.writes = (registers[REG_ERR] & kWrite) != 0;
  fault.instruction = reinterpret_cast<void*>(registers[REG_RIP]);
  fault.stack = reinterpret_cast<void*>(registers[REG_RSP]);
#else
  (void)context;
#endif
  return fault;
}

// Stores the instruction and its callers, if the frames can be read: the unwinder starts from the stack pointer.
void put_callers(const MemoryFault& fault, bool on_stack, Access& access) {
  access.depth = 1;
  access.frames[0] = fault.instruction;
  if (!on_stack) return;
  void** begin = access.frames.data();
  const int count = backtrace(begin, Access::kFrames);
  void** found = std::find(begin, begin + count, fault.instruction);
  if (found != begin + count) {
    std::copy(found, begin + count, begin);
    access.depth = static_cast<int>(begin + count - found);
  } else {
    access.frames[0] = fault.instruction;
  }
}

}  // namespace

GuardedArena::GuardedArena(graph::TapeRecorder& recorder) : recorder_(recorder) {
  for (auto& pool : pools_) pool = std::make_shared<graph::TapePool>(0, page_size());
  recorder_.set_watch(this);
  void* warm[1];
  backtrace(warm, 1);  // loads libraries that the handler could not load
}

GuardedArena::~GuardedArena() { recorder_.set_watch(nullptr); }

void GuardedArena::begin() {
  GuardedArena* none = nullptr;
  MPX_ASSERT(guarded.compare_exchange_strong(none, this), "one guarded arena records at a time");
  recorder_.begin(inside(), /*strict=*/false);
  threads_ = at::get_num_threads();
  at::set_num_threads(1);
  stack_.emplace();
  struct sigaction action {};
  action.sa_sigaction = &GuardedArena::on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &previous_);
  for (int p = 0; p < 2; ++p) known_[p] = pools_[p]->allocations();
  last_ = "the start";
  protect_all(PROT_NONE);
}

graph::Tape GuardedArena::end() {
  leave();
  return recorder_.end();
}

void GuardedArena::abandon() noexcept {
  leave();
  recorder_.abandon();
}

graph::Tape GuardedArena::record(const std::function<void()>& work) {
  begin();
  try {
    work();
  } catch (...) {
    abandon();
    throw;
  }
  return end();
}

void GuardedArena::leave() noexcept {
  protect_all(PROT_READ | PROT_WRITE);
  opened_ = 0;
  sigaction(SIGSEGV, &previous_, nullptr);
  stack_.reset();
  at::set_num_threads(threads_);
  guarded = nullptr;
}

void GuardedArena::before(const graph::TapeOperation& operation) {
  close_again();
  for (int p = 0; p < 2; ++p) before_[p] = pools_[p]->allocations();
  named_.clear();
  for (const auto* tensors : {&operation.reads, &operation.writes}) {
    for (const at::Tensor& x : *tensors) named_.push_back(graph::to_span(x));
  }
  running_ = &operation;
}

void GuardedArena::after(const graph::TapeOperation& operation) {
  running_ = nullptr;
  last_ = operation.name;
  close_again();
}

void GuardedArena::protect_all(int protection) {
  for (const auto& pool : pools_)
    MPX_ASSERT(mprotect(pool->base(), pool->capacity(), protection) == 0, "the system does not protect pages");
}

void GuardedArena::allow(const Pages& pages) {
  mprotect(pages.begin, pages.bytes, PROT_READ | PROT_WRITE);
  if (opened_ < kOpen) open_[opened_] = pages;
  ++opened_;
}

void GuardedArena::close_again() {
  if (guarded != this) return;
  if (opened_ > kOpen) protect_all(PROT_NONE);
  else
    for (size_t i = 0; i < opened_; ++i) mprotect(open_[i].begin, open_[i].bytes, PROT_NONE);
  opened_ = 0;
}

// A fault outside the arena goes to the previous handler when the access is retried. A fault in the handler itself
// terminates the process.
void GuardedArena::on_fault(int /*signal*/, siginfo_t* info, void* context) {
  GuardedArena* arena = guarded;
  const pthread_t self = pthread_self();
  if (handling == self) {
    std::signal(SIGSEGV, SIG_DFL);
    return;
  }
  for (pthread_t nobody = 0; !handling.compare_exchange_weak(nobody, self); nobody = 0) {}
  const bool ours = arena != nullptr && arena->opened(read_fault(info, context));
  if (!ours && arena != nullptr) sigaction(SIGSEGV, &arena->previous_, nullptr);
  handling = 0;
}

// libtorch's operators access only their arguments, so they are accepted without a list.
bool GuardedArena::names(const graph::TapePool::Place& block) const {
  if (named_.empty()) return true;
  const auto begin = reinterpret_cast<uintptr_t>(block.begin);
  return std::any_of(named_.begin(), named_.end(), [&](const graph::TapeSpan& span) {
    return span.overlaps({begin, begin + block.bytes});
  });
}

// Runs in the signal handler, like all functions below. The faulting access is not in an allocator or pool, so only
// other threads can hold their locks, and those threads continue. Nothing here allocates.
bool GuardedArena::opened(const MemoryFault& fault) {
  void* address = fault.address;
  graph::TapePool& pool = pools_[0]->holds(address) ? *pools_[0] : *pools_[1];
  if (!pool.holds(address)) return false;
  const int p = &pool == pools_[0].get() ? 0 : 1;
  const auto block = pool.place_of(address);
  if (!block) {
    const auto page = reinterpret_cast<uintptr_t>(address) & ~(page_size() - 1);
    allow({reinterpret_cast<void*>(page), page_size()});
  } else {
    allow({block->begin, block->bytes});
  }
  if (running_ != nullptr) {
    pool.mark_touched(address);
    if (block && block->number < before_[p] && !names(*block)) note(fault, FindingKind::undeclared, false);
  } else if (!block || block->number < known_[p] || block->touched) {
    note(fault, FindingKind::host_access, !block);
  }
  return true;
}

void GuardedArena::note(const MemoryFault& fault, FindingKind kind, bool given_back) {
  Access* access = log_.add();
  if (access == nullptr) return;
  access->kind = kind;
  access->writes = fault.writes;
  access->given_back = given_back;
  access->address = reinterpret_cast<uintptr_t>(fault.address);
  access->operation.set(running_ != nullptr ? running_->name : last_);
  access->place.set(recorder_.place());
  put_callers(fault, stack_->on_thread(fault.stack), *access);
}

}  // namespace metroplex::tape_check
