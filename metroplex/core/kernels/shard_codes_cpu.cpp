#include "kernels/shard_codes.h"

#include <ATen/Parallel.h>

#include "kernels/small_codes.h"

namespace metroplex::kernels {
namespace {

template <class Body>
void for_blocks(const ShardShape& shape, const Body& body) {
  at::parallel_for(0, shape.blocks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) body(block, shard_block(shape, block));
  });
}

}  // namespace

template <class T>
void shard_magnitudes(Wide<T>* magnitudes, const T* x, const ShardShape& shape) {
  for_blocks(shape, [&](int64_t block, const ShardBlock& place) {
    Wide<T> largest = 0;
    for (int64_t row = 0; row < place.height; ++row) {
      const auto [begin, end] = place.row(row);
      for (int64_t i = begin; i < end; ++i) {
        const Wide<T> value = load(x[i]), magnitude = value < 0 ? -value : value;
        largest = largest < magnitude ? magnitude : largest;
      }
    }
    magnitudes[block] = largest;
  });
}

template <class T>
void encode_shard(uint8_t* codes, Wide<T>* decode, const T* x, const Wide<T>* magnitudes, const ShardShape& shape) {
  const CodeForm form = code_form(shape.number);
  for_blocks(shape, [&](int64_t block, const ShardBlock& place) {
    const CodeFactors<Wide<T>> by = code_factors(magnitudes[block], Wide<T>(0), shape.number, shape.factor);
    decode[block] = by.decode;
    for (int64_t row = 0; row < place.height; ++row) {
      const auto [begin, end] = place.row(row);
      for (int64_t i = begin; i < end; ++i)
        codes[i] = small_code(static_cast<float>(round_small(load(x[i]) * by.encode, form.number)), form);
    }
  });
}

#define MPX_INSTANTIATE(T)                                                  \
  template void shard_magnitudes<T>(Wide<T>*, const T*, const ShardShape&); \
  template void encode_shard<T>(uint8_t*, Wide<T>*, const T*, const Wide<T>*, const ShardShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
