#include "device/turns.h"

#include <ATen/ThreadLocalState.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <exception>
#include <optional>

#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define METROPLEX_TURNS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define METROPLEX_TURNS_ASAN 1
#endif
#endif
#ifdef METROPLEX_TURNS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace metroplex::device {
namespace {

// Unwinds a piece of work whose partner has failed.
struct PartnerFailed {};

// Address space only: pages are allocated when they are touched.
constexpr size_t kStackBytes = size_t{8} << 20, kGuardBytes = size_t{64} << 10;

// The stack of the second piece. The pages below it are not accessible.
class Stack {
 public:
  Stack() {
    void* const memory =
        mmap(nullptr, kGuardBytes + kStackBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MPX_CHECK(memory != MAP_FAILED, "device", "no address space for a stack of ", kStackBytes, " bytes");
    all_ = static_cast<char*>(memory);
    MPX_CHECK(mprotect(bottom(), kStackBytes, PROT_READ | PROT_WRITE) == 0, "device", "no memory for a stack of ",
              kStackBytes, " bytes");
  }
  ~Stack() { munmap(all_, kGuardBytes + kStackBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  char* bottom() const { return all_ + kGuardBytes; }

 private:
  char* all_ = nullptr;
};

}  // namespace

struct Turns::State {
  struct Side {
    ucontext_t context;
    std::optional<at::ThreadLocalState> locals;  // while the other side has the turn
    bool ended = false;
    std::exception_ptr error;
#ifdef METROPLEX_TURNS_ASAN
    void* fake_stack = nullptr;
    const void* stack = nullptr;  // as the sanitizer reports it
    size_t stack_bytes = 0;
#endif
  };

  void run_second();
  void pass(int to);
  void yield();

  Stack stack;
  Side sides[2];
  int turn = 0;
  const std::function<void()>* second = nullptr;
};

namespace {

thread_local Turns::State* current = nullptr;  // the pair that runs on this thread; yield_turn() has no argument

}  // namespace

void Turns::State::pass(int to) {
  Side &from_side = sides[1 - to], &to_side = sides[to];
  from_side.locals.emplace();
  at::ThreadLocalState::setThreadLocalState(*to_side.locals);
  turn = to;
#ifdef METROPLEX_TURNS_ASAN
  __sanitizer_start_switch_fiber(from_side.ended && to == 0 ? nullptr : &from_side.fake_stack, to_side.stack,
                                 to_side.stack_bytes);
#endif
  swapcontext(&from_side.context, &to_side.context);
#ifdef METROPLEX_TURNS_ASAN
  __sanitizer_finish_switch_fiber(from_side.fake_stack, &to_side.stack, &to_side.stack_bytes);
#endif
}

void Turns::State::yield() {
  const int own = turn;
  if (sides[1 - own].ended) return;
  pass(1 - own);
  if (sides[1 - own].error) throw PartnerFailed();
}

void Turns::State::run_second() {
#ifdef METROPLEX_TURNS_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &sides[0].stack, &sides[0].stack_bytes);
#endif
  try {
    if (!sides[0].error) (*second)();
  } catch (const PartnerFailed&) {
  } catch (...) { sides[1].error = std::current_exception(); }
  sides[1].ended = true;
  pass(0);  // for good
}

Turns::Turns() : state_(std::make_unique<State>()) {}
Turns::~Turns() = default;

void Turns::run(const std::function<void()>& first, const std::function<void()>& second) {
  MPX_ASSERT(current == nullptr, "work that advances in turns starts further work of this kind");
  State& state = *state_;
  for (State::Side& side : state.sides) side.ended = false, side.error = nullptr;
  state.turn = 0;
  state.second = &second;
  state.sides[1].locals.emplace();  // the second piece begins with the caller's state
  getcontext(&state.sides[1].context);
  state.sides[1].context.uc_stack.ss_sp = state.stack.bottom();
  state.sides[1].context.uc_stack.ss_size = kStackBytes;
  state.sides[1].context.uc_link = nullptr;
#ifdef METROPLEX_TURNS_ASAN
  state.sides[1].stack = state.stack.bottom();
  state.sides[1].stack_bytes = kStackBytes;
#endif
  makecontext(
      &state.sides[1].context, [] { current->run_second(); }, 0);
  current = &state;
  try {
    first();
  } catch (const PartnerFailed&) {
  } catch (...) { state.sides[0].error = std::current_exception(); }
  state.sides[0].ended = true;
  while (!state.sides[1].ended) state.pass(1);
  current = nullptr;
  for (const State::Side& side : state.sides) {
    if (side.error) std::rethrow_exception(side.error);
  }
}

void yield_turn() {
  if (current != nullptr) current->yield();
}

}  // namespace metroplex::device
