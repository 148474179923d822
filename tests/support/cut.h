// Megatron's split of sequences for attention: positions of a context-parallel rank, offsets of packed documents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace metroplex::data {

// Positions of context-parallel rank `cp_index`: chunk cp_index of 2 * cp_size equal chunks and its mirror image.
// With this zigzag order causal attention costs every rank the same. Throws base::Error unless 2 * cp_size divides
// the length (cp_size > 1).
inline std::vector<int64_t> zigzag_positions(int64_t sequence_length, int64_t cp_size, int64_t cp_index) {
  MPX_ASSERT(cp_size >= 1 && cp_index >= 0 && cp_index < cp_size, "cp rank ", cp_index, " of ", cp_size);
  const int64_t chunks = cp_size == 1 ? 1 : 2 * cp_size;
  MPX_CHECK(sequence_length % chunks == 0, "data", "sequence length ", sequence_length,
            " is not a multiple of 2 * context_parallel = ", chunks, "; choose a multiple");
  const int64_t size = sequence_length / chunks;
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(sequence_length / cp_size));
  const auto append = [&](int64_t chunk) {
    for (int64_t i = 0; i < size; ++i) positions.push_back(chunk * size + i);
  };
  append(cp_index);
  if (cp_size > 1) append(chunks - 1 - cp_index);
  return positions;
}

// Document offsets of a sample: 0, end of the first document, ..., length.
inline std::vector<int32_t> document_borders(std::span<const int32_t> document_ids) {
  std::vector<int32_t> borders{0};
  for (size_t i = 1; i < document_ids.size(); ++i) {
    if (document_ids[i] != document_ids[i - 1]) borders.push_back(static_cast<int32_t>(i));
  }
  borders.push_back(static_cast<int32_t>(document_ids.size()));
  return borders;
}

// Offsets of all rows of a micro-batch concatenated; skips repeated entries (padding of a row's list).
inline std::vector<int32_t> merge_borders(const std::vector<std::vector<int32_t>>& rows, int64_t sequence_length) {
  std::vector<int32_t> merged;
  for (size_t row = 0; row < rows.size(); ++row) {
    const auto start = static_cast<int32_t>(static_cast<int64_t>(row) * sequence_length);
    for (const int32_t border : rows[row]) {
      if (merged.empty() || merged.back() != start + border) merged.push_back(start + border);
    }
  }
  return merged;
}

}  // namespace metroplex::data
