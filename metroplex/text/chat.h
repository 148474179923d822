// A chat as a line of a dataset holds it: messages, tools, variables of the template, and which messages are learned.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace metroplex::text {

struct Chat {
  nlohmann::ordered_json messages;   // [{"role", "content", ...}, ...]
  nlohmann::ordered_json tools;      // null: none
  nlohmann::ordered_json variables;  // of "chat_template_kwargs": an object, or null
  std::vector<bool> not_learned;  // by message, may be shorter than `messages`; set by "weight": 0 and similar keys

  // For the report of a dataset (text/chat_report.h).
  std::set<std::string> chat_keys;     // keys next to the messages that this program does not read
  std::set<std::string> message_keys;  // keys of messages, which a template may read
  std::set<std::string> notes;         // conversions of this chat
};

// From {"messages": [...]}, from {"conversations": [...]}, or from the list alone. Turns may be ShareGPT's {"from",
// "value"}. An object may also have "tools", "system" and "chat_template_kwargs". As transformers does, keys of
// messages with the value null are dropped. Throws base::Error naming the key that is missing or wrong.
Chat chat_from_json(nlohmann::ordered_json json);
Chat parse_chat(std::string_view json_text);

// Reads arguments of tool calls that are a JSON text as objects: those that the template has written in quotes (some
// templates take a text, others write the JSON of an object), or all with nullopt. Returns whether the chat changed.
bool read_arguments(Chat& chat, std::optional<std::string_view> rendered);

// Throws base::Error for a name that the chat or the tokenizer sets, or that is no identifier.
void check_variable_name(const std::string& name);

}  // namespace metroplex::text
