#include "text/chat_template.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "files/file_system.h"
#include "files/json_text.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

using Json = nlohmann::ordered_json;

// ShareGPT's spelling of a message.
Json message_of(const Json& turn) {
  static constexpr std::pair<const char*, const char*> kRoles[] = {{"human", "user"},
                                                                   {"gpt", "assistant"},
                                                                   {"chatgpt", "assistant"},
                                                                   {"bot", "assistant"},
                                                                   {"model", "assistant"}};
  MPX_CHECK(turn.is_object() && turn.contains("from") && turn.contains("value") && turn["from"].is_string(), "text",
            "a turn of \"conversations\" is not {\"from\": ..., \"value\": ...}");
  std::string role = turn["from"];
  for (const auto& [theirs, ours] : kRoles) {
    if (role == theirs) role = ours;
  }
  return {{"role", role}, {"content", turn["value"]}};
}

// As transformers: reasoning under one name is there under the names that templates read.
Json with_reasoning(const Json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!message.contains(name) || message[name].is_null()) continue;
    Json out = {{"thinking", message[name]}};
    for (const auto& [key, value] : message.items()) out[key] = value;
    out["reasoning_content"] = message[name];
    return out;
  }
  return message;
}

bool is_assistant(const Json& message) { return message["role"] == "assistant"; }

bool has_generation_block(std::string_view source) {
  for (size_t at = source.find("{%"); at != std::string_view::npos; at = source.find("{%", at + 2)) {
    size_t word = at + 2;
    if (word < source.size() && source[word] == '-') ++word;
    while (word < source.size() && (source[word] == ' ' || source[word] == '\n' || source[word] == '\t')) ++word;
    if (source.substr(word).starts_with("generation")) return true;
  }
  return false;
}

// What a chat or the program gives a template; a variable of that name would take its place.
void check_variable_name(const std::string& name) {
  static constexpr const char* kTaken[] = {"messages",  "tools",     "documents", "add_generation_prompt",
                                           "bos_token", "eos_token", "pad_token", "unk_token"};
  MPX_CHECK(std::find(std::begin(kTaken), std::end(kTaken), name) == std::end(kTaken), "config", "'", name,
            "' is what the chat and its tokenizer give the template; choose another name");
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const bool identifier = letter(name[0]) && std::all_of(name.begin(), name.end(),
                                                         [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
  MPX_CHECK(identifier, "config", "'", name, "' is no name that a template can use: letters, digits and _");
}

const char* kind_of_content(const Json& message) {
  if (!message.contains("content")) return "no content";
  const Json& content = message["content"];
  return content.is_null()    ? "null for its content"
         : content.is_array() ? "a list of parts for its content"
                              : "no text for its content";
}

// Where a template fails: the first message without a text, which may be why.
std::string hint_of(const Json& messages, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Json& message = messages[i];
    if (message.contains("content") && message["content"].is_string()) continue;
    return base::concat(" (message ", i + 1, ", of role ", files::printable(message["role"].get<std::string>()),
                        ", has ", kind_of_content(message),
                        "; if that is what the template does not take, give it \"content\": \"...\", one text)");
  }
  return "";
}

}  // namespace

Chat chat_from_json(Json json) {
  Chat chat;
  if (json.is_object() && json.contains("tools")) chat.tools = json["tools"];
  if (json.is_object() && json.contains("messages")) chat.messages = json["messages"];
  else if (json.is_object() && json.contains("conversations")) {
    MPX_CHECK(json["conversations"].is_array(), "text", "\"conversations\" is no list");
    chat.messages = Json::array();
    for (const Json& turn : json["conversations"])
      chat.messages.push_back(turn.is_object() && turn.contains("role") ? turn : message_of(turn));
  } else {
    MPX_CHECK(json.is_array(), "text",
              "a chat is {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}; this has no \"messages\"");
    chat.messages = std::move(json);
  }
  MPX_CHECK(chat.messages.is_array() && !chat.messages.empty(), "text", "\"messages\" is no list of messages");
  for (Json& message : chat.messages) {
    MPX_CHECK(message.is_object() && message.contains("role") && message["role"].is_string(), "text",
              "a message without a \"role\"");
    message = with_reasoning(message);
  }
  return chat;
}

Chat parse_chat(std::string_view json_text) { return chat_from_json(files::parse_ordered_json(json_text)); }

ChatTemplate::ChatTemplate(std::string_view source, std::string where, const SpecialNames& names)
    : source_(source),
      where_(std::move(where)),
      has_generation_(has_generation_block(source)),
      template_(std::make_shared<const jinja::Template>(source, where_)) {
  for (const auto& [name, token] : {std::pair{"bos_token", names.bos},
                                    {"eos_token", names.eos},
                                    {"pad_token", names.pad},
                                    {"unk_token", names.unk}}) {
    if (token) variables_.set(name, *token);
  }
}

void ChatTemplate::set_tool_use(std::string_view source, std::string where) {
  tool_use_ = std::make_shared<const jinja::Template>(source, std::move(where));
}

void ChatTemplate::set_variable(const std::string& name, const Json& value) {
  variables_.set(name, jinja::from_json(value));
}

void ChatTemplate::set_variable(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  MPX_CHECK(equals != std::string::npos && equals > 0, "config", "'", assignment, "' is not NAME=VALUE");
  const std::string name = assignment.substr(0, equals), value = assignment.substr(equals + 1);
  check_variable_name(name);
  MPX_CHECK(valid_utf8_prefix(value) == value.size(), "config", "the value of ", name, " is not UTF-8");
  // Whatever is no JSON is a text.
  const bool is_json = Json::accept(value);
  try {
    set_variable(name, is_json ? files::parse_ordered_json(value) : Json(value));
  } catch (const base::Error& error) {
    throw base::Error("config", base::concat("variable '", name, "': ", base::message_of(error)));
  }
}

jinja::Rendered ChatTemplate::render(const Chat& chat, size_t messages, bool add_generation_prompt) const {
  jinja::Dict variables;
  Json list = Json::array();
  for (size_t i = 0; i < messages; ++i) list.push_back(chat.messages[i]);
  variables.set("messages", jinja::from_json(list));
  variables.set("tools", jinja::from_json(chat.tools));
  variables.set("documents", jinja::None{});
  variables.set("add_generation_prompt", add_generation_prompt);
  for (const auto& [name, value] : variables_.items()) variables.set(name, value);
  const jinja::Template& chosen = tool_use_ && !chat.tools.is_null() ? *tool_use_ : *template_;
  try {
    return chosen.render(variables, static_cast<int64_t>(std::time(nullptr)));
  } catch (const base::Error& error) {
    throw base::Error(error.room(), base::message_of(error) + hint_of(chat.messages, messages));
  }
}

std::string ChatTemplate::text(const Chat& chat, bool add_generation_prompt) const {
  return render(chat, chat.messages.size(), add_generation_prompt).text;
}

std::vector<LearnedRange> ChatTemplate::ranges_by_prefixes(const Chat& chat, const std::string& text,
                                                           Learned learned) const {
  std::vector<LearnedRange> ranges;
  const size_t count = chat.messages.size();
  for (size_t i = learned == Learned::last ? count - 1 : 0; i < count; ++i) {
    if (!is_assistant(chat.messages[i])) continue;
    const std::string prompt = render(chat, i, true).text;
    const std::string until = i + 1 == count ? text : render(chat, i + 1, false).text;
    MPX_CHECK(text.starts_with(until) && until.starts_with(prompt), "text", where_,
              " has no {% generation %} blocks, and ", "writes the chat up to message ", i + 1,
              " (an assistant's) otherwise than in the whole chat, so that what ",
              "is learned of it cannot be told; give a template with {% generation %} blocks (--chat-template), or ",
              "learn from the last message only (--learn last)");
    if (until.size() > prompt.size()) ranges.emplace_back(prompt.size(), until.size());
  }
  return ranges;
}

ChatText ChatTemplate::learned_text(const Chat& chat, Learned learned) const {
  jinja::Rendered whole = render(chat, chat.messages.size(), false);
  ChatText out{std::move(whole.text), {}};
  if (!has_generation_) {
    out.learned = ranges_by_prefixes(chat, out.text, learned);
    return out;
  }
  MPX_CHECK(!whole.generated_elsewhere, "text", where_,
            ": a {% generation %} block inside of a macro, a {% set %} or another block; where its text ends up is "
            "unknown");
  for (const LearnedRange& range : whole.generated) {
    if (range.second > range.first) out.learned.push_back(range);
  }
  if (learned == Learned::last && !out.learned.empty())
    out.learned = is_assistant(chat.messages.back()) ? std::vector<LearnedRange>{out.learned.back()}
                                                     : std::vector<LearnedRange>{};
  return out;
}

std::optional<ChatTemplate> find_chat_template(const std::string& folder) {
  files::PosixFileSystem disk;
  const SpecialNames names = read_special_names(folder);
  const std::string file = files::join_path(folder, "chat_template.jinja");
  if (disk.exists(file)) return ChatTemplate(disk.read(file), file, names);
  const std::string config = files::join_path(folder, "tokenizer_config.json");
  if (!disk.exists(config)) return std::nullopt;
  const nlohmann::json json = files::parse_json_strictly(disk.read(config), config);
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  if (!json.is_object() || found == json.end() || found->is_null()) return std::nullopt;
  const std::string where = config + ", chat_template";
  if (found->is_string()) return ChatTemplate(found->get<std::string>(), where, names);
  MPX_CHECK(found->is_array(), "text", where, " is neither a template nor a list of templates");
  std::optional<ChatTemplate> chosen;
  const auto named = [&](const char* name) -> const nlohmann::json* {
    for (const auto& one : *found) {
      if (files::json_string(one, "name", where) == name) return &one;
    }
    return nullptr;
  };
  const auto* usual = named("default");
  MPX_CHECK(usual != nullptr, "text", where,
            " has no template of the name 'default'; give one with --chat-template FILE");
  chosen.emplace(files::json_string(*usual, "template", where), where + " default", names);
  if (const auto* tools = named("tool_use"))
    chosen->set_tool_use(files::json_string(*tools, "template", where), where + " tool_use");
  return chosen;
}

ChatTemplate read_chat_template(const std::string& file, const std::string& folder) {
  files::PosixFileSystem disk;
  return {disk.read(file), file, folder.empty() ? SpecialNames{} : read_special_names(folder)};
}

}  // namespace metroplex::text
