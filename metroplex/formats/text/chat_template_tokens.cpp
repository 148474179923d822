#include "text/chat_template.h"

namespace metroplex::text {

ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat) {
  ChatTokens out;
  if (chat.learned.empty()) {
    out.ids = tokenizer.encode_chat(chat.text).ids;
    out.learned.assign(out.ids.size(), 0);
    return out;
  }
  LocatedIds located = tokenizer.encode_chat(chat.text);
  out.ids = std::move(located.ids);
  auto range = chat.learned.begin();
  for (const auto& [begin, end] : located.ranges) {
    while (range != chat.learned.end() && range->second <= begin) ++range;
    out.learned.push_back(range != chat.learned.end() && range->first < end);
  }
  out.ranges = std::move(located.ranges);
  return out;
}

}  // namespace metroplex::text
