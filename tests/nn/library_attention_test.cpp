// Attention by libtorch's flash and cuDNN operators, which this machine cannot run: plain formulas stand in for them
// behind libtorch's dispatcher and check what they are called with. The way there and back is the real one.
#include "nn/fused_attention.h"

#include <torch/library.h>

#include "cuda/memory_meter.h"
#include "nn/plain_attention.h"
#include "support/allocations.h"

namespace metroplex::test::library_attention_test {
namespace {

const cuda::Target kGpu{at::Device(at::kCUDA, 0)};  // tensors are the host's all the same

struct Calls {
  int64_t dense = 0, documents = 0, cudnn = 0;
};
Calls calls;

// Of rows [s, heads, d] of one document, causal with a window where `mask` says it; float64, as a graph. -> out
// [s, heads, dv], logsumexp [heads, s].
struct PlainMask {
  bool causal = false;
  int64_t window = -1;
};
struct Rows {
  at::Tensor q, k, v;
};
at::Tensor by_heads(const at::Tensor& x, int64_t times) { return x.repeat_interleave(times, 1).transpose(0, 1); }
at::Tensor scores_of(const Rows& in, double scale, const PlainMask& mask) {
  const int64_t repeat = in.q.size(1) / in.k.size(1);
  at::Tensor scores = at::matmul(by_heads(in.q, 1), by_heads(in.k, repeat).transpose(1, 2)) * scale;
  const at::Tensor behind = at::arange(in.q.size(0)).unsqueeze(1) - at::arange(in.k.size(0)).unsqueeze(0);
  if (mask.causal) scores = scores.masked_fill(behind.lt(0), -1e300);
  if (mask.window >= 0) scores = scores.masked_fill(behind.gt(mask.window), -1e300);
  return scores;
}
std::pair<at::Tensor, at::Tensor> plain_rows(const Rows& in, double scale, const PlainMask& mask) {
  const at::Tensor scores = scores_of(in, scale, mask), v = by_heads(in.v, in.q.size(1) / in.k.size(1));
  return {at::matmul(at::softmax(scores, -1), v).transpose(0, 1), scores.logsumexp(-1)};
}

// By what forward left, as the operators do it: p = exp(scores - logsumexp), and the product of a row's result and
// its gradient.
struct Left {
  at::Tensor dout, out, logsumexp;
};
Rows plain_backward(const Rows& in, const Left& left, double scale, const PlainMask& mask) {
  const int64_t groups = in.k.size(1), repeat = in.q.size(1) / groups;
  const at::Tensor k = by_heads(in.k, repeat), v = by_heads(in.v, repeat), dout = by_heads(left.dout, 1);
  const at::Tensor p = (scores_of(in, scale, mask) - left.logsumexp.unsqueeze(-1)).exp();
  const at::Tensor common = (dout * by_heads(left.out, 1)).sum(-1, true);
  const at::Tensor ds = p * (at::matmul(dout, v.transpose(1, 2)) - common) * scale;
  const auto summed = [&](const at::Tensor& x) { return x.transpose(0, 1).unflatten(1, {groups, repeat}).sum(2); };
  return {at::matmul(ds, k).transpose(0, 1), summed(at::matmul(ds.transpose(1, 2), by_heads(in.q, 1))),
          summed(at::matmul(p.transpose(1, 2), dout))};
}

// Begin and end of each document in rows, by what the operator was told: samples where there are no offsets.
std::vector<std::pair<int64_t, int64_t>> spans_of(const at::Tensor& q, const std::optional<at::Tensor>& offsets,
                                                  int64_t longest) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  if (!offsets.has_value() || !offsets->defined()) {
    EXPECT_EQ(q.dim(), 4);
    EXPECT_EQ(q.size(1), longest);
    for (int64_t i = 0; i < q.size(0); ++i) spans.emplace_back(i * longest, (i + 1) * longest);
    return spans;
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
    if (at[i] < at[i + 1]) spans.emplace_back(at[i], at[i + 1]);
  }
  return spans;
}

struct FlashCall {
  std::vector<std::pair<int64_t, int64_t>> spans;
  PlainMask mask;
  double scale;
  bool documents;
};

// out and logsumexp of all rows, by document.
std::pair<at::Tensor, at::Tensor> all_rows(const Rows& in, const FlashCall& call) {
  std::vector<at::Tensor> outs, sums;
  for (const auto& [begin, end] : call.spans) {
    const auto cut = [&, begin = begin, end = end](const at::Tensor& x) { return x.narrow(0, begin, end - begin); };
    const auto [out, sum] = plain_rows({cut(in.q), cut(in.k), cut(in.v)}, call.scale, call.mask);
    outs.push_back(out), sums.push_back(sum);
  }
  return {at::cat(outs, 0), call.documents ? at::cat(sums, 1) : at::stack(sums)};
}
// `left` of all rows, its logsumexp as above.
Rows all_rows_backward(const Rows& in, const Left& left, const FlashCall& call) {
  std::vector<at::Tensor> q, k, v;
  int64_t sample = 0;
  for (const auto& [begin, end] : call.spans) {
    const auto cut = [&, begin = begin, end = end](const at::Tensor& x) { return x.narrow(0, begin, end - begin); };
    const at::Tensor sum = call.documents ? left.logsumexp.narrow(1, begin, end - begin) : left.logsumexp[sample++];
    const Rows d = plain_backward({cut(in.q), cut(in.k), cut(in.v)}, {cut(left.dout), cut(left.out), sum}, call.scale,
                                  call.mask);
    q.push_back(d.q), k.push_back(d.k), v.push_back(d.v);
  }
  return {at::cat(q), at::cat(k), at::cat(v)};
}

at::Tensor flat(const at::Tensor& x) { return (x.dim() == 4 ? x.flatten(0, 1) : x).to(at::kDouble); }

FlashCall told(const at::Tensor& q, const std::optional<at::Tensor>& offsets, int64_t max_q, int64_t max_k, double p,
               bool causal, std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right) {
  EXPECT_EQ(max_q, max_k);
  EXPECT_EQ(p, 0);
  EXPECT_FALSE(right.has_value()) << "causal says it";
  const bool documents = offsets.has_value() && offsets->defined();
  ++(documents ? calls.documents : calls.dense);
  return {spans_of(q, offsets, max_q), {causal, left.value_or(-1)}, scale.value(), documents};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& of_q,
    const std::optional<at::Tensor>& of_k, int64_t max_q, int64_t max_k, double p, bool causal, bool debug,
    std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  EXPECT_FALSE(debug);
  EXPECT_EQ(of_q.has_value(), of_k.has_value());
  for (const at::Tensor* x : {&q, &k, &v}) EXPECT_EQ(x->stride(-1), 1);
  const FlashCall call = told(q, of_q, max_q, max_k, p, causal, scale, left, right);
  const auto [out, sum] = all_rows({flat(q), flat(k), flat(v)}, call);
  const at::ScalarType wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {out.to(q.scalar_type()).view(q.sizes()), sum.to(wide), {}, {}, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor& of_q, const at::Tensor& of_k, int64_t max_q, int64_t max_k,
    double p, bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale,
    std::optional<int64_t> left, std::optional<int64_t> right) {
  EXPECT_EQ(of_q.defined(), of_k.defined());
  const FlashCall call = told(q, of_q, max_q, max_k, p, causal, scale, left, right);
  const Rows d =
      all_rows_backward({flat(q), flat(k), flat(v)}, {flat(dout), flat(out), logsumexp.to(at::kDouble)}, call);
  return {d.q.to(q.scalar_type()).view(q.sizes()), d.k.to(k.scalar_type()).view(k.sizes()),
          d.v.to(v.scalar_type()).view(v.sizes())};
}

// [b, heads, s, d] as rows of each sample.
at::Tensor rows_of(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1).to(at::kDouble); }
FlashCall of_samples(const at::Tensor& q, bool causal, double scale) {
  FlashCall call{{}, {causal, -1}, scale, false};
  for (int64_t i = 0; i < q.size(0); ++i) call.spans.emplace_back(i * q.size(2), (i + 1) * q.size(2));
  return call;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor,
           at::Tensor>
cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
              bool sums, double p, bool causal, bool debug, std::optional<double> scale) {
  ++calls.cudnn;
  EXPECT_TRUE(sums && !debug && p == 0 && !bias.has_value());
  const auto [out, sum] = all_rows({rows_of(q), rows_of(k), rows_of(v)}, of_samples(q, causal, scale.value()));
  const int64_t b = q.size(0), s = q.size(2);
  return {out.to(q.scalar_type()).unflatten(0, {b, s}).transpose(1, 2), sum, {}, {}, s, s, {}, {}, {}};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, const at::Tensor& bias, const at::Tensor& of_q,
    const at::Tensor& of_k, int64_t max_q, int64_t max_k, double p, bool causal, std::optional<double> scale) {
  ++calls.cudnn;
  EXPECT_TRUE(!bias.defined() && !of_q.defined() && !of_k.defined() && p == 0 && max_q == max_k);
  EXPECT_EQ(dout.strides(), out.strides()) << "cuDNN would copy";
  const Rows d = all_rows_backward({rows_of(q), rows_of(k), rows_of(v)}, {rows_of(dout), rows_of(out), logsumexp},
                                   of_samples(q, causal, scale.value()));
  const auto back = [&](const at::Tensor& x, const at::Tensor& like) {
    return x.to(like.scalar_type()).unflatten(0, {q.size(0), -1}).transpose(1, 2);
  };
  return {back(d.q, q), back(d.k, k), back(d.v, v)};
}

// While it lives, libtorch's operators on the host are those above.
class StandIns {
 public:
  StandIns() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
    library_.impl("_flash_attention_forward", &flash_forward);
    library_.impl("_flash_attention_backward", &flash_backward);
    library_.impl("_scaled_dot_product_cudnn_attention", &cudnn_forward);
    library_.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
    calls = {};
  }

 private:
  torch::Library library_;
};

// As attention has them: views into one product of a layer.
nn::CoreInputs inputs(int64_t s, int64_t b, int64_t heads, int64_t groups, int64_t d, at::ScalarType type) {
  const at::Tensor all = sample({s, b, groups, heads / groups + 2, d}, 5, type);
  return {all.narrow(3, 0, heads / groups).reshape({s, b, heads, d}), all.select(3, heads / groups),
          all.select(3, heads / groups + 1)};
}

// [b, s] of documents that end where a number of the row divides.
at::Tensor documents(int64_t b, int64_t s, int64_t every) {
  std::vector<int64_t> ids;
  for (int64_t row = 0; row < b; ++row) {
    int64_t document = 0;
    for (int64_t i = 0; i < s; ++i) {
      ids.push_back(document);
      if ((i * (row + 3) + row) % every == every - 1) ++document;
    }
  }
  return at::tensor(ids, at::kLong).view({b, s});
}

int64_t count(const at::Tensor& ids) { return (ids.diff(1, 1).ne(0).sum() + ids.size(0)).item<int64_t>(); }

TEST(DocumentOffsets, AreWhereDocumentsBeginAndThenTheEnd) {
  const at::Tensor ids = at::tensor({0, 0, 1, 2, 2, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, at::kLong).view({3, 5});
  EXPECT_TRUE(nn::document_offsets(ids, 3).equal(at::tensor({0, 2, 3, 5, 10, 11, 12, 13, 14, 15}, at::kLong)));
  EXPECT_TRUE(
      nn::document_offsets(ids, 4).equal(at::tensor({0, 2, 3, 5, 10, 11, 12, 13, 14, 15, 15, 15, 15}, at::kLong)));
  EXPECT_FALSE(nn::document_offsets(ids, 2).defined()) << "nine documents are more than six";
  EXPECT_TRUE(nn::document_offsets(at::zeros({1, 4}, at::kLong), 1).equal(at::tensor({0, 4}, at::kLong)));
  EXPECT_FALSE(nn::document_offsets(at::arange(4).view({1, 4}), 3).defined());
}

// Of several samples, heads a group, lengths of documents and empty documents, with and without a window: the same
// call in float64 is the blocked kernel's result.
TEST(LibraryAttention, OfDocumentsIsTheBlockedKernels) {
  const StandIns stand_ins;
  for (const int64_t b : {1, 3}) {
    for (const int64_t every : {1, 2, 7, 100}) {
      for (const int64_t window : {-1, 4}) {
        SCOPED_TRACE(testing::Message() << b << " samples, every " << every << ", window " << window);
        const int64_t s = 23;
        const nn::CoreInputs in = inputs(s, b, 4, 2, 8, at::kDouble);
        nn::Microbatch batch;
        batch.document_ids = documents(b, s, every);
        const at::Tensor dy = sample({s, b, 4, 8}, 8, at::kDouble);
        nn::CoreSpec spec = core_spec(in);
        spec.window = window;
        const Attended own = attended(in, {spec, {}, batch}, dy);

        const auto first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
        const nn::FusedInputs heads{first(in.q), first(in.k), first(in.v)};
        nn::FusedSpec fused{config::AttentionBy::flash, true, spec.softmax_scale, window, {}};
        fused.documents = nn::document_offsets(batch.document_ids, (count(batch.document_ids) + 4) / b + 1);
        const auto [out, sum] = nn::fused_attention(kGpu, heads, fused);
        const nn::FusedGradients d = nn::fused_attention_backward(kGpu, heads, {out, sum, first(dy)}, fused);
        const auto back = [](const at::Tensor& x) { return x.permute({2, 0, 1, 3}); };
        // Some 120 roundings, of 23 rows and two heads of a group: 1.3e-14 of the largest, in a dozen operations.
        expect_attended({back(out), back(d.q), back(d.k), back(d.v)}, own, 2e-13);
      }
    }
  }
  EXPECT_EQ(calls.documents, 2 * 2 * 4 * 2);
  EXPECT_EQ(calls.dense, 0);
}

// By the table, from a microbatch as a run has it, in bf16.
TEST(LibraryAttention, OfAMicrobatchGoesByItsOffsets) {
  const StandIns stand_ins;
  const int64_t s = 33, b = 2;
  const nn::CoreInputs in = inputs(s, b, 4, 2, 16, at::kBFloat16);
  const at::Tensor dy = sample({s, b, 4, 16}, 8, at::kBFloat16);
  nn::Microbatch batch;
  batch.document_ids = documents(b, s, 5);
  batch.document_offsets = nn::document_offsets(batch.document_ids, s);
  nn::CoreSpec spec = core_spec(in);
  const Attended plain = plain_attention(in, {spec, {}, batch}, dy);
  spec.target = kGpu;
  // Inputs are exact. To 2^-8 of itself each: the result, which backward takes rounded, and the gradients.
  expect_attended(attended(in, {spec, {}, batch}, dy), plain, 2 * 0x1p-8);
  EXPECT_EQ(calls.documents, 2);
  nn::Microbatch whole;
  spec.window = 5;
  expect_attended(attended(in, {spec, {}, whole}, dy), plain_attention(in, {spec, {}, whole}, dy), 2 * 0x1p-8);
  EXPECT_EQ(calls.dense, 2);
  EXPECT_EQ(calls.documents, 2);
}

void expect_cudnns_is_the_blocked_kernels(const nn::CoreInputs& in) {
  const at::Tensor dy = sample({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, 8, at::kDouble);
  const nn::CoreSpec spec = core_spec(in);
  const Attended own = attended(in, {spec, {}, {}}, dy);
  const auto first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  const nn::FusedInputs all{first(in.q), first(in.k), first(in.v)};
  const nn::FusedSpec fused{config::AttentionBy::cudnn, true, spec.softmax_scale, -1, {}};
  const auto [out, sum] = nn::fused_attention(kGpu, all, fused);
  const nn::FusedGradients d = nn::fused_attention_backward(kGpu, all, {out, sum, first(dy)}, fused);
  const auto back = [](const at::Tensor& x) { return x.permute({2, 0, 1, 3}); };
  // As above.
  expect_attended({back(out), back(d.q), back(d.k), back(d.v)}, own, 2e-13);
}

// Values of another head size than keys, as latent attention has them; heads in groups, as views into one product.
TEST(LibraryAttention, OfCudnnIsTheBlockedKernels) {
  const StandIns stand_ins;
  const int64_t s = 19, b = 2, heads = 3;
  expect_cudnns_is_the_blocked_kernels({sample({s, b, heads, 24}, 5, at::kDouble),
                                        sample({s, b, heads, 24}, 6, at::kDouble),
                                        sample({s, b, heads, 16}, 7, at::kDouble)});
  expect_cudnns_is_the_blocked_kernels(inputs(s, b, 6, 2, 16, at::kDouble));
  EXPECT_EQ(calls.cudnn, 4);
}

TEST(LibraryAttention, AnOperatorIsNotAskedForWhatItDoesNotKnow) {
  const nn::FusedInputs in{at::zeros({1, 1, 4, 8}), at::zeros({1, 1, 4, 8}), at::zeros({1, 1, 4, 8})};
  for (const nn::FusedSpec& spec :
       {nn::FusedSpec{config::AttentionBy::cudnn, true, 1, 3, {}},
        nn::FusedSpec{config::AttentionBy::memory_efficient, true, 1, -1, at::tensor({0, 4}, at::kLong)},
        nn::FusedSpec{config::AttentionBy::flash, false, 1, 3, {}},
        nn::FusedSpec{config::AttentionBy::own, true, 1, -1, {}}}) {
    EXPECT_THROW(nn::fused_attention(kGpu, in, spec), std::logic_error);
  }
}

}  // namespace
}  // namespace metroplex::test::library_attention_test
