#include <gtest/gtest.h>

#include <ctime>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "plan/sequence_cut.h"
#include "plan/sequence_pieces.h"

namespace metroplex::plan::sequence_cut_test {
namespace {

using Kind = SequenceCutKind;

std::vector<PositionRuns> find_shard(const std::vector<int64_t>& lengths, const SequenceCutRequest& request) {
  return cut_sequence({lengths}, request).ranks;
}

TEST(SequenceCut, ZigzagGivesARankAChunkAndItsMirrorImage) {
  EXPECT_EQ(find_shard({8}, {Kind::zigzag, 2}), (std::vector<PositionRuns>{{{0, 2}, {6, 2}}, {{2, 4}}}));
  EXPECT_EQ(find_shard({3, 9}, {Kind::zigzag, 3}),
            (std::vector<PositionRuns>{{{0, 2}, {10, 2}}, {{2, 2}, {8, 2}}, {{4, 4}}}));
  EXPECT_EQ(find_shard({6}, {Kind::zigzag, 1}), (std::vector<PositionRuns>{{{0, 6}}}));
}

TEST(SequenceCut, ContiguousPartsDifferByOneMultiple) {
  EXPECT_EQ(find_shard({10}, {Kind::contiguous, 4}),
            (std::vector<PositionRuns>{{{0, 2}}, {{2, 3}}, {{5, 2}}, {{7, 3}}}));
  EXPECT_EQ(find_shard({12}, {Kind::contiguous, 2, 0, 0, 4}), (std::vector<PositionRuns>{{{0, 4}}, {{4, 8}}}));
}

TEST(SequenceCut, BalancedIsZigzagForOneDocument) {
  for (const int cp : {1, 2, 4, 8}) {
    const int64_t length = 64 * cp;
    EXPECT_EQ(find_shard({length}, {Kind::balanced, cp, 0, 0}), find_shard({length}, {Kind::zigzag, cp})) << cp;
  }
}

TEST(SequenceCut, BalancedCutsNoDocumentThatFits) {
  EXPECT_EQ(find_shard({5, 5, 5, 5}, {Kind::balanced, 2}), (std::vector<PositionRuns>{{{0, 10}}, {{10, 10}}}));
  const DocumentLengths documents{{9, 10, 11, 10, 10, 9, 11, 10}};
  EXPECT_EQ(cut_sequence(documents, {Kind::balanced, 4, 0.1, 0.1}).ranks,
            (std::vector<PositionRuns>{{{0, 19}}, {{19, 21}}, {{40, 19}}, {{59, 21}}}));
}

// Arcs end between documents only where the documents of all samples do: here nowhere, so both ranks get equal
// tokens.
TEST(SequenceCut, BalancedNeedsADocumentStartInEverySample) {
  const DocumentLengths documents{{9, 11}, {20}};
  const CutLoad load = cut_load(documents, cut_sequence(documents, {Kind::balanced, 2, 0.2, 0.5}));
  EXPECT_EQ(load.tokens, (std::vector<int64_t>{10, 10}));
}

// After the first arc of 80 tokens, the mean of the other two ranks is 110. 122 is within 20 % of it, but not of 100.
TEST(SequenceCut, SlackIsAShareOfTheWholeMean) {
  const DocumentLengths documents{{80, 122, 98}};
  const CutLoad load = cut_load(documents, cut_sequence(documents, {Kind::balanced, 3, 0.2, 10}));
  EXPECT_EQ(load.tokens, (std::vector<int64_t>{80, 110, 110}));
}

// By the definitions, one position at a time.
struct Naive {
  std::vector<std::vector<int64_t>> start;  // [sample][position]
  explicit Naive(const DocumentLengths& documents) {
    for (const auto& lengths : documents) {
      start.emplace_back();
      for (const int64_t length : lengths) {
        const auto at = static_cast<int64_t>(start.back().size());
        start.back().insert(start.back().end(), static_cast<size_t>(length), at);
      }
    }
  }
  int64_t area(int64_t position) const {
    int64_t sum = 0;
    for (const auto& of : start) sum += position - of[static_cast<size_t>(position)] + 1;
    return sum;
  }
};

DocumentLengths random_documents(std::mt19937& random) {
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  const int64_t length = number(1, 96), longest = number(1, length);
  DocumentLengths documents(static_cast<size_t>(number(1, 3)));
  for (auto& lengths : documents) {
    for (int64_t left = length; left > 0; left -= lengths.back())
      lengths.push_back(number(1, std::min(left, longest)));
  }
  return documents;
}

void expect_sound(const DocumentLengths& documents, const SequenceCutRequest& request) {
  const SequenceCut cut = cut_sequence(documents, request);
  const Naive naive(documents);
  const auto length = static_cast<int64_t>(naive.start[0].size());
  ASSERT_EQ(cut.length, length);
  ASSERT_EQ(cut.ranks.size(), static_cast<size_t>(request.cp));
  std::vector<int> owner(static_cast<size_t>(length), -1);
  const CutLoad load = cut_load(documents, cut);
  int64_t whole_area = 0, widest = 0;
  for (int64_t p = 0; p < length; ++p) {
    whole_area += naive.area(p);
    widest = std::max(widest, naive.area(p));
  }
  const double mean_tokens = static_cast<double>(length) / request.cp,
               mean_area = static_cast<double>(whole_area) / request.cp;
  for (int rank = 0; rank < request.cp; ++rank) {
    const PositionRuns& runs = cut.ranks[static_cast<size_t>(rank)];
    int64_t area = 0, before = -1;
    for (const PositionRun& run : runs) {
      ASSERT_GT(run.count, 0);
      ASSERT_GT(run.first, before) << "runs ascend and do not touch";
      before = run.end();
      ASSERT_LE(run.end(), length);
      for (int64_t p = run.first; p < run.end(); ++p) {
        ASSERT_EQ(owner[static_cast<size_t>(p)], -1) << "position " << p;
        owner[static_cast<size_t>(p)] = rank;
        area += naive.area(p);
      }
    }
    const int64_t tokens = num_positions(runs);
    EXPECT_EQ(load.tokens[static_cast<size_t>(rank)], tokens);
    EXPECT_EQ(load.area[static_cast<size_t>(rank)], area);
    EXPECT_EQ(tokens % request.multiple, 0);
    EXPECT_GT(tokens, 0);
    const bool balanced = request.kind == Kind::balanced;
    EXPECT_LT(std::abs(static_cast<double>(tokens) - mean_tokens),
              (balanced ? request.token_slack * mean_tokens : 0) + static_cast<double>(request.multiple) + 1e-9);
    // Every rank's arc deviates from the mean of the remainder by less than the widest token times its deviation in
    // tokens (below `multiple`). The other ranks share the difference.
    if (balanced) {
      EXPECT_LT(static_cast<double>(area),
                (1 + request.area_slack) * mean_area +
                    static_cast<double>(widest * (1 + request.multiple)) * (1 + std::log(request.cp)));
    }
  }
  EXPECT_EQ(std::count(owner.begin(), owner.end(), -1), 0) << "every position has a rank";

  const auto seen = seen_keys(documents, cut);
  for (int reader = 0; reader < request.cp; ++reader) {
    std::set<int64_t> keys;
    for (int64_t p = 0; p < length; ++p) {
      for (const auto& of : naive.start) {
        for (int64_t k = of[static_cast<size_t>(p)]; owner[static_cast<size_t>(p)] == reader && k <= p; ++k)
          keys.insert(k);
      }
    }
    for (int of = 0; of < request.cp; ++of) {
      std::vector<int64_t> got, want;
      for (const PositionRun& run : seen[static_cast<size_t>(reader)][static_cast<size_t>(of)]) {
        for (int64_t p = run.first; p < run.end(); ++p) got.push_back(p);
      }
      for (const int64_t key : keys) {
        if (owner[static_cast<size_t>(key)] == of) want.push_back(key);
      }
      ASSERT_EQ(got, want) << "keys of " << of << " for " << reader;
    }
  }
}

TEST(SequenceCut, GivesEveryPositionOnceAndTellsExactlyWhoSeesWhat) {
  std::mt19937 random(1);
  for (int round = 0; round < 6000; ++round) {
    const DocumentLengths documents = random_documents(random);
    const int64_t length = std::accumulate(documents[0].begin(), documents[0].end(), int64_t{0});
    SequenceCutRequest request;
    request.cp = 1 + static_cast<int>(random() % 8);
    request.token_slack = static_cast<double>(random() % 4) / 8;
    request.area_slack = static_cast<double>(random() % 4) / 8;
    request.multiple = length % 3 == 0 && random() % 2 == 0 ? 3 : length % 2 == 0 && random() % 2 == 0 ? 2 : 1;
    if (length < request.cp * request.multiple) continue;
    for (const Kind kind : {Kind::zigzag, Kind::contiguous, Kind::balanced}) {
      request.kind = kind;
      if (kind == Kind::zigzag && (length % (2 * request.cp) != 0 || length / request.cp % request.multiple != 0))
        continue;
      SCOPED_TRACE(testing::Message() << "round " << round << " kind " << config::text_of(kind) << " cp "
                                      << request.cp << " slack " << request.token_slack << ", " << request.area_slack
                                      << " multiple " << request.multiple);
      expect_sound(documents, request);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

std::string refusal(const DocumentLengths& documents, const SequenceCutRequest& request) {
  try {
    cut_sequence(documents, request);
  } catch (const base::Error& error) { return error.what(); }
  return "accepted";
}

TEST(SequenceCut, RefusesWhatCannotBeCut) {
  EXPECT_NE(refusal({{10}}, {Kind::zigzag, 2}).find("2 cp = 4 equal chunks"), std::string::npos);
  EXPECT_NE(refusal({{12}}, {Kind::zigzag, 2, 0, 0, 4}).find("not a multiple of 4"), std::string::npos);
  EXPECT_NE(refusal({{10}}, {Kind::balanced, 2, 0, 0, 4}).find("cannot be divided into multiples of 4"),
            std::string::npos);
  EXPECT_NE(refusal({{3}}, {Kind::contiguous, 4}).find("too short for 4 ranks"), std::string::npos);
  EXPECT_NE(refusal({{3}}, {Kind::contiguous, 0}).find("for 0 ranks"), std::string::npos);
  EXPECT_NE(refusal({{3, 0}}, {Kind::balanced, 1}).find("document of 0 tokens"), std::string::npos);
  EXPECT_NE(refusal({{3}, {4}}, {Kind::balanced, 1}).find("sample 1 have 4"), std::string::npos);
  EXPECT_NE(refusal({}, {Kind::balanced, 1}).find("at least one sample"), std::string::npos);
  EXPECT_NE(refusal({{9}}, {Kind::balanced, 2, -1}).find("slack of tokens -1"), std::string::npos);
}

template <class Draw>
std::vector<int64_t> filled(int64_t length, const Draw& draw) {
  std::vector<int64_t> lengths;
  for (int64_t left = length; left > 0; left -= lengths.back())
    lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(draw()), 1, left));
  return lengths;
}

std::vector<std::vector<int64_t>> distributions(int64_t length) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> narrow(std::log(400.0), 1), wide(std::log(400.0), 2);
  std::uniform_int_distribution<int64_t> crumb(1, 200);
  std::vector<int64_t> giant = filled(length - length / 2, [&] { return crumb(random); });
  giant.insert(giant.begin() + static_cast<std::ptrdiff_t>(giant.size() / 3), length / 2);
  return {{length},
          filled(length, [&] { return narrow(random); }),
          filled(length, [&] { return wide(random); }),
          giant,
          filled(length, [] { return 104.0; })};
}

TEST(SequenceCut, BalancedIsEvenForAnyLengths) {
  for (const std::vector<int64_t>& lengths : distributions(131072)) {
    for (const int cp : {2, 4, 8, 16, 32, 64}) {
      for (const double slack : {0.0, 0.1}) {
        const DocumentLengths documents{lengths};
        const CutLoad load = cut_load(documents, cut_sequence(documents, {Kind::balanced, cp, slack}));
        EXPECT_LE(load.area_ratio, 1.05) << lengths.size() << " documents, cp " << cp << ", slack " << slack;
        EXPECT_LE(load.token_ratio, 1 + slack + 1e-9);
      }
    }
  }
}

// A rank's arc has two ends: all but at most 2 cp documents stay whole.
TEST(SequenceCut, BalancedCutsFewDocuments) {
  for (const std::vector<int64_t>& lengths : distributions(131072)) {
    for (const int cp : {2, 8, 64}) {
      int64_t runs = 0;
      for (const PositionRuns& of : find_shard(lengths, {Kind::balanced, cp, 0.1}))
        runs += static_cast<int64_t>(of.size());
      EXPECT_LE(runs, 4 * cp) << lengths.size() << " documents, cp " << cp;
    }
  }
}

TEST(SequenceCut, CountsTheAreaOfTheLongestSequenceAndRefusesALongerOne) {
  constexpr int64_t kLongest = (int64_t{1} << 31) - 1;
  const DocumentLengths documents{{kLongest}};
  for (const Kind kind : {Kind::balanced, Kind::contiguous}) {
    const CutLoad load = cut_load(documents, cut_sequence(documents, {kind, 4}));
    EXPECT_EQ(std::accumulate(load.area.begin(), load.area.end(), int64_t{0}), kLongest * (kLongest + 1) / 2);
    for (const int64_t area : load.area) EXPECT_GT(area, 0);
  }
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{kLongest + 1}, {kLongest, 1}, {int64_t{1} << 62, int64_t{1} << 62}})
    EXPECT_THROW(sequence_pieces({lengths}), base::Error) << lengths[0];
}

double time_for_cut(int64_t tokens) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> lengths(std::log(60.0), 1);
  const DocumentLengths documents{filled(tokens, [&] { return lengths(random); })};
  EXPECT_GT(documents[0].size(), static_cast<size_t>(tokens / 200));
  double best = 1e18;  // processor time; the shortest of several runs, because the machine may be busy
  for (int run = 0; run < 3; ++run) {
    const std::clock_t start = std::clock();
    const SequenceCut cut = cut_sequence(documents, {Kind::balanced, 64, 0.05});
    const auto seen = seen_keys(documents, cut);
    best = std::min(best, static_cast<double>(std::clock() - start));
  }
  return best;
}

// 64 times the tokens take 64 times as long if the work is linear, and 4096 times if it is quadratic. The limit is
// the geometric mean.
TEST(SequenceCut, TimeGrowsLinearly) { EXPECT_LT(time_for_cut(1 << 22) / time_for_cut(1 << 16), 512); }

}  // namespace
}  // namespace metroplex::plan::sequence_cut_test
