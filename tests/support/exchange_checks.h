// Checks of exchange_rows that every backend must pass. The reference is all_to_all with counts on the host; for too
// many rows, the contract of GroupBackend::exchange_rows.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "comm/collectives.h"

namespace metroplex::test {

// Number of rows, [from][to].
using RowCounts = std::vector<std::vector<int64_t>>;

inline RowCounts random_counts(int members, int64_t most, std::mt19937& draw) {
  RowCounts counts(static_cast<size_t>(members), std::vector<int64_t>(static_cast<size_t>(members), 0));
  for (auto& of : counts) {
    for (int64_t& rows : of) rows = std::max<int64_t>(0, static_cast<int64_t>(draw() % (most + 2)) - 1);
  }
  return counts;
}

inline int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Rows that `member` receives from each member, in member order.
inline std::vector<int64_t> sent_to(const RowCounts& counts, int member) {
  std::vector<int64_t> rows;
  for (const auto& of : counts) rows.push_back(of[static_cast<size_t>(member)]);
  return rows;
}

// `length` rows of three NaN.
inline at::Tensor poison(int64_t length) {
  return at::full({length, 3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
}

// Row r of a member is 1000 member + r, times 1 to 3 by column; rows after the first `there` are NaN.
inline at::Tensor make_rows(int member, int64_t there, int64_t length) {
  const at::Tensor rows = poison(length);
  const at::Tensor first = at::arange(there, at::kDouble).add_(1000.0 * member).unsqueeze(1);
  rows.narrow(0, 0, there).copy_(first * at::arange(1, 4, at::kDouble));
  return rows;
}

struct ExchangedRows {
  at::Tensor rows, counts;
  at::Tensor overflow = at::zeros({1}, at::kInt);
  explicit ExchangedRows(int64_t length, int members)
      : rows(poison(length)), counts(at::full({members}, -7, at::kLong)) {}
  comm::CountedRows place() const { return {rows, counts}; }
  bool flag() const { return overflow.item<int>() != 0; }
};

inline void check_rows_as_all_to_all(const comm::Group& group, const RowCounts& counts) {
  const int me = group.index();
  const std::vector<int64_t>& in = counts[static_cast<size_t>(me)];
  const std::vector<int64_t> out = sent_to(counts, me);
  const int64_t sent = total(in), received = total(out);
  int64_t capacity = 1;
  for (const auto& of : counts) capacity = std::max(capacity, *std::max_element(of.begin(), of.end()));
  const at::Tensor rows = make_rows(me, sent, sent + 2);
  ExchangedRows there(received + 3, group.size()), home(sent + 1, group.size());
  comm::exchange_rows_async(there.place(), {rows, at::tensor(in)}, capacity, there.overflow, group).wait();
  EXPECT_TRUE(at::equal(there.counts, at::tensor(out))) << there.counts;
  const at::Tensor expected = comm::all_to_all(rows.narrow(0, 0, sent), out, in, group);
  EXPECT_TRUE(at::equal(there.rows.narrow(0, 0, received), expected));
  there.rows.narrow(0, received, 3).fill_(std::numeric_limits<double>::quiet_NaN());
  comm::exchange_rows_async(home.place(), there.place(), capacity, home.overflow, group).wait();
  EXPECT_TRUE(at::equal(home.counts, at::tensor(in))) << "home again: " << home.counts;
  EXPECT_TRUE(at::equal(home.rows.narrow(0, 0, sent), rows.narrow(0, 0, sent))) << "home again";
  EXPECT_FALSE(there.flag() || home.flag());
}

// Per member: `there` valid rows, and `room` for received rows.
struct RowLimits {
  int64_t capacity;
  std::vector<int64_t> there, room;
};

inline void check_limited_rows(const comm::Group& group, const RowCounts& counts, const RowLimits& limits) {
  const auto me = static_cast<size_t>(group.index());
  std::vector<int64_t> delivered;
  std::vector<at::Tensor> rows;
  int64_t room = limits.room[me];
  bool overflow = false;
  for (size_t from = 0; from < counts.size(); ++from) {
    const std::vector<int64_t>& of = counts[from];
    const int64_t begin =
        std::min(std::accumulate(of.begin(), of.begin() + group.index(), int64_t{0}), limits.there[from]);
    const int64_t sent = std::min(of[me], limits.there[from] - begin);
    delivered.push_back(std::min({sent, limits.capacity, room}));
    room -= delivered.back();
    overflow |= delivered.back() < sent;
    const int64_t length = limits.there[from];
    rows.push_back(make_rows(static_cast<int>(from), length, length).narrow(0, begin, delivered.back()));
  }
  int64_t left = limits.there[me];
  for (const int64_t requested : counts[me]) {
    overflow |= requested > std::min(limits.capacity, left);
    left -= std::min(left, requested);
  }
  ExchangedRows out(limits.room[me], group.size());
  const at::Tensor in = make_rows(group.index(), limits.there[me], limits.there[me]);
  comm::exchange_rows_async(out.place(), {in, at::tensor(counts[me])}, limits.capacity, out.overflow, group).wait();
  EXPECT_TRUE(at::equal(out.counts, at::tensor(delivered))) << out.counts << "instead of\n" << at::tensor(delivered);
  EXPECT_TRUE(at::equal(out.rows.narrow(0, 0, total(delivered)), at::cat(rows)));
  EXPECT_EQ(out.flag(), overflow);
}

// Two exchanges in flight with different types and shapes; they share one overflow flag, which gets set.
inline void check_rows_together(const comm::Group& group) {
  const int n = group.size(), me = group.index();
  const at::Tensor counts = at::full({n}, 2, at::kLong), probs = at::arange(2 * n, at::kFloat) + 100 * me,
                   rows = (at::arange(8 * n) + me).view({2 * n, 4}).to(at::kBFloat16);
  const at::Tensor out_probs = at::zeros({2 * n}), out_rows = at::zeros({2 * n, 4}, at::kBFloat16),
                   out_counts = at::empty({n}, at::kLong), other_counts = at::empty({n}, at::kLong),
                   flag = at::ones({1}, at::kInt);
  comm::Handle first = comm::exchange_rows_async({out_probs, out_counts}, {probs, counts}, 2, flag, group);
  comm::Handle second = comm::exchange_rows_async({out_rows, other_counts}, {rows, counts}, 3, flag, group);
  second.wait();
  first.wait();
  const std::vector<int64_t> splits(static_cast<size_t>(n), 2);
  EXPECT_TRUE(at::equal(out_probs, comm::all_to_all(probs, splits, splits, group)));
  EXPECT_TRUE(at::equal(out_rows, comm::all_to_all(rows, splits, splits, group)));
  EXPECT_TRUE(at::equal(out_counts, counts) && at::equal(other_counts, counts));
  EXPECT_EQ(flag.item<int>(), 1) << "a flag is never cleared";
}

inline void check_exchange_rows(const comm::Group& group) {
  const int n = group.size();
  const auto members = static_cast<size_t>(n);
  std::mt19937 draw(20);
  for (const int64_t most : {0, 1, 5, 40}) check_rows_as_all_to_all(group, random_counts(n, most, draw));
  check_rows_as_all_to_all(group, RowCounts(members, std::vector<int64_t>(members, 6)));
  RowCounts to_last(members, std::vector<int64_t>(members, 0));
  for (auto& of : to_last) of.back() = 4;
  check_rows_as_all_to_all(group, to_last);
  for (int round = 0; round < 12; ++round) {
    const RowCounts counts = random_counts(n, 6, draw);
    RowLimits limits{static_cast<int64_t>(1 + draw() % 6), {}, {}};
    for (const auto& of : counts) {
      limits.there.push_back(round % 3 == 0 ? static_cast<int64_t>(draw() % static_cast<uint64_t>(1 + total(of)))
                                            : total(of));
      limits.room.push_back(static_cast<int64_t>(draw() % (6 * members)));
    }
    SCOPED_TRACE(round);
    check_limited_rows(group, counts, limits);
  }
  check_rows_together(group);
}

}  // namespace metroplex::test
