// The sample order of a GPT dataset, exactly Megatron's for a seed. The documents of as many epochs as needed are
// shuffled (document index). Their token stream is divided every sequence_length tokens (sample index), and the
// samples are shuffled (shuffle index). If less than 80 % of the last epoch is used, it is shuffled separately and
// not mixed with the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/numpy_random.h"

namespace metroplex::data {

struct GptIndexOptions {
  int64_t sequence_length = 0;
  int64_t num_samples = -1;  // minimum; -1: one epoch
  uint32_t seed = 1234;
  bool add_extra_token = true;  // adjacent samples share one token, so every token has a label
  bool drop_last_partial = true;
};

// The number of epochs. It affects the order of all samples.
struct EpochLayout {
  int64_t tokens_per_epoch = 0, num_epochs = 1;
  bool separate_final_epoch = false;
  int64_t samples_sans_final_epoch = 0, samples_per_epoch = 0;  // only set with more than one epoch
};
EpochLayout epoch_layout(int64_t tokens_per_epoch, const GptIndexOptions& options);

struct GptIndex : EpochLayout {
  std::vector<int32_t> document_index;
  std::vector<int64_t> sample_index;   // [samples + 1, 2]: position in document_index, token offset in that document
  std::vector<int64_t> shuffle_index;  // [samples]
};

// Memory to build the index of a split with this many documents and tokens: 24 bytes per sample, 4 per document and
// epoch, and temporarily 16 more per sample. In double, because it may exceed any integer.
struct IndexNeed {
  double epochs = 1, samples = 0, bytes = 0;
};
IndexNeed index_need(int64_t documents, int64_t tokens, const GptIndexOptions& options);

// `lengths[d]` is the number of tokens of document d of the full corpus; `documents` are those of the split. Throws
// base::Error if they contain no token.
GptIndex build_gpt_index(std::span<const int32_t> lengths, std::span<const int32_t> documents,
                         const GptIndexOptions& options);

std::vector<int32_t> build_document_index(std::span<const int32_t> documents, int64_t num_epochs,
                                          bool separate_final_epoch, RandomState& random);

// `num_tokens` = epochs * tokens per epoch. Returns rows of 2.
std::vector<int64_t> build_sample_index(std::span<const int32_t> lengths, std::span<const int32_t> document_index,
                                        int64_t num_tokens, const GptIndexOptions& options);

// Shuffles [0, first) and [first, total) separately.
std::vector<int64_t> build_shuffle_index(int64_t first, int64_t total, RandomState& random);

}  // namespace metroplex::data
