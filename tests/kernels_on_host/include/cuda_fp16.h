// CUDA's fp16: bits in memory.
#pragma once

#include <cstdint>

struct __half {
  uint16_t bits;
};
