#include "tape_check/tape_findings.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"

namespace metroplex::tape_check {
namespace {

// The last writer of a byte: an operation of a graph, an input copy (operation -1), or unknown.
struct Writer {
  int64_t graph = -1, operation = -1;
  bool known() const { return graph >= 0; }
  bool copied_in() const { return known() && operation < 0; }
  bool operator==(const Writer&) const = default;
};
struct Written {
  graph::TapeSpan span;
  Writer writer;
};

class Memory {
 public:
  void write(const graph::TapeSpan& span, Writer writer) {
    split(span.begin);
    split(span.end);
    runs_.erase(runs_.lower_bound(span.begin), runs_.lower_bound(span.end));
    runs_[span.begin] = {span, writer};
  }
  // Returns all of `span` in order, including ranges without a known writer.
  std::vector<Written> at(const graph::TapeSpan& span) const {
    std::vector<Written> found;
    uintptr_t next = span.begin;
    auto run = runs_.upper_bound(span.begin);
    if (run != runs_.begin() && std::prev(run)->second.span.end > span.begin) --run;
    for (; run != runs_.end() && run->first < span.end; ++run) {
      const graph::TapeSpan part{std::max(run->first, span.begin), std::min(run->second.span.end, span.end)};
      if (next < part.begin) found.push_back({{next, part.begin}, {}});
      found.push_back({part, run->second.writer});
      next = part.end;
    }
    if (next < span.end) found.push_back({{next, span.end}, {}});
    return found;
  }

 private:
  void split(uintptr_t where) {
    auto run = runs_.upper_bound(where);
    if (run == runs_.begin()) return;
    --run;
    const Written whole = run->second;
    if (run->first == where || whole.span.end <= where) return;
    run->second.span.end = where;
    runs_[where] = {{where, whole.span.end}, whole.writer};
  }
  std::map<uintptr_t, Written> runs_;  // by first byte
};

class Replays {
 public:
  Replays(const std::vector<Replayed>& graphs, const std::vector<const graph::TapePool*>& pools)
      : graphs_(graphs), pools_(pools) {}

  std::vector<Finding> run(const std::vector<size_t>& replays) {
    expected_.resize(graphs_.size());
    for (size_t g = 0; g < graphs_.size(); ++g) {
      expected_[g].resize(graphs_[g].tape->operations.size());
      walk(g, [&](size_t operation) {
        for (const at::Tensor& x : graphs_[g].tape->operations[operation].reads) {
          for (const graph::TapeSpan& span : pieces_of(x)) {
            for (const Written& seen : memory_.at(span)) expected_[g][operation].push_back(seen);
          }
        }
      });
    }
    for (const size_t g : replays) {
      walk(g, [&](size_t operation) {
        for (const Written& wanted : expected_[g][operation]) check(g, operation, wanted);
      });
    }
    return std::move(found_);
  }

 private:
  bool pooled(uintptr_t address) const {
    return std::any_of(pools_.begin(), pools_.end(), [&](const graph::TapePool* pool) {
      return pool->holds(reinterpret_cast<const void*>(address));
    });
  }

  // Simulates one run of a graph; calls `before` before each operation.
  template <class Before>
  void walk(size_t g, const Before& before) {
    const auto graph = static_cast<int64_t>(g);
    for (const at::Tensor& input : graphs_[g].inputs) {
      if (!input.defined()) continue;
      for (const graph::TapeSpan& span : pieces_of(input)) memory_.write(span, {graph, -1});
    }
    const std::vector<graph::TapeOperation>& operations = graphs_[g].tape->operations;
    for (size_t i = 0; i < operations.size(); ++i) {
      before(i);
      for (const at::Tensor& x : operations[i].writes) {
        for (const graph::TapeSpan& span : pieces_of(x)) memory_.write(span, {graph, static_cast<int64_t>(i)});
      }
    }
  }

  void check(size_t g, size_t operation, const Written& wanted) {
    if (!wanted.writer.copied_in() && !pooled(wanted.span.begin)) return;
    for (const Written& seen : memory_.at(wanted.span)) {
      if (seen.writer == wanted.writer) continue;
      if (!said_.emplace(g, operation).second) return;
      std::ostringstream where;
      where << std::hex << "0x" << seen.span.begin;
      found_.push_back(finding_at(
          *graphs_[g].tape, operation, FindingKind::overwritten,
          base::concat(describe(*graphs_[g].tape, operation), of(g), ", reads ", seen.span.end - seen.span.begin,
                       " bytes at ", where.str(), " that ", name(wanted.writer),
                       " wrote in the capture; in the replay ", name(seen.writer), " has written there since")));
      return;
    }
  }
  std::string of(size_t g) const {
    return graphs_[g].name.empty() ? "" : base::concat(" in graph ", graphs_[g].name);
  }
  std::string name(const Writer& writer) const {
    if (!writer.known()) return "no operation";
    const auto g = static_cast<size_t>(writer.graph);
    if (writer.copied_in()) return base::concat("the copy of the inputs", of(g));
    return describe(*graphs_[g].tape, static_cast<size_t>(writer.operation)) + of(g);
  }

  const std::vector<Replayed>& graphs_;
  const std::vector<const graph::TapePool*>& pools_;
  Memory memory_;
  std::vector<std::vector<std::vector<Written>>> expected_;  // [graph][operation]: ranges read, by writer
  std::set<std::pair<size_t, size_t>> said_;
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> check_replays(const std::vector<Replayed>& captured, const std::vector<size_t>& replays,
                                   const std::vector<const graph::TapePool*>& pools) {
  return Replays(captured, pools).run(replays);
}

}  // namespace metroplex::tape_check
