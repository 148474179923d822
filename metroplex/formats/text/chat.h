// A chat as stored in one line of a dataset: messages, tools, template variables, and which messages are learned.
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
  nlohmann::ordered_json tools;      // null if absent
  nlohmann::ordered_json documents;  // null if absent
  nlohmann::ordered_json variables;  // "chat_template_kwargs": an object, or null
  std::vector<bool> not_learned;  // by message, may be shorter than `messages`; set by "weight": 0 and similar keys

  // For the report of a dataset (text/chat_report.h).
  std::set<std::string> chat_keys;     // keys next to the messages that are not used
  std::set<std::string> message_keys;  // keys inside messages, which a template may read
  std::set<std::string> notes;         // conversions applied to this chat
};

// Accepts {"messages": [...]}, {"conversations": [...]} or the bare list. Turns may have ShareGPT's keys {"from",
// "value"}. An object may also have "tools", "documents", "system" and "chat_template_kwargs". Keys of messages with
// the value null are dropped, as in transformers. Throws base::Error with the name of the missing or invalid key.
Chat chat_from_json(nlohmann::ordered_json json);
Chat parse_chat(std::string_view json_text);

// Parses string arguments of tool calls into JSON objects. Some templates expect a string and others an object. With
// `rendered`, only the arguments that the template has written in quotes are parsed; with nullopt, all. Returns
// whether the chat changed.
bool read_arguments(Chat& chat, std::optional<std::string_view> rendered);

// Throws base::Error if the name is no identifier, or if the chat or the tokenizer already sets it.
void check_variable_name(const std::string& name);

}  // namespace metroplex::text
