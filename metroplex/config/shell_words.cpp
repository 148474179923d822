#include "config/shell_words.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/error.h"

namespace metroplex::config {

namespace {

constexpr size_t kMaxWords = 100000;

// A word, or the reason why it cannot be known.
struct Word {
  std::string text;
  std::string problem;
};
using Words = std::vector<Word>;

bool name_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

class Reader {
 public:
  Reader(const std::string& text, const std::string& source) : text_(text), source_(source) {}

  // All commands of the text that are not assignments.
  std::vector<Words> commands() {
    while (at_ < text_.size()) {
      if (skip_between_words(false)) continue;
      if (separator()) {
        end_command();
      } else if (!assignment()) {
        read_word(command_);
      }
    }
    end_command();
    return std::move(commands_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  // Blanks, comments and continued lines; line ends too inside an array.
  bool skip_between_words(bool in_array) {
    const size_t begin = at_;
    if (blank(peek()) || (in_array && peek() == '\n')) {
      ++at_;
    } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      at_ += peek(1) == '\n' ? 2 : 3;
    } else if (peek() == '#') {
      while (at_ < text_.size() && peek() != '\n') ++at_;
    }
    return at_ != begin;
  }

  bool separator() {
    if (std::string("\n;&|()<>").find(peek()) == std::string::npos || peek() == '\0') return false;
    ++at_;
    return true;
  }

  void end_command() {
    if (command_.empty()) return;
    const std::string& first = command_[0].text;
    if (first == "if" || first == "for" || first == "while" || first == "until" || first == "case") ++blocks_;
    if (first == "fi" || first == "done" || first == "esac") --blocks_;
    if (!begins_command()) commands_.push_back(std::move(command_));
    command_.clear();
  }

  // Nothing yet but words that a command may stand behind.
  bool begins_command() const {
    return std::all_of(command_.begin(), command_.end(), [](const Word& word) {
      return word.text == "export" || word.text == "local" || word.text == "then" || word.text == "else" ||
             word.text == "do";
    });
  }

  // NAME=word, NAME=(words) or NAME+=(words) where a command begins.
  bool assignment() {
    size_t end = at_;
    while (end < text_.size() && name_letter(text_[end])) ++end;
    const bool append = end + 1 < text_.size() && text_[end] == '+' && text_[end + 1] == '=';
    if (!begins_command() || end == at_ || end >= text_.size() || (text_[end] != '=' && !append)) return false;
    const std::string name = text_.substr(at_, end - at_);
    at_ = end + (append ? 2 : 1);
    Words value;
    if (peek() == '(') {
      ++at_;
      read_array(name, value);
    } else {
      if (!blank(peek()) && peek() != '\n' && peek() != ';') read_word(value, true);
      if (value.empty()) value.push_back({});
    }
    if (blocks_ > 0) {
      for (Word& word : value) word.problem = "$" + name + " (set where the file decides by if, for or case)";
    }
    Words& variable = variables_[name];
    if (!append) variable.clear();
    variable.insert(variable.end(), value.begin(), value.end());
    return true;
  }

  void read_array(const std::string& name, Words& value) {
    while (peek() != ')' || at_ >= text_.size()) {
      MPX_CHECK(at_ < text_.size(), "config", source_, ": the array ", name, "=( is never closed");
      if (!skip_between_words(true)) read_word(value);
    }
    ++at_;
  }

  // One word as written; an unquoted variable may make it several, or none. `whole`: never split (an assignment).
  void read_word(Words& out, bool whole = false) {
    const size_t begin = at_;
    word_ = {};
    started_ = false;
    while (at_ < text_.size() && !blank(peek()) && std::string("\n;&|<>()").find(peek()) == std::string::npos) {
      const char c = text_[at_++];
      if (c == '\'') {
        started_ = true;
        while (peek() != '\'' || at_ >= text_.size()) take_quoted();
        ++at_;
      } else if (c == '"') {
        started_ = true;
        read_double_quoted(out);
      } else if (c == '\\') {
        if (peek() == '\n') {
          ++at_;
        } else if (at_ < text_.size()) {
          append(std::string(1, text_[at_++]));
        }
      } else if (c == '$' || c == '`') {
        expand(out, c, !whole, !whole);
      } else {
        append(std::string(1, c));
      }
    }
    finish_word(out);
    if (at_ == begin) ++at_;  // a stray bracket
    MPX_CHECK(out.size() < kMaxWords, "config", source_, ": more than ", kMaxWords, " words in one command");
  }

  void take_quoted() {
    MPX_CHECK(at_ < text_.size(), "config", source_, ": a quote is never closed");
    append(std::string(1, text_[at_++]));
  }

  void read_double_quoted(Words& out) {
    while (peek() != '"' || at_ >= text_.size()) {
      if (peek() == '\\' && std::string("\"\\$`\n").find(peek(1)) != std::string::npos && peek(1) != '\0') {
        if (peek(1) != '\n') append(std::string(1, peek(1)));
        at_ += 2;
      } else if (peek() == '$' || peek() == '`') {
        const char c = text_[at_++];
        expand(out, c, false, true);
      } else {
        take_quoted();
      }
    }
    ++at_;
  }

  void append(const std::string& text) {
    word_.text += text;
    started_ = true;
    MPX_CHECK(word_.text.size() <= (size_t{1} << 20), "config", source_, ": a word of more than a megabyte");
  }

  void finish_word(Words& out) {
    if (started_) out.push_back(std::move(word_));
    word_ = {};
    started_ = false;
  }

  void unknown(const std::string& what) {
    if (word_.problem.empty()) word_.problem = what;
    started_ = true;
  }

  // Behind a $ or a backtick. `split`: blanks in the value separate words; `many`: an array makes one word each.
  void expand(Words& out, char opener, bool split, bool many) {
    if (opener == '`' || peek() == '(') return skip_command(opener);
    const bool braces = peek() == '{';
    if (braces) ++at_;
    std::string name;
    while (at_ < text_.size() && name_letter(peek())) name += text_[at_++];
    bool all = false;
    if (braces) {
      const size_t end = text_.find('}', at_);
      MPX_CHECK(end != std::string::npos, "config", source_, ": ${", name, " is never closed");
      const std::string suffix = text_.substr(at_, end - at_);
      at_ = end + 1;
      if (suffix.rfind(":-", 0) == 0) return expand_default(out, name, suffix.substr(2), split);
      all = suffix == "[@]" || suffix == "[*]";
      if (!all && !suffix.empty()) return unknown("${" + name + suffix + "}");
    }
    const auto variable = variables_.find(name);
    if (variable == variables_.end()) return unknown("$" + name);
    const Words values = all || variable->second.empty() ? variable->second : Words{variable->second[0]};
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0 && many) finish_word(out);
      if (i > 0 && !many) append(" ");
      if (!values[i].problem.empty()) unknown(values[i].problem);
      append_value(out, values[i].text, split);
    }
  }

  // ${NAME:-text}: the text, without its quotes, where the file does not set NAME.
  void expand_default(Words& out, const std::string& name, std::string text, bool split) {
    const auto variable = variables_.find(name);
    if (variable != variables_.end() && !variable->second.empty()) {
      const Word& value = variable->second[0];
      if (!value.problem.empty()) unknown(value.problem);
      return append_value(out, value.text, split);
    }
    if (text.find_first_of("$`") != std::string::npos) return unknown("${" + name + ":-" + text + "}");
    text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == '"' || c == '\''; }), text.end());
    append_value(out, text, split);
  }

  void append_value(Words& out, const std::string& value, bool split) {
    if (!split) return append(value);
    for (const char c : value) {
      if (blank(c) || c == '\n') {
        finish_word(out);
      } else {
        append(std::string(1, c));
      }
    }
  }

  void skip_command(char opener) {
    const size_t begin = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (opener == '`' ? c == '`' : (depth += (c == '(') - (c == ')')) == 0) break;
    }
    unknown(opener + text_.substr(begin, std::min<size_t>(at_ - begin, 40)));
  }

  const std::string& text_;
  const std::string& source_;
  size_t at_ = 0;
  Words command_;
  std::vector<Words> commands_;
  std::map<std::string, Words> variables_;
  int blocks_ = 0;  // how deep inside if, for or case
  Word word_;
  bool started_ = false;
};

bool ends_with_py(const Word& word) {
  return word.text.size() > 3 && word.text.compare(word.text.size() - 3, 3, ".py") == 0;
}

}  // namespace

std::vector<std::string> training_words(const std::string& text, const std::string& source) {
  MPX_CHECK(text.size() <= (size_t{1} << 20), "config", source, ": ", text.size(), " bytes are no command line");
  const std::vector<Words> commands = Reader(text, source).commands();
  Words best, flags;
  for (const Words& command : commands) {
    const auto program = std::find_if(command.begin(), command.end(), ends_with_py);
    if (program != command.end() && command.end() - program > static_cast<std::ptrdiff_t>(best.size())) {
      best.assign(program + 1, command.end());
    }
    if (command[0].text.rfind("--", 0) == 0) flags.insert(flags.end(), command.begin(), command.end());
  }
  if (best.empty()) best = std::move(flags);
  MPX_CHECK(!best.empty(), "config", source,
            ": holds no training command; expected one such as torchrun ... pretrain_gpt.py --num-layers 12 ...");
  std::vector<std::string> words;
  for (const Word& word : best) {
    MPX_CHECK(word.problem.empty(), "config", source, ": the command uses ", word.problem, " (in '", word.text,
              "', after '", words.empty() ? "" : words.back(), "'), which the file does not set; write the value");
    words.push_back(word.text);
  }
  return words;
}

}  // namespace metroplex::config
