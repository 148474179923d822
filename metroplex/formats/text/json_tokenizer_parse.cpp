#include "text/json_tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "files/json_text.h"
#include "text/tokenizer_class.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

using Json = nlohmann::json;

std::vector<std::pair<std::string, int32_t>> parse_vocab(const JsonPart& part) {
  part.check(part.value().is_object(), "is ", files::shortened(part.value()), ", not an object of token: id");
  std::vector<std::pair<std::string, int32_t>> vocab;
  vocab.reserve(part.value().size());
  for (const auto& [token, id] : part.value().items()) {
    const bool good = id.is_number_unsigned() && id.get<uint64_t>() <= uint64_t(kMaxTokenId);
    part.check(good, "the id of '", files::printable(token), "' is ", files::shortened(id),
               ", not a whole number in [0, ", kMaxTokenId, "]");
    vocab.emplace_back(token, id.get<int32_t>());
  }
  return vocab;
}

std::pair<std::string, std::string> split_merge(const std::string& line, const std::string& where) {
  const size_t space = line.find(' ');
  const bool two = space != std::string::npos && line.find(' ', space + 1) == std::string::npos;
  MPX_CHECK(two, "text", where, ": '", files::printable(line), "' is not two tokens separated by one space");
  return {line.substr(0, space), line.substr(space + 1)};
}

std::vector<std::pair<std::string, std::string>> parse_merges(const JsonPart& part) {
  std::vector<std::pair<std::string, std::string>> merges;
  part.check(part.value().is_array(), "is ", files::shortened(part.value()), ", not a list of pairs");
  merges.reserve(part.value().size());
  for (const Json& item : part.value()) {
    if (item.is_string()) {
      merges.push_back(
          split_merge(item.get<std::string>(), part.where() + "[" + std::to_string(merges.size()) + "]"));
      continue;
    }
    const bool pair = item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string();
    part.check(pair, "entry ", merges.size(), " is ", files::shortened(item), ", not two tokens");
    merges.emplace_back(item[0].get<std::string>(), item[1].get<std::string>());
  }
  return merges;
}

BpeSpec parse_model(const JsonPart& model, bool byte_level) {
  model.check(model.value().is_object(), "is missing");
  const std::string type = model.string("type", "BPE");
  model.check(type == "BPE", "model '", type,
              "' is not supported; use BPE, or for a unigram model its tokenizer.model with type sentencepiece");
  model.check(model.string("continuing_subword_prefix", "").empty() && model.string("end_of_word_suffix", "").empty(),
              "continuing_subword_prefix and end_of_word_suffix are not supported");
  const JsonPart dropout = model.member("dropout");
  dropout.check(dropout.is_null() || dropout.value() == 0, "is ", files::shortened(dropout.value()),
                "; random encoding is not supported; set it to null");
  BpeSpec spec;
  spec.vocab = parse_vocab(model.member("vocab"));
  spec.merges = parse_merges(model.member("merges"));
  if (model.has("unk_token")) spec.unk_token = model.string("unk_token");
  spec.byte_level = byte_level;
  spec.byte_fallback = model.flag("byte_fallback", false);
  spec.fuse_unk = model.flag("fuse_unk", false);
  spec.ignore_merges = model.flag("ignore_merges", false);
  return spec;
}

std::vector<AddedToken> parse_added(const JsonPart& part, const BpeModel& model) {
  std::vector<AddedToken> added;
  if (part.is_null()) return added;
  std::unordered_set<int32_t> seen_ids;
  std::unordered_set<std::string> seen;
  for (const JsonPart& item : part.items()) {
    AddedToken token;
    token.id = static_cast<int32_t>(item.integer("id", 0, kMaxTokenId));
    token.content = item.string("content");
    token.single_word = item.flag("single_word", false);
    token.lstrip = item.flag("lstrip", false);
    token.rstrip = item.flag("rstrip", false);
    token.special = item.flag("special", false);
    token.normalized = item.flag("normalized", !token.special);
    if (token.content.empty() || !seen.insert(token.content).second) continue;
    item.check(seen_ids.insert(token.id).second, "id ", token.id, " belongs to two tokens");
    const auto known = model.id(token.content);
    item.check(!known || *known == token.id, "'", files::printable(token.content), "' has id ", token.id,
               " here and ", known.value_or(-1), " in the vocabulary");
    const std::string* other = model.token(token.id);
    item.check(known || !other, "id ", token.id, " of '", files::printable(token.content), "' belongs to '",
               files::printable(other ? *other : ""), "' in the vocabulary");
    added.push_back(std::move(token));
  }
  return added;
}

void parse_template(const JsonPart& part, std::vector<int32_t>& around) {
  const JsonPart specials = part.member("special_tokens");
  around.clear();
  for (const JsonPart& item : part.member("single").items()) {
    if (item.has("Sequence")) {
      around.push_back(JsonTokenizerParts::kText);
      continue;
    }
    const std::string name = item.member("SpecialToken").string("id");
    for (const JsonPart& id : specials.member(name.c_str()).member("ids").items()) {
      const bool good = id.value().is_number_unsigned() && id.value().get<uint64_t>() <= uint64_t(kMaxTokenId);
      id.check(good, "is ", files::shortened(id.value()), ", not an id");
      around.push_back(id.value().get<int32_t>());
    }
  }
  part.check(std::count(around.begin(), around.end(), JsonTokenizerParts::kText) == 1,
             "single must contain the text exactly once");
}

int32_t second_segment(const JsonPart& part) {
  const bool good = part.value().is_array() && part.value().size() == 2 && part.value()[1].is_number_unsigned() &&
                    part.value()[1].get<uint64_t>() <= uint64_t(kMaxTokenId);
  part.check(good, "is ", files::shortened(part.value()), ", not a token and its id");
  return part.value()[1].get<int32_t>();
}

// Sets `parts.around` from the only processor that adds ids. Two such processors are not supported.
void parse_post_processor(const JsonPart& part, JsonTokenizerParts& parts, int depth) {
  if (part.is_null()) return;
  part.check(depth <= kMaxSequenceDepth, "Sequence is nested more than ", kMaxSequenceDepth, " levels deep");
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& item : part.member("processors").items()) parse_post_processor(item, parts, depth + 1);
    return;
  }
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    parts.trims_ranges = part.flag("trim_offsets", true);
    parts.keeps_first_space = part.flag("add_prefix_space", true);
  }
  if (type == "ByteLevel") return;
  std::vector<int32_t>& around = parts.around;
  part.check(around.size() == 1, "a second post-processor that adds tokens is not supported");
  if (type == "TemplateProcessing") {
    parse_template(part, around);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    around = {second_segment(part.member("cls")), JsonTokenizerParts::kText, second_segment(part.member("sep"))};
  } else {
    part.check(false, "post-processor '", type, "' is not supported");
  }
}

std::vector<std::pair<std::string, std::string>> parse_merge_lines(std::string_view merges,
                                                                   const std::string& where) {
  std::vector<std::pair<std::string, std::string>> out;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < merges.size();) {
    const size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string line(merges.substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.rfind("#version", 0) == 0) continue;
    if (line.empty() && begin >= merges.size()) break;
    out.push_back(split_merge(line, where + " line " + std::to_string(line_number)));
  }
  return out;
}

// Adds the file name to errors of lower modules.
template <class Make>
auto in_file(const std::string& where, Make make) {
  try {
    return make();
  } catch (const base::Error& error) {
    const std::string message = error.what();
    if (message.find(where) != std::string::npos) throw;
    const size_t room = message.find("] ");
    base::throw_error("text", where + ": " + (room == std::string::npos ? message : message.substr(room + 2)));
  }
}

// `next_id` is the id that transformers assigns to the next token missing from the vocabulary, even if the file
// has another id.
void check_added_id(const JsonTokenizerParts& parts, const SpecialNames& names, const AddedToken& token,
                    int64_t next_id) {
  if (parts.model.id(token.content)) return;
  const std::string* other = parts.model.token(token.id);
  for (const AddedToken& earlier : parts.added) {
    if (earlier.id == token.id) other = &earlier.content;
  }
  MPX_CHECK(!other, "text", names.added_where, ": '", files::printable(token.content), "' = ", token.id,
            ": this id belongs to '", files::printable(other ? *other : ""), "'; use another id for the token");
  MPX_CHECK(token.id == next_id, "text", names.added_where, ": '", files::printable(token.content), "' = ", token.id,
            ": ids of added tokens must follow the vocabulary without a gap; use the id ", next_id,
            " or add tokens for the ids in between");
}

}  // namespace

JsonTokenizerParts parse_tokenizer_json(std::string_view json_text, const std::string& where,
                                        const SpecialNames& names) {
  return in_file(where, [&] {
    Json json = files::parse_json_strictly(json_text, where);
    apply_tokenizer_class(names, json);
    const JsonPart file(json, where);
    file.check(json.is_object(), "is not a JSON object");
    PreTokenizer pretokenizer(file.member("pre_tokenizer"));
    const bool byte_level = pretokenizer.byte_level();
    JsonTokenizerParts parts{Normalizer(file.member("normalizer")),
                             std::move(pretokenizer),
                             Decoder(file.member("decoder")),
                             BpeModel(parse_model(file.member("model"), byte_level)),
                             {},
                             {JsonTokenizerParts::kText}};
    parts.added = parse_added(file.member("added_tokens"), parts.model);
    parse_post_processor(file.member("post_processor"), parts, 0);
    return parts;
  });
}

void add_tokens(JsonTokenizerParts& parts, const SpecialNames& names) {
  int64_t next_id = parts.model.num_ids();
  std::unordered_map<std::string, size_t> known;
  const auto note = [&](size_t i) {
    known.emplace(parts.added[i].content, i);
    next_id = std::max<int64_t>(next_id, int64_t{parts.added[i].id} + 1);
  };
  for (size_t i = 0; i < parts.added.size(); ++i) note(i);
  const auto add = [&](AddedToken token) {
    parts.added.push_back(std::move(token));
    note(parts.added.size() - 1);
  };
  for (AddedToken token : names.added) {
    if (token.content.empty()) continue;
    if (const auto found = known.find(token.content); found != known.end()) {
      token.id = parts.added[found->second].id;
      if (names.has_added_decoder) parts.added[found->second] = std::move(token);
      continue;
    }
    check_added_id(parts, names, token, next_id);
    token.id = parts.model.id(token.content).value_or(token.id);
    add(std::move(token));
  }
  for (AddedToken token : names.special) {
    if (known.contains(token.content)) continue;
    token.id = parts.model.id(token.content).value_or(static_cast<int32_t>(next_id));
    add(std::move(token));
  }
}

JsonTokenizerParts parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges,
                                          const std::string& where, const SpecialNames& names) {
  return in_file(where, [&] {
    const Json json = files::parse_json_strictly(vocab_json, where);
    BpeSpec spec;
    spec.vocab = parse_vocab(JsonPart(json, where));
    spec.merges = parse_merge_lines(merges, where);
    spec.byte_level = true;
    const Json nothing;
    JsonTokenizerParts parts{Normalizer(JsonPart(nothing, where)),
                             PreTokenizer::gpt2(names.add_prefix_space.value_or(false)),
                             Decoder::byte_level(),
                             BpeModel(spec),
                             {},
                             {JsonTokenizerParts::kText}};
    SpecialNames named = names;
    if (!names.eos) {
      AddedToken end;
      end.content = "<|endoftext|>";
      end.special = true;
      named.special.insert(named.special.begin() + (names.bos ? 1 : 0), end);
    }
    add_tokens(parts, named);
    const auto id_of = [&](const std::optional<std::string>& name) {
      const auto same = [&](const AddedToken& token) { return token.content == name.value_or("<|endoftext|>"); };
      const auto found = std::find_if(parts.added.begin(), parts.added.end(), same);
      return found == parts.added.end() ? std::vector<int32_t>{} : std::vector<int32_t>{found->id};
    };
    if (names.add_bos.value_or(false)) parts.around = id_of(names.bos);
    if (parts.around.empty() || parts.around.back() != JsonTokenizerParts::kText)
      parts.around.push_back(JsonTokenizerParts::kText);
    if (names.add_eos.value_or(false))
      for (const int32_t id : id_of(names.eos)) parts.around.push_back(id);
    return parts;
  });
}

}  // namespace metroplex::text
