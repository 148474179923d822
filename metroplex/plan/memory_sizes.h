// The numbers from which plan/ works out bytes: sizes of one tensor-parallel rank and of one microbatch.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace metroplex::plan {

struct MemorySizes {
  int64_t s, b, h, n, g, d, f, vocab;  // n, g, f, vocab: of this tensor-parallel rank
  int64_t tp, tokens, rows;            // rows: of the region that sequence parallelism splits
  int64_t element, wide, residual;     // bytes of a number
  int64_t gradient;                    // of a main gradient's number
  int64_t moments;                     // statistics that a norm keeps of a row
};
MemorySizes memory_sizes(const config::Config& config, int64_t vocab_size);

}  // namespace metroplex::plan
