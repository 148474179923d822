// What a microbatch brings to every layer beside the activations. The same on every pipeline stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace metroplex::nn {

struct KvCache;  // attention.h

struct Microbatch {
  at::Tensor tokens;         // [b, s] int64
  at::Tensor labels;         // [b, s] int64; undefined: the head returns logits instead of a loss
  at::Tensor loss_mask;      // [b, s] at least fp32
  double mask_sum = 0;       // of a loss_mask on a GPU, so that the host need not ask it
  at::Tensor position_ids;   // [b, s] int64
  at::Tensor document_ids;   // [b, s] int64: attention stays inside a document; undefined: off
  at::Tensor sample_ids;     // [b] int64: global sample numbers, the key of dropout
  int64_t step = 0;          // the other key of dropout
  bool training = true;      // dropout is active only here
  KvCache* cache = nullptr;  // generation only
};

}  // namespace metroplex::nn
