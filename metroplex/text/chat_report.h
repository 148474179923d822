// Counts over the chats of a dataset: data that was converted or is not used, and turns that do not end.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace metroplex::text {

// Several threads may add chats at once.
class ChatReport {
 public:
  // The template must outlive the report. `end_tokens`: the tokens that end a turn.
  ChatReport(const ChatTemplate& chat_template, std::vector<int32_t> end_tokens)
      : template_(chat_template), end_tokens_(std::move(end_tokens)) {}

  // `text`: the longest of the chat's texts.
  void add_chat(const Chat& chat, const ChatText& text);
  // `num_kept`: the tokens of the text that the dataset keeps, from the first.
  void add_turns(const ChatText& text, const ChatTokens& tokens, size_t num_kept);

  // A line for each fact, without a line end.
  std::vector<std::string> lines() const;

 private:
  const ChatTemplate& template_;
  std::vector<int32_t> end_tokens_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> chats_;      // a fact about chats -> how many
  std::map<std::string, int64_t> unwritten_;  // a role -> messages whose text the template does not write
  int64_t turns_ = 0, turns_without_end_ = 0;
};

}  // namespace metroplex::text
