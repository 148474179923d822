// Core attention of a GPU (flash for half types, memory-efficient for fp32, plain for the rest) against the plain one
// of the CPU in float64: causal, grouped queries, a single query over a cache, masks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/gpu.h"
#include "nn/core_attention.h"

namespace metroplex::nn {
namespace {

at::Tensor values(std::vector<int64_t> sizes, double step) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(1, numel + 1, at::kDouble).mul(step).sin().view(sizes);
}

struct Shape {
  int64_t queries, keys, batch, heads, groups, dim;
};

// Of numbers up to 1: outputs are means of at most 1; gradients here stay below 4. Half types round q, k, v, the
// probabilities and the result to 2^-8 or 2^-11 each, fp32 sums of some hundred terms are off by some 1e-6.
double allowed(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 8 * 0x1p-8;
  if (dtype == at::kHalf) return 8 * 0x1p-11;
  return dtype == at::kFloat ? 2e-5 : 1e-12;
}

void expect_near(const at::Tensor& got, const at::Tensor& wanted, double tolerance, const char* what) {
  EXPECT_LE((got.to(at::kCPU, at::kDouble) - wanted).abs().max().item<double>(), tolerance) << what;
}

void check(const Shape& s, at::ScalarType dtype, const Microbatch& batch) {
  const auto rounded = [&](std::vector<int64_t> sizes, double step) { return values(sizes, step).to(dtype); };
  const at::Tensor q = rounded({s.queries, s.batch, s.heads, s.dim}, 0.7),
                   k = rounded({s.keys, s.batch, s.groups, s.dim}, 0.3),
                   v = rounded({s.keys, s.batch, s.groups, s.dim}, 0.9),
                   dy = rounded({s.queries, s.batch, s.heads * s.dim}, 0.5);
  CoreSpec spec;
  spec.queries.first = s.keys - s.queries;
  spec.target.device = at::kCUDA;
  Microbatch there = batch;
  if (there.document_ids.defined()) there.document_ids = there.document_ids.to(at::kCUDA);
  CoreSaved gpu_saved, cpu_saved;
  const at::Tensor gpu = core_attention({q.to(at::kCUDA), k.to(at::kCUDA), v.to(at::kCUDA)}, spec, there, &gpu_saved);
  const CoreInputs gpu_d = core_attention_backward(dy.to(at::kCUDA), spec, there, gpu_saved);
  CoreSpec reference = spec;
  reference.plain = true;
  reference.target.device = at::kCPU;
  const at::Tensor cpu =
      core_attention({q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble)}, reference, batch, &cpu_saved);
  const CoreInputs cpu_d = core_attention_backward(dy.to(at::kDouble), reference, batch, cpu_saved);
  const double tolerance = allowed(dtype);
  expect_near(gpu, cpu, tolerance, "result");
  expect_near(gpu_d.q, cpu_d.q, 4 * tolerance, "gradient of q");
  expect_near(gpu_d.k, cpu_d.k, 4 * tolerance, "gradient of k");
  expect_near(gpu_d.v, cpu_d.v, 4 * tolerance, "gradient of v");
}

TEST(CoreAttentionOnGpu, IsThePlainOneOfTheCpu) {
  MPX_NEED_GPU();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Shape& s : {Shape{16, 16, 2, 4, 4, 16}, Shape{33, 33, 3, 6, 2, 24}, Shape{130, 130, 1, 2, 1, 64},
                           Shape{1, 9, 2, 4, 2, 16}, Shape{16, 16, 2, 4, 4, 12}, Shape{3, 9, 1, 2, 2, 16}}) {
      SCOPED_TRACE(testing::Message() << dtype << " queries " << s.queries << " keys " << s.keys << " heads "
                                      << s.heads << " groups " << s.groups << " dim " << s.dim);
      check(s, dtype, {});
    }
    Microbatch documents;
    documents.document_ids = at::arange(16).div(5, "floor").to(at::kLong).expand({2, 16}).contiguous();
    check({16, 16, 2, 4, 2, 16}, dtype, documents);
  }
}

}  // namespace
}  // namespace metroplex::nn
