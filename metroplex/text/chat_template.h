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

#include "text/jinja/template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_files.h"

namespace metroplex::text {

struct Chat {
  nlohmann::ordered_json messages;  // [{"role", "content", ...}, ...]
  nlohmann::ordered_json tools;     // null: none
};

// From {"messages": [...]} with "tools" or not, from {"conversations": [{"from", "value"}, ...]}, or from the list
// alone. Throws base::Error naming what is missing.
Chat chat_from_json(nlohmann::ordered_json json);
Chat parse_chat(std::string_view json_text);

// Of a text: bytes [begin, end).
using LearnedRange = std::pair<size_t, size_t>;

struct ChatText {
  std::string text;
  std::vector<LearnedRange> learned;  // what the assistant says, in order
};

enum class Learned { all, last };  // every turn of the assistant, or only the last message

class ChatTemplate {
 public:
  // `where` names the source in messages. Throws base::Error.
  ChatTemplate(std::string_view source, std::string where, const SpecialNames& names);
  // With another for chats with tools ("tool_use" of a list of templates).
  void set_tool_use(std::string_view source, std::string where);
  // Variables that every rendering sees, by name.
  void set_variable(const std::string& name, const nlohmann::ordered_json& value);
  void set_variable(const std::string& assignment);  // "name=value": JSON, or else a text

  // Throws base::Error: what the template refuses, or does not find in the chat.
  std::string text(const Chat& chat, bool add_generation_prompt) const;

  // The whole chat and what is learned of it: what stands in {% generation %} blocks; of a template without them,
  // what each turn of the assistant adds behind the prompt for it, found by rendering the chat up to there. Throws
  // base::Error where the template rewrites what came before, so that no part of the text is the turn's.
  ChatText learned_text(const Chat& chat, Learned learned) const;

  const std::string& source() const { return source_; }

 private:
  jinja::Rendered render(const Chat& chat, size_t messages, bool add_generation_prompt) const;
  std::vector<LearnedRange> ranges_by_prefixes(const Chat& chat, const std::string& text, Learned learned) const;

  std::string source_, where_;
  bool has_generation_ = false;
  std::shared_ptr<const jinja::Template> template_;  // copies share it
  std::shared_ptr<const jinja::Template> tool_use_;
  jinja::Dict variables_;
};

// That of a tokenizer's folder; nullopt where it has none. Throws base::Error for a file that cannot be read.
std::optional<ChatTemplate> find_chat_template(const std::string& folder);
// Of a file of its own; bos_token and the like are those of `folder`, where it is not empty.
ChatTemplate read_chat_template(const std::string& file, const std::string& folder);

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;  // 1: a token that holds some of what is learned
};

// Throws base::Error where the tokens do not spell the text (a normalizer changed it).
ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat);

}  // namespace metroplex::text
