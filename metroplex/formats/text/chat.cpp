#include "text/chat.h"

#include <algorithm>

#include "base/error.h"
#include "files/json_text.h"
#include "text/json_part.h"

namespace metroplex::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

// Keys of other programs that specify whether a message is learned, and whether the value 1 means "learned".
constexpr std::pair<const char*, bool> kLearningKeys[] = {
    {"weight", true}, {"train", true}, {"training", true}, {"loss", true}, {"masked", false}};

// Keys next to messages that only identify a chat.
constexpr const char* kIdentifiers[] = {"id",     "_id",     "idx",       "index",           "uuid",
                                        "source", "dataset", "prompt_id", "conversation_id", "metadata"};

std::string shorten(const OrderedJson& json) {
  const std::string text = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return files::printable(text.size() > 60 ? text.substr(0, 57) + "..." : text);
}

template <class Names>
bool contains_name(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_list_of_objects(const OrderedJson& json) {
  return json.is_array() &&
         std::all_of(json.begin(), json.end(), [](const OrderedJson& item) { return item.is_object(); });
}

// Parses lists of objects that many datasets store as JSON text; adds a note to `notes`.
OrderedJson read_objects(const char* key, const OrderedJson& value, std::set<std::string>& notes) {
  if (value.is_null()) return value;
  OrderedJson list = value;
  if (value.is_string()) {
    const std::string text = value;
    notes.insert(base::concat("have ", key, " as a JSON string, which is read as a list"));
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
    if (OrderedJson::accept(text)) list = files::parse_ordered_json(text);
  }
  MPX_CHECK(is_list_of_objects(list), "text", "\"", key, "\" = ", shorten(value),
            ": must be a list of objects, or such a list as a JSON string; store the list itself");
  return list;
}

OrderedJson read_variables(const OrderedJson& value, std::set<std::string>& notes) {
  if (!value.is_string() || !OrderedJson::accept(value.get<std::string>())) return value;
  notes.insert("have chat_template_kwargs as a JSON string, which is read as an object");
  return files::parse_ordered_json(value.get<std::string>());
}

// Parses ShareGPT's function call: {"name", "arguments"} or a list of them, usually as JSON text.
OrderedJson read_calls(const OrderedJson& value) {
  OrderedJson calls = value;
  if (value.is_string() && OrderedJson::accept(value.get<std::string>()))
    calls = files::parse_ordered_json(value.get<std::string>());
  if (calls.is_object()) calls = OrderedJson::array({calls});
  OrderedJson out = OrderedJson::array();
  bool good = is_list_of_objects(calls) && !calls.empty();
  for (size_t i = 0; good && i < calls.size(); ++i) {
    const OrderedJson& call = calls[i];
    good = call.contains("name") && call["name"].is_string();
    if (good)
      out.push_back(
          {{"type", "function"},
           {"function", {{"name", call["name"]}, {"arguments", call.value("arguments", OrderedJson::object())}}}});
  }
  MPX_CHECK(good, "text", "the value of a function_call turn = ", shorten(value),
            ": must be {\"name\": ..., \"arguments\": {...}} or a list of such objects");
  return out;
}

// Converts a ShareGPT turn to a message. Other keys of the turn are preserved.
OrderedJson convert_message(const OrderedJson& turn) {
  static constexpr std::pair<const char*, const char*> kRoles[] = {
      {"human", "user"},      {"gpt", "assistant"},    {"chatgpt", "assistant"},     {"bot", "assistant"},
      {"model", "assistant"}, {"observation", "tool"}, {"function_response", "tool"}};
  MPX_CHECK(turn.is_object() && turn.contains("from") && turn.contains("value") && turn["from"].is_string(), "text",
            "a turn of \"conversations\" is not {\"from\": ..., \"value\": ...}");
  std::string role = turn["from"];
  for (const auto& [theirs, ours] : kRoles) {
    if (role == theirs) role = ours;
  }
  OrderedJson message;
  if (role == "function_call") {
    message = {{"role", "assistant"}, {"content", ""}, {"tool_calls", read_calls(turn["value"])}};
  } else {
    message = {{"role", role}, {"content", turn["value"]}};
  }
  for (const auto& [key, value] : turn.items()) {
    if (key != "from" && key != "value" && !message.contains(key)) message[key] = value;
  }
  return message;
}

// Null counts as absent: datasets with columns of both forms have null in the unused ones.
bool has_value(const OrderedJson& json, const char* key) {
  return json.is_object() && json.contains(key) && !json[key].is_null();
}

void convert_turns(OrderedJson& messages) {
  for (OrderedJson& message : messages) {
    if (has_value(message, "from") && !has_value(message, "role")) message = convert_message(message);
  }
}

// Drops keys with the value null and copies reasoning to the names that templates read, as transformers does.
OrderedJson normalize_message(const OrderedJson& message) {
  OrderedJson out = OrderedJson::object();
  for (const char* name : kReasoning) {
    if (!message.contains(name) || message[name].is_null()) continue;
    out["thinking"] = message[name];
    break;
  }
  const OrderedJson reasoning = out.value("thinking", OrderedJson());
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) out[key] = value;
  }
  if (!reasoning.is_null()) out["reasoning_content"] = reasoning;
  return out;
}

// Removes the keys of kLearningKeys. Returns whether the message is not learned.
bool read_learning_keys(OrderedJson& message, std::set<std::string>& notes) {
  bool not_learned = false;
  for (const auto& [key, learned_when_1] : kLearningKeys) {
    if (!message.contains(key)) continue;
    const OrderedJson& value = message[key];
    const bool is_0 = value == false || (value.is_number() && value == 0);
    const bool is_1 = value == true || (value.is_number() && value == 1);
    MPX_CHECK(is_0 || is_1, "text", "\"", key, "\" = ", shorten(value),
              ": must be 0, 1, true or false (whether the message is learned)");
    if (is_0 == learned_when_1) not_learned = true;
    else if (message["role"] != "assistant")
      notes.insert(base::concat("mark messages of other roles as learned (\"", key,
                                "\"); only messages of the assistant are learned"));
    message.erase(key);
  }
  return not_learned;
}

void read_message(OrderedJson& message, Chat& chat) {
  MPX_CHECK(message.is_object() && message.contains("role") && message["role"].is_string(), "text",
            "a message has no \"role\"");
  for (const auto& [key, value] : message.items()) {
    if (key != "role" && key != "content" && !value.is_null()) chat.message_keys.insert(key);
  }
  for (const auto& [key, learned_when_1] : kLearningKeys) chat.message_keys.erase(key);
  message = normalize_message(message);
  if (message.contains("tool_calls")) {
    message["tool_calls"] = read_objects("tool_calls", message["tool_calls"], chat.notes);
    if (message["tool_calls"].is_null()) message.erase("tool_calls");
  }
  chat.not_learned.push_back(read_learning_keys(message, chat.notes));
}

void add_system(const OrderedJson& system, Chat& chat) {
  if (system.is_null() || system == "") return;
  MPX_CHECK(system.is_string(), "text", "\"system\" = ", shorten(system), ": must be a string");
  for (const OrderedJson& message : chat.messages)
    MPX_CHECK(!message.is_object() || !message.contains("role") || message["role"] != "system", "text",
              "\"system\" = ", shorten(system), ": the chat also has a system message; remove one of them");
  chat.messages.insert(chat.messages.begin(), OrderedJson{{"role", "system"}, {"content", system}});
  chat.notes.insert("have a \"system\" string, which becomes their first message");
}

void read_object(const OrderedJson& json, Chat& chat) {
  const char* list = has_value(json, "messages") ? "messages" : "conversations";
  for (const auto& [key, value] : json.items()) {
    if (value.is_null() || key == list || contains_name(kIdentifiers, key)) continue;
    if (key == "tools") chat.tools = read_objects("tools", value, chat.notes);
    else if (key == "documents") chat.documents = read_objects("documents", value, chat.notes);
    else if (key == "chat_template_kwargs") chat.variables = read_variables(value, chat.notes);
    else if (key != "system") chat.chat_keys.insert(key);
  }
  MPX_CHECK(chat.variables.is_null() || chat.variables.is_object(), "text",
            "\"chat_template_kwargs\" = ", shorten(chat.variables), ": must be an object");
  if (chat.variables.is_object()) {
    for (const auto& [name, value] : chat.variables.items()) check_variable_name(name);
  }
  MPX_CHECK(json.contains(list), "text",
            "a chat is {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}; this object has no \"messages\"");
  MPX_CHECK(json[list].is_array() && !json[list].empty(), "text", "\"", list, "\" is not a list of messages");
  chat.messages = json[list];
  convert_turns(chat.messages);
  if (json.contains("system")) add_system(json["system"], chat);
}

}  // namespace

void check_variable_name(const std::string& name) {
  static constexpr const char* kReservedNames[] = {
      "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"};
  MPX_CHECK(!contains_name(kReservedNames, name), "config", "'", name,
            "' is set by the chat or its tokenizer; choose another name");
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const bool identifier = !name.empty() && letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
    return letter(c) || (c >= '0' && c <= '9');
  });
  MPX_CHECK(identifier, "config", "'", name,
            "' is not a valid variable name for a template; use letters, digits and _");
}

Chat chat_from_json(OrderedJson json) {
  Chat chat;
  if (json.is_object()) {
    read_object(json, chat);
  } else {
    MPX_CHECK(json.is_array(), "text",
              "a chat is {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}; this object has no \"messages\"");
    chat.messages = std::move(json);
    convert_turns(chat.messages);
  }
  MPX_CHECK(chat.messages.is_array() && !chat.messages.empty(), "text", "\"messages\" is not a list of messages");
  for (OrderedJson& message : chat.messages) read_message(message, chat);
  return chat;
}

bool read_arguments(Chat& chat, std::optional<std::string_view> rendered) {
  bool changed = false;
  for (OrderedJson& message : chat.messages) {
    if (!message.contains("tool_calls")) continue;
    for (OrderedJson& call : message["tool_calls"]) {
      OrderedJson& function = call.contains("function") && call["function"].is_object() ? call["function"] : call;
      if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
      const std::string text = function["arguments"];
      const std::string quoted = OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
      if (rendered && rendered->find(quoted) == std::string_view::npos) continue;
      if (!OrderedJson::accept(text)) continue;
      OrderedJson arguments = files::parse_ordered_json(text);
      if (!arguments.is_object()) continue;
      function["arguments"] = std::move(arguments);
      changed = true;
    }
  }
  if (changed) chat.notes.insert("have arguments of tool_calls as a JSON string, which is read as an object");
  return changed;
}

Chat parse_chat(std::string_view json_text) { return chat_from_json(files::parse_ordered_json(json_text)); }

}  // namespace metroplex::text
