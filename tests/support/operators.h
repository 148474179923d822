// Records the names of the libtorch operators that a thread calls, nested ones included.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace metroplex::test {

class Operators {
 public:
  Operators()
      : guard_(c10::DebugInfoKind::TEST_INFO, names_),
        handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&started).scopes({at::RecordScope::FUNCTION}).needsIds(false))) {}
  ~Operators() { at::removeCallback(handle_); }
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  const std::vector<std::string>& names() const { return names_->all; }
  int64_t count(const std::string& name) const { return std::count(names().begin(), names().end(), name); }

 private:
  struct Names final : c10::DebugInfoBase {
    std::vector<std::string> all;
  };
  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function) {
    auto* names = static_cast<Names*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO));
    if (names != nullptr) names->all.emplace_back(function.name());
    return nullptr;
  }
  std::shared_ptr<Names> names_ = std::make_shared<Names>();
  c10::DebugInfoGuard guard_;
  at::CallbackHandle handle_;
};

}  // namespace metroplex::test
