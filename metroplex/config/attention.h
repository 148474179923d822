// Which core attention a GPU computes with: one table by type, head sizes, mask and architecture, the first row that
// fits. What no operator of libtorch takes is left to kernels of our own, which are slower.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace metroplex::config {

enum class AttentionBy : uint8_t { flash, memory_efficient, own };

struct AttentionCase {
  ParamsDtype dtype = ParamsDtype::bf16;
  int64_t head_dim = 0, v_head_dim = 0;
  bool plain_mask = true;    // every query sees every key, or query i keys 0 to i; no padding
  bool plain_scores = true;  // no window, no cap, and no score in the softmax that is of no key
  bool dropout = false, documents = false;
  int capability = 0;  // 90 for sm_90; 0: unknown, as if it took what most take
};

struct AttentionChoice {
  AttentionBy by = AttentionBy::own;
  const char* why = "";  // own: what libtorch's operators do not take
};
// Forward and backward alike. Flash attention: halves, head sizes of at most 256 that 8 divides, but for 200 to 224
// on sm_86, 89, 120 and 121, where libtorch 2.11 refuses its backward. Memory-efficient attention: fp32, the same
// head sizes.
AttentionChoice gpu_attention(const AttentionCase& c);

// Whether only training with this architecture decides: the caller need not ask for it otherwise.
constexpr bool attention_depends_on_gpu(int64_t head_dim) { return head_dim > 192 && head_dim <= 224; }

// Of a training run on GPUs, resolved: why its attention is our own, with the key that makes it so; empty: it is
// libtorch's.
std::string own_attention(const Config& config, int capability = 0);

}  // namespace metroplex::config
