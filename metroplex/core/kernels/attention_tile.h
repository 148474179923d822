// The mask of a block of queries by a block of keys, on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/blocked_attention.h"

namespace metroplex::kernels {

constexpr int64_t kTileQueries = 128, kTileKeys = 256;

// Queries [query, query + queries) by keys [key, key + keys) of one sample, with the positions and documents of both.
struct AttentionTile {
  int64_t query = 0, queries = 0, key = 0, keys = 0;
  bool hides = false;  // whether any pair is hidden
  const int64_t *query_place = nullptr, *query_document = nullptr, *key_place = nullptr, *key_document = nullptr;
};

class TileCutter {
 public:
  explicit TileCutter(const AttentionShape& shape) : shape_(shape) {}

  // Trims fully hidden rows and columns from the ends of the tile. Returns false if no pair is visible. The tile
  // points to this object's memory until the next call.
  bool cut(int64_t sample, int64_t query, int64_t key, AttentionTile& tile) {
    tile.query = query, tile.queries = std::min(kTileQueries, shape_.queries - query);
    tile.key = key, tile.keys = std::min(kTileKeys, shape_.keys - key);
    fill(shape_.query_rows, sample, query, tile.queries, query_place_, query_document_);
    fill(shape_.key_rows, sample, key, tile.keys, key_place_, key_document_);
    const Range of_queries = range(query_place_, query_document_, 0, tile.queries);
    int64_t begin = 0, end = tile.keys;
    const auto key_hidden = [&](int64_t j) {
      return key_place_[j] > of_queries.last ||
             of_queries.first - key_place_[j] > shape_.reach_from(of_queries.first) ||
             !of_queries.holds_document(key_document_[j]);
    };
    while (begin < end && key_hidden(begin)) ++begin;
    while (begin < end && key_hidden(end - 1)) --end;
    if (begin == end) return false;
    const Range of_keys = range(key_place_, key_document_, begin, end);
    int64_t top = 0, bottom = tile.queries;
    const auto query_hidden = [&](int64_t i) {
      return query_place_[i] < of_keys.first || query_place_[i] - of_keys.last > shape_.reach_from(query_place_[i]) ||
             !of_keys.holds_document(query_document_[i]);
    };
    while (top < bottom && query_hidden(top)) ++top;
    while (top < bottom && query_hidden(bottom - 1)) --bottom;
    if (top == bottom) return false;
    const Range seen = range(query_place_, query_document_, top, bottom);
    tile = {query + top,
            bottom - top,
            key + begin,
            end - begin,
            of_keys.last > seen.first || seen.last - of_keys.first > shape_.reach_from(seen.last) ||
                !of_keys.one_document() || !seen.one_document() || of_keys.least != seen.least,
            query_place_ + top,
            query_document_ + top,
            key_place_ + begin,
            key_document_ + begin};
    return true;
  }

 private:
  struct Range {
    int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();  // positions
    int64_t least = first, most = last;                                                               // documents
    bool holds_document(int64_t document) const { return least <= document && document <= most; }
    bool one_document() const { return least == most; }
  };
  static Range range(const int64_t* places, const int64_t* documents, int64_t begin, int64_t end) {
    Range range;
    for (int64_t i = begin; i < end; ++i) {
      range.first = std::min(range.first, places[i]), range.last = std::max(range.last, places[i]);
      range.least = std::min(range.least, documents[i]), range.most = std::max(range.most, documents[i]);
    }
    return range;
  }
  void fill(const AttentionRows& rows, int64_t sample, int64_t from, int64_t count, int64_t* places,
            int64_t* documents) const {
    for (int64_t i = 0; i < count; ++i) {
      places[i] = rows.place(from + i);
      documents[i] = shape_.document(sample, places[i]);
    }
  }

  const AttentionShape& shape_;
  int64_t query_place_[kTileQueries], query_document_[kTileQueries], key_place_[kTileKeys], key_document_[kTileKeys];
};

}  // namespace metroplex::kernels
