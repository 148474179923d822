// Core attention on a GPU (flash or cuDNN for half types, memory-efficient for fp32, blocked otherwise) against the
// formula in float64. Covers causal masks, grouped queries, a single query over a cache, windows, documents, dropout,
// and values with another head size.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/gpu.h"
#include "nn/chosen_rows.h"

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

// For numbers up to 1. Half types round q, k, v, the probabilities and the result to 2^-8 or 2^-11 each; fp32 sums of
// some hundred terms are off by some 1e-6.
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
          // Lengths that prefer cuDNN, and the first token of a prompt.
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
    for (const int64_t room : {0, 4, 9}) {  // our kernels; exactly the documents' number; more
      documents.document_offsets = room > 0 ? document_offsets(documents.document_ids, room) : at::Tensor();
      check({16, 16, 2, 4, 2, 16}, dtype, documents, 0);
      check({16, 16, 2, 4, 2, 16, 16, 3}, dtype, documents, 0);
    }
  }
}

void check_chosen(const test::ChosenRows& c, at::ScalarType dtype) {
  const auto [in, dy] = test::operands_of(c, dtype);
  CoreSpec spec = test::core_spec(in);
  spec.window = c.window;
  CoreSpec spec_there = spec;
  spec_there.target.device = at::kCUDA;
  test::ChosenRows there = c;
  for (at::Tensor* x : {&there.positions.queries.rows, &there.positions.keys.rows, &there.batch.document_ids,
                        &there.batch.document_offsets}) {
    if (x->defined()) *x = x->to(at::kCUDA);
  }
  const test::Attended got = test::attended(on_gpu(in), {spec_there, there.positions, there.batch}, dy.to(at::kCUDA));
  test::expect_rounded_attended(got, c, {spec, c.positions, c.batch}, dtype);
}

// Lengths divisible by 128, which prefer cuDNN if it supports the case, and others.
TEST(CoreAttentionOnGpu, OfChosenRowsIsTheFormula) {
  MPX_NEED_GPU();
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t part : {128, 50}) {
      test::for_chosen_rows(part, {64, 32}, [&](const std::string& name, const test::ChosenRows& c) {
        SCOPED_TRACE(testing::Message() << dtype << ", runs of " << part << ", " << name);
        check_chosen(c, dtype);
      });
    }
  }
}

}  // namespace
}  // namespace metroplex::nn::attention_cuda_test
