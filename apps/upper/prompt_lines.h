// The lines of --prompts, and those of the answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/chat_template.h"

namespace metroplex::apps {

struct PromptLine {
  nlohmann::ordered_json given;  // the line, where it was an object
  std::string prompt;
  std::optional<text::Chat> chat;  // instead of a prompt
  size_t number = 0;               // of the line, from 1
};

// Text, or JSON: a string, {"prompt": ...} or {"messages": [...]}. Empty lines are left out. Throws base::Error
// naming file and line.
std::vector<PromptLine> read_prompt_lines(const std::string& file);

// {..., "text": continuation}, or the chat with the answer behind it.
std::string answer_line(const PromptLine& line, const std::string& text);

}  // namespace metroplex::apps
