// Sharding of the vocabulary over the tensor-parallel group. The vocabulary is padded to a multiple of tp, and
// rank r holds rows [r * padded / tp, (r + 1) * padded / tp). Rows past the vocabulary are padding: zero, masked,
// and not saved in checkpoints.
#pragma once

#include <cstdint>

#include "topology/placement.h"

namespace metroplex::nn {

struct VocabularyShard {
  int64_t begin = 0;       // first global row of this rank
  int64_t local_rows = 0;  // padding included
  int64_t valid_rows = 0;  // rows in the unpadded vocabulary
};

// `padded` is config::padded_vocab_size.
VocabularyShard make_vocabulary_shard(int64_t vocab_size, int64_t padded, int tp, int index);
topology::DimShard vocabulary_dim_shard(const VocabularyShard& shard);

}  // namespace metroplex::nn
