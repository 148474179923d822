// The tokens that end an answer of a chat model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace metroplex::text {

// Returns the special token that the template writes after an answer. Returns nullopt if it writes none, or if it
// rejects a chat of one question and one answer.
std::optional<int32_t> end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Returns eos_token_id of generation_config.json in `directory`; empty if the file does not exist. Throws base::Error
// for a damaged file.
std::vector<int64_t> configured_end_tokens(const std::string& directory);

}  // namespace metroplex::text
