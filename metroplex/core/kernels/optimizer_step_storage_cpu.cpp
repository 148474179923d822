#include <ATen/Parallel.h>

#include "kernels/block8.h"
#include "kernels/optimizer_tile.h"

namespace metroplex::kernels {
namespace {

constexpr int64_t kGrain = 64;  // tiles

// Calls work(tile, first element, elements).
template <class Work>
void for_tiles(int64_t n, const Work& work) {
  at::parallel_for(0, block8_scales(n), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) work(tile, tile * kTile, std::min(kTile, n - tile * kTile));
  });
}

}  // namespace

void block8_encode(const float* values, int64_t n, bool is_signed, uint8_t* codes, float* scales) {
  for_tiles(n, [&](int64_t tile, int64_t at, int64_t count) {
    scales[tile] = encode_block8(values + at, count, is_signed, nullptr, codes + at);
  });
}
void block8_decode(const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* values) {
  for_tiles(n, [&](int64_t tile, int64_t at, int64_t count) {
    decode_block8(codes + at, scales[tile], count, is_signed, values + at);
  });
}
void split_floats(const float* values, int64_t n, uint16_t* param, uint16_t* remainder) {
  for_tiles(n,
            [&](int64_t, int64_t at, int64_t count) { split_tile(values + at, count, param + at, remainder + at); });
}
void join_floats(const uint16_t* param, const uint16_t* remainder, int64_t n, float* values) {
  for_tiles(n,
            [&](int64_t, int64_t at, int64_t count) { join_tile(param + at, remainder + at, count, values + at); });
}

}  // namespace metroplex::kernels
