// What the sentencepiece library takes on trust in a model file and would crash on: the protobuf's framing, the
// pieces, and the double-array trie of the character map, whose offsets it follows unchecked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/unigram.h"

namespace metroplex::text {

struct SentencePieceFacts {
  enum ModelType { kUnigram = 1, kBpe = 2 };  // words and characters, 3 and 4, are left to the library
  uint64_t model_type = kUnigram;
  std::vector<Piece> pieces;  // point into the file
  // How text is normalized before it is cut into pieces.
  bool character_map = false;
  bool dummy_prefix = true;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;
  bool space_as_suffix = false;
};

// Throws base::Error "<where> ...".
SentencePieceFacts check_sentencepiece_model(std::string_view model, const std::string& where);

}  // namespace metroplex::text
