#include "text/sentencepiece_tokenizer.h"

#include <algorithm>

#include <sentencepiece_processor.h>

#include "base/error.h"
#include "files/json_text.h"
#include "text/bpe_model.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

std::vector<std::string_view> user_defined(const std::vector<Piece>& pieces) {
  std::vector<std::string_view> texts;
  for (const Piece& piece : pieces) {
    if (piece.type == PieceType::user_defined) texts.push_back(piece.text);
  }
  return texts;
}

// Appends `bytes`; U+FFFD replaces every byte that is not part of valid UTF-8.
void append_bytes(std::string_view bytes, std::string& out) {
  for (size_t at = 0; at < bytes.size();) {
    const std::string_view rest = bytes.substr(at);
    const size_t valid = valid_utf8_prefix(rest);
    out.append(rest.substr(0, valid));
    if (valid < rest.size()) out += "\xEF\xBF\xBD";
    at += valid + (valid < rest.size() ? 1 : 0);
  }
}

void append_with_spaces(std::string_view piece, std::string& out) {
  for (size_t mark; (mark = piece.find(kSpaceMark)) != std::string_view::npos;) {
    out.append(piece.substr(0, mark)) += ' ';
    piece.remove_prefix(mark + kSpaceMark.size());
  }
  out.append(piece);
}

}  // namespace

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view model, const std::string& where,
                                               const SpecialNames& names, InvalidUtf8 invalid_utf8)
    : SentencePieceTokenizer(read_sentencepiece_file(model, where), names, invalid_utf8) {
  if (!model_) load_library(model, where);
}

SentencePieceTokenizer::SentencePieceTokenizer(const SentencePieceFile& file, const SpecialNames& names,
                                               InvalidUtf8 invalid_utf8)
    : model_(make_piece_model(file)),
      normalizer_(file.normalizer, file.space_as_suffix, user_defined(file.pieces)),
      unknown_text_(file.unknown_text),
      drop_first_space_(file.normalizer.dummy_prefix || file.normalizer.remove_extra_spaces),
      drop_leading_spaces_(file.normalizer.remove_extra_spaces),
      byte_fallback_(file.byte_fallback),
      invalid_utf8_(invalid_utf8) {
  for (const Piece& piece : file.pieces) pieces_.push_back({std::string(piece.text), piece.type});
  add_tokens(names);
  // If two pieces have the same spelling, token_to_id returns the piece that encode() never produces.
  for (const bool in_text : {false, true}) {
    for (size_t id = 0; id < pieces_.size(); ++id) {
      const PieceType type = pieces_[id].type;
      const bool is_in_text =
          type == PieceType::normal || type == PieceType::user_defined || type == PieceType::unused;
      if (is_in_text == in_text && !pieces_[id].text.empty())
        ids_.emplace(pieces_[id].text, static_cast<int32_t>(id));
    }
  }
  if (!file.denormalizer.character_map.units.empty()) {
    denormalizer_.emplace(file.denormalizer, false, std::vector<std::string_view>{});
  }
  for (size_t id = 0; id < pieces_.size(); ++id) {
    if (pieces_[id].type == PieceType::unknown) unknown_ = static_cast<int32_t>(id);
  }
  find_special_ids(file, names);
}

void SentencePieceTokenizer::add_tokens(const SpecialNames& names) {
  for (size_t id = 0; id < pieces_.size(); ++id) {
    const PieceType type = pieces_[id].type;
    if (type == PieceType::control || type == PieceType::unknown)
      marks_.add({static_cast<int32_t>(id), pieces_[id].text}, pieces_[id].text);
  }
  for (const AddedToken& token : names.added) {
    const auto id = static_cast<size_t>(token.id);
    if (token.content.empty()) continue;
    if (id >= pieces_.size()) pieces_.resize(id + 1, {"", PieceType::unused});
    OwnPiece& piece = pieces_[id];
    if (piece.text.empty()) piece = {token.content, PieceType::user_defined, token.special};
    MPX_CHECK(piece.text == token.content, "text", names.added_where, ": '", files::printable(token.content),
              "' = ", token.id, ": this id belongs to '", files::printable(piece.text),
              "'; use another id for the token");
    if (piece.type == PieceType::control || piece.type == PieceType::unknown) continue;
    added_.add(token, token.content);
    marks_.add(token, token.content);
  }
  for (AddedToken token : names.special) {
    const auto same = [&](const OwnPiece& piece) { return piece.text == token.content; };
    if (std::any_of(pieces_.begin(), pieces_.end(), same)) continue;
    token.id = static_cast<int32_t>(pieces_.size());
    pieces_.push_back({token.content, PieceType::user_defined, true});
    added_.add(token, token.content);
    marks_.add(token, token.content);
  }
}

void SentencePieceTokenizer::find_special_ids(const SentencePieceFile& file, const SpecialNames& names) {
  const auto control = [&](std::string_view name) {
    const auto id = token_to_id(name);
    return id && pieces_[static_cast<size_t>(*id)].type == PieceType::control ? id : std::nullopt;
  };
  const auto named = [&](const std::optional<std::string>& name, std::string_view piece) {
    const auto id = name ? token_to_id(*name) : std::nullopt;
    return id ? id : control(piece);
  };
  bos_ = named(names.bos, file.bos_piece);
  eos_ = named(names.eos, file.eos_piece);
  pad_ = named(names.pad, file.pad_piece);
  if (bos_ && names.add_bos.value_or(false)) special_.before = {*bos_};
  if (eos_ && names.add_eos.value_or(false)) special_.after = {*eos_};
}

void SentencePieceTokenizer::load_library(std::string_view model, const std::string& where) {
  library_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
  try {
    const auto status = library_->LoadFromSerializedProto(absl::string_view(model.data(), model.size()));
    MPX_CHECK(status.ok(), "text", where, " is not a usable sentencepiece model: ", status.ToString());
  } catch (const base::Error&) { throw; } catch (const std::exception& error) {
    base::throw_error("text", where + " is not a usable sentencepiece model: " + error.what());
  }
}

void SentencePieceTokenizer::check_utf8(std::string_view text) const {
  const size_t valid = valid_utf8_prefix(text);
  MPX_CHECK(valid == text.size(), "text", "the text is not UTF-8 at byte ", valid, " of ", text.size(),
            "; convert it, or replace invalid UTF-8 with U+FFFD");
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  if (invalid_utf8_ == InvalidUtf8::error) check_utf8(text);
  if (!added_.empty()) {
    std::string valid;
    append_bytes(text, valid);
    return encode_around(added_, valid).ids;
  }
  if (model_) return model_->encode(normalizer_.apply(text), nullptr);
  return resolve_unused(encode_by_library(text)).ids;
}

LocatedIds SentencePieceTokenizer::encode_with_ranges(std::string_view text) const {
  check_utf8(text);
  return encode_around(added_, text);
}

LocatedIds SentencePieceTokenizer::encode_chat(std::string_view text) const {
  check_utf8(text);
  return encode_around(marks_, text);
}

LocatedIds SentencePieceTokenizer::encode_around(const AddedTokenFinder& finder, std::string_view text) const {
  std::vector<AddedSplit> splits;
  finder.split(text, splits);
  LocatedIds located;
  for (const AddedSplit& split : splits) {
    const auto begin = static_cast<size_t>(split.text.data() - text.data());
    const bool last = begin + split.text.size() == text.size();
    const LocatedIds part = split.id >= 0 ? LocatedIds{{split.id}, {{0, split.text.size()}}}
                                          : encode_range(split.text, {begin == 0, last});
    located.ids.insert(located.ids.end(), part.ids.begin(), part.ids.end());
    for (const TextRange& range : part.ranges) located.ranges.push_back({begin + range.begin, begin + range.end});
  }
  return located;
}

LocatedIds SentencePieceTokenizer::encode_range(std::string_view text,
                                                SentencePieceNormalizer::Position position) const {
  if (!model_) return resolve_unused(encode_by_library(text));
  LocatedIds located;
  std::vector<size_t> places;
  const std::string normalized = normalizer_.apply(text, &places, position);
  located.ids = model_->encode(normalized, &located.ranges);
  for (TextRange& range : located.ranges) range = {places[range.begin], places[range.end]};
  return located;
}

LocatedIds SentencePieceTokenizer::encode_by_library(std::string_view text) const {
  LocatedIds found;
  const auto encoded = library_->EncodeAsImmutableProto(absl::string_view(text.data(), text.size()));
  for (const auto& piece : encoded.pieces()) {
    found.ids.push_back(static_cast<int32_t>(piece.id()));
    found.ranges.push_back({piece.begin(), piece.end()});
  }
  return found;
}

// Older libraries return an unused piece of one character; release 0.2.3 returns the unknown id.
LocatedIds SentencePieceTokenizer::resolve_unused(const LocatedIds& found) const {
  LocatedIds resolved;
  bool after_unknown = false;
  for (size_t i = 0; i < found.ids.size(); ++i) {
    const int32_t id = found.ids[i];
    const OwnPiece& piece = pieces_.at(static_cast<size_t>(id));
    const bool unknown = piece.type == PieceType::unknown || piece.type == PieceType::unused;
    const auto push = [&](int32_t one) {
      resolved.ids.push_back(one);
      resolved.ranges.push_back(found.ranges[i]);
    };
    if (unknown && byte_fallback_) {
      for (const char c : piece.text) push(ids_.at(byte_piece(static_cast<unsigned char>(c))));
    } else if (!unknown) {
      push(id);
    } else if (after_unknown) {
      resolved.ranges.back().end = found.ranges[i].end;
    } else {
      push(*unknown_);
    }
    after_unknown = unknown;
  }
  return resolved;
}

bool SentencePieceTokenizer::is_special(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return false;
  const OwnPiece& piece = pieces_[static_cast<size_t>(id)];
  return piece.added_special || piece.type == PieceType::control;
}

std::string SentencePieceTokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string out, bytes;
  bool at_start = true;
  const auto flush = [&] {
    append_bytes(bytes, out);
    bytes.clear();
  };
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    const OwnPiece& piece = pieces_[static_cast<size_t>(id)];
    if (piece.type == PieceType::byte) {
      bytes += static_cast<char>(parse_byte_piece(piece.text));
      continue;
    }
    flush();
    if (piece.type == PieceType::control || (skip_special && piece.added_special)) continue;
    at_start = at_start && out.empty();
    std::string_view text = piece.text;
    if (at_start && drop_first_space_ && text.substr(0, kSpaceMark.size()) == kSpaceMark) {
      text.remove_prefix(kSpaceMark.size());
      at_start = drop_leading_spaces_;
    }
    if (piece.type == PieceType::unknown) {
      out += unknown_text_;
    } else {
      append_with_spaces(text, out);
    }
  }
  flush();
  return denormalizer_ ? denormalizer_->apply(out) : out;
}

std::string SentencePieceTokenizer::id_to_token(int32_t id) const {
  return id >= 0 && id < vocab_size() ? pieces_[static_cast<size_t>(id)].text : "";
}

std::optional<int32_t> SentencePieceTokenizer::token_to_id(std::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace metroplex::text
