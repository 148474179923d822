// Causal depthwise convolution along the sequence, without autograd:
//   y[t] = f(bias + sum over j < k of weight[j] x[t - k + 1 + j]), separately for each channel; f is silu or
//   identity.
// Inputs before the sequence and of other documents count as 0. The channels consist of regions, such as queries,
// keys and values, each of which is split over tp and between the ranks of cp, which have whole sequences here
// (head_exchange.h). All sums are in at least fp32. Shapes: s sequence, b microbatch, c channels, k kernel size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/head_exchange.h"
#include "nn/layer_context.h"
#include "nn/param.h"

namespace metroplex::nn {

struct ShortConvolutionSpec {
  struct Channels {
    std::string name;
    int64_t count = 0;  // of all tensor-parallel ranks
  };
  std::string name;  // <name>.weight [channels, 1, k] and <name>.bias [channels]
  std::vector<Channels> regions;
  int64_t kernel = 4;
  bool bias = false;
  bool silu = true;
};

class ShortConvolution {
 public:
  ShortConvolution(const ShortConvolutionSpec& spec, const LayerContext& context);

  // Maps x [s, b, c] to the same shape. `document_ids` [b, at least s] ends with the ids of the s rows; undefined:
  // one document. `cached` is null outside generation; otherwise it has the last k - 1 inputs of earlier calls
  // (undefined before the first one), and receives those of this call.
  at::Tensor apply(const at::Tensor& x, const at::Tensor& document_ids, at::Tensor* cached = nullptr) const;
  // Returns the gradient of x and accumulates those of the parameters. Requires a call without a cache.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& document_ids);
  void collect_params(std::vector<Param*>& params);

 private:
  struct Taps;
  at::Tensor sum_taps(const Taps& taps) const;

  at::Tensor weight() const;  // of this rank's channels

  int64_t kernel_;
  bool silu_;
  SequenceExchange exchange_;
  Param weight_;
  std::unique_ptr<Param> bias_;
};

}  // namespace metroplex::nn
