#include "text/sentencepiece_tokenizer.h"

#include <cstdlib>

#include <sentencepiece_processor.h>

#include "base/error.h"
#include "text/sentencepiece_check.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

// Of a byte piece; -1 for any other. Spelled in the text itself, "<0x41>" is cut into other pieces.
int byte_of_piece(const sentencepiece::SentencePieceProcessor& processor, const std::string& piece) {
  if (piece.size() != 6 || piece[0] != '<' || !processor.IsByte(processor.PieceToId(piece))) return -1;
  return static_cast<int>(std::strtoul(piece.substr(3, 2).c_str(), nullptr, 16));
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view model, const std::string& where, InvalidUtf8 invalid_utf8)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()), invalid_utf8_(invalid_utf8) {
  const SentencePieceFacts facts = check_sentencepiece_model(model, where);
  try {
    const auto status = processor_->LoadFromSerializedProto(absl::string_view(model.data(), model.size()));
    MPX_CHECK(status.ok(), "text", where, " is not a usable sentencepiece model: ", status.ToString());
  } catch (const base::Error&) {
    throw;
  } catch (const std::exception& error) {
    base::throw_error("text", where + " is not a usable sentencepiece model: " + error.what());
  }
  vocab_size_ = processor_->GetPieceSize();
  if (facts.unigram) unigram_ = std::make_unique<UnigramModel>(facts.pieces);
  const auto known = [&](int id) {
    return id >= 0 && id < vocab_size_ ? std::optional<int32_t>(id) : std::nullopt;
  };
  bos_ = known(processor_->bos_id());
  eos_ = known(processor_->eos_id());
  pad_ = known(processor_->pad_id());
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  if (invalid_utf8_ == InvalidUtf8::error) {
    const size_t valid = valid_utf8_prefix(text);
    MPX_CHECK(valid == text.size(), "text", "the text is not UTF-8 at byte ", valid, " of ", text.size(),
              "; convert it, or ask for invalid UTF-8 to be replaced by U+FFFD");
  }
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
