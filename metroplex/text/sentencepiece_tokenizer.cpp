#include "text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>
#include <unordered_map>

#include <sentencepiece_processor.h>

#include "base/error.h"
#include "text/sentencepiece_check.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr const char* kSpaceMark = "\xE2\x96\x81";

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// The library joins any two neighbours whose joint spelling is a piece, the best score first: merge rules, one for
// every way to cut a piece in two, all of a piece with its rank. Null for models where more is to it.
std::unique_ptr<BpeModel> make_bpe(const std::vector<Piece>& pieces) {
  std::unordered_map<std::string_view, float> normal;
  std::set<float, std::greater<>> scores;
  int num_bytes = 0;
  BpeSpec spec;
  for (const Piece& piece : pieces) {
    spec.vocab.emplace_back(piece.text, static_cast<int32_t>(spec.vocab.size()));
    num_bytes += piece.type == PieceType::byte;
    if (piece.type == PieceType::user_defined || piece.type == PieceType::unused) return nullptr;
    if (piece.type != PieceType::normal && num_characters(piece.text) < 2) return nullptr;
    if (piece.type != PieceType::normal) continue;
    normal.emplace(piece.text, piece.score);
    scores.insert(piece.score);
  }
  if (num_bytes != 256) return nullptr;
  std::unordered_map<float, uint32_t> ranks;
  for (const float score : scores) ranks.emplace(score, static_cast<uint32_t>(ranks.size()));
  for (const auto& [text, score] : normal) {
    for (size_t cut = 0; cut < text.size();) {
      const size_t begin = cut;
      cut += code_point_size(static_cast<unsigned char>(text[cut]));
      if (!normal.contains(text.substr(begin, cut - begin))) return nullptr;  // a character that is no piece
      const std::string_view left = text.substr(0, cut), right = text.substr(cut);
      if (right.empty() || !normal.contains(left) || !normal.contains(right)) continue;
      spec.merges.emplace_back(left, right);
      spec.merge_ranks.push_back(ranks.at(score));
    }
  }
  spec.byte_fallback = true;
  return std::make_unique<BpeModel>(spec);
}

// Of a byte piece; -1 for any other. Spelled in the text itself, "<0x41>" is cut into other pieces.
int byte_of_piece(const sentencepiece::SentencePieceProcessor& processor, const std::string& piece) {
  if (piece.size() != 6 || piece[0] != '<' || !processor.IsByte(processor.PieceToId(piece))) return -1;
  return static_cast<int>(std::strtoul(piece.substr(3, 2).c_str(), nullptr, 16));
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view model, const std::string& where,
                                               InvalidUtf8 invalid_utf8)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()), invalid_utf8_(invalid_utf8) {
  const SentencePieceFacts facts = check_sentencepiece_model(model, where);
  try {
    const auto status = processor_->LoadFromSerializedProto(absl::string_view(model.data(), model.size()));
    MPX_CHECK(status.ok(), "text", where, " is not a usable sentencepiece model: ", status.ToString());
  } catch (const base::Error&) { throw; } catch (const std::exception& error) {
    base::throw_error("text", where + " is not a usable sentencepiece model: " + error.what());
  }
  vocab_size_ = processor_->GetPieceSize();
  plain_spaces_ = !facts.character_map && !facts.remove_extra_spaces && facts.escape_spaces && !facts.space_as_suffix;
  dummy_prefix_ = facts.dummy_prefix;
  if (facts.model_type == SentencePieceFacts::kUnigram) {
    unigram_ = std::make_unique<UnigramModel>(facts.pieces);
  } else if (facts.model_type == SentencePieceFacts::kBpe && plain_spaces_) {
    bpe_ = make_bpe(facts.pieces);
  }
  const auto known = [&](int id) { return id >= 0 && id < vocab_size_ ? std::optional<int32_t>(id) : std::nullopt; };
  bos_ = known(processor_->bos_id());
  eos_ = known(processor_->eos_id());
  pad_ = known(processor_->pad_id());
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  const size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) {
    MPX_CHECK(invalid_utf8_ == InvalidUtf8::replace, "text", "the text is not UTF-8 at byte ", valid, " of ",
              text.size(), "; convert it, or ask for invalid UTF-8 to be replaced by U+FFFD");
  }
  if (plain_spaces_ && (unigram_ || bpe_) && valid == text.size()) return encode_plain(text);
  const absl::string_view view(text.data(), text.size());
  if (!unigram_) {
    std::vector<int> ids;
    const auto status = processor_->Encode(view, &ids);
    MPX_CHECK(status.ok(), "text", "sentencepiece cannot encode the text: ", status.ToString());
    return ids;
  }
  // The library normalizes, and spells the normalized text in its pieces.
  std::vector<std::string> pieces;
  const auto status = processor_->Encode(view, &pieces);
  MPX_CHECK(status.ok(), "text", "sentencepiece cannot encode the text: ", status.ToString());
  std::string normalized;
  for (const std::string& piece : pieces) {
    const int byte = byte_of_piece(*processor_, piece);
    if (byte >= 0) {
      normalized += static_cast<char>(byte);
    } else {
      normalized += piece;
    }
  }
  std::vector<int32_t> ids;
  unigram_->encode(normalized, ids);
  return ids;
}

std::vector<int32_t> SentencePieceTokenizer::encode_plain(std::string_view text) const {
  std::string marked;
  if (!text.empty() && dummy_prefix_) marked = kSpaceMark;
  for (size_t done = 0; done < text.size();) {
    const size_t space = std::min(text.find(' ', done), text.size());
    marked.append(text.substr(done, space - done));
    if (space < text.size()) marked += kSpaceMark;
    done = space + 1;
  }
  std::vector<int32_t> ids;
  if (unigram_) {
    unigram_->encode(marked, ids);
  } else {
    ScratchPool<BpeScratch>::Lease scratch(*pool_);
    bpe_->encode(marked, *scratch, ids);
  }
  return ids;
}

std::vector<int32_t> SentencePieceTokenizer::encode_with_special(std::string_view text) const {
  std::vector<int32_t> ids = encode(text);
  if (bos_) ids.insert(ids.begin(), *bos_);
  if (eos_) ids.push_back(*eos_);
  return ids;
}

std::string SentencePieceTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::vector<int> known;
  known.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size_) known.push_back(id);
  }
  std::string out;
  const auto status = processor_->Decode(known, &out);
  MPX_CHECK(status.ok(), "text", "sentencepiece cannot decode the ids: ", status.ToString());
  return valid_utf8_prefix(out) == out.size() ? out : replace_invalid_utf8(out);
}

std::string SentencePieceTokenizer::id_to_token(int32_t id) const {
  return id >= 0 && id < vocab_size_ ? processor_->IdToPiece(id) : "";
}

std::optional<int32_t> SentencePieceTokenizer::token_to_id(std::string_view token) const {
  const int id = processor_->PieceToId(absl::string_view(token.data(), token.size()));
  if (id_to_token(id) != token) return std::nullopt;  // unknown pieces come back as the unknown id
  return id;
}

}  // namespace metroplex::text
