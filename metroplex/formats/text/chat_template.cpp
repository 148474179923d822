#include "text/chat_template.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "files/file_system.h"
#include "files/json_text.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_assistant(const OrderedJson& message) { return message["role"] == "assistant"; }

bool has_generation_block(std::string_view source) {
  for (size_t at = source.find("{%"); at != std::string_view::npos; at = source.find("{%", at + 2)) {
    size_t word = at + 2;
    if (word < source.size() && source[word] == '-') ++word;
    while (word < source.size() && (source[word] == ' ' || source[word] == '\n' || source[word] == '\t')) ++word;
    if (source.substr(word).starts_with("generation")) return true;
  }
  return false;
}

const char* content_kind(const OrderedJson& message) {
  if (!message.contains("content")) return "no content";
  const OrderedJson& content = message["content"];
  return content.is_array() ? "a list of parts as its content" : "content that is not text";
}

// Returns a hint for a template's error: the first message without a text is a likely cause.
std::string error_hint(const OrderedJson& messages, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const OrderedJson& message = messages[i];
    if (message.contains("content") && message["content"].is_string()) continue;
    return base::concat(" (message ", i + 1, ", with the role ", files::printable(message["role"].get<std::string>()),
                        ", has ", content_kind(message),
                        "; if the template does not accept this, store \"content\" as one string)");
  }
  return "";
}

// Only assistant messages are learned, except those with "weight": 0 or a similar key.
bool is_learned(const Chat& chat, size_t message) {
  return is_assistant(chat.messages[message]) && (message >= chat.not_learned.size() || !chat.not_learned[message]);
}

// Returns the answer without its reasoning and without surrounding white space, as many templates write it.
std::string_view drop_reasoning(std::string_view answer) {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = answer.rfind(kEnd);
  if (end != std::string_view::npos) answer.remove_prefix(end + kEnd.size());
  return jinja::strip_trailing_space(jinja::strip_leading_space(answer));
}

// Adds a character to both ends of all texts of a message, except texts that a template may compare.
void change_texts(OrderedJson& json) {
  if (json.is_string()) {
    const std::string text = json;
    json = (text.starts_with('x') ? "y" : "x") + text + (text.ends_with('x') ? "y" : "x");
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (key != "role" && key != "type" && key != "id" && key != "tool_call_id") change_texts(value);
    }
  } else if (json.is_array()) {
    for (OrderedJson& value : json) change_texts(value);
  }
}

// A template may end any chat that has no generation prompt with a text; Phi-3's uses eos_token. The whole chat
// has this text only after its last message. Returns this end of `until`, a rendering of the chat's first
// messages.
std::string closing_text(const std::string& until, const std::string& whole) {
  const auto differs = std::mismatch(until.begin(), until.end(), whole.begin(), whole.end()).first;
  auto end = static_cast<size_t>(differs - until.begin());
  if (end == until.size()) return "";
  // The closing token and the next token of the chat may begin alike: "<|".
  const size_t bracket = until.find_last_of("<>[]", end - (end > 0 ? 1 : 0));
  if (end > 0 && bracket != std::string::npos && (until[bracket] == '<' || until[bracket] == '[')) end = bracket;
  while (end > 0 && (static_cast<unsigned char>(until[end]) & 0xC0) == 0x80) --end;
  const std::string closing = until.substr(end);
  return whole.ends_with(closing) ? closing : "";
}

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string where, const SpecialNames& names)
    : source_(source), main_(make_variant(source, std::move(where))) {
  for (const auto& [name, token] : {std::pair{"bos_token", names.bos},
                                    {"eos_token", names.eos},
                                    {"pad_token", names.pad},
                                    {"unk_token", names.unk}}) {
    if (token) variables_.set(name, *token);
  }
}

ChatTemplate::Variant ChatTemplate::make_variant(std::string_view source, std::string where) {
  auto parsed = std::make_shared<const jinja::Template>(source, where);
  return {std::move(where), has_generation_block(source), std::move(parsed)};
}

void ChatTemplate::set_tool_use(std::string_view source, std::string where) {
  tool_use_ = make_variant(source, std::move(where));
  source_ += source;
}

const ChatTemplate::Variant& ChatTemplate::variant(const Chat& chat) const {
  return tool_use_ && !chat.tools.is_null() ? *tool_use_ : main_;
}

bool ChatTemplate::mentions(std::string_view name) const {
  for (size_t at = source_.find(name); at != std::string::npos; at = source_.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !is_word_character(source_[at - 1])) &&
        (end == source_.size() || !is_word_character(source_[end])))
      return true;
  }
  return false;
}

void ChatTemplate::set_variable(const std::string& name, const OrderedJson& value) {
  variables_.set(name, jinja::from_json(value));
}

void ChatTemplate::set_variable(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  MPX_CHECK(equals != std::string::npos && equals > 0, "config", "'", assignment, "' is not NAME=VALUE");
  const std::string name = assignment.substr(0, equals), value = assignment.substr(equals + 1);
  check_variable_name(name);
  MPX_CHECK(valid_utf8_prefix(value) == value.size(), "config", "the value of ", name, " is not UTF-8");
  const bool is_json = OrderedJson::accept(value);
  try {
    set_variable(name, is_json ? files::parse_ordered_json(value) : OrderedJson(value));
  } catch (const base::Error& error) {
    throw base::Error("config", base::concat("variable '", name, "': ", base::message_of(error)));
  }
}

jinja::Rendered ChatTemplate::render(const Chat& chat, size_t messages, bool add_generation_prompt) const {
  jinja::Dict variables;
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < messages; ++i) list.push_back(chat.messages[i]);
  variables.set("messages", jinja::from_json(list));
  variables.set("tools", jinja::from_json(chat.tools));
  variables.set("documents", jinja::from_json(chat.documents));
  variables.set("add_generation_prompt", add_generation_prompt);
  for (const auto& [name, value] : variables_.items()) variables.set(name, value);
  if (chat.variables.is_object()) {
    for (const auto& [name, value] : chat.variables.items()) variables.set(name, jinja::from_json(value));
  }
  try {
    return variant(chat).parsed->render(variables, static_cast<int64_t>(std::time(nullptr)));
  } catch (const base::Error& error) {
    throw base::Error(error.room(), base::message_of(error) + error_hint(chat.messages, messages));
  }
}

std::string ChatTemplate::text(const Chat& chat, bool add_generation_prompt) const {
  return render(chat, chat.messages.size(), add_generation_prompt).text;
}

// Returns the text that message `turn` adds after its common prefix with the generation prompt. Returns nullopt if
// the prompt is no prefix, or if the whole chat has another text there. `until`: the chat up to and including the
// turn.
std::optional<LearnedRange> ChatTemplate::turn_range(const Chat& chat, size_t turn, std::string until,
                                                     const std::string& whole) const {
  const std::string closing = closing_text(until, whole);
  if (!closing.empty() && (turn == 0 || !render(chat, turn, false).text.ends_with(closing))) return std::nullopt;
  until.resize(until.size() - closing.size());
  if (!whole.starts_with(until)) return std::nullopt;
  const std::string prompt = render(chat, turn, true).text;
  const auto differs = std::mismatch(prompt.begin(), prompt.end(), until.begin(), until.end());
  auto begin = static_cast<size_t>(differs.first - prompt.begin());
  if (begin == prompt.size()) return LearnedRange{begin, until.size()};
  // The generation prompt may contain text that a finished turn lacks, such as an opened <think>.
  std::string before = turn == 0 ? "" : render(chat, turn, false).text;
  before.resize(before.size() - closing_text(before, whole).size());
  if (begin < before.size() || !prompt.starts_with(before)) return std::nullopt;
  const auto content = chat.messages[turn].find("content");
  if (content != chat.messages[turn].end() && content->is_string()) {
    // The common prefix may extend into an answer that begins with the same text.
    const std::string& answer = content->get_ref<const std::string&>();
    for (const std::string_view written : {std::string_view(answer), drop_reasoning(answer)}) {
      const size_t at = until.rfind(written, begin);
      if (at != std::string::npos && at >= before.size() && at + written.size() >= begin) begin = at;
    }
  }
  while (begin > 0 && begin < until.size() && (static_cast<unsigned char>(until[begin]) & 0xC0) == 0x80) --begin;
  return LearnedRange{begin, until.size()};
}

// Handles a turn that changes the text of earlier messages; gpt-oss drops their reasoning after an answer.
// Replaces `text`, the chat up to the turn, by the prompt and the turn. The turn begins at the last generation
// prompt before its own texts. Rendering the turn with different texts locates its texts. Returns nullopt if there
// is no such prompt, or if the prompt belongs to an earlier message.
std::optional<LearnedRange> ChatTemplate::take_prompt(const Chat& chat, size_t turn, std::string& text) const {
  const std::string before = turn == 0 ? "" : render(chat, turn, false).text;
  const std::string prompt = render(chat, turn, true).text;
  if (prompt.size() == before.size() || !prompt.starts_with(before)) return std::nullopt;
  const auto with_other_texts = [&](size_t message) {
    Chat other = chat;
    change_texts(other.messages[message]);
    return render(other, turn + 1, false).text;
  };
  const std::string other = with_other_texts(turn), other_before = turn == 0 ? text : with_other_texts(turn - 1);
  const auto differs =
      static_cast<size_t>(std::mismatch(text.begin(), text.end(), other.begin(), other.end()).first - text.begin());
  const auto same_end = std::mismatch(text.rbegin(), text.rend(), other_before.rbegin(), other_before.rend()).first;
  const auto earliest = turn == 0 ? 0 : static_cast<size_t>(text.rend() - same_end);
  const std::string generation_prompt = prompt.substr(before.size());
  if (differs == text.size() || differs < generation_prompt.size()) return std::nullopt;
  const size_t at = text.rfind(generation_prompt, differs - generation_prompt.size());
  if (at == std::string::npos || at < earliest) return std::nullopt;
  text = prompt + text.substr(at + generation_prompt.size());
  return LearnedRange{prompt.size(), text.size()};
}

std::vector<LearnedRange> ChatTemplate::ranges_by_prefixes(const Chat& chat, size_t count, std::string& text,
                                                           Learned learned) const {
  std::vector<LearnedRange> ranges;
  for (size_t i = learned == Learned::all ? 0 : count - 1; i < count; ++i) {
    if (!is_learned(chat, i)) continue;
    const std::string until = i + 1 == count ? text : render(chat, i + 1, false).text;
    std::optional<LearnedRange> range = turn_range(chat, i, until, text);
    if (!range && learned == Learned::each) range = take_prompt(chat, i, text);
    MPX_CHECK(range, "text", variant(chat).where, " has no {% generation %} blocks, and it renders message ", i + 1,
              " or earlier messages differently than in the whole chat, so the learned text is unknown; ",
              learned == Learned::each ? "" : "learn each turn in a sequence that ends with it (--learn each), ",
              learned == Learned::all ? "or only the last message (--learn last), " : "",
              learned == Learned::each ? "" : "or ", "use a template with {% generation %} blocks (--chat-template)");
    if (range->second > range->first) ranges.push_back(*range);
  }
  return ranges;
}

// The blocks of a message are those that it adds to the rendering of the preceding messages.
std::vector<LearnedRange> ChatTemplate::generated_ranges(const Chat& chat, size_t count, const jinja::Rendered& whole,
                                                         bool only_last) const {
  const size_t total = whole.generated.size();
  std::vector<bool> is_excluded(total);
  const auto blocks_until = [&](size_t messages) {
    return messages == 0 ? 0 : messages == count ? total : render(chat, messages, false).generated.size();
  };
  if (only_last) {
    const size_t earlier = is_learned(chat, count - 1) ? blocks_until(count - 1) : total;
    std::fill_n(is_excluded.begin(), std::min(earlier, total), true);
  }
  for (size_t i = 0; i < count && !only_last; ++i) {
    if (!is_assistant(chat.messages[i]) || is_learned(chat, i)) continue;
    const size_t from = blocks_until(i), to = blocks_until(i + 1);
    MPX_CHECK(from < to && to <= total, "text", variant(chat).where, ": message ", i + 1,
              " must not be learned, but rendering the earlier messages does not find its {% generation %} block; "
              "remove the chat or its weight");
    std::fill(is_excluded.begin() + static_cast<std::ptrdiff_t>(from),
              is_excluded.begin() + static_cast<std::ptrdiff_t>(to), true);
  }
  std::vector<LearnedRange> ranges;
  for (size_t i = 0; i < total; ++i) {
    if (!is_excluded[i] && whole.generated[i].second > whole.generated[i].first) ranges.push_back(whole.generated[i]);
  }
  return ranges;
}

ChatText ChatTemplate::learned_until(const Chat& chat, size_t count, Learned learned) const {
  jinja::Rendered whole = render(chat, count, false);
  ChatText out;
  if (!variant(chat).has_generation) {
    out.learned = ranges_by_prefixes(chat, count, whole.text, learned);
  } else {
    MPX_CHECK(
        !whole.generated_elsewhere, "text", variant(chat).where,
        ": a {% generation %} block is inside a macro, a {% set %} or another block, so the position of its text is "
        "unknown");
    out.learned = generated_ranges(chat, count, whole, learned != Learned::all);
  }
  out.text = std::move(whole.text);
  out.num_messages = count;
  return out;
}

std::vector<ChatText> ChatTemplate::learned_texts(const Chat& chat, Learned learned) const {
  std::vector<ChatText> texts;
  for (size_t i = 0; i < chat.messages.size() && learned == Learned::each; ++i) {
    if (is_learned(chat, i)) texts.push_back(learned_until(chat, i + 1, learned));
  }
  if (texts.empty()) texts.push_back(learned_until(chat, chat.messages.size(), learned));
  return texts;
}

std::vector<ChatText> read_learned_texts(const ChatTemplate& chat_template, Chat& chat, Learned learned) {
  try {
    std::vector<ChatText> texts = chat_template.learned_texts(chat, learned);
    if (!read_arguments(chat, texts.back().text)) return texts;
  } catch (const base::Error&) {
    if (!read_arguments(chat, std::nullopt)) throw;
  }
  return chat_template.learned_texts(chat, learned);
}

namespace {

struct NamedTemplate {
  std::string name, source, where;
};

std::vector<NamedTemplate> read_templates(const std::string& folder) {
  files::PosixFileSystem disk;
  std::vector<NamedTemplate> found;
  // Checkpoints store the tool-use template in the tokenizer folder itself.
  for (const auto& [name, file] : {std::pair{"default", files::join_path(folder, "chat_template.jinja")},
                                   {"tool_use", files::join_path(folder, path_in_directory(kToolUseTemplate))},
                                   {"tool_use", files::join_path(folder, kToolUseTemplate)}}) {
    if (disk.exists(file)) found.push_back({name, disk.read(file), file});
  }
  return found;
}

std::vector<NamedTemplate> config_templates(const std::string& folder) {
  files::PosixFileSystem disk;
  const std::string config = files::join_path(folder, "tokenizer_config.json");
  if (!disk.exists(config)) return {};
  const nlohmann::json json = files::parse_json_strictly(disk.read(config), config);
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  if (!json.is_object() || found == json.end() || found->is_null()) return {};
  const std::string where = config + ", chat_template";
  if (found->is_string()) return {{"default", found->get<std::string>(), where}};
  MPX_CHECK(found->is_array(), "text", where, " is neither a template nor a list of templates");
  std::vector<NamedTemplate> out;
  for (const auto& one : *found) {
    const std::string name = files::json_string(one, "name", where);
    out.push_back({name, files::json_string(one, "template", where), where + " " + name});
  }
  MPX_CHECK(!out.empty(), "text", where, " is an empty list; pass a template with --chat-template FILE");
  return out;
}

}  // namespace

std::optional<ChatTemplate> find_chat_template(const std::string& folder) {
  std::vector<NamedTemplate> templates = read_templates(folder);
  if (templates.empty()) templates = config_templates(folder);
  if (templates.empty()) return std::nullopt;
  const auto named = [&](const char* name) {
    return std::find_if(templates.begin(), templates.end(), [&](const auto& one) { return one.name == name; });
  };
  const auto main = named("default"), tools = named("tool_use");
  MPX_CHECK(main != templates.end(), "text", templates[0].where,
            ": there is no template named 'default'; pass a template with --chat-template FILE");
  ChatTemplate chosen(main->source, main->where, read_special_names(folder));
  if (tools != templates.end()) chosen.set_tool_use(tools->source, tools->where);
  return chosen;
}

ChatTemplate read_chat_template(const std::string& file, const std::string& folder) {
  files::PosixFileSystem disk;
  return {disk.read(file), file, folder.empty() ? SpecialNames{} : read_special_names(folder)};
}

}  // namespace metroplex::text
