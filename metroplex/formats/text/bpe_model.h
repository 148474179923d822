// Byte-pair encoding: a vocabulary with merge rules that turns words into ids. At byte level, tokens are spelled in
// GPT-2's alphabet. Otherwise words are characters; characters outside the vocabulary become <0xNN> byte tokens or
// the unknown token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/text_cuts.h"
#include "text/text_range.h"
#include "text/word_cache.h"

namespace metroplex::text {

// Merge rules of byte-pair encoding (Sennrich et al., arXiv:1508.07909). The pair of the lowest rank is merged
// first, the leftmost one among equal ranks, until no neighboring pair has a rule.

struct Merge {
  uint32_t rank;
  int32_t id;  // the merged token
};

class MergeTable {
 public:
  // The last rank wins for a pair that is set twice.
  void set(int32_t left, int32_t right, Merge merge);
  // Returns null for a pair without a rule.
  const Merge* find(int32_t left, int32_t right) const {
    if (slots_.empty()) return nullptr;
    const uint64_t key = pair_key(left, right);
    for (size_t i = hash_slot(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }
  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static uint64_t pair_key(int32_t left, int32_t right) {
    return uint64_t(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t hash_slot(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull >> 20) & (slots_.size() - 1); }
  void grow();

  std::vector<Slot> slots_;  // open addressing; the size is a power of two
  size_t size_ = 0;
};

struct MergeScratch {
  std::vector<uint32_t> ranks;
  std::vector<int32_t> ids;
  std::vector<int32_t> previous, next;
  std::vector<uint64_t> heap;
};

// Merges until no rule applies; `symbols` shrinks. Short words are scanned; long ones use a heap, O(n log n).
void merge_all(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch);

// Returns the spelling of a byte token: "<0x41>".
std::string byte_piece(unsigned char byte);

struct BpeSpec {
  std::vector<std::pair<std::string, int32_t>> vocab;       // spelling, id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<uint32_t> merge_ranks;                        // only if some ranks are equal; else empty
  std::optional<std::string> unk_token;
  bool byte_level = false;
  bool byte_fallback = false;
  bool fuse_unk = false;
  bool ignore_merges = false;  // a word that is in the vocabulary is not merged
};

struct BpeScratch {
  WordCache cache;
  MergeScratch merges;
  std::vector<int32_t> symbols;
};

class BpeModel {
 public:
  // Throws base::Error for duplicate ids, for merges of tokens outside the vocabulary and for an unknown unk_token.
  explicit BpeModel(const BpeSpec& spec);
  BpeModel(BpeModel&&) = default;
  BpeModel(const BpeModel&) = delete;  // ids_ points into tokens_

  // Appends the ids of one pre-tokenized word. The word must be valid UTF-8; at byte level it may be any bytes.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& out) const;

  // Appends the byte range in `word` of each id. `ids` must be the output of encode for this word. A byte token has
  // the range of its byte.
  void append_ranges(std::string_view word, std::span<const int32_t> ids, std::vector<TextRange>& ranges) const;

  const std::string* token(int32_t id) const;
  std::optional<int32_t> id(std::string_view token) const;
  int64_t num_ids() const { return static_cast<int64_t>(tokens_.size()); }  // largest id + 1

 private:
  // The initial symbols of one character: its token, else its byte tokens, else the unknown token.
  struct Entry {
    int32_t id = -1;
    std::vector<int32_t> bytes;
  };

  void add_vocabulary(const BpeSpec& spec);
  void add_merges(const BpeSpec& spec);
  void find_splits(const BpeSpec& spec);
  Entry enter(std::string_view character) const;
  void encode_part(std::string_view part, BpeScratch& scratch, std::vector<int32_t>& out) const;
  // `ranges`, which may be null, receives the byte range of each symbol.
  void fill_symbols(std::string_view part, std::vector<int32_t>& symbols, std::vector<TextRange>* ranges) const;

  bool byte_level_, byte_fallback_, fuse_unk_, ignore_merges_;
  int32_t unk_ = -1;
  std::vector<std::string> tokens_;  // by id; "" for unused ids
  std::vector<bool> present_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<std::string, int32_t> whole_;  // bytes of a word -> id, for ignore_merges at byte level
  MergeTable merges_;
  std::array<Entry, 256> byte_entries_;   // used at byte level
  std::array<Entry, 128> ascii_entries_;  // used otherwise

  // No merge crosses a position of split_points_. Texts without pre-tokenization (Llama 2) are encoded in the
  // short parts between these positions, which fit into the cache.
  bool splittable_ = false;
  SplitPoints split_points_;
};

}  // namespace metroplex::text
