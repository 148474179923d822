#include "tape_check/guarded_arena.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"

namespace metroplex::tape_check {
namespace {

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

Finding make_finding(const Access& access) {
  constexpr int kShown = 6;
  std::string callers;
  for (int f = 0; f < std::min(kShown, access.depth); ++f)
    callers += (f > 0 ? " < " : "") + caller(access.frames[static_cast<size_t>(f)]);
  const bool host = access.kind == FindingKind::host_access;
  return {access.kind, std::string(access.operation.view()), std::string(access.place.view()),
          base::concat(host ? "after this operation the host " : "it ", access.writes ? "writes" : "reads",
                       " through a pointer at ", hex(access.address),
                       access.given_back ? ", which has been freed" : "", "; in ", callers)};
}

}  // namespace

Access* AccessLog::add() noexcept {
  if (used_ == accesses_.size()) {
    ++left_out_;
    return nullptr;
  }
  return &accesses_[used_++];
}

std::vector<Finding> AccessLog::findings() const {
  std::vector<Finding> found;
  for (size_t i = 0; i < used_; ++i) found.push_back(make_finding(accesses_[i]));
  if (left_out_ > 0)
    found.back().text += base::concat("; and ", left_out_.load(), " more accesses, of this and others");
  return found;
}

}  // namespace metroplex::tape_check
