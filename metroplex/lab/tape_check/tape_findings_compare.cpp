#include "tape_check/tape_findings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "graph/graph.h"

namespace metroplex::tape_check {
namespace {

bool same_operator(const graph::TapeOperation& a, const graph::TapeOperation& b) {
  return a.name == b.name && a.group == b.group;
}

// Formats 8 bytes of a kernel's arguments as a double if that is plausible, else as an integer.
std::string format_number(uint64_t word) {
  double real = 0;
  std::memcpy(&real, &word, sizeof real);
  const bool likely = std::isfinite(real) && std::abs(real) > 1e-30 && std::abs(real) < 1e30;
  return likely ? base::concat(real) : base::concat(static_cast<int64_t>(word));
}

class Comparison {
 public:
  Comparison(const Recording& first, const Recording& second) : first_(first), second_(second) {}

  std::vector<Finding> run() {
    const auto &a = first_.tape.operations, &b = second_.tape.operations;
    const auto differs = std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same_operator);
    const auto same = static_cast<size_t>(differs.first - a.begin());
    for (size_t i = 0; i < same; ++i) operation(i);
    for (Cascade* cascade : {&shapes_, &addresses_}) cascade->tell(found_);
    if (same < a.size() || same < b.size()) sequence(same);
    return std::move(found_);
  }

 private:
  // One difference causes differences in all later operations, so only the first is reported, with a count.
  struct Cascade {
    Finding first{};
    int64_t count = 0;
    void add(Finding finding) {
      if (count++ == 0) first = std::move(finding);
    }
    void tell(std::vector<Finding>& found) {
      if (count == 0) return;
      if (count > 1) first.text += base::concat("; so do ", count - 1, " tensors of later operations");
      found.push_back(std::move(first));
    }
  };

  void operation(size_t i) {
    const graph::TapeOperation &operation = first_.tape.operations[i], &b = second_.tape.operations[i];
    bool same = true;
    same = tensors(i, "read", operation.reads, b.reads) && same;
    same = tensors(i, "written", operation.writes, b.writes) && same;
    if (!same) return;  // scalars include sizes, which differ too
    if (scalars(i, operation.scalars, b.scalars)) arguments(i, operation.arguments, b.arguments);
  }

  bool tensors(size_t i, const char* role, const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    if (a.size() != b.size()) {
      shapes_.add(at(i, FindingKind::other_shape,
                     base::concat(a.size(), " tensors are ", role, ", and ", b.size(), " in the other recording")));
      return false;
    }
    bool same = true;
    for (size_t t = 0; t < a.size(); ++t) {
      if (!graph::same_form(a[t], b[t]) || a[t].strides() != b[t].strides()) {
        shapes_.add(at(i, FindingKind::other_shape,
                       base::concat("tensor ", t, " that is ", role, " is ", graph::format_form(a[t]),
                                    " with strides ", a[t].strides(), ", and ", graph::format_form(b[t]),
                                    " with strides ", b[t].strides(), " in the other recording")));
        same = false;
      } else if (a[t].numel() > 0) {
        address(i, role, t, a[t], b[t]);
      }
    }
    return same;
  }

  void address(size_t i, const char* role, size_t t, const at::Tensor& a, const at::Tensor& b) {
    const void *here = a.const_data_ptr(), *there = b.const_data_ptr();
    const bool pooled = first_.pool.holds(here), other_pooled = second_.pool.holds(there);
    const std::string what = base::concat("tensor ", t, " that is ", role, " (", graph::format_form(a), ") is ");
    if (pooled && other_pooled) {
      const size_t offset = first_.pool.offset_of(here), other = second_.pool.offset_of(there);
      if (offset != other)
        addresses_.add(
            at(i, FindingKind::other_address,
               base::concat(what, offset, " bytes into the pool, and ", other, " in the other recording")));
    } else if (pooled != other_pooled) {
      addresses_.add(at(i, FindingKind::other_address,
                        base::concat(what, pooled ? "in the pool, and outside" : "outside the pool, and in it",
                                     " in the other recording")));
    } else if (here != there && !constant(first_.tape, a)) {
      external(i, what, a);
    }
  }

  // Constants that the host passes to libtorch are compared as scalars.
  static bool constant(const graph::Tape& tape, const at::Tensor& x) {
    return std::any_of(tape.constants.begin(), tape.constants.end(),
                       [&](const at::Tensor& kept) { return kept.const_data_ptr() == x.const_data_ptr(); });
  }

  void external(size_t i, const std::string& what, const at::Tensor& a) {
    const graph::TapeExternal* memory = external_at(first_.tape, reinterpret_cast<uintptr_t>(a.const_data_ptr()));
    if (memory != nullptr && !said_.insert(memory).second) return;
    const FindingKind kind =
        memory != nullptr ? kind_of_external(first_.tape, *memory) : FindingKind::input_not_copied;
    found_.push_back(
        at(i, kind,
           base::concat(what, "elsewhere in the other recording, outside the pool; ",
                        kind == FindingKind::input_not_copied ? "copy it into memory at a fixed address"
                                                              : "allocate it inside the capture, or keep it")));
  }
  static const graph::TapeExternal* external_at(const graph::Tape& tape, uintptr_t address) {
    const auto found =
        std::find_if(tape.externals.begin(), tape.externals.end(), [&](const graph::TapeExternal& external) {
          return external.span.overlaps({address, address + 1});
        });
    return found == tape.externals.end() ? nullptr : &*found;
  }

  bool scalars(size_t i, const std::vector<graph::TapeScalar>& a, const std::vector<graph::TapeScalar>& b) {
    if (a == b) return true;
    for (size_t s = 0; s < std::max(a.size(), b.size()); ++s) {
      if (s < a.size() && s < b.size() && a[s] == b[s]) continue;
      found_.push_back(at(i, FindingKind::stale_number,
                          base::concat(s < a.size() ? text_of(a[s]) : "nothing", ", and ",
                                       s < b.size() ? text_of(b[s]) : "nothing", " in the other recording")));
    }
    return false;
  }

  void arguments(size_t i, const std::string& a, const std::string& b) {
    if (a == b) return;
    uint64_t here = 0, there = 0;
    for (size_t at_byte = 0; at_byte + sizeof here <= std::min(a.size(), b.size()); at_byte += sizeof here) {
      std::memcpy(&here, a.data() + at_byte, sizeof here);
      std::memcpy(&there, b.data() + at_byte, sizeof there);
      if (here == there || (points(first_, i, here) && points(second_, i, there))) continue;
      found_.push_back(
          at(i, FindingKind::stale_number,
             base::concat("bytes ", at_byte, " to ", at_byte + sizeof here,
                          " of its arguments, which its launch does not name as a scalar, are ", format_number(here),
                          ", and ", format_number(there), " in the other recording")));
    }
    if (a.size() != b.size())
      found_.push_back(
          at(i, FindingKind::stale_number,
             base::concat("its arguments are ", a.size(), " bytes, and ", b.size(), " in the other recording")));
  }
  // Returns whether a word is an address of memory in the recording; such words are compared as tensors.
  static bool points(const Recording& recording, size_t i, uint64_t word) {
    const graph::TapeOperation& operation = recording.tape.operations[i];
    if (recording.pool.holds(reinterpret_cast<const void*>(word))) return true;
    if (external_at(recording.tape, word) != nullptr) return true;
    for (const auto* tensors : {&operation.reads, &operation.writes}) {
      for (const at::Tensor& x : *tensors) {
        if (graph::to_span(x).overlaps({word, word + 1})) return true;
      }
    }
    return false;
  }

  // Reports the operation that is missing in one recording, judging by the operations that follow.
  void sequence(size_t i) {
    const auto &a = first_.tape.operations, &b = second_.tape.operations;
    const bool more_in_second = i >= a.size() || (i < b.size() && goes_on(a, i, b));
    found_.push_back(finding_at(more_in_second ? second_.tape : first_.tape, i, FindingKind::other_sequence,
                                base::concat("from operation ", i, " on there are ", names(a, i),
                                             ", and in the other recording ", names(b, i))));
  }
  // Returns whether `mine` from operation i on appears in `other` soon after i.
  static bool goes_on(const std::vector<graph::TapeOperation>& mine, size_t i,
                      const std::vector<graph::TapeOperation>& other) {
    constexpr size_t kSoon = 16, kAlike = 3;
    const size_t alike = std::min(kAlike, mine.size() - i);
    for (size_t j = i + 1; j < i + kSoon && j + alike <= other.size(); ++j) {
      if (std::equal(&mine[i], &mine[i] + alike, &other[j], same_operator)) return true;
    }
    return false;
  }
  static std::string names(const std::vector<graph::TapeOperation>& operations, size_t i) {
    constexpr size_t kShown = 3;
    std::string text;
    if (i >= operations.size()) text = "no more";
    for (size_t n = i; n < std::min(i + kShown, operations.size()); ++n)
      text += base::concat(n > i ? " " : "", operations[n].name,
                           operations[n].place.empty() ? "" : " (" + operations[n].place + ")");
    return text + (i > 0 ? " after " + operations[i - 1].name : "");
  }

  Finding at(size_t i, FindingKind kind, std::string text) const {
    return finding_at(first_.tape, i, kind, std::move(text));
  }

  const Recording &first_, &second_;
  std::vector<Finding> found_;
  Cascade shapes_, addresses_;
  std::set<const graph::TapeExternal*> said_;
};

}  // namespace

std::vector<Finding> compare(const Recording& first, const Recording& second) {
  return Comparison(first, second).run();
}

}  // namespace metroplex::tape_check
