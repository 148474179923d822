// Chat with a model: the chat template, the tokens that end an answer, single answers, and a dialog on a terminal.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "run/generate.h"

namespace metroplex::apps {

struct ChatSettings {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  text::ChatTemplate chat_template;
  std::string system;                // at the start of every chat; empty: none
  std::vector<int64_t> stop_tokens;  // from generation_config.json, plus the template's end-of-turn token
  int64_t context = 0;               // limit of prompt and answer together, in tokens

  // Returns a chat with only the system message, if any.
  text::Chat begin() const;
  void add(text::Chat& chat, const std::string& role, const std::string& content) const;
  // Returns the ids of the chat and of the generation prompt.
  std::vector<int64_t> prompt(const text::Chat& chat) const;
};

// `file`: --chat-template. `directory`: a Hugging Face model, or empty. Returns nullopt if the tokenizer's folder has
// no template and `file` is empty.
std::optional<ChatSettings> find_chatting(const config::Data& data, std::shared_ptr<const text::Tokenizer> tokenizer,
                                          const std::string& file, const std::string& directory);

// Answers typed messages until /exit or the end of the input. Collective: rank 0 reads and writes. Lines starting
// with / are commands: /reset, /system TEXT, /help, /exit. Ctrl-C stops an answer; at the prompt it ends the dialog.
void run_dialog(const step::ProcessContext& process, step::RankModel& model, const ChatSettings& chatting,
                const run::GenerateOptions& options);

}  // namespace metroplex::apps
