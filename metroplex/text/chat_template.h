// A chat as the text that a model was taught: the chat template of a directory (chat_template.jinja, or chat_template
// in tokenizer_config.json, as transformers chooses), rendered with its special tokens. And which of the text, and
// which tokens, an assistant says: what fine-tuning learns from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/chat.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_files.h"

namespace metroplex::text {

// Of a text: bytes [begin, end).
using LearnedRange = std::pair<size_t, size_t>;

struct ChatText {
  std::string text;
  std::vector<LearnedRange> learned;  // what the assistant says, in order
  size_t num_messages = 0;            // the text holds this many messages of the chat, from the first
};

// Every turn of the assistant; only the last message; every turn, each in a text that ends with it.
enum class Learned { all, last, each };

class ChatTemplate {
 public:
  // `where` names the source in messages. Throws base::Error.
  ChatTemplate(std::string_view source, std::string where, const SpecialNames& names);
  // Adds the template of chats that have tools, even an empty list ("tool_use" among several templates).
  void set_tool_use(std::string_view source, std::string where);
  // Variables that every rendering sees, by name.
  void set_variable(const std::string& name, const nlohmann::ordered_json& value);
  void set_variable(const std::string& assignment);  // "name=value": JSON, or else a text

  // Throws base::Error: what the template refuses, or does not find in the chat.
  std::string text(const Chat& chat, bool add_generation_prompt) const;

  // The whole chat and its learned ranges: the {% generation %} blocks; for a template without them, the text that
  // each turn of the assistant adds after its common prefix with the generation prompt, found by rendering the chat
  // up to there. Ranges of messages in Chat::not_learned are left out. Throws base::Error if the template rewrites
  // earlier turns, so that no range is the turn's. With Learned::each one text for every learned turn: the messages
  // up to it, in which only this turn is learned; a chat without learned turns is one text. If the turn changes the
  // text of the messages before it, these are written as the model sees them, without the turn.
  std::vector<ChatText> learned_texts(const Chat& chat, Learned learned) const;

  // The source of the template, or of both.
  const std::string& source() const { return source_; }
  // Whether the name occurs in the source as a word.
  bool mentions(std::string_view name) const;

 private:
  struct Variant {
    std::string where;
    bool has_generation = false;
    std::shared_ptr<const jinja::Template> parsed;  // copies share it
  };
  static Variant make_variant(std::string_view source, std::string where);
  const Variant& variant(const Chat& chat) const;
  jinja::Rendered render(const Chat& chat, size_t messages, bool add_generation_prompt) const;
  // These take the first `count` messages of the chat.
  ChatText learned_until(const Chat& chat, size_t count, Learned learned) const;
  std::vector<LearnedRange> ranges_by_prefixes(const Chat& chat, size_t count, std::string& text,
                                               Learned learned) const;
  std::vector<LearnedRange> generated_ranges(const Chat& chat, size_t count, const jinja::Rendered& whole,
                                             bool only_last) const;
  std::optional<LearnedRange> turn_range(const Chat& chat, size_t turn, const std::string& until) const;
  std::optional<LearnedRange> take_prompt(const Chat& chat, size_t turn, std::string& text) const;

  std::string source_;
  Variant main_;
  std::optional<Variant> tool_use_;
  jinja::Dict variables_;
};

// The template of a tokenizer's folder, as transformers finds it: chat_template.jinja with
// additional_chat_templates/tool_use.jinja, else chat_template of tokenizer_config.json, one template or a list with
// names. nullopt if there is none. Throws base::Error for a file that cannot be read.
std::optional<ChatTemplate> find_chat_template(const std::string& folder);
// Of a file of its own; bos_token and the like are those of `folder`, where it is not empty.
ChatTemplate read_chat_template(const std::string& file, const std::string& folder);

// learned_texts() of a chat whose tool calls may have a JSON text as arguments. The text is read as an object if the
// template has written it in quotes, or refuses the chat as it is.
std::vector<ChatText> read_learned_texts(const ChatTemplate& chat_template, Chat& chat, Learned learned);

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;   // 1: the token's range overlaps a learned one, as in transformers
  std::vector<TextRange> ranges;  // in the chat's text; empty if no text is learned
};

ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat);

}  // namespace metroplex::text
