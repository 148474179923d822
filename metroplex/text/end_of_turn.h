// The tokens that end an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace metroplex::text {

// The special token that the template writes after an answer; nullopt if it writes none, or refuses a chat of one
// question and one answer.
std::optional<int32_t> end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// eos_token_id of generation_config.json in `directory`; empty without that file. Throws base::Error for a damaged
// one.
std::vector<int64_t> configured_end_tokens(const std::string& directory);

}  // namespace metroplex::text
