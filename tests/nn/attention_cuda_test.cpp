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
Operands operands(const Shape& shape, at::ScalarType dtype) {
  const auto rounded = [&](std::vector<int64_t> sizes, double step) { return values(sizes, step).to(dtype); };
  return {{rounded({shape.queries, shape.batch, shape.heads, shape.dim}, 0.7),
           rounded({shape.keys, shape.batch, shape.groups, shape.dim}, 0.3),
           rounded({shape.keys, shape.batch, shape.groups, shape.v_dim}, 0.9)},
          rounded({shape.queries, shape.batch, shape.heads, shape.v_dim}, 0.5)};
}
CoreInputs on_gpu(const CoreInputs& in) { return {in.q.to(at::kCUDA), in.k.to(at::kCUDA), in.v.to(at::kCUDA)}; }

void check(const Shape& shape, at::ScalarType dtype, const Microbatch& batch, double dropout) {
  const auto [in, dy] = operands(shape, dtype);
  CoreSpec spec = test::core_spec(in, dropout);
  spec.window = shape.window;
  CorePositions positions;
  positions.queries.first = shape.keys - shape.queries;
  spec.target.device = at::kCUDA;
  Microbatch there = batch;
  for (at::Tensor* x : {&there.documents.ids, &there.documents.offsets}) {
    if (x->defined()) *x = x->to(at::kCUDA);
  }
  if (there.counters.samples.defined()) there.counters.samples = there.counters.samples.to(at::kCUDA);
  spec.dropout.target = spec.target;
  const test::AttentionResult gpu = test::run_attention(on_gpu(in), {spec, positions, there}, dy.to(at::kCUDA));
  spec.dropout.target = spec.target = {};
  const test::AttentionResult cpu = test::plain_attention(in, {spec, positions, batch}, dy);
  test::expect_attended(gpu, cpu, 4 * allowed(dtype));
}

TEST(CoreAttentionOnGpu, IsTheFormula) {
  MPX_NEED_GPU();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Shape& shape :
         {Shape{16, 16, 2, 4, 4, 16}, Shape{33, 33, 3, 6, 2, 24}, Shape{130, 130, 1, 2, 1, 64},
          Shape{1, 9, 2, 4, 2, 16}, Shape{16, 16, 2, 4, 4, 12}, Shape{3, 9, 1, 2, 2, 16},
          Shape{33, 33, 3, 6, 2, 24, 16}, Shape{130, 130, 1, 2, 1, 64, 96}, Shape{3, 9, 1, 2, 2, 5, 3},
          Shape{130, 130, 2, 2, 2, 192, 128}, Shape{130, 130, 2, 4, 2, 64, 64, 20},
          // Lengths that prefer cuDNN, and the first token of a prompt.
          Shape{128, 128, 2, 4, 4, 64}, Shape{256, 256, 2, 6, 2, 128}, Shape{256, 256, 1, 2, 2, 192, 128},
          Shape{1, 1, 2, 2, 2, 192, 128}}) {
      SCOPED_TRACE(testing::Message() << dtype << " queries " << shape.queries << " keys " << shape.keys << " heads "
                                      << shape.heads << " groups " << shape.groups << " dim " << shape.dim << " v "
                                      << shape.v_dim);
      Microbatch batch;
      batch.counters.samples = make_sample_counters(2, at::arange(shape.batch, at::kLong));
      check(shape, dtype, batch, 0);
      check(shape, dtype, batch, 0.3);
    }
    Microbatch documents;
    documents.documents.ids = at::arange(16).div(5, "floor").to(at::kLong).expand({2, 16}).contiguous();
    for (const int64_t room : {0, 4, 9}) {  // our kernels; exactly the documents' number; more
      documents.documents.offsets = room > 0 ? document_offsets(documents.documents.ids, room) : at::Tensor();
      check({16, 16, 2, 4, 2, 16}, dtype, documents, 0);
      check({16, 16, 2, 4, 2, 16, 16, 3}, dtype, documents, 0);
    }
  }
}

void check_chosen(const test::ChosenRows& chosen, at::ScalarType dtype) {
  const auto [in, dy] = test::make_operands(chosen, dtype);
  CoreSpec spec = test::core_spec(in);
  spec.window = chosen.window;
  CoreSpec spec_there = spec;
  spec_there.target.device = at::kCUDA;
  test::ChosenRows there = chosen;
  for (at::Tensor* x : {&there.positions.queries.rows, &there.positions.keys.rows, &there.batch.documents.ids,
                        &there.batch.documents.offsets}) {
    if (x->defined()) *x = x->to(at::kCUDA);
  }
  const test::AttentionResult got =
      test::run_attention(on_gpu(in), {spec_there, there.positions, there.batch}, dy.to(at::kCUDA));
  test::expect_rounded_attended(got, chosen, {spec, chosen.positions, chosen.batch}, dtype);
}

// Lengths divisible by 128, which prefer cuDNN if it supports the case, and others.
TEST(CoreAttentionOnGpu, OfChosenRowsIsTheFormula) {
  MPX_NEED_GPU();
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t part : {128, 50}) {
      test::for_chosen_rows(part, {64, 32}, [&](const std::string& name, const test::ChosenRows& chosen) {
        SCOPED_TRACE(testing::Message() << dtype << ", runs of " << part << ", " << name);
        check_chosen(chosen, dtype);
      });
    }
  }
}

}  // namespace
}  // namespace metroplex::nn::attention_cuda_test
