// Statistics of the chats of a dataset: converted data, unused data, and turns without an end token.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace metroplex::text {

// Thread-safe.
class ChatReport {
 public:
  // The template and the tokenizer must outlive the report. `end_tokens`: the tokens that end a turn.
  ChatReport(const ChatTemplate& chat_template, const Tokenizer& tokenizer, std::vector<int32_t> end_tokens)
      : template_(chat_template), tokenizer_(tokenizer), end_tokens_(std::move(end_tokens)) {}

  // `text`: the longest of the chat's texts.
  void add_chat(const Chat& chat, const ChatText& text);
  // `num_kept`: the number of leading tokens of the text that the dataset stores.
  void add_turns(const ChatText& text, const ChatTokens& tokens, size_t num_kept);

  // One line per fact, without line ends.
  std::vector<std::string> lines() const;

 private:
  // A turn is a run of learned tokens.
  struct Turns {
    int64_t all = 0, without_end = 0;
  };
  Turns count_turns(const ChatText& text, const ChatTokens& tokens, size_t num_kept) const;

  const ChatTemplate& template_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> end_tokens_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> chats_;        // fact -> number of chats
  std::map<std::string, int64_t> unwritten_;    // role -> messages whose text the template omits
  std::map<std::string, int64_t> other_roles_;  // unknown role -> messages
  int64_t turns_ = 0, turns_without_end_ = 0;
};

}  // namespace metroplex::text
