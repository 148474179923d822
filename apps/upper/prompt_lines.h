// The lines of --prompts and of the answers to them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/chat_template.h"

namespace metroplex::apps {

struct PromptLine {
  nlohmann::ordered_json given;  // the line, if it is a JSON object
  std::string prompt;
  std::optional<text::Chat> chat;  // replaces `prompt`
  size_t number = 0;               // line number, from 1
};

// Lines are text or JSON: a string, {"prompt": ...} or {"messages": [...]}. Empty lines are skipped. Throws
// base::Error with file and line.
std::vector<PromptLine> read_prompt_lines(const std::string& file);

// Returns {..., "text": continuation}, or the chat with the answer appended.
std::string answer_line(const PromptLine& line, const std::string& text);

}  // namespace metroplex::apps
