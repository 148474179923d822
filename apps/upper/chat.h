// A model that is talked to: the chat template and the tokens that end an answer, answers to one message, and a
// dialog on a terminal.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "train/generate.h"

namespace metroplex::apps {

struct Chatting {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  text::ChatTemplate chat_template;
  std::string system;                // in front of every chat; empty: none
  std::vector<int64_t> stop_tokens;  // of generation_config.json, and what the template puts behind an answer
  int64_t context = 0;               // tokens that prompt and answer may have together

  // [system, user] for a message alone.
  text::Chat begin() const;
  void add(text::Chat& chat, const std::string& role, const std::string& content) const;
  // Ids of the chat and of what the template writes for the answer to come.
  std::vector<int64_t> prompt(const text::Chat& chat) const;
};

// `file`: --chat-template; `directory`: of a model of Hugging Face, or empty. nullopt where the tokenizer's folder
// has no template and none is given.
std::optional<Chatting> find_chatting(const config::Data& data, std::shared_ptr<const text::Tokenizer> tokenizer,
                                      const std::string& file, const std::string& directory);

// Answers what is typed, until /exit or the end of the input. Collective: rank 0 reads and writes. A line that begins
// with / is a command: /reset, /system TEXT, /help, /exit. Ctrl-C ends an answer, and at the prompt the dialog.
void run_dialog(train::Assembly& assembly, const Chatting& chatting, const train::GenerateOptions& options);

}  // namespace metroplex::apps
