// What a tokenizer.model says, read from its protobuf with every number checked: framing, pieces, and the
// double-array trie of a character map, whose offsets could lead anywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace metroplex::text {

enum class PieceType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Piece {
  std::string_view text;
  float score = 0;
  PieceType type = PieceType::normal;
};

// What characters become: a trie in the format of Darts-clone, whose values are places in `replacements`, NUL behind
// each. Paths stay inside of the array and values inside of the replacements.
struct CharacterMap {
  std::vector<uint32_t> units;  // none: characters stay as they are
  std::string_view replacements;

  static uint64_t offset(uint32_t unit) { return uint64_t(unit >> 10) << ((unit & (1u << 9)) >> 6); }
  static bool has_value(uint32_t unit) { return unit >> 8 & 1; }
  static bool has_label(uint32_t unit, unsigned char byte) { return (unit & (1u << 31 | 0xFF)) == byte; }
};

struct NormalizerSpec {
  CharacterMap character_map;
  bool dummy_prefix = true;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;
};

// Points into the file's bytes.
struct SentencePieceFile {
  enum ModelType { kUnigram = 1, kBpe = 2 };  // 3 and 4 are words and characters
  uint64_t model_type = kUnigram;
  std::vector<Piece> pieces;  // by id
  bool byte_fallback = false;
  bool space_as_suffix = false;
  NormalizerSpec normalizer;
  NormalizerSpec denormalizer;                       // acts only if it has a character map
  std::string_view unknown_text = " \xE2\x81\x87 ";  // what the unknown piece is decoded to
  std::string_view bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
};

// Throws base::Error "<where> ...".
SentencePieceFile read_sentencepiece_file(std::string_view model, const std::string& where);

// Of the spelling of a byte piece, "<0x41>"; -1 for any other.
int byte_of_piece(std::string_view text);

}  // namespace metroplex::text
