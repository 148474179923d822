// Selects the core attention of a GPU by dtype, head sizes, mask and architecture: the first matching row of one
// table. Cases that no libtorch operator supports use slower Metroplex kernels.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace metroplex::config {

enum class AttentionBy : uint8_t { flash, cudnn, memory_efficient, own };

struct AttentionCase {
  ParamsDtype dtype = ParamsDtype::bf16;
  int64_t head_dim = 0, v_head_dim = 0;
  bool plain_mask = true;  // full or causal mask, or a block of one; no padding
  bool capped = false;     // scores have a softcap
  bool sinks = false;      // an extra softmax score without a key, applied to the operator's result and logsumexp
  bool window = false;     // a query sees only a limited number of previous positions
  bool dropout = false, documents = false;
  int capability = 0;             // 90 for sm_90; 0: unknown, assumed to support what most devices do
  int64_t queries = 0, keys = 0;  // per sample; 0: the best value for each operator
  bool deterministic = false;     // run.deterministic_mode: every run sums in the same order
};

struct AttentionChoice {
  AttentionBy by = AttentionBy::own;
  const char* why = "";  // own: the property that libtorch's operators do not support
};
// Returns the first operator that supports the case; forward and backward use the same one. To change a preference,
// reorder the rows in attention.cpp.
//   - cuDNN: fp16 and bf16 on sm_90 and sm_10x. Head sizes are multiples of 8 up to 128, or 192 for queries and
//     keys with 128 for values. It needs more than one key and excludes deterministic mode. If flash attention
//     supports the case too, queries and keys must be multiples of 128. Measurements show that cuDNN is faster for
//     equal numbers of both; for blocks of context parallelism this is assumed. For other lengths it would create
//     one plan per length.
//   - Flash attention: fp16 and bf16, equal head sizes that are multiples of 8 up to 256. It supports windows, and
//     documents by their offsets. Head sizes 200 to 224 on sm_86, 89, 120 and 121 are excluded, because libtorch 2.11
//     rejects their backward.
//   - Memory-efficient attention: fp32 with the same head sizes, without sinks.
AttentionChoice gpu_attention(const AttentionCase& c);

// For variable-length attention on a GPU: the maximum number of documents per sample
// (data.max_documents_per_sample), if known. The operator's memory and launches grow with this number, so it is
// kept small. Microbatches with more documents use Metroplex kernels. They are rejected if graphs are captured,
// because captured launches cannot change. Context parallelism has a lower limit per rank (nn/block_documents.h).
inline constexpr int64_t kRowsOfADocument = 128;  // rows that the operator's backward reserves per document
struct DocumentBound {
  int64_t per_sample = 0;  // 0: attention of this run uses document numbers
  bool must_fit = false;
};
DocumentBound document_bound(const Config& config, int capability = 0);

// Returns why the attention of a resolved GPU training run uses Metroplex kernels, with the responsible key. Empty
// if it uses libtorch's.
std::string own_attention(const Config& config, int capability = 0);

}  // namespace metroplex::config
