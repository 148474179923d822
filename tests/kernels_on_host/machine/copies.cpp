#include "kernels_on_host/machine/copies.h"

#include <deque>
#include <map>
#include <utility>

#include "kernels_on_host/machine/machine.h"

namespace metroplex::kernels_on_host {
namespace {

struct ThreadCopies {
  std::deque<PendingCopy> open;
  std::deque<std::deque<PendingCopy>> committed;
};

std::map<unsigned, ThreadCopies>& copies_of_block() {
  static std::map<unsigned, ThreadCopies> all;
  return all;
}

ThreadCopies& copies_of_thread() { return copies_of_block()[thread_index().x]; }

}  // namespace

void start_copy(const PendingCopy& copy) { copies_of_thread().open.push_back(copy); }

void commit_copies() {
  ThreadCopies& copies = copies_of_thread();
  copies.committed.push_back(std::move(copies.open));
  copies.open.clear();
}

void forget_copies() { copies_of_block().clear(); }

bool take_copy(size_t newer, PendingCopy* copy) {
  auto& committed = copies_of_thread().committed;
  while (committed.size() > newer && committed.front().empty()) committed.pop_front();
  if (committed.size() <= newer) return false;
  *copy = committed.front().front();
  committed.front().pop_front();
  return true;
}

}  // namespace metroplex::kernels_on_host
