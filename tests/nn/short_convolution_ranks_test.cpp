// The short convolution against libtorch's convolution of each document, with tensor parallelism and with cached
// inputs, in float64.
#include "nn/short_convolution.h"
#include "nn/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::short_convolution_ranks_test {
namespace {

constexpr int64_t kRows = 13, kSamples = 2, kChannels = 20;
constexpr double kTolerance = 4e-15;  // sums of up to 26 terms of size 0.25, each rounded to 1.1e-16 of its value

nn::ShortConvolutionSpec make_spec(int64_t kernel, bool bias, bool silu) {
  return {"conv1d", {{"q", 8}, {"k", 8}, {"v", 4}}, kernel, bias, silu};
}

struct Convolution {
  nn::ShortConvolution layer;
  std::vector<nn::Param*> params;
  explicit Convolution(const nn::ShortConvolutionSpec& spec, const comm::Group& tp = {})
      : layer(spec, layer_context(tp)) {
    layer.collect_params(params);
    give_main_grad(params);
    for (nn::Param* param : params)
      nn::fill(*param, [](int64_t i) { return 0.3 * std::cos(static_cast<double>(3 * i)); });
  }
};

at::Tensor document_ids() {
  return at::tensor({0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6}, at::kLong)
      .view({kSamples, kRows});
}

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool silu) {
  const at::Tensor out = at::conv1d(at::constant_pad_nd(x.permute({1, 2, 0}), {weight.size(2) - 1, 0}), weight, bias,
                                    1, at::IntArrayRef({0}), 1, weight.size(0))
                             .permute({2, 0, 1});
  return silu ? at::silu(out) : out;
}

// Convolves every document of every sample alone.
at::Tensor convolve_documents(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weight,
                              const at::Tensor& bias, bool silu) {
  std::vector<at::Tensor> samples;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    std::vector<at::Tensor> documents;
    for (int64_t begin = 0, end = 0; begin < kRows; begin = end) {
      while (end < kRows && ids[sample][end].item<int64_t>() == ids[sample][begin].item<int64_t>()) ++end;
      documents.push_back(convolve(x.narrow(0, begin, end - begin).narrow(1, sample, 1), weight, bias, silu));
    }
    samples.push_back(at::cat(documents, 0));
  }
  return at::cat(samples, 1);
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

// The channels of a tensor-parallel rank.
at::Tensor local_channels(const at::Tensor& x, const comm::Group& tp) {
  std::vector<at::Tensor> regions;
  int64_t begin = 0;
  for (const int64_t count : {8, 8, 4}) {
    regions.push_back(comm::select_shard(x.narrow(2, begin, count), 2, tp));
    begin += count;
  }
  return at::cat(regions, 2);
}

void expect_convolved(const nn::ShortConvolutionSpec& spec, const at::Tensor& ids, const comm::Group& tp) {
  Convolution convolution(spec, tp);
  const at::Tensor x = leaf(sample({kRows, kSamples, kChannels}, 1)), dy = sample({kRows, kSamples, kChannels}, 2);
  std::vector<at::Tensor> values;
  for (nn::Param* param : convolution.params) values.push_back(leaf(whole(*param, param->data, tp)));
  const at::Tensor bias = spec.bias ? values[1] : at::Tensor();
  const at::Tensor expected = ids.defined() ? convolve_documents(x, ids, values[0], bias, spec.silu)
                                            : convolve(x, values[0], bias, spec.silu);
  expected.backward(dy);
  const at::Tensor local_x = local_channels(x.detach(), tp);
  EXPECT_LT(largest(convolution.layer.apply(local_x, ids) - local_channels(expected.detach(), tp)), kTolerance);
  const at::Tensor dx = convolution.layer.backward(local_channels(dy, tp), local_x, ids);
  EXPECT_LT(largest(dx - local_channels(x.grad(), tp)), kTolerance);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_LT(largest(whole_gradient(*convolution.params[i], tp) - values[i].grad()), 4 * kTolerance);
}

TEST(ShortConvolutionRanks, EqualsOneConvolutionPerDocument) {
  for (const int tp : {1, 2, 4}) {
    run_ranks(tp, [&](const comm::World& world) {
      for (const int64_t kernel : {1, 2, 4}) {
        for (const bool documents : {false, true}) {
          for (const bool bias : {false, true}) {
            SCOPED_TRACE(testing::Message() << "kernel " << kernel << " documents " << documents << " bias " << bias);
            expect_convolved(make_spec(kernel, bias, /*silu=*/!bias), documents ? document_ids() : at::Tensor(),
                             world.groups().tp);
          }
        }
      }
    });
  }
}

// Left padding is a document of its own, as in generation with prompts of several lengths.
TEST(ShortConvolution, CachedInputsContinueTheSequence) {
  for (const bool padded : {false, true}) {
    const Convolution convolution(make_spec(4, true, true));
    const at::Tensor x = sample({kRows, kSamples, kChannels}, 1);
    const at::Tensor ids = at::ones({kSamples, kRows}, at::kLong);
    if (padded) ids.select(0, 1).narrow(0, 0, 4).zero_();
    const at::Tensor whole = convolution.layer.apply(x, ids);
    at::Tensor cached;
    int64_t length = 0;
    for (const int64_t count : {5, 1, 1, 2, 4}) {
      const at::Tensor seen = padded ? ids.narrow(1, 0, length + count) : at::Tensor();
      const at::Tensor out = convolution.layer.apply(x.narrow(0, length, count), seen, &cached);
      EXPECT_LT(largest(out - whole.narrow(0, length, count)), kTolerance) << length;
      length += count;
    }
  }
}

TEST(ShortConvolution, HalfTypesRoundOnlyTheResult) {
  const nn::ShortConvolutionSpec spec = make_spec(4, false, true);
  const Convolution wide(spec);
  nn::ShortConvolution half(spec, layer_context({}, false, at::kBFloat16));
  std::vector<nn::Param*> params;
  half.collect_params(params);
  const at::Tensor x = sample({kRows, kSamples, kChannels}, 1, at::kBFloat16);
  wide.params[0]->data.copy_(params[0]->data);
  const at::Tensor expected = wide.layer.apply(x.to(at::kDouble), {}).to(at::kBFloat16);
  // One unit of the result, because fp32 sums may round to the other neighbor.
  EXPECT_TRUE(at::allclose(half.apply(x, {}).to(at::kDouble), expected.to(at::kDouble), 0x1p-7, 0x1p-133));
}

}  // namespace
}  // namespace metroplex::test::short_convolution_ranks_test
