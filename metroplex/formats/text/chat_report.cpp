#include "text/chat_report.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "files/json_text.h"
#include "text/jinja/lexer.h"

namespace metroplex::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string_view trim(std::string_view text) { return jinja::strip_trailing_space(jinja::strip_leading_space(text)); }

// Whether the rendered chat contains the text: unchanged, without its reasoning, or as JSON.
bool is_written(std::string_view content, std::string_view rendered) {
  constexpr std::string_view kEndOfReasoning = "</think>";
  if (rendered.find(trim(content)) != std::string_view::npos) return true;
  if (const size_t end = content.rfind(kEndOfReasoning); end != std::string_view::npos) {
    if (rendered.find(trim(content.substr(end + kEndOfReasoning.size()))) != std::string_view::npos) return true;
  }
  const std::string json =
      OrderedJson(std::string(content)).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return rendered.find(std::string_view(json).substr(1, json.size() - 2)) != std::string_view::npos;
}

bool is_written(const OrderedJson& content, std::string_view rendered) {
  if (content.is_string()) return is_written(std::string_view(content.get_ref<const std::string&>()), rendered);
  if (content.is_object()) return !content.contains("text") || is_written(content["text"], rendered);
  if (!content.is_array()) return true;
  return std::all_of(content.begin(), content.end(),
                     [&](const OrderedJson& part) { return is_written(part, rendered); });
}

// The first characters of a list or an object in Python's notation. A template that expects a text writes them.
std::string python_source(const OrderedJson& content) {
  if (content.empty()) return "";
  if (content.is_object()) return "{'" + content.begin().key() + "'";
  if (!content.is_array()) return "";
  return "[" + (content[0].is_string() ? "'" + content[0].get<std::string>() : python_source(content[0]));
}

void add_facts_about_content(const OrderedJson& message, std::string_view rendered, std::set<std::string>& facts) {
  if (!message.contains("content")) {
    if (!message.contains("tool_calls")) facts.insert("have messages with neither \"content\" nor \"tool_calls\"");
    return;
  }
  const OrderedJson& content = message["content"];
  if (content.is_string()) return;
  const std::string source = python_source(content);
  if (source.size() > 1 && rendered.find(source) != std::string_view::npos)
    facts.insert(
        "have contents that are lists or objects, which the template writes as Python source; store each "
        "\"content\" as one string, or use a template that reads content parts");
  else if (!content.is_array() && !(content.is_object() && content.contains("text")))
    facts.insert(base::concat("have contents that are not text (type ", content.type_name(), ")"));
  if (!content.is_array()) return;
  for (const OrderedJson& part : content) {
    if (part.is_string() || (part.is_object() && part.contains("text"))) continue;
    const std::string type = part.is_object() && part.contains("type") ? part["type"].dump() : part.type_name();
    facts.insert(base::concat("have content parts that are not text (type ", files::printable(type),
                              "); the model sees only the text that the template writes for them"));
  }
}

// Returns facts about the keys and contents of a chat. `rendered` is the longest of its texts.
std::set<std::string> facts_about_keys(const Chat& chat, const ChatTemplate& chat_template,
                                       std::string_view rendered) {
  std::set<std::string> facts;
  for (const std::string& key : chat.chat_keys)
    facts.insert(
        base::concat("have the key \"", files::printable(key), "\" next to the messages, which is not used"));
  const bool reads_reasoning = chat_template.mentions("reasoning_content") || chat_template.mentions("thinking");
  for (const std::string& key : chat.message_keys) {
    const bool reasoning = key == "reasoning_content" || key == "thinking" || key == "reasoning";
    if (!chat_template.mentions(key) && !(reasoning && reads_reasoning))
      facts.insert(base::concat("have messages with the key \"", files::printable(key),
                                "\", which the template does not read"));
  }
  for (const OrderedJson& message : chat.messages) add_facts_about_content(message, rendered, facts);
  if (!chat.tools.is_null() && !chat_template.mentions("tools"))
    facts.insert("have tools, which the template does not read");
  if (!chat.documents.is_null() && !chat_template.mentions("documents"))
    facts.insert("have documents, which the template does not read");
  if (chat.variables.is_object()) {
    for (const auto& [name, value] : chat.variables.items()) {
      if (!chat_template.mentions(name))
        facts.insert(base::concat("set \"", name, "\" in chat_template_kwargs, which the template does not read"));
    }
  }
  return facts;
}

bool is_known_role(const std::string& role) {
  static constexpr const char* kRoles[] = {"system", "developer", "user",    "assistant",
                                           "tool",   "function",  "ipython", "observation"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

}  // namespace

void ChatReport::add_chat(const Chat& chat, const ChatText& text) {
  std::set<std::string> facts = facts_about_keys(chat, template_, text.text);
  facts.insert(chat.notes.begin(), chat.notes.end());
  std::vector<std::string> unwritten, other_roles;
  for (size_t i = 0; i < text.num_messages; ++i) {
    const OrderedJson& message = chat.messages[i];
    const std::string role = message["role"];
    if (!is_known_role(role)) other_roles.push_back(files::printable(role));
    if (message.contains("content") && !is_written(message["content"], text.text))
      unwritten.push_back(files::printable(role));
  }
  const std::lock_guard lock(mutex_);
  for (const std::string& fact : facts) ++chats_[fact];
  for (const std::string& role : unwritten) ++unwritten_[role];
  for (const std::string& role : other_roles) ++other_roles_[role];
}

// White space and other special tokens may follow the token that ends a turn.
ChatReport::Turns ChatReport::count_turns(const ChatText& text, const ChatTokens& tokens, size_t num_kept) const {
  Turns turns;
  num_kept = std::min(num_kept, tokens.ids.size());
  for (size_t i = 0; i < num_kept; ++i) {
    if (!tokens.learned[i]) continue;
    bool ended = false;
    for (; i < num_kept && tokens.learned[i]; ++i) {
      const auto [begin, end] = tokens.ranges[i];
      const int32_t id = tokens.ids[i];
      const bool is_end = std::find(end_tokens_.begin(), end_tokens_.end(), id) != end_tokens_.end();
      const bool may_follow = tokenizer_.is_special(id) || trim(text.text.substr(begin, end - begin)).empty();
      ended = is_end || (ended && may_follow);
    }
    ++turns.all;
    turns.without_end += !ended;
  }
  return turns;
}

void ChatReport::add_turns(const ChatText& text, const ChatTokens& tokens, size_t num_kept) {
  const Turns turns = count_turns(text, tokens, num_kept);
  const std::lock_guard lock(mutex_);
  turns_ += turns.all;
  turns_without_end_ += turns.without_end;
}

std::vector<std::string> ChatReport::lines() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [fact, count] : chats_) out.push_back(base::concat(count, " chats ", fact));
  for (const auto& [role, count] : unwritten_)
    out.push_back(base::concat("the template does not write the text of ", count, " messages with the role ", role));
  for (const auto& [role, count] : other_roles_)
    out.push_back(base::concat(count, " messages have the role ", role,
                               ", which is unknown; only messages with the role assistant are learned"));
  if (turns_without_end_ > 0)
    out.push_back(base::concat("in ", turns_without_end_, " of ", turns_,
                               " turns the last learned token does not end the turn, so the model does not learn to "
                               "stop there"));
  return out;
}

}  // namespace metroplex::text
