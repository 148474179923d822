#include "nn/vocabulary.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::nn {

VocabularyShard make_vocabulary_shard(int64_t vocab_size, int64_t padded, int tp, int index) {
  MPX_CHECK(tp > 0 && padded % tp == 0, "nn", "a vocabulary of ", padded, " cannot be split over ", tp,
            " tensor-parallel ranks");
  const int64_t rows = padded / tp, begin = rows * index;
  return {begin, rows, std::clamp<int64_t>(vocab_size - begin, 0, rows)};
}

topology::DimShard vocabulary_dim_shard(const VocabularyShard& shard) {
  topology::DimShard cut{0, topology::Axis::tp, {}, shard.local_rows};
  if (shard.valid_rows > 0) cut.ranges.push_back({0, shard.begin, shard.valid_rows});
  return cut;
}

}  // namespace metroplex::nn
