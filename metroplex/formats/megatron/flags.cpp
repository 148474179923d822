#include "megatron/flags.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/join.h"

namespace metroplex::megatron {

// Megatron spells some flags with underscores (--override-opt_param-scheduler).
static std::string to_dashes(std::string flag) {
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

static std::string strip_quotes(std::string word) {
  const bool quoted_word = word.size() >= 2 && word.front() == word.back() && (word[0] == '\'' || word[0] == '"');
  return quoted_word ? word.substr(1, word.size() - 2) : word;
}

static const FlagRow* find_row(const std::string& flag) {
  for (const FlagRow& row : flag_table()) {
    if (flag == row.flag) return &row;
  }
  return nullptr;
}

static std::string join_words(const std::string& flag, const std::vector<std::string>& values) {
  std::string text = flag;
  for (const auto& value : values) text += " " + value;
  return text;
}

namespace {

// Splits a command line into flags and classifies each.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& tokens) : tokens_(tokens) {}

  void read() {
    while (at_ < tokens_.size()) read_flag();
  }
  const std::vector<GivenFlag>& flags() const { return flags_; }
  const std::vector<std::string>& refused() const { return refused_; }

  // The first word without a flag, or the first known flag with a wrong number of values; "" if there is none.
  const std::string& problem() const { return problem_; }

 private:
  bool is_value(size_t i) const { return i < tokens_.size() && tokens_[i].rfind("--", 0) != 0; }

  void read_flag() {
    const std::string token = tokens_[at_++];
    if (token.rfind("--", 0) != 0)
      return note_problem(base::concat("'", token, "' does not belong to a flag; expected a --flag",
                                       at_ > 1 ? " after '" + tokens_[at_ - 2] + "'" : ""));
    const size_t equals = token.find('=');
    const std::string written = token.substr(0, equals), flag = to_dashes(written);
    std::vector<std::string> values;
    if (equals != std::string::npos) values.push_back(token.substr(equals + 1));
    if (!refusal_reason(written).empty()) return refuse(written, values);
    if (const FlagRow* row = find_row(flag)) {
      take_values(flag, row->take, values);
      if (!is_refused_value(flag, values)) return add({row, values, written != flag});
      return refused_.push_back(join_words(flag, values) + ": this tokenizer is not implemented; expected " +
                                known_tokenizers());
    }
    const HarmlessFlag* const known = find_harmless(flag);
    if (known == nullptr) return refuse(flag, values);
    take_values(flag, known->take, values);
    const std::vector<std::string>& only = known->only;
    const bool accepted =
        only.empty() || values.empty() || std::find(only.begin(), only.end(), values[0]) != only.end();
    if (accepted) return;
    while (is_value(at_)) values.push_back(tokens_[at_++]);
    refused_.push_back(join_words(flag, values) + ": not implemented (" + known->reason + "); expected " +
                       base::join(only, ", "));
  }

  // NullTokenizer always uses its last token as end of document.
  bool is_default(const std::string& flag, const std::vector<std::string>& values) const {
    if (flag != "--null-tokenizer-eod-id" || values.size() != 1) return false;
    const auto is_last_of = [&](const std::string& size) {
      return values[0] == std::to_string(std::atoll(size.c_str()) - 1);
    };
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const std::string token = to_dashes(tokens_[i]), with_value = "--vocab-size=";
      if (token.starts_with(with_value)) return is_last_of(token.substr(with_value.size()));
      if (token == "--vocab-size" && i + 1 < tokens_.size()) return is_last_of(tokens_[i + 1]);
    }
    return false;
  }

  // argparse uses the last value of a repeated flag.
  void add(const GivenFlag& given) {
    std::erase_if(flags_, [&](const GivenFlag& earlier) { return earlier.row == given.row; });
    flags_.push_back(given);
  }

  void refuse(const std::string& flag, std::vector<std::string>& values) {
    while (is_value(at_)) values.push_back(tokens_[at_++]);
    if (is_default(flag, values)) return;
    const std::string reason = refusal_reason(flag), near = reason.empty() ? nearest_flag(flag) : "";
    refused_.push_back(join_words(flag, values) + ": " +
                       (!reason.empty() ? reason
                        : near.empty()  ? "unknown"
                                        : "unknown; did you mean " + near + "?"));
  }

  static bool is_refused_value(const std::string& flag, const std::vector<std::string>& values) {
    if (flag != "--tokenizer-type" || values.size() != 1) return false;
    return std::none_of(tokenizers().begin(), tokenizers().end(),
                        [&](const auto& type) { return strip_quotes(values[0]) == type.first; });
  }

  static std::string known_tokenizers() {
    std::vector<std::string> names;
    for (const auto& [theirs, ours] : tokenizers()) names.emplace_back(theirs);
    return base::join(names, ", ");
  }

  void take_values(const std::string& flag, ArgumentCount take, std::vector<std::string>& values) {
    const size_t needed = take == ArgumentCount::kNone ? 0 : take == ArgumentCount::kThree ? 3 : 1;
    const bool open = take == ArgumentCount::kList || take == ArgumentCount::kText;
    while (is_value(at_) && (open || values.size() < needed)) values.push_back(tokens_[at_++]);
    const bool enough = open ? !values.empty() : values.size() == needed;
    // Unquoted bash arrays keep quotes inside their words (--split '99,1,0'); Megatron accepts them.
    for (auto& value : values) value = strip_quotes(value);
    if (enough) return;
    const std::string count = needed == 0   ? "no value"
                              : open        ? "1 or more values"
                              : needed == 1 ? "1 value"
                                            : "3 values";
    note_problem(base::concat(flag, " takes ", count, ", got ", values.size()));
  }

  void note_problem(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  const std::vector<std::string>& tokens_;
  size_t at_ = 0;
  std::vector<GivenFlag> flags_;
  std::vector<std::string> refused_;
  std::string problem_;
};

}  // namespace

static void refuse_exclusive(const std::vector<GivenFlag>& flags) {
  const auto given = [&](const char* name) {
    return std::any_of(flags.begin(), flags.end(), [&](const GivenFlag& flag) { return flag.row == find_row(name); });
  };
  for (const auto& [first, second] : exclusive_flags()) {
    MPX_CHECK(!given(first) || !given(second), "config", "Megatron arguments: ", first, " and ", second,
              " are mutually exclusive; keep one");
  }
}

Arguments parse_arguments(const std::vector<std::string>& tokens, Form form, RefusalMode refused) {
  Reader reader(tokens);
  reader.read();
  if (refused == RefusalMode::kThrow && !reader.refused().empty()) {
    std::string list;
    for (const std::string& flag : reader.refused()) list += "\n  " + flag;
    base::throw_error("config", "these flags are unknown or not implemented:" + list +
                                    "\nremove them, or add --ignore-unknown-flags to run without them");
  }
  MPX_CHECK(reader.problem().empty(), "config", "Megatron arguments: ", reader.problem());
  refuse_exclusive(reader.flags());
  Arguments out = translate(reader.flags(), form);
  for (const std::string& flag : reader.refused()) out.notes.push_back("ignored: " + flag);
  return out;
}

}  // namespace metroplex::megatron
