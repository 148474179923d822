// Row counts for tests of the replica planner.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "plan/echo.h"

namespace metroplex::plan::echo_cases {

struct Case {
  EchoSizes sizes;
  std::vector<int64_t> rows;  // [ranks][experts]
  EchoCounts counts() const { return {rows.data(), sizes}; }
  EchoCounts with(int slots) const { return {rows.data(), {sizes.ranks, sizes.experts, slots}}; }
  int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
  int64_t mean() const { return (total() + sizes.ranks - 1) / sizes.ranks; }
};

inline std::string text_of(const Case& test_case) {
  return std::to_string(test_case.sizes.ranks) + " ranks, " + std::to_string(test_case.sizes.experts) + " experts, " +
         std::to_string(test_case.sizes.slots) + " slots, " + std::to_string(test_case.total()) + " rows";
}

// The i-th largest expert gets rows as 1 / i^exponent, plus noise.
inline Case zipf(EchoSizes sizes, double exponent, int64_t rows_of_rank, std::mt19937_64& draw) {
  std::vector<int> place(static_cast<size_t>(sizes.experts));
  std::iota(place.begin(), place.end(), 1);
  for (size_t i = place.size(); i > 1; --i) std::swap(place[i - 1], place[draw() % i]);
  double sum = 0;
  for (const int i : place) sum += std::pow(i, -exponent);
  Case result{sizes, {}};
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    for (const int i : place) {
      const double noise = 0.9 + 0.2 * static_cast<double>(draw() % 1024) / 1024;
      result.rows.push_back(
          static_cast<int64_t>(static_cast<double>(rows_of_rank) * std::pow(i, -exponent) / sum * noise));
    }
  }
  return result;
}

enum Kind {
  kEven,
  kUniform,
  kZipf,
  kOneExpert,
  kEmptyExperts,
  kTies,
  kOneToken,
  kFewTokens,
  kHotRank,
  kHuge,
  kKinds
};

inline Case random_case(EchoSizes sizes, int kind, std::mt19937_64& draw) {
  if (kind == kZipf) return zipf(sizes, 0.3 + 0.1 * static_cast<double>(draw() % 13), 512, draw);
  Case result{sizes, std::vector<int64_t>(static_cast<size_t>(sizes.ranks) * static_cast<size_t>(sizes.experts), 0)};
  const auto some = [&](int64_t below) { return static_cast<int64_t>(draw() % static_cast<uint64_t>(below)); };
  const int hot = static_cast<int>(some(sizes.experts)), hot_rank = static_cast<int>(some(sizes.ranks));
  const int64_t level = 1 + some(50);
  if (kind == kOneToken) {
    result.rows[static_cast<size_t>(some(static_cast<int64_t>(result.rows.size())))] = 1;
    return result;
  }
  if (kind == kFewTokens) {
    for (int i = 1; i < sizes.ranks; ++i)
      ++result.rows[static_cast<size_t>(some(static_cast<int64_t>(result.rows.size())))];
    return result;
  }
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const int expert = static_cast<int>(i) % sizes.experts;
    int64_t& rows = result.rows[i];
    if (kind == kEven) rows = level;
    if (kind == kUniform) rows = some(1 + level);
    if (kind == kOneExpert) rows = expert == hot ? some(1000) : 0;
    if (kind == kEmptyExperts) rows = expert % 3 == hot % 3 ? some(level * level) : 0;
    if (kind == kTies) rows = (expert / sizes.home_experts() + hot) % 2 * level;
    if (kind == kHotRank) rows = sizes.home(expert) == hot_rank ? 10 * level : level;
    if (kind == kHuge) rows = (int64_t{1} << 31) - 1 - (some(2) == 0 ? some(int64_t{1} << 31) : 0);
  }
  return result;
}

// Mostly few ranks; sometimes up to 256.
inline EchoSizes random_sizes(std::mt19937_64& draw) {
  const auto some = [&](int from, int to) {
    return from + static_cast<int>(draw() % static_cast<uint64_t>(to - from + 1));
  };
  const int of_hundred = some(1, 1000);
  const int ranks = of_hundred <= 930 ? some(2, 8) : of_hundred <= 995 ? some(9, 48) : some(49, 256);
  const int home = ranks > 48 ? some(1, 4) : some(0, 9) == 0 ? some(5, 16) : some(1, 4);
  return {ranks, ranks * home, some(0, 3) == 0 ? home : some(1, 4)};
}

}  // namespace metroplex::plan::echo_cases
