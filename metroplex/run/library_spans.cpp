#include "run/library_spans.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace metroplex::run {
namespace {

// libtorch's callbacks are plain functions. They find the observer in libtorch's own thread-local storage, in a kind
// that libtorch itself does not use.
constexpr auto kKind = c10::DebugInfoKind::PRODUCER_INFO;

struct Observed final : c10::DebugInfoBase {
  LibrarySpans::Observer observer;
  int depth = 0;  // operators in progress
};

struct Started final : at::ObserverContext {
  LibrarySpans::Clock::time_point time = LibrarySpans::Clock::now();
};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& /*call*/) {
  auto* observed = static_cast<Observed*>(c10::ThreadLocalDebugInfo::get(kKind));
  if (observed == nullptr || observed->depth++ > 0) return nullptr;
  return std::make_unique<Started>();
}

void on_end(const at::RecordFunction& call, at::ObserverContext* started) {
  auto* observed = static_cast<Observed*>(c10::ThreadLocalDebugInfo::get(kKind));
  if (observed == nullptr) return;
  --observed->depth;
  if (started != nullptr)
    observed->observer(call.name(), static_cast<Started*>(started)->time, LibrarySpans::Clock::now());
}

}  // namespace

struct LibrarySpans::State {
  explicit State(const std::shared_ptr<Observed>& observed)
      : guard(kKind, observed),
        handle(at::addThreadLocalCallback(
            at::RecordFunctionCallback(on_start, on_end).scopes({at::RecordScope::FUNCTION}))) {}
  ~State() { at::removeCallback(handle); }

  c10::DebugInfoGuard guard;
  at::CallbackHandle handle;
};

LibrarySpans::LibrarySpans(Observer observer) {
  const auto observed = std::make_shared<Observed>();
  observed->observer = std::move(observer);
  state_ = std::make_unique<State>(observed);
}

LibrarySpans::~LibrarySpans() = default;

}  // namespace metroplex::run
