// What the sentencepiece library takes on trust in a model file and would crash on: the protobuf's framing, the
// pieces, and the double-array trie of the character map, whose offsets it follows unchecked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/unigram.h"

namespace metroplex::text {

struct SentencePieceFacts {
  bool unigram = true;
  std::vector<Piece> pieces;  // point into the file
};

// Throws base::Error "<where> ...".
SentencePieceFacts check_sentencepiece_model(std::string_view model, const std::string& where);

}  // namespace metroplex::text
