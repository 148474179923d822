#include "text/sentencepiece_file.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "files/json_text.h"
#include "text/json_part.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr size_t kMaxPieceBytes = 4096;  // merge rules are searched at every split of a piece

struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  SentencePieceFile model(std::string_view bytes) {
    SentencePieceFile file;
    for_each(bytes, [&](const Field& field) {
      if (field.wire_type != 2) return;
      if (field.number == 1) file.pieces.push_back(piece(field.bytes, file.pieces.size()));
      if (field.number == 2) trainer(field.bytes, file);
      if (field.number == 3) normalizer(field.bytes, file.normalizer);
      if (field.number == 5) normalizer(field.bytes, file.denormalizer);
    });
    require(!file.pieces.empty(), "contains no pieces; check that it is a tokenizer.model");
    require(file.pieces.size() <= size_t(kMaxTokenId), "contains too many pieces");
    pieces(file);
    return file;
  }

 private:
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    MPX_CHECK(condition, "text", where_, " is not a valid sentencepiece model: it ", parts...);
  }

  uint64_t varint(std::string_view bytes, size_t& at) const {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      require(at < bytes.size() && shift < 64, "ends inside a number or is not a protobuf message");
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
        require(field.wire_type == 1 || field.wire_type == 2 || field.wire_type == 5, "is not a protobuf message");
        const uint64_t byte_count = field.wire_type == 1 ? 8 : field.wire_type == 5 ? 4 : varint(bytes, at);
        require(byte_count <= bytes.size() - at, "is truncated");
        size = static_cast<size_t>(byte_count);
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
        require(field.value >= 1 && field.value <= 6, "has a piece ", index, " with the unknown type ", field.value);
        out.type = static_cast<PieceType>(field.value);
      }
    });
    const bool is_nul = out.text == std::string_view("\0", 1);  // pieces() validates it
    require(is_nul || (!out.text.empty() && out.text.find('\0') == std::string_view::npos &&
                       valid_utf8_prefix(out.text) == out.text.size()),
            "has a piece ", index, " that is empty or is not text");
    require(out.type != PieceType::normal || out.text.size() <= kMaxPieceBytes, "has a piece ", index, " of ",
            out.text.size(), " bytes, more than the limit of ", kMaxPieceBytes);
    require(std::isfinite(out.score), "has a piece ", index, " whose score is not a finite number");
    return out;
  }

  // Applies the package's rules for the set of pieces. With byte_fallback the package never uses a NUL piece.
  void pieces(SentencePieceFile& file) const {
    std::unordered_set<std::string_view> searched, reserved;
    int num_unknown = 0, num_bytes = 0;
    for (Piece& piece : file.pieces) {
      if (piece.text == std::string_view("\0", 1)) {
        require(file.byte_fallback, "has a piece that is NUL, but no byte_fallback");
        piece.type = PieceType::unused;
      }
      const bool in_text =
          piece.type == PieceType::normal || piece.type == PieceType::user_defined || piece.type == PieceType::unused;
      const bool one_list = file.model_type == SentencePieceFile::kBpe;
      const bool inserted = (in_text || one_list ? searched : reserved).insert(piece.text).second;
      require(inserted, "has the piece '", files::printable(piece.text), "' twice");
      num_unknown += piece.type == PieceType::unknown;
      num_bytes += piece.type == PieceType::byte;
      require(piece.type != PieceType::byte || (file.byte_fallback && parse_byte_piece(piece.text) >= 0),
              "has the piece '", files::printable(piece.text),
              "' of type byte, but it is not a byte piece or byte_fallback is off");
    }
    require(!searched.empty(), "has no pieces for segmenting text");
    require(num_unknown <= 1, "has ", num_unknown, " unknown pieces");
    require(num_unknown == 1 || file.byte_fallback, "has neither an unknown piece nor byte_fallback");
    require(num_bytes == (file.byte_fallback ? 256 : 0), "has ", num_bytes, " of the 256 byte pieces");
  }

  void trainer(std::string_view bytes, SentencePieceFile& file) const {
    for_each(bytes, [&](const Field& field) {
      if (field.wire_type == 0) {
        if (field.number == 3) file.model_type = field.value;
        if (field.number == 24) file.space_as_suffix = field.value != 0;
        if (field.number == 35) file.byte_fallback = field.value != 0;
      } else if (field.wire_type == 2) {
        if (field.number == 44) file.unknown_text = field.bytes;
        // An empty name means the default.
        const std::pair<uint32_t, std::string_view*> names[] = {
            {46, &file.bos_piece}, {47, &file.eos_piece}, {48, &file.pad_piece}};
        for (const auto& [number, name] : names) {
          if (field.number == number && !field.bytes.empty()) *name = field.bytes;
        }
      }
    });
    require(valid_utf8_prefix(file.unknown_text) == file.unknown_text.size(), "has an unk_surface that is not text");
  }

  void normalizer(std::string_view bytes, NormalizerSpec& spec) const {
    for_each(bytes, [&](const Field& field) {
      if (field.number == 2 && field.wire_type == 2) {
        spec.character_map = CharacterMap{};
        if (!field.bytes.empty()) spec.character_map = character_map(field.bytes);
      }
      if (field.wire_type != 0) return;
      if (field.number == 3) spec.dummy_prefix = field.value != 0;
      if (field.number == 4) spec.remove_extra_spaces = field.value != 0;
      if (field.number == 5) spec.escape_spaces = field.value != 0;
    });
  }

  // u32 size of the trie, its u32 units (Darts-clone's double array), then NUL-terminated replacements.
  CharacterMap character_map(std::string_view bytes) const {
    CharacterMap map;
    uint32_t trie_bytes = 0;
    require(bytes.size() > 4, "has a truncated character map");
    std::memcpy(&trie_bytes, bytes.data(), 4);
    require(trie_bytes >= 1024 && trie_bytes % 4 == 0 && trie_bytes < bytes.size() - 4,
            "has a character map whose trie does not fit");
    map.units.resize(trie_bytes / 4);
    std::memcpy(map.units.data(), bytes.data() + 4, trie_bytes);
    map.replacements = bytes.substr(4 + trie_bytes);
    require(map.replacements.back() == '\0', "has a character map that does not end in NUL");
    require(valid_utf8_prefix(map.replacements) == map.replacements.size(), "has a character map that is not UTF-8");
    trie(map.units, map.replacements);
    return map;
  }

  // Checks that every unit reachable by any text is in the array. Paths must have no cycle and at most 32 values. The
  // library's buffer for matches has 32 entries. Paths may share units, so the array is a graph, not a tree.
  void trie(const std::vector<uint32_t>& units, std::string_view replacements) const {
    constexpr int kMaxValuesOnPath = 32;
    constexpr int kNew = -2, kOpen = -1;
    struct Place {
      uint64_t index;     // of the unit on the path
      uint64_t base;      // index that the next byte is XORed into
      uint64_t byte = 0;  // the next byte to try
      int values = 0;     // maximum on a path from here
    };
    std::vector<int> values_below(units.size(), kNew);
    std::vector<Place> path{{0, CharacterMap::offset(units[0])}};
    values_below[0] = kOpen;
    while (!path.empty()) {
      Place& place = path.back();
      if (place.byte == 256) {
        const Place done = place;
        path.pop_back();
        const int here = done.values + (!path.empty() && CharacterMap::has_value(units[done.index]) ? 1 : 0);
        require(here <= kMaxValuesOnPath, "has a character map with too many prefixes");
        values_below[done.index] = here;
        if (!path.empty()) path.back().values = std::max(path.back().values, here);
        continue;
      }
      const uint64_t byte = place.byte++;
      const uint64_t index = place.base ^ byte;
      require(index < units.size(), "has a character map with a reference outside the map");
      if ((units[index] & (1u << 31 | 0xFF)) != byte) continue;
      require(values_below[index] != kOpen, "has a character map with a cycle");
      if (values_below[index] != kNew) {
        place.values = std::max(place.values, values_below[index]);
        continue;
      }
      const uint64_t base = index ^ CharacterMap::offset(units[index]);
      if (CharacterMap::has_value(units[index])) {
        const bool inside = base < units.size() && (units[base] & ~(1u << 31)) < replacements.size();
        require(inside && (replacements[units[base] & ~(1u << 31)] & 0xC0) != 0x80,
                "has a character map with an invalid value");
      }
      values_below[index] = kOpen;
      path.push_back({index, base});
    }
  }

  const std::string& where_;
};

}  // namespace

int parse_byte_piece(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const size_t high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  return high < 16 && low < 16 ? static_cast<int>(high * 16 + low) : -1;
}

SentencePieceFile read_sentencepiece_file(std::string_view model, const std::string& where) {
  return Reader(where).model(model);
}

}  // namespace metroplex::text
