// Fakes of libtorch's flash and cuDNN attention, which do not run on a CPU. The dispatcher calls plain formulas,
// which check their arguments.
#pragma once

#include <torch/library.h>

#include <atomic>
#include <limits>

#include "device/launch_point.h"
#include "nn/plain_attention.h"

namespace metroplex::test {

namespace library_fakes {

inline const device::Target kGpu{at::Device(at::kCUDA, 0)};  // the tensors are on the CPU

struct Calls {
  std::atomic<int64_t> dense = 0, documents = 0, cudnn = 0;
  std::atomic<int64_t> windows = 0;                // of those, with a window and not causal
  std::atomic<const void*> laid_out_as = nullptr;  // required layout of the result in cuDNN's backward, if any
};
inline Calls calls;

// For rows [s, heads, d] of one document with the mask of flash attention. If causal, row i of s_q attends to keys up
// to i + s_k - s_q, and from i + s_k - s_q - window on. A window that is not causal excludes keys after i + s_k - s_q
// + ahead, the longest s_k. float64, as an autograd graph. -> out [s, heads, dv], logsumexp [heads, s], which is +inf
// for a row without keys.
struct PlainMask {
  bool causal = false;
  int64_t window = -1;
  int64_t ahead = -1;  // -1: all
};
struct Rows {
  at::Tensor q, k, v;
};
inline at::Tensor by_heads(const at::Tensor& x, int64_t times) {
  return x.repeat_interleave(times, 1).transpose(0, 1);
}
inline at::Tensor masked_scores(const Rows& in, double scale, const PlainMask& mask) {
  const int64_t repeat = in.q.size(1) / in.k.size(1);
  at::Tensor scores = at::matmul(by_heads(in.q, 1), by_heads(in.k, repeat).transpose(1, 2)) * scale;
  const int64_t shift = in.k.size(0) - in.q.size(0);
  const at::Tensor distance = at::arange(in.q.size(0)).unsqueeze(1) - at::arange(in.k.size(0)).unsqueeze(0) + shift;
  if (mask.causal) scores = scores.masked_fill(distance.lt(0), -1e300);
  if (mask.window >= 0) scores = scores.masked_fill(distance.gt(mask.window), -1e300);
  if (mask.ahead >= 0) scores = scores.masked_fill(distance.lt(-mask.ahead), -1e300);
  return scores;
}
inline std::pair<at::Tensor, at::Tensor> plain_rows(const Rows& in, double scale, const PlainMask& mask) {
  const int64_t s = in.q.size(0), heads = in.q.size(1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (in.k.size(0) == 0) {
    return {at::zeros({s, heads, in.v.size(2)}, at::kDouble), at::full({heads, s}, kInfinity, at::kDouble)};
  }
  const at::Tensor scores = masked_scores(in, scale, mask), v = by_heads(in.v, heads / in.k.size(1)),
                   none = scores.amax(-1).le(-1e299);
  const at::Tensor out = at::matmul(at::softmax(scores, -1), v).masked_fill(none.unsqueeze(2), 0);
  return {out.transpose(0, 1), scores.logsumexp(-1).masked_fill(none, kInfinity)};
}

// From the saved tensors of forward, as in the operators: p = exp(scores - logsumexp), and the product of a row's
// result and its gradient.
struct BackwardInputs {
  at::Tensor dout, out, logsumexp;
};
inline Rows plain_backward(const Rows& in, const BackwardInputs& left, double scale, const PlainMask& mask) {
  const int64_t groups = in.k.size(1), repeat = in.q.size(1) / groups;
  const at::Tensor k = by_heads(in.k, repeat), v = by_heads(in.v, repeat), dout = by_heads(left.dout, 1);
  const at::Tensor p = (masked_scores(in, scale, mask) - left.logsumexp.unsqueeze(-1)).exp();
  const at::Tensor common = (dout * by_heads(left.out, 1)).sum(-1, true);
  const at::Tensor ds = p * (at::matmul(dout, v.transpose(1, 2)) - common) * scale;
  const auto sum_heads = [&](const at::Tensor& x) { return x.transpose(0, 1).unflatten(1, {groups, repeat}).sum(2); };
  return {at::matmul(ds, k).transpose(0, 1), sum_heads(at::matmul(ds.transpose(1, 2), by_heads(in.q, 1))),
          sum_heads(at::matmul(p.transpose(1, 2), dout))};
}

struct RowRange {
  int64_t begin, end;
  at::Tensor narrow_rows(const at::Tensor& x, int64_t dim = 0) const { return x.narrow(dim, begin, end - begin); }
};
using RowRanges = std::vector<RowRange>;
inline RowRanges from_samples(int64_t samples, int64_t rows) {
  RowRanges ranges;
  for (int64_t i = 0; i < samples; ++i) ranges.push_back({i * rows, (i + 1) * rows});
  return ranges;
}

// Begin and end of each document in rows, including empty ones, from the operator's arguments; the samples if there
// are no offsets.
inline RowRanges document_ranges(const at::Tensor& q, const std::optional<at::Tensor>& offsets, int64_t longest) {
  RowRanges ranges;
  if (!offsets.has_value() || !offsets->defined()) {
    EXPECT_EQ(q.dim(), 4);
    EXPECT_EQ(q.size(1), longest);
    return from_samples(q.size(0), longest);
  }
  EXPECT_EQ(q.dim(), 3);
  EXPECT_EQ(offsets->scalar_type(), at::kInt);
  EXPECT_TRUE(offsets->is_contiguous());
  const int32_t* at = offsets->const_data_ptr<int32_t>();
  EXPECT_EQ(at[0], 0);
  EXPECT_EQ(at[offsets->numel() - 1], q.size(0));
  for (int64_t i = 0; i + 1 < offsets->numel(); ++i) {
    EXPECT_LE(at[i], at[i + 1]);
    EXPECT_LE(at[i + 1] - at[i], longest);
    ranges.push_back({at[i], at[i + 1]});
  }
  return ranges;
}

struct LibraryCall {
  RowRanges queries, keys;
  PlainMask mask;
  double scale;
  bool documents;
};

inline std::pair<at::Tensor, at::Tensor> all_rows(const Rows& in, const LibraryCall& call) {
  std::vector<at::Tensor> outs, sums;
  for (size_t i = 0; i < call.queries.size(); ++i) {
    const RowRange &q = call.queries[i], &k = call.keys[i];
    const auto [out, sum] =
        plain_rows({q.narrow_rows(in.q), k.narrow_rows(in.k), k.narrow_rows(in.v)}, call.scale, call.mask);
    outs.push_back(out), sums.push_back(sum);
  }
  return {at::cat(outs, 0), call.documents ? at::cat(sums, 1) : at::stack(sums)};
}
// `left` of all rows, with its logsumexp as above.
inline Rows all_rows_backward(const Rows& in, const BackwardInputs& left, const LibraryCall& call) {
  std::vector<at::Tensor> dq, dk, dv;
  for (size_t i = 0; i < call.queries.size(); ++i) {
    const RowRange &q = call.queries[i], &k = call.keys[i];
    const at::Tensor sum =
        call.documents ? q.narrow_rows(left.logsumexp, 1) : left.logsumexp[static_cast<int64_t>(i)];
    const Rows rows = plain_backward({q.narrow_rows(in.q), k.narrow_rows(in.k), k.narrow_rows(in.v)},
                                     {q.narrow_rows(left.dout), q.narrow_rows(left.out), sum}, call.scale, call.mask);
    dq.push_back(rows.q), dk.push_back(rows.k), dv.push_back(rows.v);
  }
  return {at::cat(dq), at::cat(dk), at::cat(dv)};
}

inline at::Tensor flat(const at::Tensor& x) { return (x.dim() == 4 ? x.flatten(0, 1) : x).to(at::kDouble); }

struct FlashArguments {
  const at::Tensor &q, &k;
  const std::optional<at::Tensor>&of_q, of_k;
  int64_t max_q, max_k;
  double p;
  bool causal;
  double scale;
  std::optional<int64_t> left, right;
};
// With more keys than queries an operator applies a different causal mask. A negative window means no window to the
// operator, unlike a block that comes after its keys.
inline LibraryCall check_flash_call(const FlashArguments& arguments) {
  const bool documents = arguments.of_q.has_value() && arguments.of_q->defined();
  EXPECT_EQ(arguments.p, 0);
  EXPECT_FALSE(arguments.right.has_value()) << "causal implies it";
  EXPECT_GE(arguments.left.value_or(0), 0);
  EXPECT_TRUE(!documents || arguments.max_q > 1) << "it would reorder heads";
  ++(documents ? calls.documents : calls.dense);
  if (arguments.left.has_value() && !arguments.causal) ++calls.windows;
  LibraryCall call{document_ranges(arguments.q, arguments.of_q, arguments.max_q),
                   document_ranges(arguments.k, arguments.of_k, arguments.max_k),
                   {arguments.causal, arguments.left.value_or(-1),
                    arguments.left.has_value() && !arguments.causal ? arguments.max_k : -1},
                   arguments.scale,
                   documents};
  EXPECT_EQ(call.queries.size(), call.keys.size());
  for (size_t i = 0; arguments.causal && i < call.queries.size(); ++i)
    EXPECT_EQ(call.queries[i].end - call.queries[i].begin, call.keys[i].end - call.keys[i].begin);
  return call;
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& of_q,
    const std::optional<at::Tensor>& of_k, int64_t max_q, int64_t max_k, double p, bool causal, bool debug,
    std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  EXPECT_FALSE(debug);
  EXPECT_EQ(of_q.has_value(), of_k.has_value());
  for (const at::Tensor* x : {&q, &k, &v}) EXPECT_EQ(x->stride(-1), 1);
  const LibraryCall call = check_flash_call({q, k, of_q, of_k, max_q, max_k, p, causal, scale.value(), left, right});
  const auto [out, sum] = all_rows({flat(q), flat(k), flat(v)}, call);
  const at::ScalarType wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {out.to(q.scalar_type()).view(q.sizes()), sum.to(wide), {}, {}, {}};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor& of_q, const at::Tensor& of_k, int64_t max_q, int64_t max_k,
    double p, bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale,
    std::optional<int64_t> left, std::optional<int64_t> right) {
  EXPECT_EQ(of_q.defined(), of_k.defined());
  const LibraryCall call = check_flash_call({q, k, of_q, of_k, max_q, max_k, p, causal, scale.value(), left, right});
  const Rows rows =
      all_rows_backward({flat(q), flat(k), flat(v)}, {flat(dout), flat(out), logsumexp.to(at::kDouble)}, call);
  return {rows.q.to(q.scalar_type()).view(q.sizes()), rows.k.to(k.scalar_type()).view(k.sizes()),
          rows.v.to(v.scalar_type()).view(v.sizes())};
}

inline at::Tensor flatten_rows(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1).to(at::kDouble); }
inline LibraryCall from_samples(const at::Tensor& q, const at::Tensor& k, bool causal, double scale) {
  EXPECT_TRUE(q.size(2) == k.size(2) || !causal) << q.sizes() << " and " << k.sizes();
  ++calls.cudnn;
  return {from_samples(q.size(0), q.size(2)), from_samples(k.size(0), k.size(2)), {causal, -1}, scale, false};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor,
                  at::Tensor>
cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
              bool sums, double p, bool causal, bool debug, std::optional<double> scale) {
  EXPECT_TRUE(sums && !debug && p == 0 && !bias.has_value());
  const auto [out, sum] =
      all_rows({flatten_rows(q), flatten_rows(k), flatten_rows(v)}, from_samples(q, k, causal, scale.value()));
  const int64_t b = q.size(0), s = q.size(2);
  // The layout of a layer's queries, sequence first.
  const at::Tensor laid_out = out.to(q.scalar_type()).unflatten(0, {b, s}).transpose(0, 1).contiguous();
  return {laid_out.permute({1, 2, 0, 3}), sum.unsqueeze(3), {}, {}, s, s, {}, {}, {}};
}
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, const at::Tensor& bias, const at::Tensor& of_q,
    const at::Tensor& of_k, int64_t max_q, int64_t max_k, double p, bool causal, std::optional<double> scale) {
  EXPECT_TRUE(!bias.defined() && !of_q.defined() && !of_k.defined() && p == 0);
  EXPECT_TRUE(max_q == q.size(2) && max_k == k.size(2));
  EXPECT_EQ(dout.strides(), out.strides()) << "cuDNN would copy";
  EXPECT_EQ(logsumexp.sizes(), at::IntArrayRef({q.size(0), q.size(1), q.size(2), 1}));
  EXPECT_TRUE(logsumexp.is_contiguous());
  const void* place = calls.laid_out_as;
  EXPECT_TRUE(place == nullptr || out.const_data_ptr() == place) << "a copy of the result";
  const Rows rows = all_rows_backward({flatten_rows(q), flatten_rows(k), flatten_rows(v)},
                                      {flatten_rows(dout), flatten_rows(out), logsumexp.squeeze(3)},
                                      from_samples(q, k, causal, scale.value()));
  const auto back = [](const at::Tensor& x, const at::Tensor& like) {
    return x.to(like.scalar_type()).unflatten(0, {like.size(0), -1}).transpose(1, 2);
  };
  return {back(rows.q, q), back(rows.k, k), back(rows.v, v)};
}

// During its lifetime the fakes above replace libtorch's CPU operators.
class FakeOperators {
 public:
  FakeOperators() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
    library_.impl("_flash_attention_forward", &flash_forward);
    library_.impl("_flash_attention_backward", &flash_backward);
    library_.impl("_scaled_dot_product_cudnn_attention", &cudnn_forward);
    library_.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
    calls.dense = calls.documents = calls.cudnn = calls.windows = 0;
    calls.laid_out_as = nullptr;
  }

 private:
  torch::Library library_;
};

}  // namespace library_fakes
}  // namespace metroplex::test
