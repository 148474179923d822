// Renders chats with the chat template of a model directory (chat_template.jinja, or chat_template in
// tokenizer_config.json, as in transformers) and its special tokens. Also computes the ranges of the text, and the
// tokens, that fine-tuning learns: the assistant's output.
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

// Bytes [begin, end) of a text.
using LearnedRange = std::pair<size_t, size_t>;

struct ChatText {
  std::string text;
  std::vector<LearnedRange> learned;  // the assistant's output, in order
  size_t num_messages = 0;            // the text contains the first num_messages messages of the chat
};

// all: every assistant turn. last: only the last message. each: every turn, each in its own text that ends with it.
enum class Learned { all, last, each };

class ChatTemplate {
 public:
  // `where` names the source in error messages. Throws base::Error for an invalid template.
  ChatTemplate(std::string_view source, std::string where, const SpecialNames& names);
  // Adds the template for chats with tools, including an empty list ("tool_use" among several templates).
  void set_tool_use(std::string_view source, std::string where);
  // Sets a variable for every rendering.
  void set_variable(const std::string& name, const nlohmann::ordered_json& value);
  void set_variable(const std::string& assignment);  // "name=value"; a value that is not JSON is a string

  // Throws base::Error if the template rejects the chat, or reads a value that the chat lacks.
  std::string text(const Chat& chat, bool add_generation_prompt) const;

  // Returns the whole chat and its learned ranges: the {% generation %} blocks. For a template without such blocks,
  // each assistant turn is the text after its common prefix with the generation prompt. The chat is rendered up to
  // that turn to find it.
  // Messages in Chat::not_learned are excluded. Throws base::Error if the template rewrites earlier turns, so that no
  // range corresponds to the turn.
  // With Learned::each, returns one text per learned turn. It has the messages up to the turn, and only this turn is
  // learned. A chat without learned turns is one text. If the turn changes the text of earlier messages, these are
  // rendered without the turn, as the model sees them.
  std::vector<ChatText> learned_texts(const Chat& chat, Learned learned) const;

  // The source of the template, or of both templates.
  const std::string& source() const { return source_; }
  // Whether `name` occurs in the source as a whole word.
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
  // These functions use the first `count` messages of the chat.
  ChatText learned_until(const Chat& chat, size_t count, Learned learned) const;
  std::vector<LearnedRange> ranges_by_prefixes(const Chat& chat, size_t count, std::string& text,
                                               Learned learned) const;
  std::vector<LearnedRange> generated_ranges(const Chat& chat, size_t count, const jinja::Rendered& whole,
                                             bool only_last) const;
  std::optional<LearnedRange> turn_range(const Chat& chat, size_t turn, std::string until,
                                         const std::string& whole) const;
  std::optional<LearnedRange> take_prompt(const Chat& chat, size_t turn, std::string& text) const;

  std::string source_;
  Variant main_;
  std::optional<Variant> tool_use_;
  jinja::Dict variables_;
};

// Finds the template of a tokenizer folder as transformers does. It is chat_template.jinja with
// additional_chat_templates/tool_use.jinja, else chat_template of tokenizer_config.json (one template or a named
// list). Returns nullopt if there is none. Throws base::Error for an unreadable file.
std::optional<ChatTemplate> find_chat_template(const std::string& folder);
// Reads a template from its own file. Special tokens such as bos_token come from `folder` unless it is empty.
ChatTemplate read_chat_template(const std::string& file, const std::string& folder);

// learned_texts() of a chat with tool calls. String arguments are parsed as JSON objects if the template writes them
// in quotes or rejects the chat.
std::vector<ChatText> read_learned_texts(const ChatTemplate& chat_template, Chat& chat, Learned learned);

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;   // 1: the token overlaps a learned range, as in transformers
  std::vector<TextRange> ranges;  // in the chat's text; empty if no text is learned
};

ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat);

}  // namespace metroplex::text
