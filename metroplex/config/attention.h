// Which core attention a GPU computes with: one table by type, head sizes, mask and architecture, the first row that
// fits. What no operator of libtorch takes is left to kernels of our own, which are slower.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace metroplex::config {

enum class AttentionBy : uint8_t { flash, cudnn, memory_efficient, own };

struct AttentionCase {
  ParamsDtype dtype = ParamsDtype::bf16;
  int64_t head_dim = 0, v_head_dim = 0;
  bool plain_mask = true;    // every query sees every key, or query i keys 0 to i, or blocks of these; no padding
  bool plain_scores = true;  // no cap, and no score in the softmax that is of no key
  bool window = false;       // a query sees the keys of so many positions before its own
  bool dropout = false, documents = false;
  int capability = 0;             // 90 for sm_90; 0: unknown, as if it took what most take
  int64_t queries = 0, keys = 0;  // of a sample; 0: as many as is best for each operator
  bool deterministic = false;     // run.deterministic_mode: sums are added in the same order in every run
};

struct AttentionChoice {
  AttentionBy by = AttentionBy::own;
  const char* why = "";  // own: what libtorch's operators do not take
};
// Forward and backward alike, the first of these that takes the case; to prefer another one, change the order of the
// rows in attention.cpp.
// cuDNN's: halves on sm_90 and sm_10x, head sizes of at most 128 that 8 divides, or 192 of queries and keys and 128
// of values; not where the run is to be deterministic, and not for a single key. Where flash attention takes the case
// too, only for multiples of 128 queries and keys: of as many of both it was measured as the quicker one, of blocks
// of context parallelism that is assumed; of other lengths, of which there may be many, it would make a plan for
// each. Flash attention: halves, equal head sizes of at most 256 that 8 divides, but for 200 to 224 on sm_86, 89, 120
// and 121, where libtorch 2.11 refuses its backward; windows, and documents by their offsets. Memory-efficient
// attention: fp32, the same head sizes.
AttentionChoice gpu_attention(const AttentionCase& c);

// For variable-length attention on a GPU: how many documents a sample may have (data.max_documents_per_sample), where
// it is known. The operator's memory and its launches grow with this number, so it is no larger than it must be.
// Microbatches with more documents are left to own kernels, or refused where graphs are captured: their launches
// stay. Context parallelism has less room for the rows of a rank (nn/block_documents.h).
inline constexpr int64_t kRowsOfADocument = 128;  // the operator's backward sets so many aside for each
struct DocumentBound {
  int64_t per_sample = 0;  // 0: attention of this run goes by the numbers of the documents
  bool must_fit = false;
};
DocumentBound document_bound(const Config& config, int capability = 0);

// Of a training run on GPUs, resolved: why its attention is our own, with the key that makes it so; empty: it is
// libtorch's.
std::string own_attention(const Config& config, int capability = 0);

}  // namespace metroplex::config
