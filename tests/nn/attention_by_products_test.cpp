// Attention by libtorch matmuls against the formula in float64, on the CPU. Covers the masks, dropout and heads of
// nn/blocked_attention.h for any limit on the scores of a chunk. On a GPU and in half types: attention_cuda_test.cpp.
#include "nn/attention_by_products.h"

#include "nn/attention_cases.h"
#include "nn/blocked_attention.h"
#include "support/allocations.h"
#include "support/everyday.h"

namespace metroplex::test::attention_by_products_test {
namespace {

using Case = AttentionCase;

AttentionResult by_products(const nn::CoreInputs& in, const nn::CoreCall& call, const at::Tensor& dy,
                            int64_t score_bytes) {
  const nn::CoreResult result = nn::attention_by_products(in, call, score_bytes);
  const nn::CoreInputs gradients = nn::attention_by_products_backward(dy, in, result, call, score_bytes);
  return {result.out, gradients.q, gradients.k, gradients.v};
}

// Chunks of 16 queries of one group; of 64 or 16 queries, of some groups; everything at once.
constexpr int64_t kBytes[] = {0, 300000, int64_t{1} << 30};

TEST(AttentionByProducts, IsTheFormulaForwardAndBackwardInChunksOfAnySize) {
  for (const Case& test_case : sample_cases(attention_cases(), 10)) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const nn::CoreInputs in = inputs(test_case, dtype);
      const at::Tensor dy = make_gradient(test_case, dtype);
      const nn::CoreSpec spec = make_spec(test_case);
      const nn::Microbatch batch = make_batch(test_case);
      const AttentionResult right = plain_attention(in, {spec, {}, batch}, dy);
      for (const int64_t bytes : kBytes) {
        SCOPED_TRACE(testing::Message() << case_name(test_case) << " " << dtype << " bytes " << bytes);
        expect_attended(by_products(in, {spec, {}, batch}, dy, bytes), right, get_tolerance(dtype));
      }
    }
  }
}

// As on a context-parallel rank: some rows of the sequence, also against other keys than their own.
TEST(AttentionByProducts, ChosenRowsAndLaterKeysSeeWhatTheyShall) {
  const Case test_case{40, 2, 4, 2, 8, 0.3, {3, 17, 7}, 3, -1, 1.5};
  const nn::CoreInputs in = inputs(test_case, at::kDouble);
  const at::Tensor dy = make_gradient(test_case, at::kDouble), even = at::arange(40, at::kLong) * 2,
                   zigzag = at::cat({at::arange(20, at::kLong), at::arange(60, 80, at::kLong)});
  Case whole = test_case;
  whole.s = 80;
  const nn::Microbatch batch = make_batch(whole);
  for (const auto& [window, chunk] : {std::pair{-1, 0}, {0, 0}, {13, 0}, {-1, 13}}) {
    nn::CoreSpec spec = make_spec(test_case);
    spec.window = window, spec.chunk = chunk;
    for (const nn::CorePositions& positions : {nn::CorePositions{{0, even, 80}, {0, zigzag, 80}},
                                               {{0, zigzag, 80}, {0, zigzag, 80}},
                                               {{0, zigzag, 80}, {40, {}, 0}},
                                               {{40, {}, 0}, {0, even, 80}}}) {
      nn::Microbatch its = batch;
      if (!positions.keys.rows.defined()) its.documents.ids = batch.documents.ids.narrow(1, 0, 80).contiguous();
      const nn::CoreCall call{spec, positions, its};
      for (const int64_t bytes : kBytes)
        expect_attended(by_products(in, call, dy, bytes), plain_attention(in, call, dy), get_tolerance(at::kDouble));
    }
  }
}

// Later queries over all keys, as with a cache: a chunk begins between the first key and the first query.
TEST(AttentionByProducts, LaterQueriesSeeTheirChunk) {
  const Case test_case{80, 2, 4, 2, 8, 0, {}, 0, -1, 0, 13};
  nn::CoreInputs in = inputs(test_case, at::kDouble);
  in.q = in.q.narrow(0, 40, 40);
  const at::Tensor dy = make_gradient(test_case, at::kDouble).narrow(0, 40, 40).contiguous();
  const nn::CoreSpec spec = make_spec(test_case);
  const nn::CoreCall call{spec, {{40, {}, 0}, {}}, {}};
  for (const int64_t bytes : kBytes)
    expect_attended(by_products(in, call, dy, bytes), plain_attention(in, call, dy), get_tolerance(at::kDouble));
}

TEST(AttentionByProducts, AQueryThatSeesNothingGivesZeroAndNoLogsumexp) {
  const Case test_case{40, 2, 2, 1, 8, 0.0, {}};
  const nn::CoreSpec spec = make_spec(test_case);
  const nn::CorePositions positions{{}, {19, {}, 0}};
  const nn::CoreInputs in = inputs(test_case, at::kDouble);
  const at::Tensor dy = make_gradient(test_case, at::kDouble);
  const nn::CoreCall call{spec, positions, make_batch(test_case)};
  for (const int64_t bytes : kBytes) {
    const AttentionResult got = by_products(in, call, dy, bytes);
    expect_attended(got, plain_attention(in, call, dy), get_tolerance(at::kDouble));
    EXPECT_EQ(largest(got.out.narrow(0, 0, 19)), 0);
    EXPECT_EQ(largest(got.dq.narrow(0, 0, 19)), 0);
    const at::Tensor sums = nn::attention_by_products(in, call, bytes).logsumexp;
    EXPECT_TRUE((sums.narrow(2, 0, 19) == -std::numeric_limits<double>::infinity()).all().item<bool>());
    EXPECT_TRUE(sums.narrow(2, 19, 21).isfinite().all().item<bool>());
  }
}

// Scores are capped at 1.5 and so 1e-15 off at most, of up to 41 keys. Each of the two sums of exponentials has a
// relative error of some 50 roundings of 2^-53, their logarithms of 6e-15.
TEST(AttentionByProducts, LeavesTheLogsumexpThatBlocksLeave) {
  const Case test_case{129, 2, 4, 2, 8, 0.3, {3, 150, 7}, 3, 40, 1.5};
  const nn::CoreInputs in = inputs(test_case, at::kDouble);
  const nn::CoreSpec spec = make_spec(test_case);
  const nn::Microbatch batch = make_batch(test_case);
  const at::Tensor right = nn::blocked_attention(in, {spec, {}, batch}).logsumexp;
  for (const int64_t bytes : kBytes)
    EXPECT_LE(largest(nn::attention_by_products(in, {spec, {}, batch}, bytes).logsumexp - right), 2e-14);
}

HeldMemory held_on_gpu(const Case& test_case, at::ScalarType dtype, int64_t bytes) {
  const device::Target target{at::Device(at::kCUDA, 0), nullptr, true};
  nn::CoreSpec spec = make_spec(test_case);
  spec.target = spec.dropout.target = target;
  nn::Microbatch batch = make_batch(test_case);
  batch.counters.samples = batch.counters.samples.to(at::kMeta);
  const nn::CoreInputs in = inputs(test_case, dtype);
  const nn::CoreInputs there{in.q.to(at::kMeta), in.k.to(at::kMeta), in.v.to(at::kMeta)};
  const at::Tensor dy = make_gradient(test_case, dtype).to(at::kMeta);
  return held(record_allocations([&] { by_products(there, {spec, {}, batch}, dy, bytes); }));
}

// For two heads of one group: results, sums of the gradients of keys and values in fp32, 16 queries and their
// gradients as rows of products. Their scores are held twice in fp32 and twice in half types.
TEST(AttentionByProducts, TakesOnAGpuAFixedRoomBesideWhatIsLinearInTheLength) {
  const auto peak = [](int64_t s) { return held_on_gpu({s, 1, 2, 1, 64, 0.1, {}}, at::kBFloat16, 1 << 20).peak; };
  const int64_t of_token = 2 * 64 * 2 * 2 + 2 * 4 + 2 * 64 * 4, rows = 2 * 16 * 2 * 64 * 2,
                scores = (1 << 20) / 4 * (4 + 4 + 2 + 2);
  EXPECT_EQ(peak(8192), 8192 * of_token + rows + scores);
  EXPECT_EQ(peak(4096), 4096 * of_token + 2 * rows + scores);
}

}  // namespace
}  // namespace metroplex::test::attention_by_products_test
