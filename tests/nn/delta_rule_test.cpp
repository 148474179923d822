// The chunked gated delta rule against the recurrent one, in float64: results, gradients, documents and states.
#include "nn/delta_rule.h"
#include "nn/tools.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::delta_rule_test {
namespace {

constexpr int64_t kSamples = 2, kKeyHeads = 2, kHeads = 4, kKey = 5, kValue = 3;
// Products of up to 64 terms of size 1 in three stages, each rounded to 1.1e-16: below 1e-13 relative to the largest.
constexpr double kTolerance = 1e-12;

at::Tensor normalized(const at::Tensor& x) { return x / x.norm(2, {-1}, true); }

nn::DeltaRuleInputs inputs(int64_t rows) {
  return {normalized(sample({rows, kSamples, kKeyHeads, kKey}, 1)),
          normalized(sample({rows, kSamples, kKeyHeads, kKey}, 2)), sample({rows, kSamples, kHeads, kValue}, 3),
          -at::exp(4 * sample({rows, kSamples, kHeads}, 4)), at::sigmoid(3 * sample({rows, kSamples, kHeads}, 5))};
}

std::vector<at::Tensor*> fields(nn::DeltaRuleInputs& in) { return {&in.q, &in.k, &in.v, &in.g, &in.beta}; }

nn::DeltaRuleInputs narrow_rows(nn::DeltaRuleInputs in, int64_t first, int64_t count) {
  for (at::Tensor* x : fields(in)) *x = x->narrow(0, first, count);
  return in;
}

// Documents of changing lengths, different in the two samples; some begin at the first row of a chunk.
at::Tensor document_ids(int64_t rows) {
  const at::Tensor ids = at::empty({kSamples, rows}, at::kLong);
  for (int64_t i = 0; i < rows; ++i) {
    ids[0][i] = i / 64 * 2 + (i % 64 > 20 ? 1 : 0);
    ids[1][i] = i / 37;
  }
  return ids;
}

void expect_equal(const nn::DeltaRuleResult& got, const nn::DeltaRuleResult& expected) {
  EXPECT_LT(relative_difference(got.out, expected.out), kTolerance);
  EXPECT_LT(relative_difference(got.state, expected.state), kTolerance);
}

TEST(DeltaRule, ChunksEqualTheRecurrence) {
  for (const int64_t rows : {1, 2, 7, 63, 64, 65, 128, 200, 333}) {
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, documents " << documents);
      const nn::DeltaRuleInputs in = inputs(rows);
      const at::Tensor ids = documents ? document_ids(rows) : at::Tensor();
      expect_equal(nn::ChunkedDeltaRule(in, ids).result(), nn::recurrent_delta_rule(in, ids));
    }
  }
}

// Equal keys, full write strength and no decay are the worst case for an inverse by powers of the matrix.
TEST(DeltaRule, ChunksStayExactForEqualKeys) {
  nn::DeltaRuleInputs in = inputs(130);
  in.k = in.k.narrow(0, 0, 1).expand_as(in.k);
  in.g = at::zeros_like(in.g), in.beta = at::ones_like(in.beta);
  expect_equal(nn::ChunkedDeltaRule(in, {}).result(), nn::recurrent_delta_rule(in, {}));
}

TEST(DeltaRule, AStateContinuesTheSequence) {
  const int64_t rows = 150;
  for (const bool documents : {false, true}) {
    const nn::DeltaRuleInputs in = inputs(rows);
    const at::Tensor ids = documents ? document_ids(rows) : at::Tensor();
    const nn::DeltaRuleResult whole = nn::recurrent_delta_rule(in, ids);
    at::Tensor state;
    int64_t first = 0;
    for (const int64_t count : {64, 1, 20, 65}) {
      SCOPED_TRACE(testing::Message() << count << " rows from " << first << ", documents " << documents);
      const at::Tensor seen = documents ? ids.narrow(1, 0, first + count) : at::Tensor();
      const nn::DeltaRuleInputs part = narrow_rows(in, first, count);
      const nn::DeltaRuleResult chunked = nn::ChunkedDeltaRule(part, seen, state).result();
      expect_equal(nn::recurrent_delta_rule(part, seen, state), chunked);
      EXPECT_LT(relative_difference(chunked.out, whole.out.narrow(0, first, count)), kTolerance);
      state = chunked.state;
      first += count;
    }
    EXPECT_LT(relative_difference(state, whole.state), kTolerance);
  }
}

TEST(DeltaRule, DocumentsAreComputedAlone) {
  const int64_t rows = 150;
  const nn::DeltaRuleInputs in = inputs(rows);
  const at::Tensor ids = at::zeros({kSamples, rows}, at::kLong);
  ids.narrow(1, 70, 80).fill_(1);
  const at::Tensor together = nn::ChunkedDeltaRule(in, ids).result().out;
  EXPECT_LT(
      relative_difference(together.narrow(0, 0, 70), nn::ChunkedDeltaRule(narrow_rows(in, 0, 70), {}).result().out),
      kTolerance);
  EXPECT_LT(
      relative_difference(together.narrow(0, 70, 80), nn::ChunkedDeltaRule(narrow_rows(in, 70, 80), {}).result().out),
      kTolerance);
}

TEST(DeltaRule, GradientsEqualThoseOfTheRecurrence) {
  for (const int64_t rows : {1, 5, 64, 100, 193}) {
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, documents " << documents);
      nn::DeltaRuleInputs in = inputs(rows);
      const at::Tensor ids = documents ? document_ids(rows) : at::Tensor(),
                       dy = sample({rows, kSamples, kHeads, kValue}, 6);
      nn::DeltaRuleInputs got = nn::ChunkedDeltaRule(in, ids).backward(dy);
      for (at::Tensor* x : fields(in)) *x = x->detach().clone().requires_grad_(true);
      const at::Tensor out = nn::recurrent_delta_rule(in, ids).out;
      const auto expected = torch::autograd::grad({out}, {in.q, in.k, in.v, in.g, in.beta}, {dy});
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LT(relative_difference(*fields(got)[i], expected[i]), kTolerance) << i;
    }
  }
}

// Central differences with step h = 1e-4 along one direction: the error is h^2 times a third derivative of size 10.
TEST(DeltaRule, GradientsEqualFiniteDifferences) {
  const int64_t rows = 100;
  const at::Tensor ids = document_ids(rows), dy = sample({rows, kSamples, kHeads, kValue}, 6);
  nn::DeltaRuleInputs gradients = nn::ChunkedDeltaRule(inputs(rows), ids).backward(dy);
  for (size_t i = 0; i < 5; ++i) {
    const at::Tensor direction = sample(fields(gradients)[i]->sizes().vec(), 10 + i);
    const auto loss = [&](double step) {
      nn::DeltaRuleInputs moved = inputs(rows);
      *fields(moved)[i] = *fields(moved)[i] + step * direction;
      return (nn::ChunkedDeltaRule(moved, ids).result().out * dy).sum().item<double>();
    };
    const double expected = (*fields(gradients)[i] * direction).sum().item<double>();
    EXPECT_NEAR((loss(1e-4) - loss(-1e-4)) / 2e-4, expected, 1e-7 * std::max(1.0, std::abs(expected))) << i;
    EXPECT_GT(std::abs(expected), 1e-3) << i;
  }
}

TEST(DeltaRule, MetaTensorsHaveTheSameShapes) {
  nn::DeltaRuleInputs in = inputs(70);
  for (at::Tensor* x : fields(in)) *x = x->to(at::kMeta);
  const at::Tensor ids = document_ids(70).to(at::kMeta);
  const nn::DeltaRuleResult result = nn::ChunkedDeltaRule(in, ids).result();
  EXPECT_EQ(result.out.sizes(), in.v.sizes());
  EXPECT_EQ(result.state.sizes(), at::IntArrayRef({kSamples, kHeads, kKey, kValue}));
  nn::DeltaRuleInputs gradients = nn::ChunkedDeltaRule(in, ids).backward(in.v);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(fields(gradients)[i]->sizes(), fields(in)[i]->sizes());
}

}  // namespace
}  // namespace metroplex::test::delta_rule_test
