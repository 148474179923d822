// Named event listeners in registration order. For before/after event pairs, callers notify in this order before
// the action and in reverse order after it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace metroplex::base {

template <class Listener>
class Listeners {
 public:
  struct Entry {
    std::string name;
    Listener listener;
  };

  void add(std::string name, Listener listener) {
    MPX_ASSERT(!has(name), "two listeners are called ", name);
    entries_.push_back({std::move(name), std::move(listener)});
  }
  // No-op if there is no such name.
  void remove(std::string_view name) {
    std::erase_if(entries_, [&](const Entry& entry) { return entry.name == name; });
  }
  bool has(std::string_view name) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
  }
  bool empty() const { return entries_.empty(); }

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto rbegin() const { return entries_.rbegin(); }
  auto rend() const { return entries_.rend(); }

 private:
  std::vector<Entry> entries_;
};

}  // namespace metroplex::base
