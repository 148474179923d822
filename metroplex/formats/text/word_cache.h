// Caches the ids of words; a new word replaces the old one in its entry. A word of up to 24 bytes and 9 ids uses one
// cache line, one of up to 64 bytes and 15 ids two. Longer words are not cached. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace metroplex::text {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 64, kMaxIds = 15;

  WordCache() : entries_(kEntries) {}

  // Appends the word's ids to `out` and returns true on a hit.
  bool find(std::string_view word, std::vector<int32_t>& out) const {
    if (word.size() > kMaxBytes) return false;
    const Key key(word);
    const Entry& entry = entries_[key.slot()];
    if (entry.bytes != word.size() || entry.key != key.words) return false;
    if (word.size() > kShortBytes && entry.rest != hash_tail(word)) return false;
    if (entry.num_ids == 1) {
      out.push_back(entry.ids[0]);
    } else {
      out.insert(out.end(), entry.ids, entry.ids + entry.num_ids);
    }
    return true;
  }

  void keep(std::string_view word, const int32_t* ids, size_t num_ids) {
    if (word.empty() || word.size() > kMaxBytes || num_ids > kMaxIds) return;
    const Key key(word);
    Entry& entry = entries_[key.slot()];
    entry.key = key.words;
    if (word.size() > kShortBytes) entry.rest = hash_tail(word);
    entry.bytes = static_cast<uint8_t>(word.size());
    entry.num_ids = static_cast<uint8_t>(num_ids);
    std::copy_n(ids, num_ids, entry.ids);
  }

 private:
  static constexpr size_t kEntries = 1 << 14;  // 128 bytes each: 2 MiB
  static constexpr size_t kShortBytes = 24;

  template <class Number>
  static uint64_t load(const char* from) {
    Number number;
    std::memcpy(&number, from, sizeof number);
    return number;
  }

  // Equal keys of short words of one size imply equal words. For longer words the key has the beginning and the end.
  // Overlapping loads avoid a copy of variable size.
  struct Key {
    std::array<uint64_t, 3> words{};
    explicit Key(std::string_view word) {
      const char* begin = word.data();
      const size_t size = word.size();
      if (size >= 8) {
        words[0] = load<uint64_t>(begin);
        if (size > 16) words[1] = load<uint64_t>(begin + 8);
        words[2] = load<uint64_t>(begin + size - 8);
      } else if (size >= 4) {
        words[0] = load<uint32_t>(begin);
        words[1] = load<uint32_t>(begin + size - 4);
      } else if (size > 0) {
        words[0] = load<uint8_t>(begin);
        words[1] = load<uint8_t>(begin + size / 2);
        words[2] = load<uint8_t>(begin + size - 1);
      }
    }
    size_t slot() const {
      uint64_t hash = words[0] * 0x9E3779B97F4A7C15ull;
      hash = (hash ^ hash >> 29 ^ words[1]) * 0xBF58476D1CE4E5B9ull;
      hash = (hash ^ hash >> 32 ^ words[2]) * 0x94D049BB133111EBull;
      return (hash >> 40) & (kEntries - 1);
    }
  };

  // For longer words: the bytes between the first 16 and the last 8.
  using Rest = std::array<uint64_t, 5>;
  static Rest hash_tail(std::string_view word) {
    Rest rest{};
    std::memcpy(rest.data(), word.data() + 16, word.size() - kShortBytes);
    return rest;
  }

  struct alignas(64) Entry {
    std::array<uint64_t, 3> key{};
    uint8_t bytes = 0, num_ids = 0;
    int32_t ids[kMaxIds];
    Rest rest{};
  };
  static_assert(sizeof(Entry) == 128);

  std::vector<Entry> entries_;
};

}  // namespace metroplex::text
