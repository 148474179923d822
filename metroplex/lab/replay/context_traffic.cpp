#include "replay/context_traffic.h"

#include <utility>

#include "base/error.h"

namespace metroplex::replay {
namespace {

using config::CpCommType;

// Returns the number of rows of `owners` that queries of `readers` see; both are groups of `neighbours` ranks.
int64_t rows_seen(const std::vector<std::vector<plan::PositionRuns>>& seen, int readers, int owners, int neighbours) {
  int64_t rows = 0;
  for (int owner = owners * neighbours; owner < (owners + 1) * neighbours; ++owner) {
    plan::PositionRuns all;
    for (int reader = readers * neighbours; reader < (readers + 1) * neighbours; ++reader) {
      const plan::PositionRuns& runs = seen[static_cast<size_t>(reader)][static_cast<size_t>(owner)];
      all.insert(all.end(), runs.begin(), runs.end());
    }
    rows += num_positions(merged(std::move(all)));
  }
  return rows;
}

// Keys and values exchanged between groups of `neighbours` ranks that already share their rows.
struct KeyRows {
  std::vector<int64_t> sent, received;  // per rank
  int64_t own = 0, groups = 1;          // rows of a group; number of groups
};
KeyRows key_rows(const plan::DocumentLengths& documents, const plan::SequenceCut& cut, int neighbours,
                 bool only_seen) {
  const int ranks = static_cast<int>(cut.ranks.size()), groups = ranks / neighbours;
  KeyRows out;
  out.groups = groups, out.own = cut.length / groups;
  out.sent.assign(cut.ranks.size(), (groups - 1) * out.own);
  out.received = out.sent;
  if (!only_seen) return out;
  const auto seen = seen_keys(documents, cut);
  for (int rank = 0; rank < ranks; ++rank) {
    int64_t &sent = out.sent[static_cast<size_t>(rank)] = 0, &received = out.received[static_cast<size_t>(rank)] = 0;
    for (int other = 0; other < groups; ++other) {
      if (other == rank / neighbours) continue;
      sent += rows_seen(seen, other, rank / neighbours, neighbours);
      received += rows_seen(seen, rank / neighbours, other, neighbours);
    }
  }
  return out;
}

}  // namespace

ContextTraffic context_traffic(const plan::DocumentLengths& documents, const plan::SequenceCut& cut,
                               const ContextTrafficRequest& request) {
  const auto ranks = static_cast<int64_t>(cut.ranks.size());
  const bool by_heads = request.exchange == CpCommType::a2a || request.exchange == CpCommType::a2a_p2p;
  const int64_t sharing = request.exchange == CpCommType::a2a       ? ranks
                          : request.exchange == CpCommType::a2a_p2p ? request.neighbours
                                                                    : 1;
  MPX_ASSERT(ranks % sharing == 0 && request.heads % sharing == 0 &&
                 (request.groups % sharing == 0 || sharing % request.groups == 0),
             request.heads, " heads in ", request.groups, " groups for ", sharing, " of ", ranks, " ranks");
  ContextTraffic out;
  out.forward.assign(cut.ranks.size(), 0);
  out.backward = out.forward;
  const int64_t rows = cut.length / ranks, copies = request.groups % sharing == 0 ? 1 : sharing / request.groups;
  const int64_t head =
      request.samples * (request.head_dim + request.v_head_dim);  // elements per row: q and out, or k and v
  if (by_heads) {  // forward: q, k, v and the result; backward: the same again, the result's gradient and three input
                   // gradients
    const int64_t once =
        rows * head * (request.heads + copies * request.groups) * request.element_bytes / sharing * (sharing - 1);
    for (int64_t& bytes : out.forward) bytes = once;
    for (int64_t& bytes : out.backward) bytes = 2 * once;
  }
  if (request.exchange == CpCommType::a2a) return out;
  if (ranks == sharing) return out;
  const KeyRows keys = key_rows(documents, cut, static_cast<int>(sharing), request.documents);
  const int64_t kv = head * request.groups * copies / sharing;
  const bool gathered = request.exchange == CpCommType::all_gather, ring = !gathered && !request.documents;
  for (size_t rank = 0; rank < cut.ranks.size(); ++rank) {
    const int64_t sent = keys.sent[rank] * kv * request.element_bytes;
    // In a ring the gradients of keys travel with them back to the owner. Otherwise every receiver of keys sends
    // their gradients directly.
    const int64_t gradients = ring ? keys.groups * keys.own : keys.received[rank];
    out.forward[rank] += sent;
    out.backward[rank] += sent + gradients * kv * (gathered ? request.element_bytes : request.wide_bytes);
  }
  return out;
}

}  // namespace metroplex::replay
