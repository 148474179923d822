#include "kernels/attention_scores.h"
#include "kernels_on_host/twins.h"
#include "support/everyday.h"

namespace metroplex::kernels_on_host::attention_scores_test {
namespace {

// Causal over all rows, or over selected rows in random order; with documents and dropout. A block of some heads,
// queries and keys.
struct Case {
  int64_t samples, heads, s, v_dim;
  ScoreBlock block;
  double dropout = 0;
  bool documents = false, chosen = false;
  int64_t reach = kAllEarlier;
  double softcap = 0;
  int64_t chunk = 0;
};

template <class T>
struct Block {
  Case c;
  AttentionShape s;
  std::vector<int64_t> documents, rows, counters{7, 9, 11};

  explicit Block(const Case& its_case) : c(its_case) {
    s.samples = c.samples, s.heads = c.heads, s.groups = 1, s.queries = s.keys = c.s;
    s.head_dim = s.v_head_dim = c.v_dim, s.softmax_scale = 0.3;
    s.reach = c.reach, s.softcap = c.softcap, s.chunk = c.chunk, s.document_stride = c.s;
    for (int64_t i = 0; i < c.samples * c.s; ++i) documents.push_back(i % c.s / 5);
    for (int64_t i = 0; i < c.s; ++i) rows.push_back(i % 2 == 0 ? i : c.s / 2 * 2 - i);
    s.dropout = {
        {nullptr, c.samples, 3 * c.s, true, nullptr, c.s, c.s}, c.samples * c.heads * c.s, c.s, 99, c.dropout};
  }
  AttentionShape placed(const int64_t* ids, const int64_t* chosen, const int64_t* counter) const {
    AttentionShape shape = s;
    shape.documents = c.documents ? ids : nullptr;
    shape.query_rows.chosen = shape.key_rows.chosen = shape.dropout.rows.chosen = c.chosen ? chosen : nullptr;
    shape.dropout.rows.counters = counter;
    return shape;
  }
  int64_t numbers() const { return c.block.rows() * c.block.stride; }
  AttentionOperand<const T> operand(const T* data) const {
    return {data, c.samples * c.heads * c.v_dim, c.heads * c.v_dim, c.v_dim};
  }
};

// The columns that are keys.
template <class T>
std::vector<T> select_keys(const std::vector<T>& all, const ScoreBlock& block) {
  std::vector<T> keys;
  for (size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int64_t>(i) % block.stride < block.keys) keys.push_back(all[i]);
  }
  return keys;
}

template <class T>
void check(const Case& test_case) {
  using W = Wide<T>;
  const Block<T> block(test_case);
  const ScoreBlock& score_block = test_case.block;
  const std::vector<W> scores = make_values<W>(block.numbers(), 0.7),
                       dprobabilities = make_values<W>(block.numbers(), 0.3);
  const std::vector<T> out = make_values<T>(test_case.s * test_case.samples * test_case.heads * test_case.v_dim, 0.9),
                       dout = make_values<T>(out.size(), 0.5);
  std::vector<T> probabilities(scores.size()), again(scores.size()), dscores(scores.size());
  std::vector<W> sums(static_cast<size_t>(test_case.samples * test_case.heads * test_case.s), W(77));
  const AttentionShape here = block.placed(block.documents.data(), block.rows.data(), block.counters.data());
  attention_softmax<T>({scores.data(), probabilities.data(), sums.data()}, here, score_block);
  attention_softmax_backward<T>({scores.data(), dprobabilities.data(), sums.data(), block.operand(out.data()),
                                 block.operand(dout.data()), again.data(), dscores.data()},
                                here, score_block);
  const auto got = run_all_orders([&] {
    const DeviceArray<W> x(scores, Use::in, "scores"), dp(dprobabilities, Use::in, "dprobabilities"),
        gsums(std::vector<W>(sums.size(), W(77)), Use::both, "logsumexp"), whole(sums, Use::in, "logsumexp");
    const DeviceArray<T> array(probabilities, Use::both, "probabilities"),
        p2(probabilities, Use::both, "probabilities"), ds(dscores, Use::both, "dscores"), y(out, Use::in, "out"),
        dy(dout, Use::in, "dout");
    const DeviceArray<int64_t> ids(block.documents, Use::in, "documents"), chosen(block.rows, Use::in, "rows"),
        counter(block.counters, Use::in, "counters");
    const AttentionShape there = block.placed(ids.data(), chosen.data(), counter.data());
    attention_softmax_cuda<T>({x.data(), array.data(), gsums.data()}, there, score_block, nullptr);
    attention_softmax_backward_cuda<T>(
        {x.data(), dp.data(), whole.data(), block.operand(y.data()), block.operand(dy.data()), p2.data(), ds.data()},
        there, score_block, nullptr);
    return std::tuple{select_keys(array.values(), score_block), gsums.values(), select_keys(p2.values(), score_block),
                      select_keys(ds.values(), score_block)};
  });
  // A gradient is a probability of at most 1 times 0.3, times the difference of up to 3 / 0.7 and a dot of up to 9
  // terms each; rounded once.
  const std::vector<T> right = select_keys(dscores, score_block);
  std::vector<double> parts;
  for (const T x : right)
    parts.push_back(std::fabs(double{load(x)}) + 0.01 * (5 + 9.0 * static_cast<double>(test_case.v_dim)));
  expect_close(std::get<0>(got), select_keys(probabilities, score_block), "probabilities");
  expect_close(std::get<1>(got), sums, "logsumexp");
  expect_close(std::get<2>(got), select_keys(again, score_block), "probabilities of backward");
  expect_close(std::get<3>(got), right, "gradients of scores", parts);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const double dropout : {0.0, 0.3}) {
    for (const bool documents : {false, true}) {
      for (const bool chosen : {false, true}) {
        for (Case test_case :
             {Case{2, 3, 37, 8, {0, 6, 0, 37, 0, 37, 40}}, Case{1, 2, 36, 5, {1, 1, 8, 12, 8, 16, 16}},
              Case{2, 2, 150, 3, {1, 2, 130, 20, 0, 150, 152}}, Case{1, 1, 33, 70, {0, 1, 0, 1, 0, 1, 8}}}) {
          test_case.dropout = dropout, test_case.documents = documents, test_case.chosen = chosen;
          all.push_back(test_case);
          test_case.reach = 9;
          all.push_back(test_case);
          test_case.reach = 0, test_case.softcap = 0.8;
          all.push_back(test_case);
          test_case.reach = kAllEarlier, test_case.chunk = 7;
          all.push_back(test_case);
        }
      }
    }
  }
  return all;
}

TEST(AttentionScoresOnHost, AreTheTwinsOfTheCpu) {
  const auto trace = [](const Case& test_case) {
    return testing::Message() << "s " << test_case.s << " v " << test_case.v_dim << " dropout " << test_case.dropout
                              << " documents " << test_case.documents << " chosen " << test_case.chosen << " reach "
                              << test_case.reach << " cap " << test_case.softcap << " chunk " << test_case.chunk;
  };
  const std::vector<Case> all = cases();
  for (const Case& test_case : all) {
    SCOPED_TRACE(trace(test_case));
    check<float>(test_case);
    check<Bf16>(test_case);
  }
  for (const Case& test_case : test::sample_cases(all, 3)) {
    SCOPED_TRACE(trace(test_case));
    check<double>(test_case);
    check<F16>(test_case);
  }
}

// A row with more keys than a warp handles is processed by a block.
TEST(AttentionScoresOnHost, RowsOfManyKeysAreTheTwinsOfTheCpu) {
  for (const bool chosen : {false, true}) {
    Case test_case{1, 1, 2060, 3, {0, 1, 2056, 4, 0, 2060, 2064}, 0.3};
    test_case.chosen = chosen;
    check<float>(test_case);
    check<Bf16>(test_case);
  }
}

// A query without keys in a block of later keys: its row is zero and its logsumexp -inf.
TEST(AttentionScoresOnHost, AQueryThatSeesNothingIsZero) {
  check<float>({1, 2, 40, 3, {0, 2, 0, 8, 16, 16, 16}});
  check<Bf16>({1, 2, 40, 3, {0, 2, 8, 16, 16, 16, 16}, 0.3});
}

}  // namespace
}  // namespace metroplex::kernels_on_host::attention_scores_test
