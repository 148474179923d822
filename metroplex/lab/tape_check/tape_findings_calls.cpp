#include "tape_check/tape_findings.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "graph/graph.h"

namespace metroplex::tape_check {
namespace {

std::string format_value(const graph::TapeScalar& scalar) {
  return std::visit([](const auto& value) { return base::concat(value); }, scalar.value);
}
int64_t to_integer(const graph::TapeScalar& scalar) { return std::get<int64_t>(scalar.value); }

void add_messages(const graph::TapeOperation& operation, TapeCall& call) {
  size_t sent = 0, received = 0;
  for (size_t s = 0; s + 1 < operation.scalars.size(); s += 2) {
    const bool send = operation.scalars[s].name == "to";
    const at::Tensor& x = send ? operation.reads.at(sent++) : operation.writes.at(received++);
    call.messages.push_back(
        {send, to_integer(operation.scalars[s]), to_integer(operation.scalars[s + 1]), graph::format_form(x)});
  }
}

// Members may exchange different numbers of rows. Outputs are excluded, because only one member of a gather has one.
void add_form(const graph::TapeOperation& operation, TapeCall& call) {
  const bool exchanges = operation.name == "all_to_all" || operation.name == "exchange_rows";
  for (const at::Tensor& x : operation.reads)
    call.form += base::concat(" ", exchanges ? c10::toString(x.scalar_type()) : graph::format_form(x));
  for (const graph::TapeScalar& scalar : operation.scalars) {
    if (scalar.name == "in_rows") call.rows_to.push_back(to_integer(scalar));
    else if (scalar.name == "out_rows") call.rows_from.push_back(to_integer(scalar));
    else call.form += base::concat(" ", scalar.name, " ", format_value(scalar));
  }
}

}  // namespace

std::vector<TapeCall> list_calls(const graph::Tape& tape) {
  std::vector<TapeCall> calls;
  for (const graph::TapeOperation& operation : tape.operations) {
    if (operation.group.empty() || operation.name == "wait") continue;
    TapeCall call{operation.group, operation.name, operation.place, "", {}, {}, {}};
    if (operation.name == "batch_p2p") add_messages(operation, call);
    else add_form(operation, call);
    calls.push_back(std::move(call));
  }
  return calls;
}

namespace {

struct Ordered {  // a call and the properties that members must have in common
  const TapeCall* call;
  std::string form;
};
std::string text_of(const Ordered* at) {
  if (at == nullptr) return "nothing more";
  return base::concat(at->form, at->call->place.empty() ? "" : " of " + at->call->place);
}
const Ordered* get(const std::vector<Ordered>& list, size_t i) { return i < list.size() ? &list[i] : nullptr; }

// Reports the first difference of two lists, at the member that has a call there.
void find_difference(const std::vector<Ordered>& a, const std::vector<Ordered>& b, const std::string& who,
                     const std::string& other, const std::string& where, std::vector<Finding>& found) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const Ordered *here = get(a, i), *there = get(b, i);
    if (here != nullptr && there != nullptr && here->form == there->form) continue;
    const TapeCall& at = *(here != nullptr ? here : there)->call;
    found.push_back({FindingKind::other_order, at.name, at.place,
                     base::concat(where, ": call ", i, " of ", who, " is ", text_of(here), ", that of ", other,
                                  " is ", text_of(there))});
    return;
  }
}

std::string rank_text(int rank) { return base::concat("rank ", rank); }

using Members = std::vector<int>;

class Calls {
 public:
  explicit Calls(const std::vector<RankCalls>& ranks) : ranks_(ranks) {}

  std::vector<Finding> compare() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const TapeCall& call : ranks_[rank].calls) add(static_cast<int>(rank), call);
    }
    for (auto& [group, lists] : collectives_) compare_members(group.ranks, lists);
    for (auto& [key, ends] : messages_) {
      const auto& [group, from, to, channel] = key;
      find_difference(ends.sends, ends.receives, base::concat("rank ", from, " to rank ", to),
                      base::concat("rank ", to, " from rank ", from),
                      base::concat("group ", group, ", channel ", channel), found_);
    }
    return std::move(found_);
  }

 private:
  struct Ends {
    std::vector<Ordered> sends, receives;
  };

  void add(int rank, const TapeCall& call) {
    const auto group = ranks_[static_cast<size_t>(rank)].groups.find(call.group);
    MPX_CHECK(group != ranks_[static_cast<size_t>(rank)].groups.end(), "cuda graph", "rank ", rank, " calls group ",
              call.group, ", whose members are not known");
    const Members& members = group->second.ranks;
    if (call.name != "batch_p2p") {
      collectives_[group->second][rank].push_back({&call, call.name + call.form});
      return;
    }
    for (const TapeMessage& message : call.messages) {
      const int peer = members.at(static_cast<size_t>(message.peer));
      const auto key =
          std::tuple(call.group, message.send ? rank : peer, message.send ? peer : rank, message.channel);
      (message.send ? messages_[key].sends : messages_[key].receives).push_back({&call, message.form});
    }
  }

  void compare_members(const Members& members, std::map<int, std::vector<Ordered>>& lists) {
    const std::vector<Ordered>& first = lists[members.front()];
    for (size_t m = 1; m < members.size(); ++m) {
      const std::vector<Ordered>& other = lists[members[m]];
      const size_t before = found_.size();
      find_difference(first, other, rank_text(members.front()), rank_text(members[m]), group_text(lists), found_);
      if (found_.size() > before) return;
    }
    compare_rows(members, lists);
  }

  void compare_rows(const Members& members, std::map<int, std::vector<Ordered>>& lists) {
    for (size_t i = 0; i < lists[members.front()].size(); ++i) {
      for (size_t from = 0; from < members.size(); ++from) {
        const TapeCall& sends = *lists[members[from]][i].call;
        for (size_t to = 0; to < sends.rows_to.size(); ++to) {
          const TapeCall& receives = *lists[members[to]][i].call;
          if (receives.rows_from.at(from) == sends.rows_to[to]) continue;
          found_.push_back({FindingKind::other_order, sends.name, sends.place,
                            base::concat("group ", sends.group, ": in call ", i, " rank ", members[from], " sends ",
                                         sends.rows_to[to], " rows to rank ", members[to], ", which waits for ",
                                         receives.rows_from[from])});
          return;
        }
      }
    }
  }

  static std::string group_text(const std::map<int, std::vector<Ordered>>& lists) {
    for (const auto& [rank, list] : lists) {
      if (!list.empty()) return base::concat("group ", list.front().call->group);
    }
    return "";
  }

  const std::vector<RankCalls>& ranks_;
  std::map<graph::TapeGroup, std::map<int, std::vector<Ordered>>> collectives_;
  std::map<std::tuple<std::string, int, int, int64_t>, Ends> messages_;  // group, from, to, channel
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> compare_calls(const std::vector<RankCalls>& ranks) { return Calls(ranks).compare(); }

}  // namespace metroplex::tape_check
