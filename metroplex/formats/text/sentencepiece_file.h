// Parses the protobuf of a tokenizer.model. Validates every number: framing, pieces, and the double-array trie of
// the character map, whose offsets could be out of bounds.
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

// A trie in the format of Darts-clone. Its values are offsets into `replacements`, whose strings end with NUL. The
// parser has validated all paths and values.
struct CharacterMap {
  std::vector<uint32_t> units;  // empty: characters stay unchanged
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
  NormalizerSpec denormalizer;                       // used only if it has a character map
  std::string_view unknown_text = " \xE2\x81\x87 ";  // decoded text of the unknown piece
  std::string_view bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
};

// Throws base::Error "<where> ...".
SentencePieceFile read_sentencepiece_file(std::string_view model, const std::string& where);

// Returns the byte of a byte piece, "<0x41>"; -1 for any other spelling.
int parse_byte_piece(std::string_view text);

}  // namespace metroplex::text
