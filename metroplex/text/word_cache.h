// What words became last time. One cache line a word, the newest wins its place; words longer than 24 bytes or of
// more than 9 ids are not kept. Belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace metroplex::text {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24, kMaxIds = 9;

  WordCache() : entries_(kEntries) {}

  // Appends the word's ids to `out` and returns true when they are known.
  bool find(std::string_view word, std::vector<int32_t>& out) const {
    if (word.size() > kMaxBytes) return false;
    const Key key(word);
    const Entry& entry = entries_[key.slot()];
    if (entry.bytes != word.size() || !(entry.key == key)) return false;
    out.insert(out.end(), entry.ids, entry.ids + entry.num_ids);
    return true;
  }

  void keep(std::string_view word, const int32_t* ids, size_t num_ids) {
    if (word.empty() || word.size() > kMaxBytes || num_ids > kMaxIds) return;
    const Key key(word);
    Entry& entry = entries_[key.slot()];
    entry.key = key;
    entry.bytes = static_cast<uint8_t>(word.size());
    entry.num_ids = static_cast<uint8_t>(num_ids);
    std::copy_n(ids, num_ids, entry.ids);
  }

 private:
  static constexpr size_t kEntries = 1 << 14;  // of 64 bytes: 1 MiB

  struct Key {
    uint64_t words[3] = {0, 0, 0};
    Key() = default;
    explicit Key(std::string_view word) { std::memcpy(words, word.data(), word.size()); }
    bool operator==(const Key&) const = default;
    size_t slot() const {
      uint64_t hash = words[0] * 0x9E3779B97F4A7C15ull;
      hash = (hash ^ hash >> 29 ^ words[1]) * 0xBF58476D1CE4E5B9ull;
      hash = (hash ^ hash >> 32 ^ words[2]) * 0x94D049BB133111EBull;
      return (hash >> 40) & (kEntries - 1);
    }
  };
  struct Entry {
    Key key;
    uint8_t bytes = 0, num_ids = 0;
    int32_t ids[kMaxIds];
  };

  std::vector<Entry> entries_;
};

}  // namespace metroplex::text
