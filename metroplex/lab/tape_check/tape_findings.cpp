#include "tape_check/tape_findings.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"

namespace metroplex::tape_check {

const char* kind_name(FindingKind kind) {
  switch (kind) {
    case FindingKind::other_address:
      return "another address";
    case FindingKind::other_shape:
      return "another shape";
    case FindingKind::other_sequence:
      return "another sequence of operators";
    case FindingKind::stale_number:
      return "a number of the host that changes";
    case FindingKind::input_not_copied:
      return "an input that was not copied in";
    case FindingKind::host_access:
      return "the host reads values";
    case FindingKind::undeclared:
      return "memory that a launch does not name";
    case FindingKind::outside_pool:
      return "memory from outside the pool";
    case FindingKind::overwritten:
      return "a buffer overwritten before its last reader";
    case FindingKind::in_flight:
      return "a buffer touched while it is in flight";
    case FindingKind::never_waited:
      return "a call that is never waited for";
    case FindingKind::other_order:
      return "communication in another order";
  }
  MPX_ASSERT(false, "no kind of finding");
}

std::string text_of(const Finding& finding) {
  return base::concat(kind_name(finding.kind), ": ", finding.operation,
                      finding.place.empty() ? "" : " of " + finding.place, ": ", finding.text);
}

std::string report(const std::vector<Finding>& findings) {
  std::string all;
  std::set<std::tuple<FindingKind, std::string, std::string>> said;
  for (const Finding& finding : findings) {
    if (said.emplace(finding.kind, finding.operation, finding.place).second) all += text_of(finding) + "\n";
  }
  return all;
}

Finding finding_at(const graph::Tape& tape, size_t operation, FindingKind kind, std::string text) {
  const graph::TapeOperation& at = tape.operations.at(operation);
  return {kind, at.name, at.place, std::move(text)};
}

std::vector<graph::TapeSpan> pieces_of(const at::Tensor& x) {
  constexpr size_t kTooMany = 4096;
  if (x.numel() == 0) return {};
  struct Dim {
    int64_t size, stride;
  };
  std::vector<Dim> dims;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) > 1 && x.stride(d) != 0) dims.push_back({x.size(d), x.stride(d)});
  }
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t run = 1;  // contiguous elements
  size_t first = 0;
  for (; first < dims.size() && dims[first].stride <= run; ++first)
    run += (dims[first].size - 1) * dims[first].stride;
  size_t count = 1;
  for (size_t d = first; d < dims.size(); ++d) count *= static_cast<size_t>(dims[d].size);
  if (count > kTooMany) return {graph::to_span(x)};
  const auto base = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  const auto element = static_cast<uintptr_t>(x.element_size());
  std::vector<graph::TapeSpan> pieces{{base, base + static_cast<uintptr_t>(run) * element}};
  for (size_t d = first; d < dims.size(); ++d) {
    const size_t before = pieces.size();
    for (int64_t i = 1; i < dims[d].size; ++i) {
      const uintptr_t shift = static_cast<uintptr_t>(i * dims[d].stride) * element;
      for (size_t p = 0; p < before; ++p) pieces.push_back({pieces[p].begin + shift, pieces[p].end + shift});
    }
  }
  return pieces;
}

FindingKind kind_of_external(const graph::Tape& tape, const graph::TapeExternal& external) {
  for (const at::Tensor& x : tape.operations.at(external.first_used).reads) {
    if (graph::to_span(x).overlaps(external.span)) return FindingKind::input_not_copied;
  }
  return FindingKind::outside_pool;
}

namespace {

void append(std::vector<Finding>& to, std::vector<Finding> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

void find_host_reads(const graph::Tape& tape, std::vector<Finding>& found) {
  for (size_t i = 0; i < tape.operations.size(); ++i) {
    if (!tape.operations[i].unfit.empty())
      found.push_back(
          finding_at(tape, i, tape.operations[i].name == "wait" ? FindingKind::in_flight : FindingKind::host_access,
                     tape.operations[i].unfit));
  }
}

void find_given_back(const graph::Tape& tape, std::vector<Finding>& found) {
  for (const graph::TapeExternal& external : tape.externals) {
    if (!external.storage.expired()) continue;
    found.push_back(finding_at(tape, external.first_used, kind_of_external(tape, external),
                               base::concat(external.span.end - external.span.begin,
                                            " bytes from outside the pool have been freed since; keep them allocated "
                                            "as long as the graph, or copy them into memory that stays allocated")));
  }
}

}  // namespace

std::vector<Finding> check_tape(const Recording& recording, bool alone) {
  std::vector<Finding> found;
  find_host_reads(recording.tape, found);
  find_given_back(recording.tape, found);
  append(found, check_pending_calls(recording.tape));
  if (alone) append(found, check_replays({{"", &recording.tape, {}}}, {0}, {&recording.pool}));
  return found;
}

}  // namespace metroplex::tape_check
