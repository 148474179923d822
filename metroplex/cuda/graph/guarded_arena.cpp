#include "cuda/graph/guarded_arena.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/error.h"

namespace metroplex::cuda {
namespace {

std::atomic<GuardedArena*> guarded = nullptr;  // a signal handler can reach nothing else
std::atomic_flag handling = ATOMIC_FLAG_INIT;  // threads of one operation fault at once

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// What the processor says of a fault. Elsewhere every access is taken for a read by somebody unknown.
MemoryFault fault_of(const siginfo_t* info, const void* context) {
  MemoryFault fault{info->si_addr};
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;  // of the error code
  const greg_t* registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  fault.writes = (registers[REG_ERR] & kWrite) != 0;
  fault.instruction = reinterpret_cast<void*>(registers[REG_RIP]);
#else
  (void)context;
#endif
  return fault;
}

// Whoever called the instruction, and it.
std::vector<void*> callers_of(const void* instruction) {
  constexpr int kFrames = 32;
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  void** begin = std::find(frames, frames + count, instruction);
  return std::vector<void*>(begin, frames + count);
}

std::string hex(uintptr_t number) {
  std::ostringstream text;
  text << "0x" << std::hex << number;
  return text.str();
}

std::string caller(void* frame) {
  Dl_info info{};
  if (dladdr(frame, &info) == 0) return hex(reinterpret_cast<uintptr_t>(frame));
  if (info.dli_sname != nullptr) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status),
                                                      &std::free);
    const std::string text = status == 0 ? name.get() : info.dli_sname;
    return text.substr(0, text.find('('));
  }
  const std::string file = info.dli_fname;
  return file.substr(file.rfind('/') + 1) + "+" +
         hex(reinterpret_cast<uintptr_t>(frame) - reinterpret_cast<uintptr_t>(info.dli_fbase));
}

}  // namespace

GuardedArena::GuardedArena(TapeRecorder& recorder) : recorder_(recorder) {
  for (auto& pool : pools_) pool = std::make_shared<TapePool>(0, page_size());
  recorder_.set_watch(this);
  void* warm[1];
  backtrace(warm, 1);  // loads what it needs, which the handler could not
}

GuardedArena::~GuardedArena() { recorder_.set_watch(nullptr); }

void GuardedArena::begin() {
  GuardedArena* none = nullptr;
  MPX_ASSERT(guarded.compare_exchange_strong(none, this), "one guarded arena records at a time");
  recorder_.begin(inside(), /*strict=*/false);
  struct sigaction action {};
  action.sa_sigaction = &GuardedArena::on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_);
  for (int p = 0; p < 2; ++p) known_[p] = pools_[p]->allocations();
  touched_.clear();
  last_ = "the start";
  protect_all(PROT_NONE);
}

Tape GuardedArena::end() {
  leave();
  return recorder_.end();
}

void GuardedArena::abandon() noexcept {
  leave();
  recorder_.abandon();
}

Tape GuardedArena::record(const std::function<void()>& work) {
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
  open_.clear();
  sigaction(SIGSEGV, &previous_, nullptr);
  guarded = nullptr;
}

void GuardedArena::before(const TapeOperation& operation) {
  close_again();
  for (int p = 0; p < 2; ++p) before_[p] = pools_[p]->allocations();
  running_ = &operation;
}

void GuardedArena::after(const TapeOperation& operation) {
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
  open_.push_back(pages);
}

void GuardedArena::close_again() {
  if (guarded != this) return;
  for (const Pages& pages : open_) mprotect(pages.begin, pages.bytes, PROT_NONE);
  open_.clear();
}

// What is not ours goes to whoever had the signal before, when the access is tried again.
void GuardedArena::on_fault(int /*signal*/, siginfo_t* info, void* context) {
  GuardedArena* arena = guarded;
  while (handling.test_and_set(std::memory_order_acquire)) {}
  const bool ours = arena != nullptr && arena->opened(fault_of(info, context));
  if (!ours && arena != nullptr) sigaction(SIGSEGV, &arena->previous_, nullptr);
  handling.clear(std::memory_order_release);
}

// Of libtorch's operators nobody has to tell what they touch: it is their arguments.
bool GuardedArena::names(const TapeOperation& operation, const TapePool::Place& block) {
  if (operation.reads.empty() && operation.writes.empty()) return true;
  const auto begin = reinterpret_cast<uintptr_t>(block.begin);
  for (const auto* tensors : {&operation.reads, &operation.writes}) {
    for (const at::Tensor& x : *tensors) {
      if (span_of(x).overlaps({begin, begin + block.bytes})) return true;
    }
  }
  return false;
}

// A fault comes at a load or store of ours, so no lock of the allocator's or the pool's is held.
bool GuardedArena::opened(const MemoryFault& fault) {
  void* address = fault.address;
  const int p = pools_[0]->holds(address) ? 0 : 1;
  if (!pools_[p]->holds(address)) return false;
  const auto block = pools_[p]->place_of(address);
  if (!block) {
    const auto page = reinterpret_cast<uintptr_t>(address) & ~(page_size() - 1);
    allow({reinterpret_cast<void*>(page), page_size()});
  } else {
    allow({block->begin, block->bytes});
  }
  const int64_t number = block ? block->number : -1;
  const auto note = [&](FindingKind kind, const std::string& operation) {
    accesses_.push_back({kind, fault.writes, !block, reinterpret_cast<uintptr_t>(address), operation,
                         recorder_.place(), callers_of(fault.instruction)});
  };
  if (running_ != nullptr) {
    touched_.emplace(p, number);
    if (block && number < before_[p] && !names(*running_, *block)) note(FindingKind::undeclared, running_->name);
    return true;
  }
  if (block && number >= known_[p] && !touched_.contains({p, number})) return true;
  note(FindingKind::host_access, last_);
  return true;
}

std::vector<Finding> GuardedArena::findings() const {
  constexpr size_t kShown = 6;
  std::vector<Finding> found;
  for (const Access& access : accesses_) {
    std::string callers;
    for (size_t f = 0; f < std::min(kShown, access.frames.size()); ++f)
      callers += (f > 0 ? " < " : "") + caller(access.frames[f]);
    const bool host = access.kind == FindingKind::host_access;
    found.push_back({access.kind, access.operation, access.place,
                     base::concat(host ? "behind this operation the host " : "it ",
                                  access.writes ? "writes" : "reads", " through a pointer at ", hex(access.address),
                                  access.given_back ? ", which has been given back" : "", "; in ", callers)});
  }
  return found;
}

}  // namespace metroplex::cuda
