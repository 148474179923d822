// Blocked attention against the formula in float64: masks, dropout, grouped heads, odd lengths around the blocks. Its
// bits depend only on the head's own numbers.
#include "nn/blocked_attention.h"

#include <ATen/Parallel.h>

#include "nn/attention_cases.h"
#include "support/allocations.h"

namespace metroplex::test::blocked_attention_test {
namespace {

using Case = AttentionCase;

AttentionResult blocked(const nn::CoreInputs& in, const nn::CoreCall& call, const at::Tensor& dy) {
  const nn::CoreResult result = nn::blocked_attention(in, call);
  const nn::CoreInputs gradients = nn::blocked_attention_backward(dy, in, result, call);
  return {result.out, gradients.q, gradients.k, gradients.v};
}

void expect_same(const AttentionResult& a, const AttentionResult& b) {
  EXPECT_TRUE(at::equal(a.out, b.out)) << "result";
  EXPECT_TRUE(at::equal(a.dq, b.dq)) << "gradient of q";
  EXPECT_TRUE(at::equal(a.dk, b.dk)) << "gradient of k";
  EXPECT_TRUE(at::equal(a.dv, b.dv)) << "gradient of v";
}

TEST(BlockedAttention, IsTheFormulaForwardAndBackwardInEveryType) {
  for (const Case& test_case : attention_cases()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(testing::Message() << case_name(test_case) << " " << dtype);
      const nn::CoreInputs in = inputs(test_case, dtype);
      const at::Tensor dy = make_gradient(test_case, dtype);
      const nn::CoreSpec spec = make_spec(test_case);
      const nn::Microbatch batch = make_batch(test_case);
      expect_attended(blocked(in, {spec, {}, batch}, dy), plain_attention(in, {spec, {}, batch}, dy),
                      get_tolerance(dtype));
    }
  }
}

// Queries 0 to 2 precede every key.
TEST(BlockedAttention, AQueryThatSeesNothingGivesZero) {
  const Case test_case{6, 2, 2, 1, 8, 0.0, {}};
  const nn::CoreSpec spec = make_spec(test_case);
  const nn::CorePositions positions{{}, {3, {}, 0}};
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const nn::CoreInputs in = inputs(test_case, dtype);
    const at::Tensor dy = make_gradient(test_case, dtype);
    const AttentionResult got = blocked(in, {spec, positions, make_batch(test_case)}, dy);
    expect_attended(got, plain_attention(in, {spec, positions, make_batch(test_case)}, dy), get_tolerance(dtype));
    EXPECT_EQ(largest(got.out.narrow(0, 0, 3)), 0);
    EXPECT_EQ(largest(got.dq.narrow(0, 0, 3)), 0);
  }
}

TEST(BlockedAttention, ANanOfAKeyReachesWhoSeesIt) {
  const Case test_case{9, 1, 1, 1, 8, 0.0, {}};
  const nn::CoreInputs in = inputs(test_case, at::kFloat);
  in.k.select(0, 4).fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor out = nn::blocked_attention(in, {make_spec(test_case), {}, make_batch(test_case)}).out;
  EXPECT_FALSE(out.narrow(0, 0, 4).isnan().any().item<bool>());
  EXPECT_TRUE(out.narrow(0, 4, 5).isnan().all().item<bool>());
}

class Threads {
 public:
  explicit Threads(int n) : before_(at::get_num_threads()) { at::set_num_threads(n); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

// One group: with more threads than groups, backward is split into blocks of queries and of keys.
TEST(BlockedAttention, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const Case& test_case :
       {Case{300, 1, 2, 1, 16, 0.2, {100, 37}}, Case{300, 2, 4, 2, 16, 0.2, {100, 37}},
        Case{300, 1, 2, 1, 16, 0.2, {100, 37}, 9}, Case{300, 1, 2, 1, 16, 0.2, {}, 9, 20, 1.5}}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(testing::Message() << case_name(test_case) << " " << dtype);
      const auto on = [&](int threads) {
        const Threads set(threads);
        return blocked(inputs(test_case, dtype), {make_spec(test_case), {}, make_batch(test_case)},
                       make_gradient(test_case, dtype));
      };
      const AttentionResult one = on(1);
      expect_same(on(2), one);
      expect_same(on(5), one);
    }
  }
}

TEST(BlockedAttention, HasTheSameBitsForAPartOfTheHeadsAndSamples) {
  const Case test_case{300, 3, 4, 2, 7, 0.2, {100, 37}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const nn::CoreInputs in = inputs(test_case, dtype);
    const at::Tensor dy = make_gradient(test_case, dtype);
    const AttentionResult whole = blocked(in, {make_spec(test_case), {}, make_batch(test_case)}, dy);
    nn::CoreSpec spec = make_spec(test_case);
    spec.first_head += 2;
    nn::Microbatch batch = make_batch(test_case);
    batch.counters.samples = batch.counters.samples.narrow(0, 1, 1);
    batch.documents.ids = batch.documents.ids.narrow(0, 1, 1);
    const auto narrow_heads = [](const at::Tensor& x, int64_t head, int64_t heads) {
      return x.narrow(1, 1, 1).narrow(2, head, heads).contiguous();
    };
    const AttentionResult part =
        blocked({narrow_heads(in.q, 2, 2), narrow_heads(in.k, 1, 1), narrow_heads(in.v, 1, 1)}, {spec, {}, batch},
                narrow_heads(dy, 2, 2));
    expect_same(part, {narrow_heads(whole.out, 2, 2), narrow_heads(whole.dq, 2, 2), narrow_heads(whole.dk, 1, 1),
                       narrow_heads(whole.dv, 1, 1)});
  }
}

nn::CoreInputs on(const nn::CoreInputs& in, at::Device device) {
  return {in.q.to(device), in.k.to(device), in.v.to(device)};
}

// In forward and backward; excludes the inputs.
Allocations taken(const Case& test_case, at::ScalarType dtype, const device::Target& target) {
  nn::CoreSpec spec = make_spec(test_case);
  spec.target = spec.dropout.target = target;
  nn::Microbatch batch = make_batch(test_case);
  batch.counters.samples = batch.counters.samples.to(target.memory());
  if (batch.documents.ids.defined()) batch.documents.ids = batch.documents.ids.to(target.memory());
  const nn::CoreInputs in = on(inputs(test_case, dtype), target.memory());
  const at::Tensor dy = make_gradient(test_case, dtype).to(target.memory());
  return record_allocations([&] { blocked(in, {spec, {}, batch}, dy); });
}

TEST(BlockedAttention, TakesOnTheMetaDeviceWhatItTakes) {
  for (const Case& test_case : {Case{300, 1, 2, 1, 16, 0.2, {100, 37}}, Case{11, 2, 4, 4, 7, 0, {3}},
                                Case{300, 1, 2, 1, 16, 0.2, {100, 37}, 24}}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(testing::Message() << case_name(test_case) << " " << dtype);
      expect_same_allocations(taken(test_case, dtype, {at::kCPU, nullptr, true}), taken(test_case, dtype, {}));
    }
  }
}

TEST(BlockedAttention, MemoryIsLinearInTheLength) {
  const auto peak = [](int64_t s) { return held(taken({s, 1, 2, 1, 8, 0.1, {s / 3}}, at::kFloat, {})).peak; };
  const int64_t at_2k = peak(2048), at_4k = peak(4096), at_8k = peak(8192);
  EXPECT_EQ(at_8k - at_4k, 2 * (at_4k - at_2k));
  EXPECT_LT(at_8k, int64_t{8192} * 8192);  // a quarter of one matrix of scores
}

}  // namespace
}  // namespace metroplex::test::blocked_attention_test
