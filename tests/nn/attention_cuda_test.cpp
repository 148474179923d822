// Core attention of a GPU (flash or cuDNN's for half types, memory-efficient for fp32, blocked for the rest) against
// the formula in float64: causal, grouped queries, a single query over a cache, masks, windows, documents, dropout,
// values of another head size.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/gpu.h"
#include "nn/plain_attention.h"

namespace metroplex::nn::attention_cuda_test {
namespace {

at::Tensor values(std::vector<int64_t> sizes, double step) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(1, numel + 1, at::kDouble).mul(step).sin().view(sizes);
}

struct Shape {
  int64_t queries, keys, batch, heads, groups, dim, v_dim = dim, window = -1;
};

// Of numbers up to 1. Half types round q, k, v, the
// probabilities and the result to 2^-8 or 2^-11 each, fp32 sums of some hundred terms are off by some 1e-6.
double allowed(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 8 * 0x1p-8;
  if (dtype == at::kHalf) return 8 * 0x1p-11;
  return dtype == at::kFloat ? 2e-5 : 1e-12;
}

struct Operands {
  CoreInputs in;
  at::Tensor dy;
};
Operands operands(const Shape& s, at::ScalarType dtype) {
  const auto rounded = [&](std::vector<int64_t> sizes, double step) { return values(sizes, step).to(dtype); };
  return {{rounded({s.queries, s.batch, s.heads, s.dim}, 0.7), rounded({s.keys, s.batch, s.groups, s.dim}, 0.3),
           rounded({s.keys, s.batch, s.groups, s.v_dim}, 0.9)},
          rounded({s.queries, s.batch, s.heads, s.v_dim}, 0.5)};
}
CoreInputs on_gpu(const CoreInputs& in) { return {in.q.to(at::kCUDA), in.k.to(at::kCUDA), in.v.to(at::kCUDA)}; }

// Of the largest number of a result, which may be small. Half types: with probabilities, their gradients, the result
// and the gradients rounded once each, the formula in float64 is off by up to 12 units of 2^-8 or 2^-11 in these
// cases; flash attention rounds probabilities before they are divided by their sum, and blocks are rounded before
// they are joined: two and a half times that. float64: sums of some hundred terms that cancel to a hundredth.
void expect_near_itself(const test::Attended& got, const test::Attended& wanted, at::ScalarType dtype) {
  const double tolerance = dtype == at::kDouble ? 1e-11 : 32 * (dtype == at::kHalf ? 0x1p-11 : 0x1p-8);
  const auto near = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
    EXPECT_LE(test::largest(a.to(at::kCPU, at::kDouble) - b), tolerance * test::largest(b)) << what;
  };
  near(got.out, wanted.out, "result");
  near(got.dq, wanted.dq, "gradient of q");
  near(got.dk, wanted.dk, "gradient of k");
  near(got.dv, wanted.dv, "gradient of v");
}

void check_chosen(const Shape& s, at::ScalarType dtype, const CorePositions& positions, const Microbatch& batch) {
  auto [in, dy] = operands(s, dtype);
  in.q.mul_(8);  // scores so far apart that single keys count
  CoreSpec spec = test::core_spec(in);
  spec.window = s.window;
  const test::Attended cpu = test::plain_attention(in, {spec, positions, batch}, dy);
  spec.target.device = at::kCUDA;
  CorePositions there = positions;
  Microbatch batch_there = batch;
  for (at::Tensor* x :
       {&there.queries.rows, &there.keys.rows, &batch_there.document_ids, &batch_there.document_offsets}) {
    if (x->defined()) *x = x->to(at::kCUDA);
  }
  expect_near_itself(test::attended(on_gpu(in), {spec, there, batch_there}, dy.to(at::kCUDA)), cpu, dtype);
}

void check(const Shape& s, at::ScalarType dtype, const Microbatch& batch, double dropout) {
  const auto [in, dy] = operands(s, dtype);
  CoreSpec spec = test::core_spec(in, dropout);
  spec.window = s.window;
  CorePositions positions;
  positions.queries.first = s.keys - s.queries;
  spec.target.device = at::kCUDA;
  Microbatch there = batch;
  for (at::Tensor* x : {&there.document_ids, &there.document_offsets}) {
    if (x->defined()) *x = x->to(at::kCUDA);
  }
  if (there.sample_counters.defined()) there.sample_counters = there.sample_counters.to(at::kCUDA);
  spec.dropout.target = spec.target;
  const test::Attended gpu = test::attended(on_gpu(in), {spec, positions, there}, dy.to(at::kCUDA));
  spec.dropout.target = spec.target = {};
  const test::Attended cpu = test::plain_attention(in, {spec, positions, batch}, dy);
  test::expect_attended(gpu, cpu, 4 * allowed(dtype));
}

TEST(CoreAttentionOnGpu, IsTheFormula) {
  MPX_NEED_GPU();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Shape& s :
         {Shape{16, 16, 2, 4, 4, 16}, Shape{33, 33, 3, 6, 2, 24}, Shape{130, 130, 1, 2, 1, 64},
          Shape{1, 9, 2, 4, 2, 16}, Shape{16, 16, 2, 4, 4, 12}, Shape{3, 9, 1, 2, 2, 16},
          Shape{33, 33, 3, 6, 2, 24, 16}, Shape{130, 130, 1, 2, 1, 64, 96}, Shape{3, 9, 1, 2, 2, 5, 3},
          Shape{130, 130, 2, 2, 2, 192, 128}, Shape{130, 130, 2, 4, 2, 64, 64, 20},
          // Lengths of which cuDNN's is preferred, and a prompt's first token.
          Shape{128, 128, 2, 4, 4, 64}, Shape{256, 256, 2, 6, 2, 128}, Shape{256, 256, 1, 2, 2, 192, 128},
          Shape{1, 1, 2, 2, 2, 192, 128}}) {
      SCOPED_TRACE(testing::Message() << dtype << " queries " << s.queries << " keys " << s.keys << " heads "
                                      << s.heads << " groups " << s.groups << " dim " << s.dim << " v " << s.v_dim);
      Microbatch batch;
      batch.sample_counters = counters_of_samples(2, at::arange(s.batch, at::kLong));
      check(s, dtype, batch, 0);
      check(s, dtype, batch, 0.3);
    }
    Microbatch documents;
    documents.document_ids = at::arange(16).div(5, "floor").to(at::kLong).expand({2, 16}).contiguous();
    for (const int64_t room : {0, 4, 9}) {  // own kernels; as many documents as there are; more
      documents.document_offsets = room > 0 ? document_offsets(documents.document_ids, room) : at::Tensor();
      check({16, 16, 2, 4, 2, 16}, dtype, documents, 0);
      check({16, 16, 2, 4, 2, 16, 16, 3}, dtype, documents, 0);
    }
  }
}

// As a rank of context parallelism has them: some queries, some keys, in runs in any order, with windows that reach
// into the run before and beyond it, and with documents, of which some end within a run. Lengths that 128 divides, of
// which cuDNN's is preferred where it takes the case, and others.
TEST(CoreAttentionOnGpu, OfChosenRowsIsTheFormula) {
  MPX_NEED_GPU();
  const auto positions = [](int64_t whole, const std::vector<RowRun>& runs) {
    std::vector<at::Tensor> rows;
    for (const RowRun& run : runs) rows.push_back(at::arange(run.first, run.first + run.count, at::kLong));
    return Positions{0, at::cat(rows), whole, runs};
  };
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t part : {128, 50}) {
      const Positions first = positions(4 * part, {{0, part}, {3 * part, part}}),
                      second = positions(4 * part, {{2 * part, part}, {part, part}}),
                      all = positions(4 * part, {{0, part}, {3 * part, part}, {part, part}, {2 * part, part}});
      for (const auto& [queries, keys] : std::vector<std::pair<Positions, Positions>>{
               {first, first}, {first, second}, {second, first}, {second, all}, {first, all}}) {
        SCOPED_TRACE(testing::Message() << dtype << ", runs of " << part << ", queries from " << queries.runs[0].first
                                        << ", keys " << keys.rows.numel());
        const Shape shape{queries.rows.numel(), keys.rows.numel(), 2, 4, 2, 64};
        for (const int64_t dv : {64, 32}) {
          Shape of_values = shape;
          of_values.v_dim = dv;
          check_chosen(of_values, dtype, {queries, keys}, {});
        }
        for (const int64_t window : {int64_t{0}, int64_t{20}, part + 20, 3 * part}) {
          Shape of_window = shape;
          of_window.window = window;
          check_chosen(of_window, dtype, {queries, keys}, {});
        }
        Microbatch documents;
        const at::Tensor row = at::arange(4 * part);
        documents.document_ids = at::stack({row.div(part + 7, "floor"), row.div(3 * part, "floor")}).to(at::kLong);
        documents.document_offsets = document_offsets(documents.document_ids, 6);
        check_chosen(shape, dtype, {queries, keys}, documents);
      }
    }
  }
}

}  // namespace
}  // namespace metroplex::nn::attention_cuda_test
