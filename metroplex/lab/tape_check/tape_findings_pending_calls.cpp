#include "tape_check/tape_findings.h"

#include <algorithm>
#include <list>

#include "base/error.h"

namespace metroplex::tape_check {
namespace {

using Pieces = std::vector<graph::TapeSpan>;

Pieces pieces_of_all(const std::vector<at::Tensor>& tensors) {
  Pieces all;
  for (const at::Tensor& x : tensors) {
    const Pieces pieces = pieces_of(x);
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  return all;
}

bool meet(const Pieces& a, const Pieces& b) {
  return std::any_of(a.begin(), a.end(), [&](const graph::TapeSpan& x) {
    return std::any_of(b.begin(), b.end(), [&](const graph::TapeSpan& y) { return x.overlaps(y); });
  });
}

struct PendingCall {
  size_t start;
  Pieces reads, writes;
};

}  // namespace

std::vector<Finding> check_pending_calls(const graph::Tape& tape) {
  std::vector<Finding> found;
  std::list<PendingCall> calls;
  for (size_t i = 0; i < tape.operations.size(); ++i) {
    const graph::TapeOperation& at = tape.operations[i];
    const auto own = std::find_if(calls.begin(), calls.end(), [&](const PendingCall& call) {
      return at.work != nullptr && tape.operations[call.start].work == at.work;
    });
    const bool waits = own != calls.end();
    if (waits) calls.erase(own);
    const Pieces reads = calls.empty() ? Pieces{} : pieces_of_all(at.reads);
    const Pieces writes = calls.empty() ? Pieces{} : pieces_of_all(at.writes);
    for (const PendingCall& call : calls) {
      const char* what = meet(writes, call.reads)    ? "writes what may still be sent by"
                         : meet(writes, call.writes) ? "writes what may still be received by"
                         : meet(reads, call.writes)  ? "reads what may not have been received yet by"
                                                     : nullptr;
      if (what == nullptr) continue;
      found.push_back(finding_at(tape, i, FindingKind::in_flight,
                                 base::concat("operation ", i, " ", what, " ", describe(tape, call.start),
                                              ", which has not been waited for")));
    }
    if (at.work != nullptr && !waits) calls.push_back({i, pieces_of_all(at.reads), pieces_of_all(at.writes)});
  }
  for (const PendingCall& call : calls)
    found.push_back(finding_at(tape, call.start, FindingKind::never_waited,
                               base::concat(describe(tape, call.start), " is not waited for before the tape ends")));
  return found;
}

}  // namespace metroplex::tape_check
