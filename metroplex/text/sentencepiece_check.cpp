#include "text/sentencepiece_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "base/error.h"
#include "text/json_part.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

// One field of a protobuf message: its number, and bytes or a number.
struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

class Checker {
 public:
  explicit Checker(const std::string& where) : where_(where) {}

  SentencePieceFacts model(std::string_view bytes) {
    SentencePieceFacts facts;
    for_each(bytes, [&](const Field& field) {
      if (field.wire_type != 2) return;
      if (field.number == 1) facts.pieces.push_back(piece(field.bytes, facts.pieces.size()));
      if (field.number == 2) {
        for_each(field.bytes, [&](const Field& inner) {
          if (inner.number == 3 && inner.wire_type == 0) facts.model_type = inner.value;
          if (inner.number == 24 && inner.wire_type == 0) facts.space_as_suffix = inner.value != 0;
        });
      }
      if (field.number == 3) normalizer(field.bytes, facts);
      SentencePieceFacts of_decoding;
      if (field.number == 5) normalizer(field.bytes, of_decoding);
    });
    require(!facts.pieces.empty(), "holds no pieces; is it a tokenizer.model?");
    require(facts.pieces.size() <= size_t(kMaxTokenId), "holds too many pieces");
    return facts;
  }

 private:
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    MPX_CHECK(condition, "text", where_, " is not a sound sentencepiece model: it ", parts...);
  }

  uint64_t varint(std::string_view bytes, size_t& at) const {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      require(at < bytes.size() && shift < 64, "ends inside a number or is no protobuf message");
      const auto byte = static_cast<unsigned char>(bytes[at++]);
      value |= uint64_t(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }

  void for_each(std::string_view bytes, const std::function<void(const Field&)>& visit) const {
    for (size_t at = 0; at < bytes.size();) {
      const uint64_t tag = varint(bytes, at);
      Field field;
      field.number = static_cast<uint32_t>(tag >> 3);
      field.wire_type = tag & 7;
      size_t size = 0;
      if (field.wire_type == 0) {
        field.value = varint(bytes, at);
      } else {
        require(field.wire_type == 1 || field.wire_type == 2 || field.wire_type == 5, "is no protobuf message");
        const uint64_t told = field.wire_type == 1 ? 8 : field.wire_type == 5 ? 4 : varint(bytes, at);
        require(told <= bytes.size() - at, "is cut short");
        size = static_cast<size_t>(told);
        field.bytes = bytes.substr(at, size);
        at += size;
      }
      visit(field);
    }
  }

  Piece piece(std::string_view bytes, size_t index) const {
    Piece out;
    for_each(bytes, [&](const Field& field) {
      if (field.number == 1 && field.wire_type == 2) out.text = field.bytes;
      if (field.number == 2 && field.wire_type == 5) std::memcpy(&out.score, field.bytes.data(), sizeof out.score);
      if (field.number == 3 && field.wire_type == 0) {
        require(field.value >= 1 && field.value <= 6, "has a piece ", index, " of the unknown type ", field.value);
        out.type = static_cast<PieceType>(field.value);
      }
    });
    require(!out.text.empty() && out.text.find('\0') == std::string_view::npos &&
                valid_utf8_prefix(out.text) == out.text.size(),
            "has a piece ", index, " that is empty or not text");
    require(std::isfinite(out.score) && std::abs(out.score) < 1e9f, "has a piece ", index,
            " whose score is out of range");
    return out;
  }

  void normalizer(std::string_view bytes, SentencePieceFacts& facts) const {
    for_each(bytes, [&](const Field& field) {
      if (field.number == 2 && field.wire_type == 2) {
        facts.character_map = !field.bytes.empty();
        if (facts.character_map) character_map(field.bytes);
      }
      if (field.wire_type != 0) return;
      if (field.number == 3) facts.dummy_prefix = field.value != 0;
      if (field.number == 4) facts.remove_extra_spaces = field.value != 0;
      if (field.number == 5) facts.escape_spaces = field.value != 0;
    });
  }

  // u32 size of the trie, its u32 units (Darts-clone's double array), then NUL-terminated replacements.
  void character_map(std::string_view bytes) const {
    uint32_t trie_bytes = 0;
    require(bytes.size() > 4, "has a character map that is cut short");
    std::memcpy(&trie_bytes, bytes.data(), 4);
    require(trie_bytes >= 1024 && trie_bytes % 4 == 0 && trie_bytes < bytes.size() - 4,
            "has a character map whose trie does not fit");
    std::vector<uint32_t> units(trie_bytes / 4);
    std::memcpy(units.data(), bytes.data() + 4, trie_bytes);
    const std::string_view replacements = bytes.substr(4 + trie_bytes);
    require(replacements.back() == '\0', "has a character map that does not end in NUL");
    require(valid_utf8_prefix(replacements) == replacements.size(), "has a character map that is not UTF-8");
    trie(units, replacements.size());
  }

  // Every place that any text can lead to lies in the array, no path comes back to where it was, and none passes more
  // than 32 values: the library's buffer for what it finds. Paths may meet (the array is a graph, not a tree).
  void trie(const std::vector<uint32_t>& units, size_t num_replacement_bytes) const {
    constexpr int kMaxValuesOnPath = 32;
    constexpr int kNew = -2, kOpen = -1;
    struct Place {
      uint64_t index;     // of the unit that led here
      uint64_t base;      // index that the next byte is XORed into
      uint64_t byte = 0;  // to try next
      int values = 0;     // most on a path from here
    };
    const auto offset = [](uint32_t unit) -> uint64_t { return uint64_t(unit >> 10) << ((unit & (1u << 9)) >> 6); };
    std::vector<int> values_below(units.size(), kNew);
    std::vector<Place> path{{0, offset(units[0])}};
    values_below[0] = kOpen;
    while (!path.empty()) {
      Place& place = path.back();
      if (place.byte == 256) {
        const Place done = place;
        path.pop_back();
        const int here = done.values + (!path.empty() && has_value(units[done.index]) ? 1 : 0);
        require(here <= kMaxValuesOnPath, "has a character map with too many prefixes");
        values_below[done.index] = here;
        if (!path.empty()) path.back().values = std::max(path.back().values, here);
        continue;
      }
      const uint64_t byte = place.byte++;
      const uint64_t index = place.base ^ byte;
      require(index < units.size(), "has a character map that points outside of itself");
      if ((units[index] & (1u << 31 | 0xFF)) != byte) continue;
      require(values_below[index] != kOpen, "has a character map that runs in circles");
      if (values_below[index] != kNew) {
        place.values = std::max(place.values, values_below[index]);
        continue;
      }
      const uint64_t base = index ^ offset(units[index]);
      if (has_value(units[index])) {
        require(base < units.size() && (units[base] & ~(1u << 31)) < num_replacement_bytes,
                "has a character map with a bad value");
      }
      values_below[index] = kOpen;
      path.push_back({index, base});
    }
  }

  static bool has_value(uint32_t unit) { return unit >> 8 & 1; }

  const std::string& where_;
};

}  // namespace

SentencePieceFacts check_sentencepiece_model(std::string_view model, const std::string& where) {
  return Checker(where).model(model);
}

}  // namespace metroplex::text
