// A microbatch of selected rows of a sequence (SequenceShard::rows) against the whole sequence, in float64: rotary
// positions, dropout, attention over all keys, and the keys of random sites.
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>

#include "nn/autograd_node.h"
#include "nn/dropout_norm.h"
#include "nn/random_site.h"
#include "nn/plain_attention.h"
#include "nn/rope.h"

namespace metroplex::test::rows_test {
namespace {

constexpr int64_t kWhole = 13;
constexpr double kDouble = 1e-13;  // sums of some ten terms of size 1

at::Tensor rows_tensor(const std::vector<int64_t>& rows) { return at::tensor(rows, at::kLong); }

// Two ranges, as on a context-parallel rank, and rows in random order.
std::vector<at::Tensor> cuts() {
  return {rows_tensor({2, 3, 4, 9, 10, 11}), rows_tensor({7, 0, 12, 5, 1}), rows_tensor({6})};
}
at::Tensor reversed() { return at::arange(kWhole - 1, -1, -1, at::kLong); }

nn::Microbatch whole_batch() {
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(3, at::tensor({7, 8}, at::kLong));
  batch.tokens = at::zeros({2, kWhole}, at::kLong);
  return batch;
}

nn::Microbatch shard_batch(const nn::Microbatch& whole, const at::Tensor& rows) {
  nn::Microbatch part = whole;
  part.tokens = whole.tokens.index_select(1, rows);
  part.sequence.rows = rows;
  part.sequence.length = kWhole;
  for (int64_t i = 0; i < rows.numel(); ++i) part.sequence.row_ranges.push_back({rows[i].item<int64_t>(), 1});
  return part;
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }
at::Tensor make_temporary(const at::Tensor& x) {
  return nn::attach(x.detach().clone(), {x}, [](const at::Tensor& d) -> nn::Gradients { return {d}; });
}

TEST(Rows, RotaryPositionsAreThoseOfTheWholeSequenceForwardAndBack) {
  const at::Tensor x = sample({kWhole, 2, 3, 8}, 5);
  for (const int direction : {1, -1}) {
    nn::RopeTable table(8, 100.0, {});
    at::Tensor whole = x.clone();
    table.rotate(whole, {}, direction);
    for (const at::Tensor& rows : cuts()) {
      at::Tensor part = x.index_select(0, rows);
      nn::RopeTable(8, 100.0, {}).rotate(part, {0, rows, kWhole}, direction);
      EXPECT_TRUE(at::equal(part, whole.index_select(0, rows))) << rows;
    }
  }
}

// YaRN's rule pair by pair: the number of turns over the original positions determines how much of its frequency a
// pair retains.
TEST(Rope, YarnSlowsWhatTurnsSeldomAndKeepsWhatTurnsOften) {
  constexpr int64_t kDims = 32, kPositions = 64;
  const double base = 1000;
  for (const bool rounds : {true, false}) {
    const nn::RopeYarn yarn{4, 8, 1, 256, rounds};
    at::Tensor x = at::zeros({kPositions, 1, 1, kDims}, at::kDouble);
    x.narrow(3, 0, kDims / 2).fill_(1);
    nn::RopeTable(nn::RopeSpec{.dims = kDims, .base = base, .yarn = yarn}, {}).rotate(x, {}, 1);
    const auto pair = [&](double turns) {  // the pair for which base^(-2i/n) positions / 2 pi is `turns`
      return kDims / 2 * std::log(static_cast<double>(yarn.positions) / (2 * M_PI * turns)) / std::log(base);
    };
    const double first = rounds ? std::floor(pair(yarn.fast)) : pair(yarn.fast),
                 last = rounds ? std::ceil(pair(yarn.slow)) : pair(yarn.slow);
    int between = 0;
    for (int64_t i = 0; i < kDims / 2; ++i) {
      const double slowed = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
      between += slowed > 0 && slowed < 1 ? 1 : 0;
      const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(kDims)) *
                               (1 - slowed + slowed / yarn.factor);
      for (int64_t row : {1, 7, 63}) {
        const double angle = static_cast<double>(row) * frequency;
        EXPECT_NEAR(x[row][0][0][i].item<double>(), std::cos(angle), 1e-13) << "pair " << i;
      }
    }
    EXPECT_GT(between, 2);
    EXPECT_GT(first, 1);
    EXPECT_LT(last, kDims / 2 - 1);
  }
  EXPECT_DOUBLE_EQ(nn::yarn_mscale(40, 0.707), 0.1 * 0.707 * std::log(40.0) + 1);
  EXPECT_EQ(nn::yarn_mscale(1, 0.707), 1);
}

// YaRN limits the range of pairs to the first and the last dimension and enforces a minimum width. The smallest angle
// is 0.011 (pair 3, frequency 0.032): its cosine, rounded to 1.1e-16, gives the angle to 1e-14 and the ratio to
// 3e-13. The last division makes that 4e-13.
TEST(Rope, YarnLimitsTheRangeOfPairs) {
  const auto slowed_by = [](const nn::RopeYarn& yarn, double base, int64_t pair) {
    constexpr int64_t kDims = 8;
    at::Tensor x = at::zeros({2, 1, 1, kDims}, at::kDouble);
    x.narrow(3, 0, kDims / 2).fill_(1);
    nn::RopeTable(nn::RopeSpec{.dims = kDims, .base = base, .yarn = yarn}, {}).rotate(x, {}, 1);
    const double plain = std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(kDims));
    const double ratio = std::acos(x[1][0][0][pair].item<double>()) / plain;  // 1 - slowed + slowed / factor
    return (1 - ratio) / (1 - 1 / yarn.factor);
  };
  // The pair 4 ln(positions / (2 pi turns)) / ln(100) is -2.6 for 200 turns, limited to 0, and 2.02 for 1 turn.
  const double last = 4 * std::log(64 / (2 * M_PI)) / std::log(100.0);
  EXPECT_NEAR(slowed_by({4, 200, 1, 64, false}, 100, 1), 1 / last, 1e-12);
  // It is 1.41 for 8 turns and 15.2 for 1e-6 turns, limited to dimension 7.
  const double first = 4 * std::log(256 / (2 * M_PI * 8)) / std::log(100.0);
  EXPECT_NEAR(slowed_by({4, 8, 1e-6, 256, false}, 100, 3), (3 - first) / (7 - first), 1e-12);
  // It is -0.14 for 12 turns, which is rounded up: both ends of the range are pair 0.
  EXPECT_NEAR(slowed_by({4, 200, 12, 64, true}, 100, 0), 0, 1e-12);
  EXPECT_NEAR(slowed_by({4, 200, 12, 64, true}, 100, 1), 1, 1e-12);
}

// Llama 3.1's rule frequency by frequency, for a pair (1, 0) at every position: cos and sin of the angle. An angle of
// up to `positions` times a frequency of at most 1 has a relative error of some units of 1e-16 in float64.
TEST(Rope, ScaledFrequenciesFollowTheRuleForShortMiddleAndLongWavelengths) {
  constexpr int64_t kDims = 32, kPositions = 64;
  const nn::RopeScaling scaling{8, 1, 4, 40};
  const double base = 10000;
  at::Tensor x = at::zeros({kPositions, 1, 1, kDims}, at::kDouble);
  x.narrow(3, 0, kDims / 2).fill_(1);
  nn::RopeTable(kDims, base, {}, scaling).rotate(x, {}, 1);
  int regions[3] = {0, 0, 0};
  for (int64_t i = 0; i < kDims / 2; ++i) {
    double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(kDims));
    const double wavelength = 2 * M_PI / frequency, positions = static_cast<double>(scaling.positions);
    if (wavelength > positions / scaling.low) {
      frequency /= scaling.factor, ++regions[2];
    } else if (wavelength > positions / scaling.high) {
      const double smooth = (positions / wavelength - scaling.low) / (scaling.high - scaling.low);
      frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency, ++regions[1];
    } else {
      ++regions[0];
    }
    for (int64_t t = 0; t < kPositions; ++t) {
      const double angle = static_cast<double>(t) * frequency, allowed = 4 * kPositions * 0x1p-52;
      EXPECT_NEAR(x[t][0][0][i].item<double>(), std::cos(angle), allowed) << i << " " << t;
      EXPECT_NEAR(x[t][0][0][i + kDims / 2].item<double>(), std::sin(angle), allowed) << i << " " << t;
    }
  }
  for (const int region : regions) EXPECT_GT(region, 0);
}

TEST(Rows, DropoutKeepsWhatItKeepsOfTheWholeSequence) {
  const nn::Microbatch batch = whole_batch();
  const nn::BiasDropoutAdd how{{5, 2, nn::RandomSite::mlp_output, 0.4, {}}, nullptr, {0}};
  for (const int64_t width : {12, 37}) {
    const at::Tensor x = sample({kWhole, 2, width}, 1);
    const at::Tensor whole = nn::bias_dropout_add(x.clone(), {}, how, batch);
    for (const at::Tensor& rows : cuts()) {
      const nn::Microbatch part = shard_batch(batch, rows);
      EXPECT_TRUE(
          at::equal(nn::bias_dropout_add(x.index_select(0, rows), {}, how, part), whole.index_select(0, rows)))
          << rows;
      nn::BiasDropoutAdd tail = how;  // of a rank with sequence parallelism
      tail.location.first_row = rows.numel() - 1;
      const at::Tensor last = rows.narrow(0, rows.numel() - 1, 1);
      EXPECT_TRUE(
          at::equal(nn::bias_dropout_add(x.index_select(0, last), {}, tail, part), whole.index_select(0, last)))
          << rows;
    }
  }
}

TEST(Rows, DropoutFusedWithTheNormFollowsThemForwardAndBackward) {
  const int64_t width = 20;
  nn::Norm norm({"n", width, false, 1e-5, {}}, layer_context());
  std::vector<nn::Param*> params;
  norm.collect_params(params);
  give_main_grad(params);
  const nn::BiasDropoutAdd add{{5, 2, nn::RandomSite::attention_output, 0.4, {}}, nullptr, {0}};
  const nn::SavePolicy saving;
  const at::Tensor x = sample({kWhole, 2, width}, 1), residual = sample({kWhole, 2, width}, 2),
                   dh = sample({kWhole, 2, width}, 3), dy = sample({kWhole, 2, width}, 4);
  const auto run = [&](const nn::Microbatch& batch, const at::Tensor& rows) {
    const auto select = [&](const at::Tensor& whole) { return whole.index_select(0, rows); };
    const at::Tensor a = leaf(select(x)), b = leaf(select(residual));
    const nn::ResidualAndNorm out = nn::bias_dropout_add_norm(make_temporary(a), b, {add, &norm, saving}, batch);
    auto all = torch::autograd::grad({out.h, out.normed.x}, {a, b}, {select(dh), select(dy)});
    all.insert(all.end(), {out.h.detach(), out.normed.x.detach()});
    return all;
  };
  const auto whole = run(whole_batch(), at::arange(kWhole, at::kLong));
  EXPECT_GT(largest(whole[0] - whole[1]), 0.1);
  for (const at::Tensor& rows : cuts()) {
    const auto part = run(shard_batch(whole_batch(), rows), rows);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(part[i], whole[i].index_select(0, rows))) << i;
  }
}

struct AttentionCase {
  bool documents;
  double dropout;
};

// Queries of some rows over the keys of others, on a rank that has heads 2 and 3 of the model.
AttentionResult attend(const AttentionCase& test_case, const nn::Positions& queries, const nn::Positions& keys) {
  const int64_t b = 2, heads = 2, d = 6;
  nn::Microbatch batch = whole_batch();
  if (test_case.documents)
    batch.documents.ids = at::arange(kWhole, at::kLong).div(5, "floor").expand({b, kWhole}).contiguous();
  const auto select = [](const at::Tensor& x, const nn::Positions& rows) {
    return rows.rows.defined() ? x.index_select(0, rows.rows) : x;
  };
  const nn::CoreInputs in{select(sample({kWhole, b, heads, d}, 6), queries),
                          select(sample({kWhole, b, 1, d}, 7), keys), select(sample({kWhole, b, 1, d}, 8), keys)};
  const at::Tensor dy = select(sample({kWhole, b, heads, d}, 9), queries);
  const nn::CoreSpec spec = core_spec(in, test_case.dropout, 2);
  const nn::CorePositions positions{queries, keys};
  AttentionResult got = run_attention(in, {spec, positions, batch}, dy);
  expect_attended(got, plain_attention(in, {spec, positions, batch}, dy), kDouble);
  return got;
}

constexpr AttentionCase kAttentionCases[] = {{false, 0}, {true, 0}, {false, 0.3}, {true, 0.3}};

TEST(Rows, QueriesOfSomeRowsSeeWhatTheySeeInTheWholeSequence) {
  for (const AttentionCase& test_case : kAttentionCases) {
    SCOPED_TRACE(testing::Message() << "documents " << test_case.documents << " dropout " << test_case.dropout);
    const AttentionResult whole = attend(test_case, {}, {});
    for (const at::Tensor& rows : cuts()) {
      const AttentionResult part = attend(test_case, {0, rows, kWhole}, {});
      EXPECT_LT(relative_difference(part.out, whole.out.index_select(0, rows)), kDouble) << rows;
      EXPECT_LT(relative_difference(part.dq, whole.dq.index_select(0, rows)), kDouble) << rows;
    }
    // Two parts that make up the whole: gradients of the keys add up.
    const AttentionResult one = attend(test_case, {0, rows_tensor({0, 1, 2, 10, 11, 12}), kWhole}, {}),
                          two = attend(test_case, {0, rows_tensor({9, 8, 7, 6, 5, 4, 3}), kWhole}, {});
    EXPECT_LT(relative_difference(one.dk + two.dk, whole.dk), kDouble);
    EXPECT_LT(relative_difference(one.dv + two.dv, whole.dv), kDouble);
  }
}

TEST(Rows, KeysInAnotherOrderAreTheSameKeys) {
  for (const AttentionCase& test_case : kAttentionCases) {
    SCOPED_TRACE(testing::Message() << "documents " << test_case.documents << " dropout " << test_case.dropout);
    const AttentionResult whole = attend(test_case, {}, {});
    const at::Tensor rows = cuts()[0], order = reversed();
    const AttentionResult part = attend(test_case, {0, rows, kWhole}, {0, order, kWhole}),
                          all = attend(test_case, {0, order, kWhole}, {0, order, kWhole});
    EXPECT_LT(relative_difference(part.out, whole.out.index_select(0, rows)), kDouble);
    EXPECT_LT(relative_difference(part.dq, whole.dq.index_select(0, rows)), kDouble);
    EXPECT_LT(relative_difference(all.out, whole.out.index_select(0, order)), kDouble);
    EXPECT_LT(relative_difference(all.dk, whole.dk.index_select(0, order)), kDouble);
    EXPECT_LT(relative_difference(all.dv, whole.dv.index_select(0, order)), kDouble);
  }
}

TEST(Rows, AMicrobatchWhoseRowsDoNotFitItsTokensIsRefused) {
  const nn::Microbatch part = shard_batch(whole_batch(), cuts()[0]);
  EXPECT_NO_THROW(nn::sequence_positions(part));
  nn::Microbatch shorter = part, outside = part, unlike = part;
  shorter.tokens = shorter.tokens.narrow(1, 0, 5);
  outside.sequence.row_ranges.back().first = kWhole;
  unlike.sequence.row_ranges.pop_back();
  for (const nn::Microbatch& wrong : {shorter, outside, unlike}) EXPECT_ANY_THROW(nn::sequence_positions(wrong));
}

TEST(RandomSites, NoTwoSitesOfTenThousandLayersShareAKey) {
  constexpr int64_t kLayers = 10000;
  constexpr uint64_t kSites = 64;
  std::vector<uint64_t> keys;
  keys.reserve(kLayers * kSites);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (uint64_t site = 0; site < kSites; ++site)
      keys.push_back(nn::random_key(1234, layer, static_cast<nn::RandomSite>(site)));
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
}

// Older checkpoints resume with the same masks.
TEST(RandomSites, TheFirstFourAreNumberedThroughTheLayers) {
  for (const int64_t layer : {int64_t{0}, int64_t{1}, int64_t{79}, int64_t{1} << 40}) {
    for (uint64_t site = 0; site < 4; ++site)
      EXPECT_EQ(nn::site_word(layer, static_cast<nn::RandomSite>(site)), static_cast<uint64_t>(layer) * 4 + site);
  }
  EXPECT_EQ(nn::random_key(1234, 2, nn::RandomSite::mlp_output), nn::mix(nn::mix(1234) ^ 11));
  EXPECT_EQ(nn::mix(0), 0xE220A8397B1DCDAFull);  // the first number of splitmix64 from 0
}

}  // namespace
}  // namespace metroplex::test::rows_test
