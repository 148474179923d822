// How sequences are cut and joined for attention: positions of a context-parallel rank, borders of packed documents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace metroplex::data {

// Positions of context-parallel rank `cp_index`: of 2 * cp_size equal chunks it has number cp_index and its mirror
// image, so that causal attention costs every rank the same. Throws base::Error unless 2 * cp_size divides the length
// (cp_size > 1).
std::vector<int64_t> zigzag_positions(int64_t sequence_length, int64_t cp_size, int64_t cp_index);

// Borders of the documents of a sample: 0, end of the first, ..., length.
std::vector<int32_t> document_borders(std::span<const int32_t> document_ids);

// Borders of the rows of a micro-batch laid end to end, repeated entries (padding of the rows' lists) left out.
std::vector<int32_t> merge_borders(const std::vector<std::vector<int32_t>>& rows, int64_t sequence_length);

}  // namespace metroplex::data
